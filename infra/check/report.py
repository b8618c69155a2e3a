"""Lines from facts and from what the rules of a preview found about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from infra.lines import Line, Status
from planner.findings import Finding, Level, by_severity

STATUSES: Mapping[Level, Status] = {"error": "fail", "warn": "warn", "info": "ok"}


class Findings:
    """What the rules found; each finding is told by the first line that takes it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._left = by_severity(findings)

    def take(self, rules: Sequence[str], place: str) -> list[Finding]:
        """Those of ``rules`` about ``place`` of the stack file or what is below it."""
        path = f"vllm:{place}"
        taken = [
            one for one in self._left if one.rule in rules and (one.path == path or one.path.startswith(f"{path}."))
        ]
        self._left = [one for one in self._left if one not in taken]
        return taken

    def rest(self) -> list[Finding]:
        """Those that no line has told."""
        return self._left


def told(question: str, fact: str, taken: Sequence[Finding], wanted: str = "") -> Iterator[Line]:
    """The fact as one line, or a line for each finding about it."""
    if not taken:
        yield Line("ok", question, fact)
    for finding in taken:
        yield Line(
            STATUSES[finding.level],
            question,
            f"{fact}: {finding.message}" if fact else f"{finding.path}: {finding.message}",
            wanted,
            finding.remedy,
            {"rule": finding.rule, "path": finding.path, "source": finding.source},
        )
