"""Component arguments made from the shipped pair on EKS with changes, and the AWS cluster of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from components.baked_node_image import BakedNodeImage, BakedNodeImageArgs
from components.eks_cluster import EksCluster, EksClusterArgs
from components.eks_gpu_node_group import ClusterArgs, EksGpuNodeGroup, EksGpuNodeGroupArgs
from planner.spec import PoolSpec
from planner.spec.aws import EksClusterSpec
from tests.recorder import Recording, record
from tests.stack_files import config

STACK = "l40s-pair-eks"
REGION = "us-east-1"
DIGEST = "sha256:" + "a" * 64
OTHER_DIGEST = "sha256:" + "b" * 64
CLUSTER = ClusterArgs("l40s-pair", "https://eks.example", "Y2VydGlmaWNhdGU=", "172.20.0.0/16")
SUBNETS = [
    {"id": "subnet-0aaaaaaaaaaaaaaa1", "zone": "us-east-1a", "zoneId": "use1-az1"},
    {"id": "subnet-0aaaaaaaaaaaaaaa2", "zone": "us-east-1b", "zoneId": "use1-az2"},
]
RESERVATION = {"kind": "reservation", "id": "cr-0123456789abcdef0", "instances": 2}
BLOCK = {"kind": "capacityBlock", "id": "cr-0123456789abcdef0", "instances": 2}
BOTTLEROCKET = {"eks.amiType": "BOTTLEROCKET_x86_64_NVIDIA", "eks.devices": {"kind": "none"}}
BAKED = {
    "imageDelivery": "bakedImage",
    "eks.bakedImage": {"securityGroupIds": ["sg-0123456789abcdef0"]},
}
OWN_AMI = {"eks.amiType": None, "eks.amiId": "ami-0123456789abcdef0", "eks.bootstrap": "nodeadm"}


def in_pool(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of the pool as changes of the stack file."""
    return {f"nodes.l40s.{key}": copy.deepcopy(value) for key, value in changes.items()}


def pool(changes: Mapping[str, Any] | None = None) -> PoolSpec:
    """The pool with changes."""
    return config(STACK, in_pool(changes or {})).nodes["l40s"]


def node_group(changes: Mapping[str, Any] | None = None, **more: Any) -> Recording:
    """What a node group registers."""
    wanted = pool(changes)
    assert wanted.eks is not None, "the pool of this stack has a node group"
    args = EksGpuNodeGroupArgs("test", REGION, CLUSTER, wanted, wanted.eks, **more)
    return record(lambda: EksGpuNodeGroup("l40s", args))


def baked_image(changes: Mapping[str, Any] | None = None, image: Mapping[str, Any] | None = None) -> Recording:
    """What the build of an AMI registers."""
    wanted = pool({**BAKED, **(changes or {})})
    assert wanted.eks is not None, "the pool of this stack has a node group"
    assert wanted.eks.baked_image is not None, "and bakes its image"
    given = {"digest": DIGEST, **(image or {})}
    service = config(STACK, {f"services.qwen.image.{key}": value for key, value in given.items()}).services["qwen"]
    args = BakedNodeImageArgs(
        stack="test",
        region=REGION,
        kubernetes_version="1.34",
        architecture="x86_64",
        images=[service.image],
        disk_gib=wanted.eks.disk.size_gib,
        subnet=SUBNETS[0]["id"],
        spec=wanted.eks.baked_image,
    )
    return record(lambda: BakedNodeImage("l40s", args))


def cluster_spec(changes: Mapping[str, Any] | None = None) -> EksClusterSpec:
    """An EKS cluster of our own."""
    values = {
        "name": "l40s-pair",
        "region": REGION,
        "kubernetesVersion": "1.34",
        "subnets": SUBNETS,
        "administrators": ["arn:aws:iam::123456789012:role/deployer"],
        **(changes or {}),
    }
    return EksClusterSpec.model_validate(values, strict=False)


def eks_cluster(changes: Mapping[str, Any] | None = None) -> Recording:
    """What a cluster of our own registers."""
    return record(lambda: EksCluster("l40s-pair", EksClusterArgs("test", cluster_spec(changes))))
