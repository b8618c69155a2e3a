"""The real server of this tier: it can be killed and started again with the same settings, caches and port."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from sim.tools import ToolError, ensure
from sim.traffic import Client
from sim.vllm_cpu.installation import environment
from sim.vllm_cpu.model import tiny_model
from sim.vllm_cpu.process import server as running
from tests.metrics.service import arguments, model_name, variables

SKIP = "PULUMI_VLLM_SKIP_METRICS"
START_SECONDS = 3600
"""A start is waited for as long as a very busy machine takes; a server that ends is seen at once."""


def unavailable() -> str | None:
    """Why this tier cannot run here, ``None`` when it can."""
    if os.environ.get(SKIP):
        return f"{SKIP} is set"
    try:
        with redirect_stdout(sys.stderr):
            ensure(["prometheus"])
            environment()
    except ToolError as error:
        return str(error)
    return None


class Server:
    """``logs`` are those of its starts, the first one first."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.logs: list[Path] = []
        self._folder = folder
        self._model = tiny_model(folder / "model")
        self._running = ExitStack()
        self._pid = 0

    @property
    def client(self) -> Client:
        """Sends requests to it."""
        return Client(self.port, model_name())

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self._folder / f"start-{len(self.logs)}.log"
        self.logs.append(log)
        folders = {"HF_HOME": str(self._model.home), "VLLM_CACHE_ROOT": str(self._folder / "cache")}
        made = running(arguments(), log, self.port, {**folders, **variables()}, START_SECONDS)
        self._pid = self._running.enter_context(made).pid

    def kill(self) -> None:
        """End it and its engine at once, as the kernel does when memory runs out."""
        os.killpg(self._pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End it if it runs."""
        self._running.close()
        self._running = ExitStack()


def main() -> int:
    """For scripts/test.sh, which names a tier that did not run with the reason."""
    reason = unavailable()
    sys.stdout.write(reason or "")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
