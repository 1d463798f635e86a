"""How Skillbus is run: settings, logs, the house of a process, the worker, the command line, a private RabbitMQ node.

This module is the map: what is public stands here. It loads nothing before it is asked for, since the command line
must be quick to say what it can do.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .child import Child
    from .demo import show
    from .house import House
    from .rabbitmq import NodeError, PrivateNode
    from .settings import Setting, Settings, SettingsError
    from .topology_broker import TopologyBroker
    from .worker import Worker

_MODULES = {
    # Serving
    "House": "house",
    "Worker": "worker",
    # The settings
    "Settings": "settings",
    "Setting": "settings",
    "SettingsError": "settings",
    # A broker of one's own, and the child process that it is
    "PrivateNode": "rabbitmq",
    "NodeError": "rabbitmq",
    "Child": "child",
    # What has to stand on a broker, compared and made
    "TopologyBroker": "topology_broker",
    # The main job, shown
    "show": "demo",
}

__all__ = [
    "Child",
    "House",
    "NodeError",
    "PrivateNode",
    "Setting",
    "Settings",
    "SettingsError",
    "TopologyBroker",
    "Worker",
    "show",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
