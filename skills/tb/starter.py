"""The three files to start from."""

import keyword
from collections.abc import Mapping

from .manifest import MANIFEST
from .syntax import BUILT_IN, IDENT

_CONTRACT = """\
module {module}

type {tool}Request
    query is Text

type {tool}Result
    text is Text

tool {tool}
    says "Says what this tool does, in a sentence that tells an agent when to call it."
    takes request as {tool}Request
    gives {tool}Result
"""

_MANIFEST = """\
# Which handler keeps which contract, and what it is granted. `skillbus contract check .` says what is missing.

[tools."{module}.{tool}"]
{binding}
grants = []        # what the contract requires, as ["network", "secret_read"]
scope = "tool"     # a session needs the grant {module}.{tool}=tool:BUDGET
deadline = 10      # seconds

# [secrets]
# API_KEY = "env:API_KEY"   # where the value comes from, never the value

# [memories.Notes]
# modes = ["read", "write"]
# scope = "episode"
"""

_PYTHON = '''\
"""The handlers of {module}."""


async def {function}(request: dict, context) -> dict:
    """Takes a {tool}Request, gives a {tool}Result; `context` knows the call, its deadline and what is granted."""
    return {{"text": f"You asked for {{request['query']}}."}}
'''

_JAVASCRIPT = """\
// The handlers of {module}.

/** Takes a {tool}Request, gives a {tool}Result; `context` knows the call, its deadline and what is granted. */
export async function {function}(request, context) {{
  return {{ text: `You asked for ${{request.query}}.` }};
}}
"""


MAX_NAME = 48
"""Characters of a name to start from; the names that are made of it are longer."""
_RESERVED = """
    arguments await break case catch class const continue debugger default delete do else enum eval export extends false
    finally for function if implements import in instanceof interface let new null package private protected public
    return static super switch this throw true try typeof var void while with yield
"""


def starter(name: str, *, javascript: bool = False) -> Mapping[str, str]:
    """The text of each file, by its name. Raises ValueError for a name that can't be a module's and a function's."""
    if not IDENT.fullmatch(name) or len(name) > MAX_NAME or name in _RESERVED.split() or keyword.iskeyword(name):
        raise ValueError(
            f"a name to start from has at most {MAX_NAME} small letters, digits and `_`, a letter first, "
            "and is no word of Python or JavaScript"
        )
    tool = "".join(part.capitalize() for part in name.split("_"))
    if tool in BUILT_IN:
        raise ValueError(f"a tool can't be called {tool}, which is a built-in type; take another name")
    words = {
        "module": name,
        "tool": tool,
        "function": "".join(part.capitalize() if index else part for index, part in enumerate(name.split("_")))
        if javascript
        else name,
    }
    handler = "handlers.mjs" if javascript else "handlers.py"
    binding = f'javascript = "./{handler}#{words["function"]}"' if javascript else f'python = "./{handler}:{name}"'
    return {
        f"{name}.tb": _CONTRACT.format(**words),
        MANIFEST: _MANIFEST.format(**words, binding=binding),
        handler: (_JAVASCRIPT if javascript else _PYTHON).format(**words),
    }
