"""Every recorded row, exactly."""

from typing import Any

import pytest

from skills.tb import Bound, NotAContract, compile_source, fmt, manifest, parse, satisfy

from .page import ADVANCED, SIMPLE, VECTORS

COMPILED = [row for row in VECTORS if row["kind"] == "compile"]
BINDS = [row for row in VECTORS if row["kind"] == "bind"]
SOURCES = {"ex01-simple": SIMPLE, "ex02-advanced": ADVANCED} | {row["id"]: row["source"] for row in COMPILED}


def compiled(source: str) -> dict[str, Any]:
    try:
        air = compile_source(source)
    except NotAContract as error:
        fault = error.faults[0]
        return {"error": {"code": fault.code, "line": fault.at.line, "message": fault.message}}
    return {"air": air.core(), "warnings": [oddity.as_json() for oddity in air.oddities]}


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: row["id"])
def test_a_source_compiles_as_recorded(row: dict[str, Any]) -> None:
    assert compiled(row["source"]) == row["output"]


@pytest.mark.parametrize("row", [row for row in COMPILED if "air" in row["output"]], ids=lambda row: row["id"])
def test_its_layout_and_its_whole_air_say_the_same(row: dict[str, Any]) -> None:
    air = compile_source(row["source"]).as_json()
    core = row["output"]["air"]
    assert {name: air[name] for name in core} == core
    assert compiled(fmt(parse(row["source"])))["air"] == core
    assert not compile_source(row["source"]).extensions


@pytest.mark.parametrize("row", BINDS, ids=lambda row: row["id"])
def test_a_manifest_binds_as_recorded(row: dict[str, Any]) -> None:
    outcome = satisfy(compile_source(SOURCES[row["source_of"]]), manifest(row["manifest"]), row["tool"])
    expected = row["output"]
    assert isinstance(outcome, Bound) == ("dispatch" in expected)
    if not isinstance(outcome, Bound):
        assert str(outcome) == expected["refused"]


def test_both_kinds_of_rows_are_there() -> None:
    assert len(COMPILED) > 20
    assert len(BINDS) > 5
