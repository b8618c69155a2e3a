"""What the parts of the real node are told: names, addresses, and their configuration files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

NAME = "real-node"
LABELS = {"pulumi-vllm.local/kind": "cpu"}
IDENTITY = "pulumi-vllm"
"""The node's cgroup and nftables table are called this. A machine has one such node at a time."""
BRIDGE = "pulumi-vllm0"
PODS = IPv4Network("10.231.77.0/24")
GATEWAY = str(next(PODS.hosts()))
"""The bridge's address is the node's: it depends on no network that the machine is in, and reaches no other."""
RUNTIME = Path("/run/pulumi-vllm-node")
"""What ends with a reboot. Fixed, because one node runs at a time, and short, because a socket's path is
limited to 107 characters (unix(7))."""
CONTAINERD_SOCKET = RUNTIME / "containerd.sock"
KUBELET = RUNTIME / "kubelet"
"""kubelet makes sockets in its root folder too. This is the one below the state, mounted here."""
CGROUP = f"/{IDENTITY}"
PODS_CGROUP = f"{CGROUP}/kubepods"
"""kubelet calls it so, below its cgroupRoot."""
PAUSE_IMAGE = "pulumi-vllm.local/pause:1"


@dataclass(frozen=True)
class Folders:
    """Where a node's files lie: what only it needs, and the images, which outlive it."""

    state: Path
    content: Path

    @property
    def bin(self) -> Path:
        """Links to the tools: the path of a process's executable says whose it is."""
        return self.state / "bin"

    @property
    def logs(self) -> Path:
        """One file for each daemon."""
        return self.state / "logs"

    @property
    def kubeconfig(self) -> Path:
        """For kubelet and kube-proxy."""
        return self.state / "kubeconfig"

    @property
    def network(self) -> Path:
        """The folder with the CNI configuration."""
        return self.state / "cni"


def containerd(folders: Folders) -> str:
    """containerd's file (docs/cri/config.md of containerd 2).

    ``restrict_oom_score_adj``: where this user may not lower the score, no sandbox would start.
    AppArmor would keep a profile after the node; NRI and opt would open a socket and make a folder at fixed places.
    """
    runtime = '[plugins."io.containerd.cri.v1.runtime"'
    return f"""
version = 3
root = "{folders.content}"
state = "{RUNTIME / "containerd"}"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "{CONTAINERD_SOCKET}"

[ttrpc]
address = "{CONTAINERD_SOCKET}.ttrpc"

[plugins."io.containerd.shim.v1.manager"]
socket_dir = "{RUNTIME / "s"}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

{runtime}]
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true

{runtime}.cni]
bin_dirs = ["{folders.bin}"]
conf_dir = "{folders.network}"

{runtime}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{folders.bin / "containerd-shim-runc-v2"}"

{runtime}.containerd.runtimes.runc.options]
BinaryName = "{folders.bin / "runc"}"
Root = "{RUNTIME / "runc"}"
SystemdCgroup = false
"""


def network() -> str:
    """The pods' network (https://www.cni.dev/plugins/current/main/bridge/): one bridge, one subnet."""
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        # Where br_netfilter is on, a pod's way to its own Service does not leave the bridge.
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": str(PODS), "gateway": GATEWAY}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(RUNTIME / "addresses"),
        },
    }
    return _json({"cniVersion": "1.0.0", "name": IDENTITY, "plugins": [bridge, {"type": "loopback"}]})


def kubelet(folders: Folders, certificate_authority: Path) -> str:
    """KubeletConfiguration (https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/)."""
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": GATEWAY,
            "healthzBindAddress": GATEWAY,
            # Pods can reach this address: only who has the cluster's certificates may ask.
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(certificate_authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": CGROUP,
            # Machines with cgroup v1 exist, and with swap.
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            # The machine's disk is not the node's alone: that it is nearly full is no reason to evict a pod,
            # or to forget an image that no registry has.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "podLogsDir": str(folders.state / "pods"),
            "volumePluginDir": str(folders.state / "volume-plugins"),
        }
    )


def kube_proxy(folders: Folders) -> str:
    """KubeProxyConfiguration (https://kubernetes.io/docs/reference/config-api/kube-proxy-config.v1alpha1/).

    Two pods are on one bridge: an answer that bypasses the host would come from an address that the
    client has not asked. So all traffic to a Service is masqueraded.
    """
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "nftables": {"masqueradeAll": True},
            "clientConnection": {"kubeconfig": str(folders.kubeconfig)},
            "hostnameOverride": NAME,
            "bindAddress": GATEWAY,
            "healthzBindAddress": f"{GATEWAY}:10256",
            "metricsBindAddress": f"{GATEWAY}:10249",
            "detectLocalMode": "ClusterCIDR",
            "clusterCIDR": str(PODS),
            # 0 leaves the machine's own settings alone.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


def _json(document: Any) -> str:
    """JSON is YAML, and needs no quoting rules."""
    return json.dumps(document, indent=2) + "\n"
