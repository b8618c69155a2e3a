"""What this machine must have for the real node."""

from __future__ import annotations

import shutil
import subprocess


class NodeError(Exception):
    """The real node cannot do what was asked; the message says why and what helps."""


COMMANDS = {"nft": "nftables", "ip": "iproute2", "umount": "mount", "setsid": "util-linux", "unshare": "util-linux"}
"""Programs that are called, and Debian's package of each. kube-proxy calls `nft` too."""


def problem(platform: str, user_id: int) -> str | None:
    """Why the real node cannot run on ``platform`` (:data:`sys.platform`) as ``user_id``, or ``None``."""
    if platform != "linux" or user_id != 0:
        return (
            "the real node runs containers: that needs Linux, as root. Elsewhere, any cluster that you have (kind, "
            "k3s, minikube) takes its place: name its context in the stack's vllm:cluster.context"
        )
    packages = list(dict.fromkeys(package for name, package in COMMANDS.items() if shutil.which(name) is None))
    if packages:
        return (
            f"the real node needs {' and '.join(packages)}: on Debian and Ubuntu, apt-get install {' '.join(packages)}"
        )
    if subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False).returncode != 0:
        return (
            "the real node needs namespaces of its own for mounts and networks, and this machine refuses them (a "
            "container without the capability SYS_ADMIN?): run it on the machine itself"
        )
    return None
