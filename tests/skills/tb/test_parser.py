"""Where each fault is found, and what is said of it."""

import pytest

from skills.tb import NotAContract, compile_source, parse
from skills.tb.syntax import MAX_DECLARATIONS, MAX_LINE, MAX_LISTS, MAX_NAME, MAX_SOURCE

from .page import ADVANCED, BOTH, EXTENDED, PREFIX, SIMPLE, tool


def fault(source: str | bytes) -> str:
    with pytest.raises(NotAContract) as caught:
        compile_source(source, file="f.tb")
    first = caught.value.faults[0]
    assert str(caught.value) == str(first)
    return f"{first.code} {first}"


CLAUSE = "expected: takes, gives, requires, secrets or uses"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "no-module f.tb:1:1: a file starts with: module <name>"),
        ("\n\n  \n", "no-module f.tb:1:1: a file starts with: module <name>"),
        ("\ntype A\n", "no-module f.tb:2:1: a file starts with: module <name>"),
        ("return 1\n", "no-module f.tb:1:1: a file starts with: module <name>"),
        ("  module m\n", "indent f.tb:1:3: unexpected indentation; only type and tool have a block"),
        ("module\n", "syntax f.tb:1:7: the line ends too early; expected: module <name>"),
        ("module A.b\n", "syntax f.tb:1:8: this does not belong here; expected: module <name>"),
        ("module a . b\n", "syntax f.tb:1:10: this does not belong here; expected: module <name>"),
        ("module m\n# a comment\n", "syntax f.tb:2:1: this does not belong here; expected: type, memory or tool"),
        ("module m\nimport other\n", "syntax f.tb:2:1: this does not belong here; expected: type, memory or tool"),
        ("module m\nfrom a uses B\n", "syntax f.tb:2:1: this does not belong here; expected: type, memory or tool"),
        ("module m\ntype in\n", "syntax f.tb:2:6: this does not belong here; expected: type <Name>"),
        ("module m\ntype A B\n", "syntax f.tb:2:8: this does not belong here; expected: type <Name>"),
        ("module m\ntype A\n    # no\n", "syntax f.tb:3:5: this does not belong here; expected: <name> is <Type>"),
        ("module m\ntype A\n  q as Text\n", "syntax f.tb:3:5: this does not belong here; expected: <name> is <Type>"),
        ("module m\ntype A\n  q is\n", "syntax f.tb:3:7: the line ends too early; expected: <name> is <Type>"),
        ("module m\ntype A\n  q is List of\n", "syntax f.tb:3:15: the line ends too early; expected: <name> is <Type>"),
        ("module m\ntype A\n  q is List of optional Text\n", "expected: <name> is <Type>"),
        ("module m\ntype A\n  says hello\n", "expected: <name> is <Type>"),
        ('module m\ntype A\n  says "a" b\n', 'syntax f.tb:3:12: this does not belong here; expected: says "<text>"'),
        ('module m\ntype A\n  says "a\n', 'syntax f.tb:3:8: this does not belong here; expected: says "<text>"'),
        ('module m\ntype A\n  q is Text\n  says "late"\n', 'below what it is about; expected: says "<text>"'),
        ('module m\ntype A\n  q is Text\n\n    r is Text\n', "indent f.tb:5:5: inconsistent indentation"),
        ('module m\ntype A\n  q is Text\n      says "a"\n    says "b"\n', "indent f.tb:5:5: inconsistent"),
        ("module m\nmemory N extra\n", "syntax f.tb:2:10: this does not belong here; expected: memory <Name>"),
        ("module m\nuses A, from b\n", "syntax f.tb:2:9: this does not belong here; expected: uses <Name>"),
        ("module m\nuses memory N read\n", "f.tb:2:1: this does not belong here; expected: type, memory or tool"),
        (tool(*BOTH, "# no"), f"syntax f.tb:12:5: there are no comments; says \"<text>\" documents; {CLAUSE}"),
        (tool("takes x"), "syntax f.tb:10:12: the line ends too early; expected: takes <name> as <Type>"),
        (tool("takes x as optional In"), "syntax f.tb:10:16: this does not belong here; expected: takes"),
        (tool("gives"), "syntax f.tb:10:10: the line ends too early; expected: gives <Type>"),
        (tool("requires a b"), "syntax f.tb:10:16: this does not belong here; expected: requires"),
        (tool("requires ,"), "syntax f.tb:10:14: a comma stands where it should not; expected: requires"),
        (tool("secrets"), "syntax f.tb:10:12: the line ends too early; expected: secrets <HANDLE>[, <HANDLE>]"),
        (tool("uses memory N read, write"), "syntax f.tb:10:23: a comma stands where it should not; expected: uses"),
        (tool("uses memory N append"), "syntax f.tb:10:19: this does not belong here; expected: uses memory"),
        (tool(*BOTH, "says hello"), "host-code f.tb:12:5: a tool holds clauses only, never host code"),
        (tool(*BOTH, "  requires network"), "indent f.tb:12:7: inconsistent indentation"),
        (tool("takes\tx as In"), "tab f.tb:10:10: separate words with spaces"),
        (PREFIX + "tool Do\n \ttakes x as In\n", "tab f.tb:10:2: indent with spaces"),
        ("module m\rtype A\r", "syntax f.tb:1:9: the character U+000D can't stand here; end lines with LF or CRLF"),
        ("module m\0\n", "syntax f.tb:1:9: the character U+0000 can't stand here; take it out"),
        ("module m\u2028type A\n", "syntax f.tb:1:9: the character U+2028 can't stand here"),
        ('module m\nsays "\u202e"\n', "syntax f.tb:2:7: the character U+202E can't stand here"),
        ("module m\nmodule \ufeffm\n", "syntax f.tb:2:8: the character U+FEFF can't stand here"),
        ("module m\u00a0\n", "syntax f.tb:1:9: this does not belong here"),
        ("module\u00a0m\n", "no-module f.tb:1:1"),
        (b"module m\n\xff\n", "encoding f.tb:2:1: write the source in UTF-8"),
    ],
)  # fmt: skip
def test_a_fault_of_the_form_has_its_place_and_says_what_is_right(source: str | bytes, says: str) -> None:
    assert says in fault(source)


@pytest.mark.parametrize(
    "source",
    [
        tool(*BOTH, "secrets hunter2-s3cret"),
        tool(*BOTH, "secrets A, 's3cret'"),
        tool(*BOTH, 'secrets "s3cret"'),
        tool(*BOTH, "requires s3cret!"),
        tool(*BOTH, "s3cret()"),
        tool("takes s3cret as s3cret"),
        "module m\ns3cret\n",
        "module m\ntype s3cret\n",
        "s3cret",
    ],
)
def test_what_is_no_name_is_not_repeated(source: str) -> None:
    with pytest.raises(NotAContract) as caught:
        compile_source(source)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in str(caught.value.faults[0].as_json())


def test_a_secret_that_is_no_handle_is_refused_as_one() -> None:
    assert fault(tool(*BOTH, "secrets lower")).startswith("secret-handle f.tb:12:13: ")
    assert fault(tool(*BOTH, "secrets A, b")).startswith("secret-handle f.tb:12:16: ")


@pytest.mark.parametrize(
    "word", ["module", "type", "memory", "tool", "takes", "is", "as", "says", "optional", "of", "read"]
)
def test_no_keyword_is_taken_from_the_names(word: str) -> None:
    source = f"module {word}.m\ntype A\n  {word} is Text\ntool Do\n  takes {word} as A\n  gives A\n  requires {word}\n"
    air = compile_source(source)
    assert air.core()["types"] == {"A": {word: "Text"}}
    assert air.tools[0].requirements.capabilities == (word,)


def test_a_type_may_be_called_list() -> None:
    air = compile_source("module m\ntype List\n  q is List\n  r is optional Text\n  s is optional List of List\n")
    assert air.core()["types"] == {"List": {"q": "List", "r": "optional Text", "s": "optional List of List"}}


@pytest.mark.parametrize("source", [SIMPLE, ADVANCED, EXTENDED])
def test_line_ends_empty_lines_and_a_mark_at_the_start_change_nothing(source: str) -> None:
    parts = parse(source)
    for other in (source.replace("\n", "\r\n"), "\ufeff" + source, source.rstrip("\n"), source.replace("\n", "  \n")):
        assert parse(other) == parts
        assert parse(other.encode()) == parts
    spread = parse(source.replace("\n", "\n \t\n"))
    assert [type(each) for each in spread.declarations] == [type(each) for each in parts.declarations]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("module m\n" + " " * (MAX_LINE + 1), f"2:1: a line has at most {MAX_LINE} characters"),
        ("a" * (MAX_SOURCE + 1), f"1:1: a source has at most {MAX_SOURCE} bytes"),
        (b"\xff" * (MAX_SOURCE + 1), f"1:1: a source has at most {MAX_SOURCE} bytes"),
        ("é" * (MAX_SOURCE // 2 + 1), f"1:1: a source has at most {MAX_SOURCE} bytes"),
        ("module m\ntype " + "A" * (MAX_NAME + 1), f"2:6: a name has at most {MAX_NAME} characters"),
        ("module m" + ".m" * 50, "1:8: a name has at most 100 characters"),
        ("module m\n" + "memory N\n" * MAX_DECLARATIONS, f"a file has at most {MAX_DECLARATIONS} declarations"),
        ("module m\ntype A\n q is " + "List of " * (MAX_LISTS + 1) + "Text", f"at most {MAX_LISTS} lists"),
        ("module " + "m" * 64 + "\ntool " + "T" * 64 + "\n takes x as Text\n gives Text", "at most 128 characters"),
    ],
    ids=range(9),
)
def test_there_is_an_end_to_everything(source: str | bytes, says: str) -> None:
    text = fault(source)
    assert text.startswith("limit ")
    assert says in text
