"""From a source to its parts: the grammar, and what to say where a source does not keep to it."""

from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from lark import Lark, Token, Transformer, UnexpectedToken, v_args
from lark.lexer import Lexer

from .fault import Fault, NotAContract, Position
from .scanner import USAGE, Scanner
from .syntax import (
    MAX_SOURCE,
    Declaration,
    Doc,
    Field,
    Gives,
    Import,
    Memory,
    Requires,
    Secrets,
    Shape,
    Source,
    Takes,
    Tool,
    Type,
    Uses,
    Word,
)


def parse(text: str | bytes, *, file: str = "<source>") -> Source:
    """The parts of a source; `file` is the name that its faults get. Raises NotAContract, always with one fault."""
    scanner = Scanner(_decoded(text, file), file)
    try:
        module, says, declarations = cast("Any", _grammar()).parse(scanner)
    except UnexpectedToken as error:
        token = error.token
        _refuse(error, scanner, Position(token.line or 1, token.column or 1), file)
    return Source(module, says, declarations, file)


def _decoded(text: str | bytes, file: str) -> str:
    def refuse(code: str, message: str, line: int = 1) -> NoReturn:
        raise NotAContract([Fault(code, Position(line, 1), message, file=file)])

    long = len(text) > MAX_SOURCE or (isinstance(text, str) and len(text.encode("utf-8", "replace")) > MAX_SOURCE)
    if long:
        refuse("limit", f"a source has at most {MAX_SOURCE} bytes")
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            refuse("encoding", "write the source in UTF-8", text.count(b"\n", 0, error.start) + 1)
    return text


def _refuse(error: UnexpectedToken, scanner: Scanner, at: Position, file: str) -> NoReturn:
    kind = error.token.type
    if "MODULE" in error.accepts | error.expected:
        code, message, hint = "no-module", "a file starts with: module <name>", ""
    elif kind == "MODULE":
        code, message, hint = "second-module", "one module per file", "put it into a file of its own"
    elif kind == "HOST":
        code, message = "host-code", "a tool holds clauses only, never host code"
        hint = "the code stands in the handler that the manifest names"
    elif kind == "VALUE":
        code, message = "secret-handle", "a secret is named by a handle in capitals, never by its value"
        hint = "write secrets API_KEY, and where its value comes from into the manifest"
    elif kind == "COMMENT":
        code, message = "syntax", "expected: takes, gives, requires, secrets or uses"
        hint = 'there are no comments; says "<text>" documents'
    else:
        code, message, hint = "syntax", USAGE[scanner.kind], _found(error.token)
    raise NotAContract([Fault(code, at, message, hint, file)]) from None


def _found(token: Token) -> str:
    """What stands in the wrong place, without repeating it."""
    return {
        "NL": "the line ends too early",
        "COMMA": "a comma stands where it should not",
        "SAYS": "a documentation line stands right below what it is about",
        "STRING": "a quoted text stands where it should not",
    }.get(token.type, "this does not belong here")


class _Tokens(Lexer):
    """What lark asks for tokens."""

    __future_interface__ = 2

    def __init__(self, *_: Any) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any) -> Any:
        return lexer_state.text.tokens()


@cache
def _grammar() -> Lark:
    text = Path(__file__).with_name("grammar.lark").read_text()
    return Lark(text, parser="lalr", lexer=_Tokens, transformer=_Parts(), maybe_placeholders=False)


def _at(token: Token) -> Position:
    return Position(token.line or 1, token.column or 1)


def _word(token: Token) -> Word:
    return Word(str(token), _at(token))


def _words(parts: tuple[Any, ...], kind: str) -> tuple[Word, ...]:
    return tuple(_word(part) for part in parts if isinstance(part, Token) and part.type == kind)


def _of(parts: tuple[Any, ...], kind: type | tuple[type, ...]) -> tuple[Any, ...]:
    return tuple(part for part in parts if isinstance(part, kind))


@v_args(inline=True)
class _Parts(Transformer[Token, Any]):
    """What each rule of the grammar becomes."""

    def start(self, _: Token, path: Token, __: Token, *parts: Any) -> Any:
        return _word(path), _of(parts, Doc), _of(parts, (Type, Memory, Tool, Import))

    def type(self, keyword: Token, name: Token, *parts: Any) -> Declaration:
        return Type(_word(name), _of(parts, Doc), _of(parts, Field), _at(keyword))

    def field(self, name: Token, _: Token, shape: Shape, *parts: Any) -> Field:
        return Field(_word(name), shape, _of(parts, Doc))

    def memory(self, keyword: Token, name: Token, *parts: Any) -> Declaration:
        return Memory(_word(name), _of(parts, Doc), _at(keyword))

    def tool(self, keyword: Token, name: Token, *parts: Any) -> Declaration:
        return Tool(_word(name), tuple(part for part in parts if not isinstance(part, Token)), _at(keyword))

    def import_(self, keyword: Token, *parts: Any) -> Declaration:
        (module,) = _words(parts, "PATH")
        return Import(_words(parts, "NAME"), module, _at(keyword))

    def takes(self, keyword: Token, name: Token, _: Token, shape: Shape, __: Token) -> Takes:
        return Takes(_word(name), shape, _at(keyword))

    def gives(self, keyword: Token, shape: Shape, _: Token) -> Gives:
        return Gives(shape, _at(keyword))

    def requires(self, keyword: Token, *parts: Any) -> Requires:
        return Requires(_words(parts, "IDENT"), _at(keyword))

    def secrets(self, keyword: Token, *parts: Any) -> Secrets:
        return Secrets(_words(parts, "HANDLE"), _at(keyword))

    def uses(self, keyword: Token, _: Token, memory: Token, mode: Token, __: Token) -> Uses:
        return Uses(_word(memory), str(mode), _at(keyword))

    def says(self, keyword: Token, text: Token, _: Token) -> Doc:
        return Doc(str(text), _at(keyword))

    def optional(self, keyword: Token, shape: Shape) -> Shape:
        return Shape(shape.name, shape.lists, True, _at(keyword))

    def required(self, shape: Shape) -> Shape:
        return shape

    def list(self, *parts: Token) -> Shape:
        lists = sum(part.type == "LIST" for part in parts)
        return Shape(_word(parts[-1]), lists, False, _at(parts[0]))
