"""Files that kubelet and libcni write at places which cannot be configured."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from sim.real_node import settings

_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""k8s.io/kubelet, pkg/apis/deviceplugin/v1beta1/constants.go."""
_LOG_LINKS = Path("/var/log/containers")
"""kubernetes, pkg/kubelet/kuberuntime/legacy.go: a link to the log of each container."""
_NETWORK_RESULTS = Path("/var/lib/cni/results")
"""github.com/containernetworking/cni, libcni/api.go, CacheDir."""


def foreign_kubelet() -> bool:
    """Whether a kubelet that is not ours runs on this machine: ours would remove its devices' sockets."""
    if settings.RUNTIME.exists():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(_DEVICE_PLUGINS / "kubelet.sock"))
        except OSError:
            return False
    return True


def remove(pod_logs: Path) -> None:
    """Remove what a node with its pods' logs in ``pod_logs`` has left; what is others' stays."""
    for link in _LOG_LINKS.glob("*"):
        if link.is_symlink() and pod_logs in link.readlink().parents:
            link.unlink()
    for name in ("kubelet.sock", "DEPRECATION"):
        (_DEVICE_PLUGINS / name).unlink(missing_ok=True)
    for file in _NETWORK_RESULTS.glob("*"):
        with suppress(OSError):
            if str(settings.RUNTIME) in file.read_text():
                file.unlink()
    for folder in (_LOG_LINKS, _DEVICE_PLUGINS, _DEVICE_PLUGINS.parent, _NETWORK_RESULTS, _NETWORK_RESULTS.parent):
        # Not empty: it holds somebody else's.
        with suppress(OSError):
            folder.rmdir()
