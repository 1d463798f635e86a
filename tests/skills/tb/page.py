"""The two examples of the page, and other sources that the tests share."""

import json
from pathlib import Path
from typing import Any

VECTORS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parents[2] / "vectors" / "tb.vectors.jsonl").read_text().splitlines()
]

SIMPLE = """\
module examples.tool_simple

type DatasetSearchRequest
    query is Text

type DatasetSearchResult
    title is Text

tool SearchDatasets
    takes request as DatasetSearchRequest
    gives DatasetSearchResult
    requires network
"""

ADVANCED = """\
module examples.tool_advanced

type SearchRequest
    query is Text

type Summary
    text is Text

memory ProjectKnowledge

tool SummarizeWithContext
    uses memory ProjectKnowledge read
    takes request as SearchRequest
    gives Summary
    requires network, secret_read, memory_read
    secrets LLM_API_KEY
"""

EXTENDED = """\
module shop.orders
says "Orders, and what is in them."

uses Money from shop.money

type Order
    says "What a customer wants."
    number is Integer
    paid is Boolean
    note is optional Text
        says "A \\"quoted\\" word, and a \\\\."
    lines is List of Line
    before is optional Order

type Line
    total is Money
    weight is Number
    says is Text

memory Ledger
    says "Every order."

tool Total
    says "Adds up what an order costs."
    says "Takes nothing off."
    takes orders as List of Order
    gives Number
    uses memory Ledger read
    uses memory Ledger write
    requires memory_read, memory_write
"""

MONEY = """\
module shop.money

type Money
    cents is Integer
    currency is Currency

type Currency
    code is Text
"""

PREFIX = "module m\n\ntype In\n    q is Text\n\ntype Out\n    a is Text\n\n"


def tool(*clauses: str) -> str:
    """A source whose tool stands on line 9, its clauses from line 10 on."""
    return PREFIX + "tool Do\n" + "".join(f"    {clause}\n" for clause in clauses)


BOTH = ("takes x as In", "gives Out")
