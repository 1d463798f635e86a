"""The one layout: it means the same, and is its own."""

import pytest
from hypothesis import given

from skills.tb import NotAContract, compile_source, fmt, parse

from .page import ADVANCED, EXTENDED, MONEY, SIMPLE
from .sources import modules


@pytest.mark.parametrize("source", [SIMPLE, ADVANCED, MONEY, EXTENDED])
def test_the_examples_are_in_it(source: str) -> None:
    assert fmt(parse(source)) == source


@given(modules())
def test_it_means_the_same_and_formats_to_itself(source: str) -> None:
    once = fmt(parse(source))
    assert fmt(parse(once)) == once
    before, after = compile_source(source), compile_source(once)
    assert after.meaning() == before.meaning()
    assert after.address == before.address
    assert [odd.capability for odd in after.oddities] == [odd.capability for odd in before.oddities]
    assert [each.what for each in after.extensions] == [each.what for each in before.extensions]


def test_layout_is_all_that_changes() -> None:
    loose = (
        'module  m\r\n\r\n\r\ntype   A\r\n says   "x"  \r\n\r\n q   is   List   of   Text\r\nmemory N\r\n'
        "tool T\r\n  gives A\r\n  takes a as A\r\n  requires  b ,a\r\n"
    )
    assert fmt(parse(loose)) == (
        'module m\n\ntype A\n    says "x"\n    q is List of Text\n\nmemory N\n\n'
        "tool T\n    gives A\n    takes a as A\n    requires b, a\n"
    )


@pytest.mark.parametrize(
    ("source", "at"),
    [
        ("module m\ntool T\n requires " + ",".join(f"a{n}" for n in range(380)), "2:1"),
        ('module m\ntype T\n a is Text\n  says "' + "x" * 1991 + '"', "2:1"),
        ("module m\n" + "".join(f"type T{n}\n" + " a is Text\n" * 26 for n in range(800)), "1:8"),
    ],
)
def test_what_would_be_too_long_is_refused_and_not_broken(source: str, at: str) -> None:
    parsed = parse(source)
    with pytest.raises(NotAContract, match=f":{at}: laid out, .* more than"):
        fmt(parsed)
