"""The risk of a skill as an MCP client reads it."""

from .contract import Risk


def mcp_annotations(risk: Risk) -> dict[str, bool]:
    """The hints of MCP's `ToolAnnotations`; each says the riskier thing wherever the risk does not rule it out.

    Nothing in a risk promises that a change only adds, so whatever is not read-only may be destructive. What can't be
    undone is not idempotent for MCP, whose hint is about a second call rather than a repetition of the first.
    """
    return {
        "readOnlyHint": risk.read_only,
        "destructiveHint": not risk.read_only,
        "idempotentHint": risk.idempotent and not risk.irreversible,
        "openWorldHint": risk.external_egress,
    }
