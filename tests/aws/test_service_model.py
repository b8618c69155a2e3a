"""Every input of every AWS resource fits the model that AWS publishes of the call that it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.aws import arguments
from tests.aws.arguments import BLOCK, BOTTLEROCKET, OWN_AMI, RESERVATION, baked_image, eks_cluster, node_group
from tests.aws.service_model import CALLS, made
from tests.recorder import Recording, Registration

PLAIN = ("vllm:", "pulumi:")
VARIANTS: dict[str, Callable[[], Recording]] = {
    "on demand": node_group,
    "spot": lambda: node_group({"eks.capacity": {"kind": "spot"}}),
    "reservation": lambda: node_group({"eks.capacity": RESERVATION}),
    "capacity block": lambda: node_group({"eks.capacity": BLOCK}),
    "bottlerocket": lambda: node_group(BOTTLEROCKET),
    "bottlerocket with images in a snapshot": lambda: node_group(
        {**BOTTLEROCKET, "imageDelivery": "snapshot", "eks.dataVolumeSnapshot": "snap-0123456789abcdef0"}
    ),
    "an AMI of one's own": lambda: node_group(OWN_AMI),
    "an AMI of one's own, bottlerocket": lambda: node_group({**OWN_AMI, "eks.bootstrap": "bottlerocket"}),
    "a baked AMI": lambda: node_group(arguments.BAKED, image_id="ami-0123456789abcdef0"),
    "a disk with everything": lambda: node_group(
        {
            "eks.disk": {
                "sizeGib": 500,
                "throughput": 1000,
                "iops": 4000,
                "initializationRate": 300,
                "kmsKeyId": "alias/k",
            }
        }
    ),
    "a release and every taint": lambda: node_group(
        {
            "eks.releaseVersion": "1.34.2-20260101",
            "taints": [
                {"key": "a", "value": "b", "effect": effect}
                for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute")
            ],
        }
    ),
    "no taint": lambda: node_group({"taints": []}),
    "a role that exists": lambda: node_group({"eks.nodeRoleArn": "arn:aws:iam::123456789012:role/nodes"}),
    "a baking": baked_image,
    "a baking with a pipeline": lambda: baked_image({"eks.bakedImage.rebuildSchedule": "cron(0 3 ? * sun *)"}),
    "a baking from an AMI by id": lambda: baked_image({"eks.bakedImage.parentImage": "ami-0123456789abcdef0"}),
    "a cluster": eks_cluster,
    "a cluster that the internet reaches": lambda: eks_cluster({"publicAccessCidrs": ["203.0.113.0/24"]}),
    "a cluster with pinned add-ons": lambda: eks_cluster({"addonVersions": {"vpc-cni": "v1.20.4-eksbuild.1"}}),
}


def aws_resources(recording: Recording) -> list[Registration]:
    return [item for item in recording.registrations if item.type.startswith("aws:")]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_aws_would_take_every_call(variant: Callable[[], Recording]) -> None:
    resources = aws_resources(variant())
    assert len(resources) >= 2, "a variant that makes nothing proves nothing"
    for item in resources:
        faults = made(item.type, item.inputs).faults
        assert not faults, f"{item.type} {item.name}: AWS would refuse this: {faults}"


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_no_block_is_empty(variant: Callable[[], Recording]) -> None:
    for item in aws_resources(variant()):
        found = list(empties(item.inputs, item.name))
        assert not found, f"AWS answers without an empty block, and every preview then shows a change: {found}"


def empties(value: Any, path: str) -> list[str]:
    """Where a mapping or a list is empty, or a value is nothing."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return [path] * (not value) + [found for key, each in inner for found in empties(each, f"{path}.{key}")]
    return [path] * (value is None or value == "")


def test_every_kind_of_resource_was_seen() -> None:
    seen = {item.type for variant in VARIANTS.values() for item in aws_resources(variant())}
    assert seen == set(CALLS), "a mapping that nothing uses, or a resource that nothing checks"


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], None], str]] = {
    "an unknown enum": (
        "aws:eks/nodeGroup:NodeGroup",
        lambda inputs: inputs.update(amiType="AL2023_x86_64_NVIDA"),
        "is none of",
    ),
    "an effect as Kubernetes spells it": (
        "aws:eks/nodeGroup:NodeGroup",
        lambda inputs: inputs["taints"][0].update(effect="NoSchedule"),
        "is none of",
    ),
    "a misspelt member": (
        "aws:ec2/launchTemplate:LaunchTemplate",
        lambda inputs: inputs["metadataOptions"].update(httpToken="required"),
        "no member httpToken",
    ),
    "a number that is a word": (
        "aws:ec2/launchTemplate:LaunchTemplate",
        lambda inputs: inputs["blockDeviceMappings"][0]["ebs"].update(volumeSize="many"),
        "VolumeSize",
    ),
    "a required member that is missing": (
        "aws:eks/nodeGroup:NodeGroup",
        lambda inputs: inputs.pop("subnetIds"),
        "subnets",
    ),
    "a number below its range": (
        "aws:eks/nodeGroup:NodeGroup",
        lambda inputs: inputs["updateConfig"].update(maxUnavailable=0.0),
        "maxUnavailable",
    ),
}


@pytest.mark.parametrize(("type_", "spoil", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_would_be_found(type_: str, spoil: Callable[[dict[str, Any]], None], words: str) -> None:
    inputs = node_group().one(type_).inputs
    assert not made(type_, inputs).faults, "before it is spoilt the call is right"
    spoil(inputs)
    assert any(words in fault for fault in made(type_, inputs).faults), "the check cannot see this fault"


def test_a_pattern_would_be_found() -> None:
    type_ = "aws:imagebuilder/component:Component"
    inputs = {**baked_image().one(type_).inputs, "version": "1.0"}
    assert any("does not match" in fault for fault in made(type_, inputs).faults), "1.0 is no semantic version"
