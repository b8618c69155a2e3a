"""What a node makes in the kernel, and its removal by name alone, whoever made it and however that ended.

Processes are found by their cgroup: the daemons are started in one below ours, and the pods' are below
it too.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path

from sim.real_node import settings
from sim.real_node.requirements import NodeError

_CGROUPS = Path("/sys/fs/cgroup")
_SYSCTL = Path("/proc/sys")
_DAEMONS = "daemons"
_RECORD = settings.RUNTIME / "sysctl.json"
_TABLES = (f"ip {settings.IDENTITY}", "ip kube-proxy", "ip6 kube-proxy")
CHANGED = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
"""Settings that kubelet changes (kubernetes, pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables),
and, the last one, what the pods' way to the outside needs. They are put back."""


def require_free_addresses(services: str) -> None:
    """A network that the machine is in must stay reachable.

    Raises:
        NodeError: the pods' addresses or those of ``services`` are in use. A route to more than 65536
            addresses, as a private network's to 10.0.0.0/8, keeps all but the node's.
    """
    wanted = [settings.PODS, IPv4Network(services)]
    for route in json.loads(_run("ip", "-json", "-4", "route", "show")):
        if route["dst"] == "default" or route.get("dev") == settings.BRIDGE:
            continue
        there = IPv4Network(route["dst"])
        if there.prefixlen >= 16 and any(there.overlaps(network) for network in wanted):
            raise NodeError(
                f"this machine has a route to {there} ({route.get('dev', 'no device')}), which overlaps with the real "
                f"node's {' and '.join(map(str, wanted))}"
            )


def make(services: str) -> None:
    """Make cgroup, bridge, a route for the addresses of Services (``services``, a CIDR) and the masquerade."""
    _record_sysctl()
    _make_cgroups()
    (_SYSCTL / CHANGED[-1]).write_text("1")
    if not (Path("/sys/class/net") / settings.BRIDGE).exists():
        _run("ip", "link", "add", settings.BRIDGE, "type", "bridge")
    _run("ip", "address", "replace", f"{settings.GATEWAY}/{settings.PODS.prefixlen}", "dev", settings.BRIDGE)
    _run("ip", "link", "set", settings.BRIDGE, "up")
    # Without a default route, the kernel would refuse an address before kube-proxy's rules replace it.
    _run("ip", "route", "replace", services, "dev", settings.BRIDGE, "src", settings.GATEWAY)
    _run("nft", "-f", "-", text=_masquerade(services))


def _masquerade(services: str) -> str:
    table = f"ip {settings.IDENTITY}"
    return f"""
add table {table}
flush table {table}
add chain {table} postrouting {{ type nat hook postrouting priority 100; }}
add rule {table} postrouting ip saddr {settings.PODS} ip daddr != {{ {settings.PODS}, {services} }} masquerade
"""


def bind(source: Path, target: Path) -> None:
    """Mount ``source`` at ``target`` too, unless it is; what is mounted below is seen there only."""
    for folder in (source, target):
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
    if str(target) not in mounts([target]):
        _run("mount", "--bind", str(source), str(target))
        _run("mount", "--make-private", str(target))


def remove(folders: Iterable[Path]) -> None:
    """End every process, unmount everything below ``folders``, and remove what :func:`make` and the daemons made.

    Raises:
        NodeError: a process cannot be ended, or a mount or a cgroup not be removed.
    """
    kill(settings.CGROUP)
    _unmount([*folders, settings.RUNTIME])
    _remove_links()
    for table in _TABLES:
        _run("nft", "delete", "table", *table.split(), check=False)
    _remove_cgroups()
    _restore_sysctl()
    if settings.RUNTIME.exists():
        shutil.rmtree(settings.RUNTIME)


def processes(cgroup: str = settings.CGROUP) -> set[int]:
    """The processes in ``cgroup`` and below."""
    found = set()
    for folder in _hierarchies():
        for file in (folder / cgroup.lstrip("/")).rglob("cgroup.procs"):
            with suppress(OSError):
                found |= {int(line) for line in file.read_text().split()}
    return found - {0}


def kill(cgroup: str, patience: float = 30.0) -> None:
    """SIGKILL every process in ``cgroup`` and below, until there is none.

    Raises:
        NodeError: one is still there after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while left := processes(cgroup):
        if time.monotonic() > deadline:
            raise NodeError(f"processes {', '.join(map(str, sorted(left)))} of the real node could not be ended")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def end(pid: int, patience: float = 30.0) -> None:
    """SIGKILL the process ``pid`` and wait until it is gone.

    Raises:
        NodeError: it is still there after ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    while pid in processes():
        if time.monotonic() > deadline:
            raise NodeError(f"process {pid} of the real node could not be ended")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def start(command: list[str], log: Path, variables: Mapping[str, str]) -> None:
    """Start a daemon in the node's cgroup, as a child of nobody who lives."""
    joins = "".join(f"echo $$ > '{file}' && " for file in _daemon_files())
    script = f"{joins} {{ setsid \"$@\" < /dev/null >> '{log}' 2>&1 & }}"
    _run("sh", "-c", script, "sh", *command, variables=variables)


def has_service_rules() -> bool:
    """Whether kube-proxy has written its rules, the last of what it does to start."""
    return bool(_run("nft", "list", "map", "ip", "kube-proxy", "service-ips", check=False))


def foreign_kube_proxy() -> bool:
    """Whether another kube-proxy has its rules here, while the node does not run."""
    return not settings.RUNTIME.exists() and any(
        _run("nft", "list", "table", *table.split(), check=False) for table in _TABLES[1:]
    )


def _run(*command: str, text: str | None = None, check: bool = True, variables: Mapping[str, str] | None = None) -> str:
    answer = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env={**os.environ, **(variables or {})}
    )
    if check and answer.returncode != 0:
        raise NodeError(f"{' '.join(command[:4])}: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout if answer.returncode == 0 else ""


def _hierarchies() -> list[Path]:
    """The root of cgroup v2, or of each controller's hierarchy in v1 (cgroups(7))."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [folder for folder in sorted(_CGROUPS.iterdir()) if folder.is_dir() and not folder.is_symlink()]


def _daemon_files() -> list[Path]:
    folders = (folder / settings.IDENTITY / _DAEMONS for folder in _hierarchies())
    return [folder / "cgroup.procs" for folder in folders if folder.is_dir()]


def _make_cgroups() -> None:
    for root in _hierarchies():
        folder = root / settings.IDENTITY
        (folder / _DAEMONS).mkdir(parents=True, exist_ok=True)
        if (root / "cgroup.controllers").exists():
            for parent in (root, folder):
                _pass_on_controllers(parent)
        if (root / "cpuset.cpus").exists():
            for child in (folder, folder / _DAEMONS):
                _fill_cpuset(child)


def _pass_on_controllers(folder: Path) -> None:
    """cgroup v2: a child has those controllers that its parent passes on."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        # One that this kernel does not pass on is none that kubelet asks for.
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _fill_cpuset(folder: Path) -> None:
    """cgroup v1: no process can join a cpuset that names no processor and no memory."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (file := folder / name).exists() and not file.read_text().strip():
            file.write_text((folder.parent / name).read_text())


def _remove_cgroups() -> None:
    for root in _hierarchies():
        folder = root / settings.IDENTITY
        below = sorted((path for path in folder.rglob("*") if path.is_dir()), key=lambda path: len(path.parts))
        for path in (*reversed(below), folder):
            _remove_cgroup(path)


def _remove_cgroup(folder: Path, patience: float = 5.0) -> None:
    """The kernel may hold a cgroup for a moment after its last process."""
    deadline = time.monotonic() + patience
    while folder.exists():
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise NodeError(f"the cgroup {folder} cannot be removed: {error.strerror}") from error
            time.sleep(0.05)


def mounts(folders: Iterable[Path]) -> Iterator[str]:
    """What is mounted at or below ``folders``, the last mount first."""
    roots = [str(folder) for folder in folders]
    for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
        # Blanks and the like are octal (proc(5)).
        point = line.split()[4].encode().decode("unicode_escape")
        if any(point == root or point.startswith(f"{root}/") for root in roots):
            yield point


def _unmount(folders: Iterable[Path]) -> None:
    folders = list(folders)
    for point in mounts(folders):
        if not _succeeds("umount", point):
            _run("umount", "--lazy", point, check=False)
    left = list(mounts(folders))
    if left:
        raise NodeError(f"{', '.join(left)} cannot be unmounted")


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _remove_links() -> None:
    """The bridge, and the host's ends of the pods' links, which the kernel removes a moment after the pods."""
    for port in Path(f"/sys/class/net/{settings.BRIDGE}/brif").glob("*"):
        _run("ip", "link", "delete", port.name, check=False)
    if Path(f"/sys/class/net/{settings.BRIDGE}").exists():
        _run("ip", "link", "delete", settings.BRIDGE)


def _record_sysctl() -> None:
    settings.RUNTIME.mkdir(parents=True, exist_ok=True, mode=0o711)
    if not _RECORD.exists():
        files = [_SYSCTL / name for name in CHANGED]
        _RECORD.write_text(json.dumps({str(file): file.read_text().strip() for file in files if file.exists()}))


def _restore_sysctl() -> None:
    if not _RECORD.exists():
        return
    for file, value in json.loads(_RECORD.read_text()).items():
        if Path(file).read_text().strip() != value:
            Path(file).write_text(value)
