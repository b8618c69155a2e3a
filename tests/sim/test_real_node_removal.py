"""Nothing of the real node is left behind, however it ended.

A file of its own: each case starts its own cluster and node, and a machine has one real node at a time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim import stand_in
from sim.cluster import Cluster
from sim.real_node import RealNode, kernel, requirements, settings

_PROBLEM = requirements.problem(sys.platform, os.geteuid())
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("real-node"),
    pytest.mark.skipif(_PROBLEM is not None, reason=str(_PROBLEM)),
]

_IMAGE = "pulumi-vllm.local/stand-in:v1"


@pytest.mark.parametrize("ending", ["down", "down after everything was killed", "cluster down"])
def test_nothing_is_left_behind(tmp_path: Path, ending: str) -> None:
    before = _traces()
    cluster = Cluster("real-node-gone", tmp_path / "real-node-gone")
    cluster.up()
    try:
        node = RealNode(cluster)
        node.up()
        archive = tmp_path / "image.tar"
        stand_in.write_image(archive, _IMAGE)
        node.import_image(archive, _IMAGE)
        cluster.apply(_POD)
        cluster.kubectl("wait", "pod/last", "--for=condition=Ready", "--timeout=120s")
        during = _traces()
        # Other software may have changed the same settings before.
        same = [kind for kind in before if kind != "sysctl" and during[kind] == before[kind]]
        assert not same, "a comparison of what never changes would prove nothing"
        if ending == "down after everything was killed":
            kernel.kill(settings.CGROUP)
        if ending == "cluster down":
            cluster.down()
        else:
            assert node.down() is True, "it was there"
            assert cluster.kubectl("get", "node", settings.NAME, "--ignore-not-found") == "", "its object is gone"
            assert cluster.kubectl("get", "pod", "last", "--ignore-not-found") == "", "and its pods"
        assert node.down() is False, "a second time there is nothing to do"
        assert _traces() == before, "what was there before is there, and nothing else"
    finally:
        cluster.down()


_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "last", "namespace": "default"},
    "spec": {
        "nodeSelector": {"kubernetes.io/hostname": settings.NAME},
        # A process that does not end when it is asked to, and a volume that is mounted.
        "containers": [
            {
                "name": "server",
                "image": _IMAGE,
                "env": [{"name": "STAND_IN_IGNORE_TERM", "value": "1"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    },
}


def test_what_a_dead_node_left_is_no_hindrance_for_another_cluster(tmp_path: Path) -> None:
    before = _traces()
    first, second = (Cluster(name, tmp_path / name) for name in ("real-node-dead", "real-node-next"))
    try:
        first.up()
        RealNode(first).up()
        kernel.kill(settings.CGROUP)
        second.up()
        node = RealNode(second)
        assert node.up() is True, "nothing of the first one's runs"
        assert RealNode(first).down() is False, "it is the second one's node now"
        assert node.is_running(), "which goes on"
    finally:
        for cluster in (second, first):
            cluster.down()
    assert _traces() == before, "neither left anything"


def _traces() -> dict[str, Any]:
    """What a node makes on a machine, by kind."""
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": sorted(kernel.processes()),
        "mounts": sorted(line.split()[4] for line in mounted),
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").rglob(f"{settings.IDENTITY}*")),
        "nftables": subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout,
        "routes": subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout,
        "sysctl": {name: Path("/proc/sys", name).read_text() for name in kernel.CHANGED},
        "files": [place for place in _PLACES if Path(place).exists()],
    }


_PLACES = (
    "/run/pulumi-vllm-node",
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/opt/cni",
    "/opt/containerd",
)
