import pytest

from skills import Risk, mcp_annotations


@pytest.mark.parametrize(
    ("risk", "hints"),
    [
        (Risk(), (False, True, False, True)),
        (Risk(read_only=True, external_egress=False, irreversible=False, idempotent=True), (True, False, True, False)),
        (Risk(irreversible=False, external_egress=False, idempotent=True), (False, True, True, False)),
        (Risk(irreversible=True, idempotent=True), (False, True, False, True)),
    ],
)
def test_the_hints_say_the_riskier_thing(risk: Risk, hints: tuple[bool, ...]) -> None:
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    assert mcp_annotations(risk) == dict(zip(names, hints, strict=True))
