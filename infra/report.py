"""How findings and plans are said: the same text on the terminal, in a preview and in a failed start."""

from __future__ import annotations

from collections.abc import Iterable

import pulumi

from planner.findings import Finding

_ORDER = {"error": 0, "warn": 1, "info": 2}


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then remarks; each in the order in which it was found."""
    return sorted(findings, key=lambda finding: _ORDER[finding.level])


def sentence(finding: Finding) -> str:
    """One finding in two lines: where and what, then the way out."""
    source = f"  ({finding.rule}: {finding.source})" if finding.source else f"  ({finding.rule})"
    return f"{finding.path}: {finding.message}\n  → {finding.remedy}{source}"


def announce(findings: Iterable[Finding]) -> None:
    """Print every finding once; with an error among them, end without a traceback.

    Raises:
        pulumi.RunError: nothing was registered, hence nothing is created, changed or lost.
    """
    ordered = by_severity(findings)
    for finding in ordered:
        if finding.level != "error":
            (pulumi.log.warn if finding.level == "warn" else pulumi.log.info)(sentence(finding))
    errors = [sentence(finding) for finding in ordered if finding.level == "error"]
    if errors:
        raise pulumi.RunError("\n".join([f"{len(errors)} error(s); nothing was created, changed or lost", *errors]))
