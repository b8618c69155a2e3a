"""Facts about instance types and AMI types: complete, consistent, and each with a source."""

from __future__ import annotations

import re

import pytest

from planner.gpus import catalogue
from planner.instances import (
    ami_type_of,
    ami_types,
    family_of,
    has_no_nvidia_gpu,
    instances,
    nearest_ami_type,
    quota_of,
    zones_used,
)
from planner.spec.aws import EksNodeGroupSpec
from tests.aws.arguments import BLOCK, OWN_AMI, SUBNETS, pool
from tests.aws.service_model import service


def eks(changes: dict[str, object] | None = None) -> EksNodeGroupSpec:
    spec = pool(changes or {}).eks
    assert spec is not None, "the pool of this stack has a node group"
    return spec


def test_every_instance_type_exists() -> None:
    known = set(service("ec2").shape_for("InstanceType").enum)
    assert set(instances()) <= known, f"no such types: {set(instances()) - known}"
    assert len(instances()) > 50, "g4dn to p6"


def test_the_pair_is_what_its_stack_says() -> None:
    instance = instances()["g6e.2xlarge"]
    assert (instance.vcpus, instance.memory_mib, instance.gpus, instance.gpu) == (8, 65536, 1, "l40s")
    assert instance.price is not None, "the guide says what it costs"
    assert instance.price.dollars_per_hour == pytest.approx(2.24208)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", instance.price.date), "a price without its day says nothing"


def test_every_card_is_in_the_catalogue_or_said_not_to_be() -> None:
    for instance in instances().values():
        if instance.gpu is not None:
            card = catalogue()[instance.gpu]
            # EC2 counts a little less than nvidia-smi for cards with ECC, and a little more for others.
            assert abs(card.total_mib - instance.gpu_mib) / instance.gpu_mib < 0.1, f"{instance.name}: another card"
    assert {one.gpu_name for one in instances().values() if one.gpu is None} == {"T4g", "V100", "RTX PRO 4500", "B300"}


def test_sizes_are_possible() -> None:
    for instance in instances().values():
        sustained, highest = instance.ebs_mb_per_second
        assert 0 < sustained <= highest, instance.name
        assert instance.gpus in {1, 2, 4, 8}, instance.name
        assert instance.zone_ids, f"{instance.name} is offered nowhere"


def test_every_ami_type_of_eks_is_in_the_table() -> None:
    known = set(service("eks").shape_for("AMITypes").enum) - {"CUSTOM"}
    assert set(ami_types()) == known, "an AMI type of EKS that the table lacks could not be judged"
    for ami in ami_types().values():
        assert ("ARM_64" in ami.name) == (ami.architecture == "arm64"), ami.name
        assert ("NVIDIA" in ami.name or ami.name == "AL2_x86_64_GPU") == ami.nvidia, ami.name


@pytest.mark.parametrize(
    ("written", "meant"),
    [("AL2023_x86_64_NVIDA", "AL2023_x86_64_NVIDIA"), ("bottlerocket_x86_64_nvidia", "BOTTLEROCKET_x86_64_NVIDIA")],
)
def test_a_misspelt_ami_type_is_recognised(written: str, meant: str) -> None:
    assert nearest_ami_type(written) == meant


def test_an_unknown_type_is_not_said_to_have_no_gpu() -> None:
    assert has_no_nvidia_gpu("m6i.large")
    for name in ("g6e.xlarge", "g6f.large", "g9z.xlarge"):
        assert not has_no_nvidia_gpu(name), f"{name} has a GPU, a part of one, or came after the table"


@pytest.mark.parametrize(
    ("instance", "capacity", "code"),
    [
        ("g6e.2xlarge", {"kind": "onDemand"}, "L-DB2E81BA"),
        ("g6e.2xlarge", {"kind": "spot"}, "L-3819A6DF"),
        ("p5.48xlarge", {"kind": "onDemand"}, "L-417A185B"),
        ("p5.48xlarge", {"kind": "spot"}, "L-C4BD4855"),
        ("p4d.24xlarge", {"kind": "spot"}, "L-7212CCBC"),
    ],
)
def test_each_kind_of_capacity_has_its_quota(instance: str, capacity: dict[str, str], code: str) -> None:
    quota = quota_of(eks({"eks.instanceType": instance, "eks.capacity": capacity}))
    assert quota is not None, "this kind has a quota"
    assert quota.code == code


def test_a_capacity_block_counts_against_no_quota_of_running_instances() -> None:
    assert quota_of(eks({"eks.capacity": BLOCK})) is None


def test_an_ami_by_id_is_of_the_family_whose_bootstrap_it_names() -> None:
    assert ami_type_of(eks(OWN_AMI)) is None, "its type is not known"
    family = family_of(eks(OWN_AMI))
    assert family is not None, "but its family is"
    assert family.name == "AL2023"
    bottlerocket = family_of(eks({**OWN_AMI, "eks.bootstrap": "bottlerocket"}))
    assert bottlerocket is not None, "Bottlerocket too"
    assert bottlerocket.data_device == "/dev/xvdb"
    assert family_of(eks({**OWN_AMI, "eks.bootstrap": None})) is None, "without bootstrap nothing is known"


def test_the_zones_of_a_group_are_those_of_its_subnets_or_the_one_that_is_named() -> None:
    assert zones_used(eks({"eks.subnets": SUBNETS, "eks.zone": None})) == ("us-east-1a", "us-east-1b")
    assert zones_used(eks({"eks.subnets": SUBNETS})) == ("us-east-1a",)
    assert zones_used(eks({"eks.zone": "us-east-1f"})) == (), "a zone without subnet"
