"""No rule about a service is without a neighbour that it must leave alone."""

from __future__ import annotations

from infra.preflight import SERVICE_RULES
from tests.infra import test_cpu_rules, test_preflight

OF_THEIR_OWN = {"HF-1", "HF-MIRROR", "SEC-KEY", "STO-FOLDER", "MEM-UNKNOWN", "SCH-PIN", "SCH-GPUS"}
"""Rules that have tests of their own in place of a row."""


def test_every_rule_of_a_service_has_a_row_or_a_test() -> None:
    rows = {row[0] for table in (test_preflight.RULES, test_cpu_rules.RULES) for row in table.values()}
    missing = {rule.id for rule in SERVICE_RULES} - rows - OF_THEIR_OWN
    assert not missing, f"{missing}: a rule without a neighbour may refuse what runs"
