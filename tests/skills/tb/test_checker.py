"""What is found about names and clauses, and what is only warned of."""

import pytest

from skills.tb import Library, NotAContract, compile_source, parse

from .page import BOTH, EXTENDED, MONEY, SIMPLE, tool


def faults(source: str, *others: str) -> list[str]:
    library = Library([parse(text, file=f"{index}.tb") for index, text in enumerate((source, *others))])
    return [f"{fault.code} {fault}" for fault in library.faults]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (tool("takes x as Input", "gives Out"), "unknown-type 0.tb:10:16: unknown type Input; declare type Input"),
        (tool("takes x as Inn", "gives Out"), "unknown-type 0.tb:10:16: unknown type Inn; did you mean In?"),
        (tool("takes x as Do", "gives Out"), "unknown-type 0.tb:10:16: unknown type Do; declare type Do"),
        ("module m\ntype A\n  r is B\n", "unknown-type 0.tb:3:8: unknown type B; declare type B"),
        (tool(), "missing-takes 0.tb:9:1: tool Do has no takes clause; add: takes <name> as <Type>"),
        (tool("takes x as In"), "missing-gives 0.tb:9:1: tool Do has no gives clause; add: gives <Type>"),
        (tool(*BOTH, "gives In"), "duplicate-clause 0.tb:12:5: gives appears twice; keep one of them"),
        (tool(*BOTH, "requires a, b", "requires a"), "duplicate-capability 0.tb:13:14: capability a is listed twice"),
        (tool(*BOTH, "secrets A", "secrets B, A"), "duplicate-secret 0.tb:13:16: secret A is listed twice"),
        (tool(*BOTH, "uses memory Notes read"), "unknown-memory 0.tb:12:17: unknown memory Notes; declare it"),
        (tool(*BOTH, "uses memory In read"), "unknown-memory 0.tb:12:17: unknown memory In"),
        (tool(*BOTH) + "tool Do\n  takes x as In\n  gives In\n", "duplicate-name 0.tb:12:6: Do is declared twice"),
        ("module m\nmemory A\ntype A\n  q is Text\n", "duplicate-name 0.tb:3:6: A is declared twice"),
        ("module m\nmemory Number\n", "duplicate-name 0.tb:2:8: Number is a built-in type; take another name"),
        ("module m\ntype A\n  q is Text\n  q is Text\n", "duplicate-field 0.tb:4:3: field q is declared twice"),
        ('module m\ntype A\n  says "no field"\n', "empty-type 0.tb:2:1: type A has no field"),
        ("module m\nuses A from other\n", "unknown-module 0.tb:2:13: unknown module other; put the file that begins"),
        ("module m\nuses A from m\n", "unknown-module 0.tb:2:13: a module does not import from itself"),
    ],
)  # fmt: skip
def test_a_fault_names_its_place_and_what_is_right(source: str, says: str) -> None:
    assert says in faults(source)[0]


def test_every_fault_of_a_source_is_told_in_the_order_of_its_lines() -> None:
    found = faults("module m\ntool A\n  takes x as B\ntype C\ntool D\n  gives E\n")
    assert [text.split(":")[1] for text in found] == ["2", "3", "4", "5", "6"]


def test_no_more_than_a_hundred_are_told() -> None:
    assert len(faults("module m\ntype A\n" + "".join(f"  f{index} is B\n" for index in range(500)))) == 100


def test_imports_lead_to_types_and_memories_of_other_modules() -> None:
    other = "module b\ntype A\n  q is Text\nmemory N\ntool T\n  takes x as A\n  gives A\n"
    assert faults("module a\nuses A, N from b\ntool D\n  takes x as A\n  gives A\n  uses memory N read\n", other) == []
    assert "unknown-name 0.tb:2:6: module b declares no T; types and" in faults("module a\nuses T from b\n", other)[0]
    assert "duplicate-name 0.tb:2:9: A is declared twice" in faults("module a\nuses A, A from b\n", other)[0]
    assert "duplicate-name 0.tb:3:6" in faults("module a\nuses A from b\ntype A\n  q is Text\n", other)[0]
    (fault,) = faults("module a\nuses A from b\n", "module b\nuses C from a\ntype A\n  q is Text\n")
    assert fault.startswith("unknown-name 1.tb:2:6: module a declares no C; types and memories can be imported")


def test_modules_may_import_from_each_other() -> None:
    one = "module a\nuses B from b\ntype A\n  b is optional B\n"
    two = "module b\nuses A from a\ntype B\n  a is A\n"
    assert faults(one, two) == []
    assert set(Library([parse(one), parse(two)]).air("a").schemas) == {"A", "b.B"}


def test_what_imports_from_a_module_with_faults_has_no_air() -> None:
    library = Library([parse(text) for text in (EXTENDED, MONEY.replace("is Currency", "is Coin"))])
    with pytest.raises(NotAContract, match=r"4:17: module shop\.money has faults; mend them first"):
        library.air("shop.orders")
    deep = ["module a\nuses B from b\n", "module b\nuses C from c\ntype B\n  q is Text\n", "module c\ntype C\n"]
    with pytest.raises(NotAContract, match=r"module [bc] has faults"):
        Library(map(parse, deep)).air("a")


def test_a_module_is_one_file() -> None:
    assert faults("module m\n", "module m\n") == [
        "duplicate-module 1.tb:1:8: module m is declared twice; 0.tb is that module; name this one otherwise"
    ]


def test_each_use_of_an_extension_is_known_by_its_place() -> None:
    found = Library([parse(EXTENDED), parse(MONEY)]).air("shop.orders").extensions
    assert [f"{each.at.line}:{each.at.column} {each.what}" for each in found] == [
        "2:1 a documentation line",
        "4:1 an import",
        "7:5 a documentation line",
        "8:15 the type Integer",
        "9:13 the type Boolean",
        "10:13 an optional field",
        "11:9 a documentation line",
        "12:14 a list",
        "13:15 an optional field",
        "17:15 the type Number",
        "21:5 a documentation line",
        "24:5 a documentation line",
        "25:5 a documentation line",
        "26:21 a list",
        "27:11 the type Number",
    ]
    assert str(found[1]) == "<source>:4:1: an import is an extension of the language"
    assert compile_source(SIMPLE).extensions == ()


@pytest.mark.parametrize(
    ("clauses", "warnings", "capabilities"),
    [
        (["secrets B, A"], [("implied-capability", 12, "secret_read")], ["secret_read"]),
        (["requires secret_read"], [("unused-capability", 12, "secret_read")], ["secret_read"]),
        (["requires memory_write, memory_read", "uses memory N read"],
         [("unused-capability", 12, "memory_write")], ["memory_read", "memory_write"]),
        (["requires files, network"], [("unknown-capability", 12, "files")], ["files", "network"]),
        (["uses memory N write", "secrets A", "requires x"],
         [("implied-capability", 12, "memory_write"), ("implied-capability", 13, "secret_read"),
          ("unknown-capability", 14, "x")], ["memory_write", "secret_read", "x"]),
    ],
)  # fmt: skip
def test_what_is_odd_is_warned_of_and_what_is_derived_is_required(
    clauses: list[str], warnings: list[tuple[str, int, str]], capabilities: list[str]
) -> None:
    air = compile_source(tool(*BOTH, *clauses) + "memory N\n")
    assert [(odd.code, odd.at.line, odd.capability) for odd in air.oddities] == warnings
    assert list(air.tools[0].requirements.capabilities) == capabilities
    assert all(str(odd).startswith(f"<source>:{odd.at.line}:") and odd.capability in str(odd) for odd in air.oddities)
