"""The end of an agent on a broker."""

from bus import topology
from bus.driver import Part, Queue
from bus.names import Names
from bus.target import APP_ID, Target, driver_for


async def remove(target: Target, agent_name: str, *, prefix: str = "a2a", shared: bool = False) -> None:
    """Take down what serving an agent leaves on a broker: its queues with all that waits in them.

    `shared` takes what all agents of the prefix share as well, for the last of them: the others are cut off. Raises
    `Refused` and `ConnectionLost`.
    """
    connection = await driver_for(target).connect(f"{APP_ID} remove {agent_name}")
    try:
        names = Names(prefix)
        lanes = (names.queue(agent_name), names.ask(agent_name), names.batch(agent_name))
        parts: list[Part] = [Queue(lane) for lane in lanes]
        if shared:
            parts += topology.whole(names, [agent_name]).parts
        await connection.delete(*parts)
    finally:
        await connection.close()
