from pathlib import Path

import jsonschema
import pytest

from skills import Catalog, PackContext, mcp_tool
from skills.tb import Folder
from tests.skills.tb.page import ADVANCED, EXTENDED, MONEY, SIMPLE

TOOLS = (
    "examples.tool_simple.SearchDatasets",
    "examples.tool_advanced.SummarizeWithContext",
    "shop.orders.Total",
)
BINDING = """[tools."{}"]
python = "./app.py:run"
grants = ["network", "secret_read", "memory_read", "memory_write"]
risk = {{ read_only = true }}
"""
SHARED = """[secrets]
LLM_API_KEY = "env:WHERE_IT_IS"
[memories.ProjectKnowledge]
modes = ["read"]
[memories.Ledger]
modes = ["read", "write"]
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for name, text in {"a": SIMPLE, "b": ADVANCED, "c": EXTENDED, "d": MONEY}.items():
        (tmp_path / f"{name}.tb").write_text(text)
    (tmp_path / "app.py").touch()
    (tmp_path / "skillbus.tools.toml").write_text("".join(map(BINDING.format, TOOLS)) + SHARED)
    return tmp_path


def test_declared_tools_are_listed_with_the_schemas_of_their_air(tools: Path) -> None:
    declared = {tool.id: tool for air in Folder.read(tools).airs for tool in air.tools}
    catalog = Catalog.load(PackContext(state_dir=tools / "state"), installed=False, folders=[tools])
    assert catalog.problems == ()
    assert {skill.id for skill in catalog} == set(TOOLS) == declared.keys()
    for skill in catalog:
        listed, tool = mcp_tool(skill.contract), declared[skill.id]
        assert (listed["name"], listed["inputSchema"], listed["outputSchema"]) == (tool.id, tool.input, tool.output)
        assert tool.description in listed["description"]
        assert listed["annotations"]["readOnlyHint"]
        for schema in (listed["inputSchema"], listed["outputSchema"]):
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
        assert "WHERE_IT_IS" not in str(listed)
    total = mcp_tool(catalog.get("shop.orders.Total").contract)  # type: ignore[union-attr]
    jsonschema.validate({"orders": [{"number": 1, "paid": True, "lines": []}]}, total["inputSchema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"orders": [{"number": 1}]}, total["inputSchema"])


def test_a_skill_that_answers_with_text_has_no_structured_output() -> None:
    catalog = Catalog.load(PackContext(), only=("host",))
    calc = catalog.get("calc")
    assert calc is not None
    assert "outputSchema" not in mcp_tool(calc.contract)
