"""No input makes the parser crash, hang, or take more than its share."""

import contextlib
import sys
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skills.tb import Library, NotAContract, Source, compile_source, parse
from skills.tb.syntax import MAX_LINE

from .page import ADVANCED, EXTENDED, MONEY
from .sources import SOUP, modules

LINES = 200


def taken(source: str | bytes) -> bool:
    """Whether a source is a contract; a fault has to have a place in it."""
    try:
        compile_source(source)
    except NotAContract as error:
        text = source if isinstance(source, str) else source.decode(errors="replace")
        lines = text.split("\n")
        for fault in error.faults:
            assert 1 <= fault.at.line <= len(lines)
            assert 1 <= fault.at.column <= len(lines[fault.at.line - 1]) + 2
            assert fault.code
            assert fault.message
        return False
    return True


@given(st.text() | st.binary())
@example("")
@example("\ufeff\ufeff")
@example("\0")
@example("module m\r\rtype")
def test_anything_is_a_contract_or_has_a_fault(source: str | bytes) -> None:
    assert not taken(source)


@given(SOUP, st.sampled_from(["", "module m\n", "module m\ntype A\n  ", "module m\ntool T\n  "]))
def test_so_is_what_is_made_of_its_words(soup: str, start: str) -> None:
    taken(start + soup)


@given(st.integers(0, len(EXTENDED)), st.integers(0, 40), SOUP, st.sampled_from([EXTENDED, ADVANCED]))
def test_so_is_a_contract_with_a_part_exchanged(at: int, length: int, soup: str, source: str) -> None:
    taken(source[:at] + soup[:20] + source[at + length :])


@given(modules())
def test_what_is_right_is_taken(source: str) -> None:
    assert taken(source)


def work(source: str) -> int:
    """How many functions run until the source is judged, whatever the machine."""

    def judge() -> None:
        with contextlib.suppress(NotAContract):
            compile_source(source)

    return calls_of(judge)


def calls_of(run: Callable[[], object]) -> int:
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def nested(count: int) -> str:
    return "module m\ntype A\n" + "".join(" " * (index + 1) + "q is Text\n" for index in range(count))


@pytest.mark.parametrize(
    "grown",
    [
        lambda n: "module m\n" + "".join(f"type T{i}\n  q is T{(i + 1) % n}\n" for i in range(n)),
        lambda n: "module m\ntype A\n" + "".join(f"  f{i} is Text\n" for i in range(n)),
        lambda n: "module m\n" + "".join(f"tool T{i}\n  takes x as Text\n  gives Text\n" for i in range(n)),
        lambda n: "module m\n" + "".join(f"tool T{i}\n" for i in range(n)),
        lambda n: "module m\n" + "type A\n  q is B\n" * n,
        lambda n: "module m\ntool T\n  takes x as Text\n  gives Text\n" + "  requires network\n" * n,
        lambda n: "module m\n" + "\n" * n * 20,
        lambda n: "module m\n" + 'says "a \\" b"\n' * n,
        lambda n: "module m\ntype A\n  q is Text\n" + '    says "\n' * n,
        lambda n: "module m\ntool T\n" + ("  secrets " + "A," * 300 + "\n") * n,
        lambda n: "module m\n" + (" " * (MAX_LINE - 10) + "\n") * n,
        lambda n: "module m\n" + '"' * n,
        nested,
    ],
    ids=range(13),
)  # fmt: skip
def test_twice_the_source_is_about_twice_the_work(grown: Callable[[int], str]) -> None:
    work(grown(4))  # what is made once
    assert work(grown(2 * LINES)) < 3 * work(grown(LINES)) + 1000


def test_faults_are_no_more_work_than_what_is_right() -> None:
    long = "T" * 40
    types = "".join(f"type {long}{i}\n" + "".join(f" f{j} is {long}{j}{i}x\n" for j in range(4)) for i in range(90))
    commas = "module m\ntool T\n" + ("  requires " + "a," * 500 + "a\n") * 20
    assert work("module m\n" + types) < len(types) * 100
    assert work(commas) < len(commas) * 200


def linked(index: int, count: int) -> Source:
    following = f"uses T{index + 1} from m{index + 1}\n" if index + 1 < count else ""
    return parse(f"module m{index}\n{following}type T{index}\n  q is Text\n")


def test_a_chain_of_imports_is_no_more_work_than_its_parts() -> None:
    def judge(count: int) -> int:
        library = Library([linked(index, count) for index in range(count)])
        return calls_of(lambda: library.air("m0"))

    assert judge(200) < 3 * judge(100)


def test_the_money_of_the_examples_is_right() -> None:
    assert taken(MONEY)
