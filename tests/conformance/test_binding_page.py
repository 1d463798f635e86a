"""docs/binding.md says what the code does: the same names, errors, operations, limits and messages."""

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import bus
from bus import hop, names
from bus.client import stream
from bus.discovery import control
from bus.discovery.vitals import INTERVAL, MOST_INTERVAL, Heartbeat, Info, Pong, Stats
from bus.limits import Limits
from bus.link import State
from bus.server import reply, server
from tests.conformance import golden

PAGE = golden.PAGE.read_text(encoding="utf-8")
TEXT, SAMPLES = PAGE.split(golden.SAMPLES)
FLAT = " ".join(TEXT.split())
DEFINED = re.findall(r"^- \*\*\[([A-Z]\d+)\]\*\*", TEXT, re.MULTILINE)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this row."""
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in table]


def test_each_requirement_has_a_number_of_its_own() -> None:
    assert len(set(DEFINED)) == len(DEFINED) > 60
    for letter in {number[0] for number in DEFINED}:
        counted = [int(number[1:]) for number in DEFINED if number[0] == letter]
        assert counted == list(range(1, len(counted) + 1)), letter


def test_every_number_that_is_named_is_there() -> None:
    assert set(re.findall(r"\*\*\[([A-Z]\d+)\]\*\*", TEXT)) <= set(DEFINED)
    cited = {
        number
        for path in Path(__file__).parent.glob("test_*.py")
        for number in re.findall(r"\[([A-Z]\d+)\]", path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 20
    assert cited <= set(DEFINED)


def test_nothing_is_demanded_without_a_number() -> None:
    for paragraph in re.split(r"\n\n|\n(?=- )", TEXT.partition("## 1.")[2]):
        if re.search(r"\b(MUST|SHOULD)\b", paragraph) and not paragraph.startswith("|"):
            assert re.match(r"\s*- \*\*\[[A-Z]\d+\]\*\*", paragraph), paragraph


def test_the_headers_are_those_of_the_code() -> None:
    table = {cells[0]: cells[2] for cells in rows("| header |")}
    known = {value for value in vars(names).values() if isinstance(value, str) and value.startswith("a2a-")}
    assert set(table) == {*known, names.TRACEPARENT, names.TRACESTATE}
    assert {name for name in re.findall(r"a2a-[a-z-]+", TEXT) if not name.endswith("-")} <= {
        *known,
        "a2a-binding",
        "a2a-extension",
        "a2a-protocol",
    }
    in_requests = {name for name, where in table.items() if "request" in where}
    # What a caller chooses, and what the client itself writes.
    written = {names.A2A_VERSION, names.DEADLINE, names.AUTHORIZATION, names.TENANT, names.ATTEMPT}
    assert in_requests - names.SET_BY_BINDING == in_requests - written
    assert in_requests & names.SET_BY_BINDING == written
    assert set(table) >= names.SET_BY_BINDING | names.SET_BY_SERVER


def test_the_errors_are_those_of_the_code() -> None:
    table = [tuple(cells[:4]) for cells in rows("| code | reason |")]
    assert len(set(table)) == len(table)
    assert set(table) == {
        (str(code), kind.reason, kind.domain, str(kind.http_status)) for code, kind in bus.ERRORS.items()
    }
    reasons = {row[1] for row in table}
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", TEXT))
    assert named <= reasons | {"INPUT_REQUIRED", "AUTH_REQUIRED"}


def test_the_operations_are_those_of_the_code() -> None:
    table = {cells[0]: cells[2] for cells in rows("| operation | request |")}
    assert set(table) == bus.OPERATIONS
    assert {name for name, replies in table.items() if replies.startswith("stream")} == names.STREAMING


def test_the_numbers_are_those_of_the_code() -> None:
    limits, stats = Limits(), {cells[0]: cells[1] for cells in rows("| what | limit |")}
    assert stats == {
        "body": f"{limits.body >> 20} MiB",
        "nesting of the JSON": f"{limits.depth} levels",
        "parts of the message in a body": str(limits.parts),
        "names and values of headers": f"{limits.headers >> 10} KiB",
        "message_id`, `correlation_id`, `reply_to": f"{names.SHORT} bytes",
        "deadline": f"{limits.horizon / 3600:g} h ahead",
        "a2a-depth": str(limits.hops),
        "requests that wait for one agent": "10 000",
    }
    assert f"at least {hop.MARGIN * 1000:g} ms before" in FLAT
    assert f"After {server.KEEPALIVE:g} seconds of an agent's silence" in FLAT
    assert f"which SHOULD be {stream.IDLE:g} seconds" in FLAT
    assert "seconds, {:g} to {:g};".format(*reply.KEEPALIVE_BOUNDS) in FLAT
    assert f"Clocks may differ by {limits.skew:g} seconds" in FLAT
    retry = bus.Retry()
    assert (retry.attempts, retry.first_reply, retry.pause, retry.spread) == (3, 15.0, 1.0, 0.2)
    assert f"{control.QUIET * 1000:g} ms after one, at most {control.MOST:g} s" in FLAT
    assert f"at most {control.MAX_BODY >> 10} KiB" in FLAT


def test_the_names_are_those_of_the_code() -> None:
    assert f"`{bus.BINDING}`" in FLAT
    for name in ("a2a.requests", "a2a.q.AGENT", "a2a.dead", "a2a.ctl", "a2a.reply.USER.ID"):
        assert name in [cells[0] for cells in rows("| name | kind |")]
    ours = bus.Names()
    assert [ours.requests, ours.queue("AGENT".lower()), ours.dead] == ["a2a.requests", "a2a.q.agent", "a2a.dead"]
    assert set(re.findall(r"`(cancel|ping|info|stats)`", TEXT)) == set(control.KINDS)


def test_the_members_of_control_messages_are_those_of_the_code() -> None:
    table = {cells[0]: cells[1].split(", ") for cells in rows("| kind | members |")}
    for kind in (Pong, Info, Stats, Heartbeat):
        parts = {field.name: field.default is MISSING for field in fields(kind)}
        counts = {field.name for field in fields(bus.ServerStats)} - {"running"} if kind is Stats else set()
        known = {
            f"*{camel(name)}*" if needed else camel(name)
            for name, needed in parts.items()
            if name not in counts | {"agent", "instance"}
        }
        assert set(table.pop(kind.KIND)) == known | ({"and counts"} if counts else set()), kind
    assert not table
    assert {state.value for state in State} == set(
        re.findall(r"`(\w+)`", FLAT.partition("`state` is ")[2].partition(":")[0])
    )
    assert f"`intervalSeconds` ({INTERVAL:g}; more than 0 and at most {MOST_INTERVAL:g})" in FLAT


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def test_the_samples_are_the_golden_messages() -> None:
    assert golden.samples() == SAMPLES
    for name in golden.SCENES:
        # Byte for byte: each body stands there as it is on the wire.
        whole = json.loads((golden.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        for message in (whole["request"], *whole["replies"]):
            assert f"\n  {message['body']}\n" in SAMPLES


def test_every_page_it_points_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert target.startswith("https://") or (golden.PAGE.parent / target).exists(), target
