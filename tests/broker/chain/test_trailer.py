import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.chain.trailer import Trailer, TrailerError

HEAD = "sha256:" + "a" * 64
trailers = st.builds(
    Trailer,
    store=st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable() and text == text.strip()),
    episode=st.from_regex(r"[a-z0-9][a-z0-9-]{0,63}", fullmatch=True),
    first=st.just(1),
    last=st.integers(1, 10**18 - 1),
    head=st.none() | st.just(HEAD),
)


def test_the_line_is_that_of_the_original() -> None:
    assert str(Trailer("/var/lib/world.db", "ep1", 3, 9)) == (
        "World-Provenance: store=/var/lib/world.db episode=ep1 entries=3-9"
    )
    assert str(Trailer("a.db", "ep1", 1, 1, HEAD)).splitlines()[1] == f"World-Head: {HEAD}"


@given(st.lists(trailers, min_size=1, max_size=4))
def test_what_is_written_is_read(given: list[Trailer]) -> None:
    text = "A subject\n\nWords: more\n" + "\n".join(map(str, given)) + "\nSigned-off-by: somebody\n"
    assert Trailer.read(text) == given
    assert Trailer.read(text.replace("\n", "\r\n")) == given


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no World-Provenance trailer"),
        ("> World-Provenance: store=a episode=ep1 entries=1-2", "no World-Provenance trailer"),
        ("World-Provenance: store=a episode=ep1 entries=2-1", "end before they begin"),
        ("World-Provenance: store=a episode=ep1 entries=0-1", "can't be read"),
        ("World-Provenance: store=a episode=Ep entries=1-1", "can't be read"),
        ("World-Provenance: store= episode=ep1 entries=1-1", "can't be read"),
        ("World-Provenance: episode=ep1 entries=1-1", "can't be read"),
        (f"World-Head: {HEAD}", "stands alone"),
        (f"World-Provenance: store=a episode=ep1 entries=1-1\nWorld-Head: {HEAD}\nWorld-Head: {HEAD}", "stands alone"),
        ("World-Provenance: store=a episode=ep1 entries=1-1\nWorld-Head: x", "can't be read"),
    ],
)
def test_what_is_no_trailer(text: str, says: str) -> None:
    with pytest.raises(TrailerError, match=says):
        Trailer.read(text)


@pytest.mark.parametrize("store", ["", " a", "a ", "a\nb", "a\x1bb"])
def test_a_store_that_can_not_stand_in_a_line(store: str) -> None:
    with pytest.raises(TrailerError):
        Trailer(store, "ep1", 1, 1)
