"""A skill as an MCP server lists it."""

from typing import Any

from .annotations import mcp_annotations
from .contract import Contract


def mcp_tool(contract: Contract) -> dict[str, Any]:
    """The `Tool` of MCP's `tools/list` (2025-11-25, server/tools) for a skill; its schemas are the contract's.

    `outputSchema` is of the skill's own output: the member `world` that every A2A envelope has besides does not belong
    into `structuredContent`. A skill that answers with text declares none.
    """
    return {
        "name": contract.id,
        "title": contract.title,
        "description": contract.description,
        "inputSchema": contract.input_schema,
        **({"outputSchema": contract.output_schema} if contract.output_mode == "application/json" else {}),
        "annotations": mcp_annotations(contract.risk),
    }
