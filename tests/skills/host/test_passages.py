import re

from hypothesis import given
from hypothesis import strategies as st

from skills.host.passages import MAX_HEADING, MAX_PASSAGE, Passage, passages

TEXT = """\
before any heading

# Handbook #
## Refunds
Unopened items, 30 days.

With a receipt.
```sh
# no heading
```
## Shipping

   # Other
#hash is no heading
"""


def test_a_passage_stands_under_its_headings() -> None:
    assert list(passages(TEXT)) == [
        Passage("", "before any heading"),
        Passage("Handbook > Refunds", "Unopened items, 30 days.\n\nWith a receipt.\n```sh\n# no heading\n```"),
        Passage("Other", "#hash is no heading"),
    ]


def test_a_long_paragraph_is_cut_between_words() -> None:
    found = list(passages("word " * 1_000))
    assert len(found) == 5
    assert all(re.fullmatch(r"(word )*word", passage.body) for passage in found)
    assert [len(passage.body) for passage in passages("x" * 2_500)] == [1_200, 1_200, 100]


def test_short_paragraphs_go_together() -> None:
    found = list(passages("\n\n".join(["p" * 500] * 5)))
    assert [len(passage.body) for passage in found] == [1_002, 1_002, 500]


@given(st.text(alphabet="#`~ \t\n\rab\u2028\x0c", max_size=400))
def test_nothing_is_lost_and_nothing_is_long(text: str) -> None:
    found = list(passages(text))
    assert all(0 < len(each.body) <= MAX_PASSAGE and len(each.heading) <= MAX_HEADING for each in found)
    letters = "".join(each.body for each in found)
    headings = "".join(each.heading for each in found)
    assert letters.count("a") <= text.count("a") <= (letters + headings).count("a") + text.count("#") * len(text)
    if "#" not in text:
        assert letters.count("a") == text.count("a")
