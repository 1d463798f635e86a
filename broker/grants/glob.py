"""Names with `*` and `?` in them."""

import re
from functools import lru_cache


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text is what the pattern says, in which `*` is any text and `?` any one character.

    It takes time that grows with the product of their lengths, at most.
    """
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    first, *others = (
        "".join("." if char == "?" else re.escape(char) for char in fixed) for fixed in re.split(r"\*+", pattern)
    )
    # What stands between two stars is best found where it comes first, so nothing has to be tried again.
    middle = "".join(f"(?>.*?{fixed})" for fixed in others[:-1])
    return re.compile(first + middle + (f".*{others[-1]}" if others else ""), re.DOTALL)
