import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skills.catalog
from skills import Catalog, Contract, Effect, PackContext, Plan, Skill

HERE = "a_pack_of_tests"


def skill(name: str, **contract: Any) -> Skill:
    schema = {"type": "object"}
    return Skill(
        Contract(id=name, title=name, description=name, input_schema=schema, output_schema=schema, **contract),
        lambda _: Plan.answer({}),
    )


def unwritable(name: str, what: object = object) -> Contract:
    schema = {"type": "object", "default": what}
    return Contract(id=name, title=name, description=name, input_schema=schema, output_schema=schema)


def canceled(_: PackContext) -> Iterator[Skill]:
    yield skill("half")
    raise asyncio.CancelledError


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def mute(_: PackContext) -> list[Skill]:
    raise Mute


def leaves_halfway(_: PackContext) -> Iterator[Skill]:
    yield skill("half")
    sys.exit(4)


def half(_: PackContext) -> Iterator[Skill]:
    yield skill("half")
    raise RuntimeError("no second half")


PACKS: dict[str, Any] = {
    "good": lambda _: [skill("b"), skill("a"), skill("Z"), skill("a.b")],
    "told": lambda context: [skill(context.config["name"]), skill(context.environ["NAME"])],
    "half": half,
    "raises": lambda _: 1 / 0,
    "mute": mute,
    "bad-contract": lambda _: [skill("fine"), skill("not an id")],
    "halfway": leaves_halfway,
    "leaves": lambda _: sys.exit(3),
    "canceled": canceled,
    "contractless": lambda _: [skill("fine"), Skill(None, print)],  # type: ignore[arg-type]
    "unwritable": lambda _: [replace(skill("odd"), contract=unwritable("odd"))],
    "lone": lambda _: [replace(skill("lone"), contract=unwritable("lone", "\ud800"))],
    "planless": lambda _: [replace(skill("planless"), plan=None)],  # type: ignore[arg-type]
    "text-handler": lambda _: [replace(skill("texts"), handler="x")],  # type: ignore[arg-type]
    "text-finish": lambda _: [replace(skill("texts"), finish="x")],  # type: ignore[arg-type]
    "nothing": lambda _: None,
    "wrong": lambda _: [skill("wrong"), "not a skill"],
    "twice": lambda _: [skill("twice"), skill("twice")],
    "takes": lambda _: [skill("new"), skill("a")],
    "handless": lambda _: [
        skill("handless", access=Effect(name="E", scope="s"), effects=(Effect(name="E", scope="s"),))
    ],
    "inner": type("Inner", (), {"pack": staticmethod(lambda _: [skill("inner")])}),
    "uncallable": 7,
}


@pytest.fixture(autouse=True)
def _packs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(HERE)
    vars(module).update(PACKS)
    monkeypatch.setitem(sys.modules, HERE, module)


def load(*names: str, context: PackContext | None = None) -> Catalog:
    return Catalog.load(context or PackContext(), installed=False, named=[f"{HERE}:{name}" for name in names])


def ids(catalog: Catalog) -> list[str]:
    return [each.id for each in catalog]


def test_skills_are_found_by_id_and_listed_in_byte_order() -> None:
    catalog = load("good")
    assert ids(catalog) == ["Z", "a", "a.b", "b"]
    assert len(catalog) == 4
    found = catalog.get("a")
    assert found is not None
    assert found.id == "a"
    assert catalog.get("A") is None
    assert "a" in catalog
    assert "A" not in catalog
    assert catalog.problems == ()
    assert [(pack.name, pack.source) for pack in catalog.packs] == [(f"{HERE}:good", f"{HERE}:good")]


def test_a_pack_is_told_the_configuration_and_the_environment() -> None:
    assert ids(load("told", context=PackContext({"name": "x"}, {"NAME": "y"}))) == ["x", "y"]


def test_a_pack_may_be_an_attribute_of_an_attribute() -> None:
    assert ids(load("inner.pack")) == ["inner"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "AttributeError: "),
        ("half", "RuntimeError: no second half"),
        ("raises", "ZeroDivisionError: division by zero"),
        ("leaves", "SystemExit: 3"),
        ("canceled", "CancelledError: "),
        ("contractless", "it holds a skill whose contract is a NoneType"),
        ("unwritable", "the contract of the skill 'odd' can't be written down (PydanticSerializationError)"),
        ("lone", "the contract of the skill 'lone' can't be written down (NotCanonical)"),
        ("planless", "the skill 'planless' has no plan that can be called"),
        ("text-handler", "the handler of the skill 'texts' can't be called"),
        ("text-finish", "the finish of the skill 'texts' can't be called"),
        ("halfway", "SystemExit: 4"),
        ("mute", "Mute: (an error without a text)"),
        ("bad-contract", "ValidationError: 1 validation error for Contract id "),
        ("nothing", "TypeError: "),
        ("uncallable", "TypeError: "),
        ("wrong", "it holds str, which is not a Skill"),
        ("twice", "it holds two skills with the id 'twice'"),
        ("takes", f"the id 'a' is taken by the pack '{HERE}:good'"),
        ("handless", "the skill 'handless' has effects and no handler"),
    ],
)
def test_a_pack_that_cannot_be_taken_is_left_out_whole_and_told_of(
    name: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        catalog = load("good", name, "inner.pack")
    assert ids(catalog) == ["Z", "a", "a.b", "b", "inner"]
    [problem] = catalog.problems
    assert problem.pack == f"{HERE}:{name}"
    assert problem.reason.startswith(reason)
    assert caplog.messages == [f"pack '{HERE}:{name}' is left out: {problem.reason}"]


def test_a_module_that_cannot_be_imported_is_a_problem() -> None:
    catalog = Catalog.load(PackContext(), installed=False, named=["no_such_module:pack", "skills", ""])
    assert ids(catalog) == []
    assert len(catalog.problems) == 3


def test_a_pack_named_twice_is_loaded_once() -> None:
    catalog = load("inner.pack", "inner.pack")
    assert ids(catalog) == ["inner"]
    assert catalog.problems == ()


def test_skills_may_be_added_in_code() -> None:
    catalog = Catalog()
    assert catalog.add("mine", [skill("b"), skill("a")])
    assert not catalog.add("more", [skill("a"), skill("c")])
    assert ids(catalog) == ["a", "b"]


def test_installed_packs_are_loaded_ours_first_then_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("zeta", f"{HERE}:inner.pack", skills.catalog.GROUP),
        EntryPoint("alpha", f"{HERE}:good", skills.catalog.GROUP),
        EntryPoint("omega", "skills.ours:pack", skills.catalog.GROUP),
    ]
    ours = ModuleType("skills.ours")
    vars(ours)["pack"] = lambda _: [skill("a")]
    monkeypatch.setitem(sys.modules, "skills.ours", ours)
    monkeypatch.setattr(skills.catalog, "entry_points", lambda group: points)
    catalog = Catalog.load(PackContext())
    assert [pack.name for pack in catalog.packs] == ["omega", "zeta"]
    assert [problem.pack for problem in catalog.problems] == ["alpha"]
    assert [pack.name for pack in Catalog.load(PackContext(), only={"zeta"}).packs] == ["zeta"]
    assert Catalog.load(PackContext(), only=()).packs == ()
    catalog = Catalog.load(PackContext(), only={"zeta", "zetta"})
    assert [str(problem) for problem in catalog.problems] == [
        "pack 'zetta' is left out: no pack of the group skillbus.packs has this name"
    ]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a distribution installed that registers packs of `PACKS`, each under its name."""

    def add(name: str, **points: str) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = "".join(f"{point} = {value}\n" for point, value in points.items())
        (info / "entry_points.txt").write_text(f"[{skills.catalog.GROUP}]\n{lines}")
        if str(tmp_path) not in sys.path:
            monkeypatch.syspath_prepend(str(tmp_path))

    return add


def test_who_brought_what_is_left_out_is_told(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(PACKS, "calc", lambda _: [skill("calc"), skill("mine")])
    vars(sys.modules[HERE])["calc"] = PACKS["calc"]
    install("a-first", zeta=f"{HERE}:good", gone="no_such_module:pack")
    install("b-second", alpha=f"{HERE}:calc", zeta=f"{HERE}:takes", omega=f"{HERE}:raises", fine=f"{HERE}:inner.pack")
    ours = version("skillbus")
    catalog = Catalog.load(PackContext(), only={"zeta", "gone", "alpha", "omega", "fine", "host"})
    assert [str(problem) for problem in catalog.problems] == caplog.messages == [
        f"pack 'alpha' of b-second 1.5 is left out: the id 'calc' is taken by the pack 'host' of skillbus {ours}",
        "pack 'gone' of a-first 1.5 is left out: ModuleNotFoundError: No module named 'no_such_module'",
        "pack 'omega' of b-second 1.5 is left out: ZeroDivisionError: division by zero",
        "pack 'zeta' of b-second 1.5 is left out: the id 'a' is taken by the pack 'zeta' of a-first 1.5",
    ]  # fmt: skip
    assert [(pack.name, pack.distribution) for pack in catalog.packs[1:]] == [
        ("fine", "b-second 1.5"), ("zeta", "a-first 1.5"),
    ]  # fmt: skip
    assert "mine" not in catalog
    assert "new" not in catalog


def installed() -> bool:
    try:
        return bool(distribution("skillbus").entry_points)
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not installed(), reason="needs the installed distribution, for its entry points")
def test_the_distribution_brings_its_packs() -> None:
    catalog = Catalog.load(PackContext(), only={"host", "ailang"})
    assert catalog.problems == ()
    brought = {pack.name: [skill.id for skill in pack.skills] for pack in catalog.packs}
    assert brought["ailang"] == [
        "ailang-read", "ailang-write", "ailang-edit", "ailang-check", "ailang-run", "builtins-search",
        "examples-search", "ailang-cli",
    ]  # fmt: skip
    assert {"calc", "list_files", "read_file", "write_file"} <= set(brought["host"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os:system", "TypeError: "),
        ("os:sep", "TypeError: sep is a str, not a function that makes skills"),
        ("os:path", "TypeError: path is a module, not a function that makes skills"),
        ("builtins:id", "TypeError: id gives int, not skills"),
        ("builtins:bool", "TypeError: bool gives bool, not skills"),
        ("builtins:str", "it holds str, which is not a Skill"),
        ("sys:exit", "SystemExit: "),
        ("itertools:repeat", "it holds more than 10000 skills"),
        ("os:nothing", "AttributeError: "),
        ("no.such.module:pack", "ModuleNotFoundError: "),
    ],
)
def test_what_is_no_pack_is_left_out_and_told_of(name: str, reason: str) -> None:
    catalog = Catalog.load(PackContext(), installed=False, named=[name])
    assert len(catalog) == 0
    (problem,) = catalog.problems
    assert problem.pack == name
    assert problem.reason.startswith(reason)
