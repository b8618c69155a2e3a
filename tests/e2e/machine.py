"""Whether this machine can run the tests of this folder; the first time, it makes what they need.

`python -m tests.e2e.machine all`, or `stand-in` for those without a real vLLM.
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout

from sim import tools, vllm_cpu
from sim.real_node import requirements

SKIP = "PULUMI_VLLM_SKIP_E2E"


def unavailable(*, real_vllm: bool) -> str | None:
    """Why they cannot run here, ``None`` when they can: then the tools are there, and the image of ``real_vllm``."""
    if os.environ.get(SKIP):
        return f"{SKIP} is set"
    problem = requirements.problem(sys.platform, os.geteuid())
    if problem:
        return problem
    try:
        with redirect_stdout(sys.stderr):
            tools.ensure(tool.name for tool in (*tools.TOOLS, *tools.NODE_TOOLS))
            if real_vllm:
                vllm_cpu.image()
    except tools.ToolError as error:
        return str(error)
    return None


def main() -> int:
    """For scripts/e2e.sh and scripts/test.sh, which print the reason."""
    reason = unavailable(real_vllm=sys.argv[1] == "all")
    sys.stdout.write(reason or "")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
