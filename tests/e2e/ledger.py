"""What a run on the real node has shown: one line for each rule, kept as JSON lines until the report is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

Prove = Callable[[str, str, str], None]
"""Enter a rule, how it was proved, and the figure that was measured."""


@dataclass(frozen=True)
class Proof:
    """A rule of the program, how it was executed, and what was measured (with its unit; may be empty)."""

    rule: str
    how: str
    figure: str


def enter(ledger: Path, proof: Proof) -> None:
    """Append ``proof``; a test does so after its last assertion."""
    with ledger.open("a", encoding="utf-8") as lines:
        lines.write(f"{json.dumps(asdict(proof), ensure_ascii=False)}\n")


def entries(ledger: Path) -> list[Proof]:
    """What was entered, in the order of the run."""
    return [Proof(**json.loads(line)) for line in ledger.read_text(encoding="utf-8").splitlines()]
