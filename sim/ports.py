"""Free ports; those of the simulated clusters are chosen once, and kept for a cluster that is stopped.

kwokctl takes the first ports on which nobody listens, and remembers those of stopped clusters in its own
work folder only (kwok, pkg/kwokctl/runtime/list.go). Every cluster here has a work folder of its own, so
that a new one would be given what a stopped one needs in order to start again.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

OPTIONS = (
    "etcdPeerPort",
    "etcdPort",
    "kubeApiserverPort",
    "kubeControllerManagerPort",
    "kubeSchedulerPort",
    "kwokControllerPort",
)
"""kwokctl's own names: https://kwok.sigs.k8s.io/docs/generated/apis/ (KwokctlConfigurationOptions)."""
RANGE = range(29999, 9999, -1)
"""Below Kubernetes' NodePorts, which start at 30000, and Linux' ephemeral ports, which start at 32768."""


def reserve(register: Path, state: Path) -> dict[str, int]:
    """Choose free ports for the cluster in ``state`` that no other cluster in ``register`` has.

    A cluster keeps its ports until its state folder is gone. The caller keeps others away from ``register``.

    Returns:
        The options of kwokctl: name → port.
    """
    known = json.loads(register.read_text()) if register.is_file() else {}
    kept = {folder: ports for folder, ports in known.items() if folder != str(state) and Path(folder).is_dir()}
    others = {port for ports in kept.values() for port in ports}
    chosen = list(islice((port for port in RANGE if port not in others and _is_free(port)), len(OPTIONS)))
    partial = register.with_name(f".{register.name}.partial")
    partial.write_text(json.dumps(kept | {str(state): chosen}, indent=1))
    partial.replace(register)
    return dict(zip(OPTIONS, chosen, strict=True))


def free_port() -> int:
    """A port on which nobody listens at this moment, for a server that runs for a while."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def taken(ports: Iterable[int], patience: float = 2.0) -> list[int]:
    """Those of ``ports`` on which somebody listens.

    A component that was killed this moment may hold its port a little longer: ``patience``, in seconds.
    """
    deadline = time.monotonic() + patience
    left = list(ports)
    while left := [port for port in left if not _is_free(port)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def _is_free(port: int) -> bool:
    """As a server would find it: what is left of closed connections does not count (SO_REUSEADDR)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
