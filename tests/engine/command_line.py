"""`vllm-infra` as a process of its own, on the stack file of a test."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from tests.engine.driver import ROOT, Stack

PROGRAM = (
    "import sys; from pathlib import Path; from infra.config import stack_file; "
    "stack_file.STACKS = Path(sys.argv.pop(1)); from infra.cli import app; app()"
)
"""`vllm-infra` on a folder of stack files that are not the shipped ones."""


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    errors: str

    @property
    def output(self) -> str:
        """All of it."""
        return self.out + self.errors


def run(stack: Stack, command: str, *arguments: str) -> Result:
    """Run `vllm-infra COMMAND` on the stack."""
    call = [sys.executable, "-c", PROGRAM, str(stack.file.parent), command, "--stack", stack.name, *arguments]
    found = subprocess.run(call, cwd=ROOT, env=stack.environment(), capture_output=True, text=True, check=False)
    result = Result(found.returncode, found.stdout, found.stderr)
    assert "Traceback" not in result.output, f"a refusal is no crash:\n{result.output}"
    return result
