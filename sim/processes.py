"""Which processes belong to a simulated cluster, and stopping exactly those.

kwokctl starts every component from a link in the cluster's own folder, so the path of the executable
says whose process it is. A recorded process id alone does not: after a reboot it may be anybody's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "cmdline").is_file()


def command_lines() -> dict[int, list[str]]:
    """The arguments of every process that can be seen, by process id; from ``/proc``, else from ``ps``."""
    if _HAS_PROC:
        found = {}
        for folder in _PROC.iterdir():
            if folder.name.isdigit():
                found[int(folder.name)] = _read_arguments(folder / "cmdline")
        return found
    answer = subprocess.run(["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    lines = (line.split() for line in answer.stdout.splitlines())
    return {int(pid): arguments for pid, *arguments in lines}


def _read_arguments(file: Path) -> list[str]:
    """A process that ended meanwhile, and one that waits for its parent, has none."""
    try:
        return file.read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def running(executables: Path) -> dict[str, int]:
    """The processes whose executable lies in the folder ``executables``: its name → process id."""
    return {
        Path(arguments[0]).name: pid
        for pid, arguments in command_lines().items()
        if arguments and Path(arguments[0]).parent == executables
    }


def stop(executables: Path, patience: float = 10.0) -> None:
    """End the processes of ``executables``: they are asked first and killed after ``patience`` seconds.

    Raises:
        TimeoutError: a process is still there; the message names it.
    """
    found = running(executables)
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for pid in running(executables).values():
            _send(pid, signal_number)
        deadline = time.monotonic() + patience
        while not all(map(_has_ended, found.values())) and time.monotonic() < deadline:
            time.sleep(0.05)
    left = running(executables)
    if left:
        raise TimeoutError(", ".join(f"{name} (process {pid})" for name, pid in left.items()) + " could not be ended")


def _has_ended(pid: int) -> bool:
    """Gone, or a zombie whose threads are gone too: until then it may hold its ports."""
    if not _HAS_PROC:
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return state.strip()[:1] in {"", "Z"}
    try:
        threads = len(list((_PROC / str(pid) / "task").iterdir()))
        state = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2]
    except OSError:
        return True
    return state.strip()[:1] in {"X", "Z"} and threads == 1


def _send(pid: int, signal_number: signal.Signals) -> None:
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return


def forget_dead(pids: Path, executables: Path) -> None:
    """Remove the files NAME.pid in ``pids`` whose process is not one of ``executables`` any more.

    kwokctl trusts a file whose process id is alive, whoever it is: it would not start that component
    again, and would kill the stranger on deletion (kwok, pkg/kwokctl/runtime/exec.go).
    """
    alive = set(running(executables).values())
    for file in pids.glob("*.pid"):
        text = file.read_text().strip()
        if not text.isdigit() or int(text) not in alive:
            file.unlink()
