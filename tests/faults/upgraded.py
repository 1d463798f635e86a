"""The pack of another release: `mark` has gone, and `mark-again` plans otherwise than `tests.faults.pack` does."""

from collections.abc import Iterable
from dataclasses import replace

from skills import PackContext, Plan, Skill

from . import pack as earlier


def pack(context: PackContext) -> Iterable[Skill]:
    (again,) = [skill for skill in earlier.pack(context) if skill.id == "mark-again"]
    return [replace(again, plan=lambda arguments: Plan.one("Test.Mark", {"of": arguments}, scope="test"))]
