"""Writes docs/end-to-end.md: what the last run of `make e2e` on a real node has shown.

    python -m scripts.make_e2e_report LEDGER

The ledger is the file that the tests of tests/e2e enter their proofs into.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from sim import tools
from sim.vllm_cpu.installation import VERSION
from tests.e2e.ledger import Proof, entries

REPORT = Path(__file__).parent.parent / "docs" / "end-to-end.md"
INTRODUCTION = """# Executed on a real node

Each line is a rule of this program that `make e2e` executed: a real kubelet and containerd ran the pods, the
real Pulumi engine deployed them, and where it says vLLM, a real vLLM on the CPU answered. The stand-in is a
small server that plays a start and a stop of a given length. This page is written by that command.
"""


def page(proofs: Sequence[Proof], versions: Mapping[str, str], date: str) -> str:
    """The page: versions, then one row for each proof in the order of the run."""
    rows = [f"| {_cell(one.rule)} | {_cell(one.how)} | {_cell(one.figure)} |" for one in proofs]
    stated = ", ".join(f"{name} {version}" for name, version in versions.items())
    head = ["| rule | how it was executed | measured |", "|---|---|---|"]
    return "\n".join([INTRODUCTION, f"{date}, {stated}.", "", *head, *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def versions() -> dict[str, str]:
    """What the run was made with, by name."""
    machine = {"Linux": platform.release(), "Python": platform.python_version()}
    return {"vLLM": VERSION, **tools.node_versions(), "Pulumi": tools.version("pulumi"), **machine}


def main() -> None:
    """Write the page from the ledger that the command line names.

    Raises:
        SystemExit: the run has entered nothing.
    """
    ledger = Path(sys.argv[1])
    proofs = entries(ledger) if ledger.is_file() else []
    if not proofs:
        sys.exit(f"{ledger}: nothing was entered, so {REPORT} stays as it is")
    today = datetime.now(timezone.utc).date().isoformat()
    REPORT.write_text(page(proofs, versions(), today), encoding="utf-8")
    print(f"{REPORT}: {len(proofs)} rules")


if __name__ == "__main__":
    main()
