"""A real vLLM server as a plain process, for tests that need no container."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sim.ports import free_port
from sim.tools import cache_folder
from sim.vllm_cpu.installation import environment as installed

START_SECONDS = 900.0
"""How long a start may take: 40 s on two idle cores, minutes on busy ones."""
STOP_SECONDS = 30.0
"""How long a stop may take: vLLM ends its engine first (it took 4 s)."""


class ServerError(Exception):
    """vLLM ended, or did not answer in time; the message holds the end of its log."""


@dataclass(frozen=True)
class Server:
    """A vLLM that answers: its port on the loopback address, its process, and where it writes its log."""

    port: int
    pid: int
    log: Path

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def server(
    arguments: Sequence[str],
    log: Path,
    port: int | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = START_SECONDS,
    *,
    installation: Path | None = None,
) -> Iterator[Server]:
    """Run ``vllm serve`` while the block runs; it answers ``/health`` when the block begins.

    Args:
        arguments: what follows ``vllm serve``: the model and its options.
        log: where its output goes.
        port: on the loopback address; None takes a free one.
        environment: added to what every such server gets, for example ``HF_HOME``.
        patience: seconds until it must answer.
        installation: the Python environment of another release; None takes the pinned one.

    Raises:
        ServerError: it ended or did not answer.
        ToolError: vLLM could not be installed.
    """
    chosen = free_port() if port is None else port
    folder = installed() if installation is None else installation
    command = [str(folder / "bin" / "vllm"), "serve", *arguments, "--host", "127.0.0.1", "--port", str(chosen)]
    with log.open("wb") as output:
        # A session of its own, so that the engine's and the workers' processes can be ended with it.
        process = subprocess.Popen(
            command, env=_variables(folder, environment or {}), stdout=output, stderr=output, start_new_session=True
        )
    try:
        started = Server(chosen, process.pid, log)
        _wait_until_healthy(started, process, patience)
        yield started
    finally:
        _stop(process)


def _variables(folder: Path, added: Mapping[str, str]) -> dict[str, str]:
    """The variables of the process: nothing of this shell but where programs and the home are."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "USER") if name in os.environ}
    cache = cache_folder().parent / "vllm-cache"
    return {
        **kept,
        "PATH": os.pathsep.join([str(folder / "bin"), kept.get("PATH", os.defpath)]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # What it learns of a model's class is kept there, which saves a second start a process.
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        **added,
    }


def _wait_until_healthy(started: Server, process: subprocess.Popen[bytes], patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _is_healthy(started.port):
        if process.poll() is not None:
            raise ServerError(f"vLLM ended with exit code {process.returncode}:\n{_end(started.log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"vLLM did not answer /health within {patience:.0f} s:\n{_end(started.log)}")
        time.sleep(0.5)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then end whatever of it is left."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
