"""What every case of `tests/cases` does: ask the preflight about the shipped lab with a change.

The ids are those of the table of public failures in `test_every_failure.py`; `pytest tests/cases -k MEM_1` runs the
cases of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.config import ConfigError
from infra.preflight import check_plan
from planner.findings import Finding
from planner.plan import plan_services
from tests.stack_files import config

SERVICE = "services.qwen"
CLAIM = {"kind": "storageClass", "storageClass": "fast", "size": "400Gi"}
"""A claim that is large enough for every model of these cases."""


def findings(
    changes: Mapping[str, Any], secrets: frozenset[str] = frozenset(), shipped: str = "lab-3060"
) -> list[Finding]:
    """Everything that is said about a shipped stack with ``changes``, before a cluster is looked at."""
    try:
        stack = config(shipped, changes)
    except ConfigError as error:
        return list(error.findings)
    plans, unknown = plan_services(stack.nodes, stack.services)
    return [*unknown, *check_plan(stack, secrets, plans)]


def errors(changes: Mapping[str, Any], secrets: frozenset[str] = frozenset()) -> list[Finding]:
    """What would stop the preview."""
    return [finding for finding in findings(changes, secrets) if finding.level == "error"]


@dataclass(frozen=True)
class Case:
    """A change that must be spoken about, beside a neighbour that must pass.

    ``level`` and ``rule`` at ``path`` (below the service when it starts with a dot), with ``words`` in what is said.
    The neighbour must draw no error at all, and nothing of that level from that rule at that path.
    """

    failure: str
    what: str
    changes: Mapping[str, Any]
    level: str
    rule: str
    path: str
    words: str
    neighbour: Mapping[str, Any] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    neighbour_secrets: frozenset[str] = frozenset()
    shipped: str = "lab-3060"

    def __str__(self) -> str:
        return f"{self.failure.replace('-', '_')}: {self.what}"

    @property
    def full_path(self) -> str:
        """The path as a finding has it."""
        return f"vllm:{SERVICE}{self.path}" if self.path.startswith(".") else f"vllm:{self.path}"

    def check(self) -> None:
        """The change is spoken about, and the neighbour passes."""
        found = findings(self.changes, self.secrets, self.shipped)
        mine = [each for each in found if (each.level, each.rule, each.path) == (self.level, self.rule, self.full_path)]
        assert mine, f"{self}: no {self.level} of {self.rule} at {self.full_path} among {found}"
        assert self.words in f"{mine[0].message} {mine[0].remedy}", f"{mine[0]} does not say {self.words!r}"
        assert mine[0].remedy, "a finding without a way out is no help"
        assert mine[0].source, "a finding must say where its knowledge is from"
        beside = findings(self.neighbour, self.neighbour_secrets, self.shipped)
        refused = [each for each in beside if each.level == "error"]
        assert not refused, f"{self}: the neighbour runs and is refused: {refused}"
        again = [
            each for each in beside if (each.level, each.rule, each.path) == (self.level, self.rule, self.full_path)
        ]
        assert not again, f"{self}: the neighbour is right and is spoken about: {again}"
