"""The neutral form: its schema, its addresses, and the JSON Schemas in it."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import skills.tb
from skills.tb import Air, Library, NotAContract, compile_source, parse, problems

from .page import ADVANCED, BOTH, EXTENDED, MONEY, SIMPLE, VECTORS, tool

SCHEMA = json.loads((Path(skills.tb.__file__).parent / "air.schema.json").read_text())


def extended() -> Air:
    return Library([parse(EXTENDED), parse(MONEY)]).air("shop.orders")


def test_its_published_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def every_air() -> list[Air]:
    rows = [row["source"] for row in VECTORS if row["kind"] == "compile" and "air" in row["output"]]
    return [extended(), *(compile_source(source) for source in (SIMPLE, ADVANCED, *rows))]


def test_every_air_is_as_its_schema_says() -> None:
    validator = Draft202012Validator(SCHEMA)
    for air in every_air():
        validator.validate(json.loads(json.dumps(air.as_json())))
        for each in air.tools:
            Draft202012Validator.check_schema(each.input)
            Draft202012Validator.check_schema(each.output)


@pytest.mark.parametrize(
    "missing", ["air", "module", "types", "tools", "schemas", "interfaces", "positions", "address"]
)
def test_the_schema_asks_for_each_part(missing: str) -> None:
    air = extended().as_json()
    del air[missing]
    assert not Draft202012Validator(SCHEMA).is_valid(air)
    assert not Draft202012Validator(SCHEMA).is_valid(extended().as_json() | {"other": 1})


def test_types_are_json_schemas() -> None:
    schemas = extended().schemas
    assert list(schemas) == ["Line", "Order", "shop.money.Currency", "shop.money.Money"]
    assert schemas["Order"] == {
        "type": "object",
        "description": "What a customer wants.",
        "properties": {
            "number": {"type": "integer"},
            "paid": {"type": "boolean"},
            "note": {"type": "string", "description": 'A "quoted" word, and a \\.'},
            "lines": {"type": "array", "items": {"$ref": "#/schemas/Line"}},
            "before": {"$ref": "#/schemas/Order"},
        },
        "required": ["number", "paid", "lines"],
        "additionalProperties": False,
    }
    assert schemas["shop.money.Money"]["properties"]["currency"] == {"$ref": "#/schemas/shop.money.Currency"}


ORDER: dict[str, Any] = {"number": 1, "paid": True, "lines": []}
LINE: dict[str, Any] = {"total": {"cents": 1, "currency": {"code": "EUR"}}, "weight": 0.5, "says": "x"}
VALUES: list[tuple[Any, bool]] = [
    ({"orders": []}, True),
    ({"orders": [ORDER]}, True),
    ({"orders": [{**ORDER, "lines": [LINE], "note": "", "before": {**ORDER, "before": ORDER}}]}, True),
    ({"orders": [{**ORDER, "lines": [{**LINE, "total": {"cents": 1, "currency": {}}}]}]}, False),
    ({"orders": [{**ORDER, "number": 1.5}]}, False),
    ({"orders": [{**ORDER, "number": 2.0}]}, True),
    ({"orders": [{**ORDER, "number": True}]}, False),
    ({"orders": [{**ORDER, "paid": 1}]}, False),
    ({"orders": [{**ORDER, "note": None}]}, False),
    ({"orders": [{**ORDER, "other": 1}]}, False),
    ({"orders": [{**ORDER, "before": {}}]}, False),
    ({"orders": "ab"}, False),
    ({"orders": {}}, False),
    ({}, False),
    ([], False),
    ("orders", False),
]


@pytest.mark.parametrize(("value", "fits"), VALUES)
def test_a_value_is_judged_as_json_schema_judges_it(value: Any, fits: bool) -> None:
    schema = extended().tools[0].input
    assert Draft202012Validator(schema).is_valid(value) == fits
    assert (problems(schema, value) == []) == fits


def test_what_is_wrong_with_a_value_is_named_without_repeating_it() -> None:
    schema = extended().tools[0].input
    bad = {"orders": [{"number": "s3cret", "paid": True, "lines": [1], "x": "s3cret"}]}
    assert problems(schema, bad) == [
        'unknown field "x" in orders[0]; known: number, paid, note, lines, before',
        "orders[0].number must be a whole number",
        "orders[0].lines[0] must be an object",
    ]
    assert problems(schema, {}) == ['missing field "orders"']
    assert problems(schema, {"orders": [0] * 1000})[-1] == "orders[19] must be an object"
    assert len(problems(schema, {"orders": [0] * 1000})) == 20
    assert problems(schema, float("nan")) == ["it must be an object"]
    assert problems({"type": "number"}, float("nan")) == ["it must be a number"]


def test_a_value_of_any_depth_is_judged() -> None:
    value: dict[str, Any] = ORDER
    for _ in range(20_000):
        value = {**ORDER, "before": value}
    assert problems(extended().tools[0].input, {"orders": [value]}) == []


def test_what_is_no_declared_type_stands_in_an_object() -> None:
    (only,) = extended().tools
    assert (only.input_member, only.output_member) == ("orders", "result")
    assert only.output["properties"] == {"result": {"type": "number"}}
    (simple,) = compile_source(SIMPLE).tools
    assert (simple.input_member, simple.output_member) == (None, None)
    assert list(simple.input["properties"]) == ["query"]
    assert "$defs" not in simple.input


def test_the_address_is_that_of_the_meaning() -> None:
    air = compile_source(SIMPLE)
    assert air.address.startswith("sha256:")
    moved = compile_source("\n" + SIMPLE.replace("    ", "  "), file="elsewhere.tb")
    assert (moved.address, moved.tools[0].address) == (air.address, air.tools[0].address)
    assert moved.as_json()["positions"] != air.as_json()["positions"]
    turned = SIMPLE.replace(
        "    gives DatasetSearchResult\n    requires network", "    requires network\n    gives DatasetSearchResult"
    )
    assert compile_source(turned).address == air.address
    for change in (
        ("network", "net"),
        ("query", "words"),
        ("SearchDatasets", "Search"),
        ("title is Text", "title is Number"),
    ):
        assert compile_source(SIMPLE.replace(*change)).address != air.address
    documented = SIMPLE.replace("    takes", '    says "x"\n    takes')
    assert compile_source(documented).tools[0].address != air.tools[0].address


def test_an_imported_type_counts_for_the_address() -> None:
    changed = MONEY.replace("code is Text", "code is Number")
    assert Library([parse(EXTENDED), parse(changed)]).air("shop.orders").address != extended().address


def test_positions_lead_back_to_the_source() -> None:
    positions = extended().as_json()["positions"]
    assert (positions[""], positions["Order"], positions["Order.note"]) == ([1, 8], [6, 1], [10, 5])
    assert (positions["Ledger"], positions["Total"], positions["Total.gives"]) == ([20, 1], [23, 1], [27, 5])


def test_no_secret_gets_in() -> None:
    with pytest.raises(NotAContract):
        compile_source(tool(*BOTH, "secrets sk-abc"))
    assert compile_source(ADVANCED).as_json()["tools"][0]["requirements"]["secrets"] == ["LLM_API_KEY"]
