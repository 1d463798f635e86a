"""From characters to the tokens of the grammar: lines, indentation, and words by their place in the line.

One pass; every character is looked at a bounded number of times.
"""

import re
import unicodedata
from collections.abc import Iterator

from lark import Token

from .fault import Fault, NotAContract, Position
from .syntax import HANDLE, IDENT, MAX_DECLARATIONS, MAX_LINE, MAX_LISTS, MAX_NAME, MAX_PATH, NAME, PATH

USAGE = {
    "top": "expected: type, memory or tool",
    "module": "expected: module <name>",
    "type": "expected: type <Name>",
    "memory": "expected: memory <Name>",
    "tool": "expected: tool <Name>",
    "import": "expected: uses <Name>[, <Name>] from <module>",
    "field": "expected: <name> is <Type>",
    "takes": "expected: takes <name> as <Type>",
    "gives": "expected: gives <Type>",
    "requires": "expected: requires <capability>[, <capability>]",
    "secrets": "expected: secrets <HANDLE>[, <HANDLE>]",
    "uses": "expected: uses memory <Name> read|write",
    "says": 'expected: says "<text>"',
}
CLAUSES = ("takes", "gives", "requires", "secrets", "uses")

_PIECE = re.compile(r"[A-Za-z0-9_.]+|[^ ]")
_PIECE_OF_DOC = re.compile(r'says|"(?:[^"\\]|\\["\\])*"|[^ ]')
_IMPORT = re.compile(r"uses +[A-Z]")
_SAYS = re.compile(r'says +"')
_PIECES_OF_SECRETS = re.compile(r"[^ ,]+|,")


class Scanner:
    """The tokens of one source, in order; `kind` is the statement that the newest one belongs to."""

    def __init__(self, text: str, file: str) -> None:
        self.kind = "top"
        self._lines = text.removeprefix("\ufeff").split("\n")
        self._file = file
        self._number = 0
        self._block = ""  # the declaration that indented lines belong to
        self._widths: list[int] = []  # of the blocks that are open
        self._field = False  # whether the line before is a field, which may open a block of its own
        self._declarations = 0

    def tokens(self) -> Iterator[Token]:
        """Raises NotAContract at the first character that no statement can hold."""
        for number, line in enumerate(self._lines, 1):
            self._number = number
            line = line.removesuffix("\r")
            if len(line) > MAX_LINE:
                self._refuse("limit", 1, f"a line has at most {MAX_LINE} characters")
            words = line.strip(" \t")
            if words:
                yield from self._line(line, words)
        yield from self._close(0)

    def _line(self, line: str, words: str) -> Iterator[Token]:
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if "\t" in indent:
            self._refuse("tab", indent.index("\t") + 1, "indent with spaces")
        width = len(indent)
        self._check_characters(words, width)
        yield from self._indent(width, words)
        depth = len(self._widths)
        if depth == 0:
            pieces = list(self._top(words, width))
        elif depth == 2 or _SAYS.match(words):
            pieces = list(self._says(words, width))
        elif self._block == "type":
            pieces = list(self._statement("field", words, width))
        else:
            pieces = list(self._clause(words, width))
        self._field = self.kind == "field"
        yield from pieces
        yield self._token("NL", "", width + len(words) + 1)

    def _check_characters(self, words: str, width: int) -> None:
        if words.isascii() and words.isprintable():
            return
        for index, char in enumerate(words):
            if char == "\t":
                self._refuse("tab", width + index + 1, "separate words with spaces")
            if not (char.isprintable() or char in "\u200c\u200d" or unicodedata.category(char) == "Zs"):
                hint = "end lines with LF or CRLF" if char == "\r" else "take it out"
                self._refuse("syntax", width + index + 1, f"the character U+{ord(char):04X} can't stand here", hint)

    def _indent(self, width: int, words: str) -> Iterator[Token]:
        """Open or close blocks for a line that begins after `width` spaces."""
        current = self._widths[-1] if self._widths else 0
        if width > current:
            if not self._widths:
                opens = self._block in ("type", "tool") or (self._block == "memory" and _SAYS.match(words))
                if not opens:
                    self._refuse("indent", width + 1, "unexpected indentation", "only type and tool have a block")
                self._widths.append(width)
                yield self._token("INDENT", "", width + 1)
            elif self._field and _SAYS.match(words):
                self._widths.append(width)
                yield self._token("INDENT", "", width + 1)
            else:
                self._inconsistent(width)
        elif width < current:
            yield from self._close(width)
            if width != (self._widths[-1] if self._widths else 0):
                self._inconsistent(width)

    def _close(self, width: int) -> Iterator[Token]:
        while self._widths and self._widths[-1] > width:
            self._widths.pop()
            yield self._token("DEDENT", "", width + 1)

    def _top(self, words: str, width: int) -> Iterator[Token]:
        first = words.split(" ", 1)[0]
        if _SAYS.match(words):
            yield from self._says(words, width)
            return
        if first not in ("module", "type", "memory", "tool") and not _IMPORT.match(words):
            self.kind = "top"
            yield self._token("OTHER", "", width + 1)
            return
        self._block = first
        self._declarations += 1
        if self._declarations > MAX_DECLARATIONS:
            self._refuse("limit", 1, f"a file has at most {MAX_DECLARATIONS} declarations")
        yield from self._statement("import" if first == "uses" else first, words, width)

    def _clause(self, words: str, width: int) -> Iterator[Token]:
        first = words.split(" ", 1)[0]
        if self._block == "memory":
            self._refuse("indent", width + 1, "unexpected indentation", "a memory has no fields")
        if first == "secrets":
            yield from self._handles(words, width)
        elif first in CLAUSES:
            yield from self._statement(first, words, width)
        else:
            self.kind = "tool"
            comment = first.startswith("#")
            yield self._token("COMMENT" if comment else "HOST", "", width + 1)

    def _says(self, words: str, width: int) -> Iterator[Token]:
        self.kind = "says"
        for index, piece in enumerate(_PIECE_OF_DOC.finditer(words)):
            text, column = piece[0], width + piece.start() + 1
            if index == 0:
                yield self._token("SAYS" if text == "says" else "OTHER", "", column)
            elif len(text) > 1 and text[0] == '"':
                yield self._token("STRING", re.sub(r"\\(.)", r"\1", text[1:-1]), column)
            else:
                yield self._token("OTHER", "", column)
                return

    def _handles(self, words: str, width: int) -> Iterator[Token]:
        self.kind = "secrets"
        for index, piece in enumerate(_PIECES_OF_SECRETS.finditer(words)):
            text, column = piece[0], width + piece.start() + 1
            if index == 0:
                yield self._token("SECRETS", "", column)
            elif text == ",":
                yield self._token("COMMA", "", column)
            else:
                yield self._token("HANDLE" if HANDLE.fullmatch(text) else "VALUE", text, column)

    def _statement(self, kind: str, words: str, width: int) -> Iterator[Token]:
        self.kind = kind
        pieces = [(piece[0], width + piece.start() + 1) for piece in _PIECE.finditer(words)]
        lists = 0
        imported = False
        for index, (text, column) in enumerate(pieces):
            following = pieces[index + 1][0] if index + 1 < len(pieces) else ""
            found = _class_of(kind, index, text, following)
            if (kind == "module" and index) or imported:
                found = "PATH" if PATH.fullmatch(text) else "OTHER"
            elif kind == "import" and text == "from":
                found, imported = "FROM", True
            lists += found == "LIST"
            if lists > MAX_LISTS:
                self._refuse("limit", column, f"at most {MAX_LISTS} lists stand in each other")
            yield self._token(found, text, column)

    def _token(self, kind: str, text: str, column: int) -> Token:
        most = {"NAME": MAX_NAME, "IDENT": MAX_NAME, "HANDLE": MAX_NAME, "PATH": MAX_PATH}.get(kind)
        if most is not None and len(text) > most:
            self._refuse("limit", column, f"a name has at most {most} characters")
        return Token(kind, text, line=self._number, column=column)

    def _inconsistent(self, width: int) -> None:
        self._refuse("indent", width + 1, "inconsistent indentation", "indent the lines of a block alike")

    def _refuse(self, code: str, column: int, message: str, hint: str = "") -> None:
        raise NotAContract([Fault(code, Position(self._number, column), message, hint, self._file)])


_KEYWORDS = {
    ("module", 0): "module",
    ("type", 0): "type",
    ("memory", 0): "memory",
    ("tool", 0): "tool",
    ("import", 0): "uses",
    ("takes", 0): "takes",
    ("gives", 0): "gives",
    ("requires", 0): "requires",
    ("uses", 0): "uses",
    ("field", 1): "is",
    ("takes", 2): "as",
    ("uses", 1): "memory",
}
_FIRST_OF_SHAPE = {"field": 2, "takes": 3, "gives": 1}


def _class_of(kind: str, index: int, text: str, following: str) -> str:
    """The token that a word is at its place."""
    keyword = _KEYWORDS.get((kind, index))
    if keyword is not None:
        return keyword.upper() if text == keyword else "OTHER"
    if kind == "uses" and index == 3:
        return "MODE" if text in ("read", "write") else "OTHER"
    if index >= _FIRST_OF_SHAPE.get(kind, index + 1):
        if text in ("of", "optional"):
            return text.upper()
        if text == "List" and following == "of":
            return "LIST"
        return "NAME" if NAME.fullmatch(text) else "OTHER"
    if text == ",":
        return "COMMA"
    if NAME.fullmatch(text):
        return "NAME"
    return "IDENT" if IDENT.fullmatch(text) else "OTHER"
