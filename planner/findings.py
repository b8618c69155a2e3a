"""What a check found: one fault or remark, with the place in the stack file and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check has to say.

    ``path`` is the place in the stack file (``services.chat.engine.maxModelLen``), ``rule`` the id of
    the check, ``remedy`` what to write or do, ``source`` where the knowledge comes from.
    """

    level: Level
    path: str
    message: str
    remedy: str
    rule: str
    source: str = ""

    def under(self, prefix: str) -> Finding:
        """The same finding, its path inside ``prefix``."""
        return replace(self, path=f"{prefix}.{self.path}" if self.path else prefix)


_ORDER = {"error": 0, "warn": 1, "info": 2}


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then remarks; each in the order in which it was found."""
    return sorted(findings, key=lambda finding: _ORDER[finding.level])
