"""How `.tb` sources are coloured, by Pygments; editors take `tb.tmLanguage.json` beside this file."""

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, default
from pygments.token import Error, Keyword, Name, Operator, Punctuation, String, Whitespace

_NAME = r"[A-Z][A-Za-z0-9]*"
_IDENT = r"[a-z][a-z0-9_]*"
_HANDLE = r"[A-Z][A-Z0-9_]*"


class TbLexer(RegexLexer):  # type: ignore[misc]  # Pygments has no types
    """Contracts of external effects, as skills.tb reads them."""

    name = "Skillbus contract"
    aliases: ClassVar = ["tb"]
    filenames: ClassVar = ["*.tb"]
    mimetypes: ClassVar = ["text/x-tb"]

    tokens: ClassVar = {
        "root": [
            (r"\s+", Whitespace),
            (
                rf"({_IDENT})( +)(is)(?= +(?:optional\b|[A-Z]))",
                bygroups(Name.Attribute, Whitespace, Operator.Word),
                "shape",
            ),
            (r"(says)( +)(?=\")", bygroups(Keyword, Whitespace), "text"),
            (r"(module)( +)", bygroups(Keyword.Namespace, Whitespace), "module"),
            (r"(uses)( +)(memory)\b", bygroups(Keyword, Whitespace, Keyword), "uses"),
            (r"(uses)( +)(?=[A-Z])", bygroups(Keyword.Namespace, Whitespace), "import"),
            (
                rf"(takes)( +)({_IDENT})( +)(as)\b",
                bygroups(Keyword, Whitespace, Name.Variable, Whitespace, Operator.Word),
                "shape",
            ),
            (r"(gives)\b", Keyword, "shape"),
            (r"(requires)\b", Keyword, "requires"),
            (r"(secrets)\b", Keyword, "secrets"),
            (rf"(type|memory|tool)( +)({_NAME})", bygroups(Keyword.Declaration, Whitespace, Name.Class)),
            (r"[^\n]+", Error),
        ],
        "text": [(r"\"", String.Double, "quoted"), default("#pop")],
        "quoted": [
            (r"[^\"\\\n]+", String.Double),
            (r"\\[\"\\]", String.Escape),
            (r"\"", String.Double, "#pop:2"),
            (r"\n", Whitespace, "#pop:2"),
            (r".", Error),
        ],
        "module": [(rf"{_IDENT}(\.{_IDENT})*", Name.Namespace), default("#pop")],
        "import": [
            (r" +", Whitespace),
            (r",", Punctuation),
            (r"(from)( +)", bygroups(Keyword.Namespace, Whitespace), ("#pop", "module")),
            (_NAME, Name.Class),
            default("#pop"),
        ],
        "shape": [
            (r" +", Whitespace),
            (r"optional\b|List(?= +of\b)|of\b", Keyword.Type),
            (r"(Text|Number|Integer|Boolean)\b", Keyword.Type),
            (_NAME, Name.Class),
            default("#pop"),
        ],
        "requires": [(r" +", Whitespace), (r",", Punctuation), (_IDENT, Name.Constant), default("#pop")],
        "secrets": [(r" +", Whitespace), (r",", Punctuation), (_HANDLE, Name.Constant), default("#pop")],
        "uses": [(r" +", Whitespace), (r"(read|write)\b", Keyword), (_NAME, Name.Class), default("#pop")],
    }
