"""The house of one process: ledger, worktrees, catalog, pipeline and agent, opened from the settings."""

import logging
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from typing import Self

import bus
from broker.agent.agent import SkillAgent
from broker.agent.signing import SigningKey, SigningKeyError
from broker.ledger.ledger import Ledger
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.reaper import Reaper
from broker.worktrees.worktrees import Worktrees
from bus.destination import Policy
from bus.discovery.vitals import Stats
from skills import Catalog, PackContext

from .release import installed_version
from .settings import Settings, SettingsError

log = logging.getLogger(__name__)


class House:
    """Everything that serves calls on this machine: the worker, the command line and the demo open the same one."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        ledger: Ledger,
        worktrees: Worktrees,
        *,
        instance: str,
        key: SigningKey,
        url: str,
    ) -> None:
        self.settings = settings
        self.catalog = catalog
        self.ledger = ledger
        self.worktrees = worktrees
        self.instance = instance
        self.signing_key = key
        release = installed_version()
        for unmet in settings.policy.unmet(skill.contract for skill in catalog):
            log.warning("the policy of this host denies nothing by what it names: %s", unmet)
        self.pipeline = Pipeline(
            catalog,
            ledger,
            worktrees,
            owner=instance,
            version=release,
            lease=settings.lease_seconds,
            policy=settings.policy,
            agent=settings.agent,
        )
        self._push = Policy(settings.push_allow, http=settings.push_http) if settings.push_notifications else None
        self.agent = SkillAgent(
            settings.agent,
            self.pipeline,
            ledger,
            version=release,
            url=url,
            key=key,
            push=self._push,
            push_limit=settings.push_configs,
        )

    @classmethod
    async def open(
        cls, settings: Settings, *, broker: str | None = None, environ: Mapping[str, str] = os.environ
    ) -> Self:
        """Load the packs, which may look at `environ`, then open the ledger and the signing key.

        `broker` is the URL that the agent is served at, where it is not the settings' own.

        A pack that can't be loaded is left out, and `catalog.problems` tells of it. Raises LedgerError, SettingsError.
        """
        context = PackContext(settings.tools, dict(environ), state_dir=settings.state_dir)
        catalog = Catalog.load(context, only=settings.only_packs, named=settings.packs, folders=settings.tools_dirs)
        ledger = await open_ledger(settings)
        try:
            key = open_signing_key(settings)
        except SettingsError:
            await ledger.close()
            raise
        url = interface_url(settings, broker)
        # An owner of leases is one process, whatever name its operator gave to several.
        instance = f"{settings.instance or 'worker'}-{secrets.token_hex(4)}"
        return cls(settings, catalog, ledger, open_worktrees(settings), instance=instance, key=key, url=url)

    async def serve(
        self, target: bus.Target, *, declare: bool = True, patience: bus.Patience | None = None
    ) -> bus.Server:
        """Take the agent's calls from `target`. Raises Refused, ConnectionLost, InvalidParams."""
        settings = self.settings
        server = await bus.serve(
            target,
            settings.agent,
            self.agent,
            prefix=settings.prefix,
            slots=settings.slots,
            instance=self.instance,
            limits=bus.Limits(body=settings.max_message_bytes),
            declare=declare,
            patience=patience,
        )
        self.pipeline.answering.answer = server.answer
        return server

    async def hold(self, server: bus.Server) -> None:
        """Let a server take no calls while the ledger is away; until cancelled."""
        watch = self.ledger.watch
        while True:
            await server.pause(f"the ledger can't be reached: {await watch.gone()}")
            await watch.back()
            await server.resume()

    async def reap(self) -> None:
        """End what workers that are gone have left, until cancelled."""
        await Reaper(self.pipeline, lease=self.settings.lease_seconds).run()

    async def listen(self, target: bus.Target, *, declare: bool = True, stats: Callable[[], Stats]) -> None:
        """Learn of cancels at once, answer who asks for this worker, and beat. Raises Refused, ConnectionLost."""
        prefix = self.settings.prefix
        await self.agent.join(target, instance=self.instance, prefix=prefix, declare=declare, stats=stats)

    async def notify(self) -> None:
        """Deliver push notifications until cancelled; comes back at once where they are switched off."""
        if self._push is None:
            return
        # Loaded here, since a call of the command line needs no HTTP client.
        from broker.push.delivery import PushDelivery
        from bus.webhook import Webhooks

        outbox, webhooks = self.ledger.outbox(self.instance), Webhooks(self._push)
        key, lease = self.signing_key, self.settings.lease_seconds
        await PushDelivery(self.settings.agent, self.pipeline, outbox, webhooks, key=key, lease=lease).run()

    async def close(self, grace: float = 0.0) -> None:
        """Let what runs end within `grace` seconds, then close the ledger."""
        try:
            await self.agent.leave()
            await self.pipeline.close(grace)
            await self.catalog.close()
        finally:
            await self.ledger.close()


async def open_ledger(settings: Settings) -> Ledger:
    """The ledger of the settings; its file and the folder of the state are made private to this user.

    Raises LedgerError, SettingsError, OSError.
    """
    settings.prepare_state_dir()
    # SQLite gives the files beside it the access that this one has. A FIFO would wait for who writes into it.
    descriptor = os.open(settings.ledger, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SettingsError([f"ledger: {settings.ledger_name} is not a regular file"])
    finally:
        os.close(descriptor)
    return await Ledger.open(settings.ledger, busy=settings.ledger_wait_seconds)


def open_signing_key(settings: Settings) -> SigningKey:
    """The key that signs the agent's cards, made by the first who asks. Raises SettingsError."""
    try:
        return SigningKey.load_or_create(settings.signing_key)
    except SigningKeyError as error:
        raise SettingsError([f"signing_key: {error}"]) from None


def interface_url(settings: Settings, broker: str | None = None) -> str:
    """Where the agent is called, as its card says it: no credentials; empty for an agent inside this process."""
    url = settings.public_url or broker or (settings.amqp_url and settings.amqp_url.get_secret_value())
    return bus.Interface.at(url, settings.agent, settings.prefix).url if url else ""


def open_worktrees(settings: Settings) -> Worktrees:
    """The worktrees of the settings."""
    return Worktrees(settings.workspaces)
