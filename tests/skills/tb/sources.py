"""Contracts made at random: right ones, and what looks like one."""

from hypothesis import strategies as st

IDENTS = st.sampled_from(
    ["a", "query", "is", "as", "of", "says", "optional", "type", "module", "takes", "requires", "read", "x_1", "z9"]
)
TEXTS = st.text(st.sampled_from('ab é"\\,.#\u00a0\u200d🙂'), max_size=12)
WORDS = st.sampled_from(
    [
        "module", "type", "memory", "tool", "uses", "takes", "gives", "requires", "secrets", "says", "is", "as", "of",
        "from", "optional", "List", "Text", "Number", "A", "B", "a.b", "m", "q", "read", "write", "API_KEY", "network",
        ",", ".", '"x"', '"', "\\", "#",
        "\n", "\n    ", "\n  ", "\n        ", "\t", "\r\n", "\r", "\0", "\ufeff", "\u2028",
        "\u0085", "\x0b", "\x0c", "\u202e", "\ud800", "é", "Ａ", "𝔸", "()", "=", "return",
    ]
)  # fmt: skip
SOUP = st.lists(WORDS, max_size=60).map(" ".join) | st.lists(WORDS, max_size=60).map("".join)


@st.composite
def modules(draw: st.DrawFn) -> str:
    """A contract without faults, in any layout."""
    types = [f"T{index}" for index in range(draw(st.integers(0, 3)))]
    memories = [f"M{index}" for index in range(draw(st.integers(0, 2)))]
    width = " " * draw(st.integers(1, 9))
    deeper = width + " " * draw(st.integers(1, 9))
    blocks = [["module " + ".".join(draw(st.lists(IDENTS, min_size=1, max_size=3))), *_says(draw, "")]]

    def shape(*, optional: bool = False) -> str:
        leading = ["optional "] if optional and draw(st.booleans()) else []
        lists = ["List of "] * draw(st.integers(0, 3))
        return "".join([*leading, *lists, draw(st.sampled_from([*types, "Text", "Number", "Integer", "Boolean"]))])

    declarations = [[f"memory {name}", *_says(draw, width)] for name in memories]
    for name in types:
        lines = [f"type {name}", *_says(draw, width)]
        for field in draw(st.lists(IDENTS, min_size=1, max_size=4, unique=True)):
            lines += [f"{width}{field} is {shape(optional=True)}", *_says(draw, deeper)]
        declarations.append(lines)
    for index in range(draw(st.integers(0, 2))):
        clauses = [f"takes {draw(IDENTS)} as {shape()}", f"gives {shape()}", *_says(draw, "")]
        capabilities = draw(st.lists(st.sampled_from(["network", "secret_read", "files"]), max_size=3, unique=True))
        clauses += [f"requires {'  ,'.join(capabilities)}"] if capabilities else []
        handles = draw(st.lists(st.sampled_from(["K", "API_KEY"]), max_size=2, unique=True))
        clauses += [f"secrets {', '.join(handles)}"] if handles else []
        clauses += [f"uses memory {name} {draw(st.sampled_from(['read', 'write']))}" for name in memories]
        declarations.append([f"tool Do{index}", *(width + clause for clause in draw(st.permutations(clauses)))])
    blocks += draw(st.permutations(declarations))
    end = draw(st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\n \t\n"]))
    return draw(st.sampled_from(["", "\ufeff"])) + "".join(line + end for block in blocks for line in block)


def _says(draw: st.DrawFn, indent: str) -> list[str]:
    texts = [text.replace("\\", "\\\\").replace('"', '\\"') for text in draw(st.lists(TEXTS, max_size=2))]
    return [f'{indent}says "{text}"' for text in texts]
