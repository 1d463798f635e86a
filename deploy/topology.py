"""What the description of the broker and the broker itself disagree on: pure, nothing is asked or changed here."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bus.driver import Binding, Exchange, Part, Queue, Scalar
from bus.topology import Policy, Topology, describe

BINDINGS, ARGUMENTS, POLICIES = "bindings", "arguments", "policies"
"""What may not have been looked at."""


class Kind(StrEnum):
    """How the broker differs."""

    MISSING = "missing"
    DIFFERENT = "different"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing on which the two disagree.

    `change` is what mends it; without one, `fix` says what a person may do. `drift` is false for what is only told:
    something else under the prefix, which need not be wrong.
    """

    kind: Kind
    subject: str
    text: str
    change: Part | Policy | None = None
    fix: str = ""
    drift: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """What stands on the broker under a prefix. None is what could not be looked at.

    `exchanges` have their kind, with what is unusual about it; `queues` their arguments, or a sentence on how they
    differ. Queues that end with their connection, and what leads to them, are left out.
    """

    exchanges: Mapping[str, str | None]
    queues: Mapping[str, Mapping[str, Scalar] | str | None]
    bindings: frozenset[Binding] | None = None
    policies: Mapping[str, Policy] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The differences, in the order in which they are mended, and what could not be looked at."""

    differences: tuple[Difference, ...]
    unseen: tuple[str, ...] = ()
    _blind: tuple[Binding, ...] = field(default=(), repr=False)

    @property
    def drift(self) -> tuple[Difference, ...]:
        """What is not as it has to be."""
        return tuple(each for each in self.differences if each.drift)

    @property
    def by_hand(self) -> tuple[Difference, ...]:
        """What is not as it has to be, and only a person may mend."""
        return tuple(each for each in self.drift if each.change is None)

    @property
    def missing(self) -> tuple[Difference, ...]:
        """The exchanges, queues and bindings that are not there."""
        return tuple(each for each in self.drift if isinstance(each.change, Part))

    @property
    def limits(self) -> tuple[Difference, ...]:
        """The policies that are not there, or say something else."""
        return tuple(each for each in self.drift if isinstance(each.change, Policy))

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has to be made; bindings that can't be seen among it, since making them twice does no harm."""
        return (*(each.change for each in self.drift if isinstance(each.change, Part)), *self._blind)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that have to be set."""
        return tuple(each.change for each in self.drift if isinstance(each.change, Policy))


def plan(description: Topology, seen: Seen, *, prefix: str, vhost: str = "/") -> Plan:
    """Compare the two. `prefix` bounds what counts as extra, `vhost` stands in the commands for people."""
    at = "" if vhost == "/" else f" -p {shlex.quote(vhost)}"
    unseen = [name for name, what in ((BINDINGS, seen.bindings), (POLICIES, seen.policies)) if what is None]
    if any(arguments is None for arguments in seen.queues.values()):
        unseen.append(ARGUMENTS)
    if not description.policies:
        unseen = [name for name in unseen if name != POLICIES]
    return Plan(
        (
            *(found for part in description.parts for found in _part(part, seen, at)),
            *_policies(description, seen, at),
            *_extra(description, seen, prefix, at),
        ),
        tuple(unseen),
        tuple(part for part in description.parts if isinstance(part, Binding) and seen.bindings is None),
    )


def command(policy: Policy, vhost: str = "/") -> str:
    """The command by which an operator sets a policy by hand."""
    at = "" if vhost == "/" else f"-p {shlex.quote(vhost)} "
    name, pattern, definition = map(shlex.quote, (policy.name, policy.pattern, json.dumps(dict(policy.definition))))
    options = f"--priority {policy.priority} --apply-to queues"
    return f"rabbitmqctl set_policy {at}{options} {name} {pattern} {definition}"


def _part(part: Part, seen: Seen, at: str) -> Iterator[Difference]:
    if isinstance(part, Binding):
        if seen.bindings is not None and part not in seen.bindings:
            yield Difference(Kind.MISSING, describe(part), "is not there", part)
        return
    standing = seen.exchanges if isinstance(part, Exchange) else seen.queues
    if part.name not in standing:
        yield Difference(Kind.MISSING, describe(part), "is not there", part)
    elif isinstance(part, Exchange):
        kind = seen.exchanges[part.name]
        if kind is not None and kind != part.kind:
            fix = f"`rabbitmqadmin delete exchange name={part.name}`, then apply again: nothing waits in an exchange"
            yield Difference(Kind.DIFFERENT, describe(part), f"is {kind}, not {part.kind}", fix=fix)
    else:
        found = seen.queues[part.name]
        text = found if isinstance(found, str) or found is None else _unlike(found, part.arguments)
        if text:
            fix = (
                f"stop its workers and senders, empty it, `rabbitmqctl{at} delete_queue {part.name}`, apply again; "
                "or take another prefix, and let workers of the old one empty what is left"
            )
            yield Difference(Kind.DIFFERENT, describe(part), text, fix=fix)


def _policies(description: Topology, seen: Seen, at: str) -> Iterator[Difference]:
    if seen.policies is None:
        return
    for policy in description.policies:
        found = seen.policies.get(policy.name)
        subject = f"policy {policy.name}"
        if found is None:
            yield Difference(Kind.MISSING, subject, f"is not there: {_limits(policy)} over {policy.pattern}", policy)
        elif found != policy:
            yield Difference(Kind.DIFFERENT, subject, _unlike(_as_table(found), _as_table(policy)), policy)
    ours = {policy.name for policy in description.policies}
    for queue in (part for part in description.parts if isinstance(part, Queue)):
        mine = max((each.priority for each in description.policies if matches(each, queue.name)), default=None)
        for other in seen.policies.values():
            if mine is not None and other.name not in ours and other.priority >= mine and matches(other, queue.name):
                text = (
                    f"is under the policy {other.name} ({_limits(other)}) of priority {other.priority}, ours has {mine}"
                )
                fix = f"lower its priority or narrow its pattern, or `rabbitmqctl clear_policy{at} {other.name}`"
                yield Difference(Kind.DIFFERENT, describe(queue), text, fix=fix)


def _extra(description: Topology, seen: Seen, prefix: str, at: str) -> Iterator[Difference]:
    mine = {part.name for part in description.parts if not isinstance(part, Binding)}
    start = f"{prefix}."
    for kind, names in (("exchange", seen.exchanges), ("queue", seen.queues)):
        for name in sorted(names):
            if name.startswith(start) and name not in mine:
                yield Difference(Kind.EXTRA, f"{kind} {name}", "is not in the description", drift=False)
    routes = {(part.exchange, part.key) for part in description.parts if isinstance(part, Binding)}
    described = {part for part in description.parts if isinstance(part, Binding)}
    for binding in sorted(seen.bindings or (), key=describe):
        # One that leads to another agent's queue is that agent's affair; one that takes what is ours is not.
        if binding not in described and (binding.queue in mine or (binding.exchange, binding.key) in routes):
            fix = "take it away unless it is meant: `rabbitmqadmin delete binding`, or the page of the exchange"
            yield Difference(Kind.EXTRA, describe(binding), "leads where nothing of ours should go", fix=fix)
    ours = {policy.name for policy in description.policies}
    for name in sorted(seen.policies or ()):
        if name.startswith(start) and name not in ours and ours:
            yield Difference(Kind.EXTRA, f"policy {name}", "is not in the description", drift=False)


def matches(policy: Policy, queue: str) -> bool:
    """Whether a policy's pattern takes in a queue. A pattern that Python can't read takes in none."""
    try:
        return re.search(policy.pattern, queue) is not None
    except re.error:
        return False


def _limits(policy: Policy) -> str:
    return ", ".join(f"{name} {value}" for name, value in policy.definition.items()) or "no limits"


def _as_table(policy: Policy) -> dict[str, Scalar]:
    return {"pattern": policy.pattern, "priority": policy.priority, **policy.definition}


def _unlike(found: Mapping[str, Scalar], wanted: Mapping[str, Scalar]) -> str:
    """What differs between two tables, in words; empty when nothing does."""
    names = [*wanted, *(name for name in found if name not in wanted)]
    return "; ".join(
        f"{name} is {found.get(name, 'not set')}, not {wanted.get(name, 'set')}"
        for name in names
        if name not in found or name not in wanted or found[name] != wanted[name]
    )
