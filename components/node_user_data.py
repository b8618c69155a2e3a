"""User data of EKS nodes: how the kubelet is set, and with an AMI of one's own also how it joins the cluster.

For an AMI type EKS adds the cluster's part itself, and labels and taints come from the node group. For an AMI by id
EKS adds nothing (https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html).
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.spec import TaintSpec

BOUNDARY = "//"


@dataclass(frozen=True)
class Connection:
    """What a node must know of its cluster; ``certificate_authority`` is base64 as EKS gives it."""

    name: str
    endpoint: str
    certificate_authority: str
    service_cidr: str

    @property
    def dns_address(self) -> str:
        """The cluster's DNS: the tenth address of the service range."""
        return str(ipaddress.ip_network(self.service_cidr)[10])


@dataclass(frozen=True)
class Registration:
    """The labels and taints with which a node registers itself."""

    labels: Mapping[str, str]
    taints: Sequence[TaintSpec]


def nodeadm_user_data(parallel_pulls: int, connection: Connection | None, registration: Registration) -> str:
    """A NodeConfig in a MIME message: EKS merges its own part into it for an AMI type.

    https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/
    """
    kubelet: dict[str, Any] = {
        "config": {"serializeImagePulls": False, "maxParallelImagePulls": parallel_pulls},
    }
    spec: dict[str, Any] = {"kubelet": kubelet}
    if connection is not None:
        spec["cluster"] = {
            "name": connection.name,
            "apiServerEndpoint": connection.endpoint,
            "certificateAuthority": connection.certificate_authority,
            "cidr": connection.service_cidr,
        }
        kubelet["flags"] = _kubelet_flags(registration)
    node_config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    return "\n".join(
        [
            "MIME-Version: 1.0",
            f'Content-Type: multipart/mixed; boundary="{BOUNDARY}"',
            "",
            f"--{BOUNDARY}",
            "Content-Type: application/node.eks.aws",
            "",
            json.dumps(node_config, indent=2),
            f"--{BOUNDARY}--",
            "",
        ]
    )


def _kubelet_flags(registration: Registration) -> list[str]:
    labels = ",".join(f"{key}={value}" for key, value in sorted(registration.labels.items()))
    taints = ",".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in registration.taints)
    return [f"--node-labels={labels}", *([f"--register-with-taints={taints}"] if taints else [])]


def bottlerocket_user_data(parallel_pulls: int, connection: Connection | None, registration: Registration) -> str:
    """Bottlerocket's settings. It never pulls one image at a time; the setting is the limit.

    https://bottlerocket.dev/en/os/latest/api/settings/kubernetes/
    """
    lines = ["[settings.kubernetes]", f"max-parallel-image-pulls = {parallel_pulls}"]
    if connection is not None:
        lines += [
            f"cluster-name = {json.dumps(connection.name)}",
            f"api-server = {json.dumps(connection.endpoint)}",
            f"cluster-certificate = {json.dumps(connection.certificate_authority)}",
            f"cluster-dns-ip = {json.dumps(connection.dns_address)}",
            "",
            "[settings.kubernetes.node-labels]",
            *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in sorted(registration.labels.items())),
        ]
        if registration.taints:
            lines += ["", "[settings.kubernetes.node-taints]", *_bottlerocket_taints(registration.taints)]
    return "\n".join([*lines, ""])


def _bottlerocket_taints(taints: Sequence[TaintSpec]) -> list[str]:
    by_key: dict[str, list[str]] = {}
    for taint in taints:
        by_key.setdefault(taint.key, []).append(f"{taint.value}:{taint.effect}")
    return [f"{json.dumps(key)} = {json.dumps(values)}" for key, values in by_key.items()]
