"""EKS: node groups that never get ready, and volumes in another zone than the node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import Case, findings

EKS = "nodes.l40s.eks"
STACK = "l40s-pair-eks"
TWO_ZONES = [
    {"id": "subnet-0aaaaaaaaaaaaaaa1", "zone": "us-east-1a", "zoneId": "use1-az1"},
    {"id": "subnet-0aaaaaaaaaaaaaaa2", "zone": "us-east-1b", "zoneId": "use1-az2"},
]


def case(failure: str, what: str, changes: dict[str, Any], level: str, rule: str, path: str, words: str) -> Case:
    """A case of the shipped stack on EKS, which itself is the neighbour that passes."""
    return Case(failure, what, changes, level, rule, path, words, shipped=STACK)


CASES = [
    case(
        "EKS-1",
        "an AMI without driver for a GPU",
        {f"{EKS}.amiType": "AL2023_x86_64_STANDARD"},
        "error",
        "EKS-1",
        f"{EKS}.amiType",
        "NVIDIA",
    ),
    case(
        "EKS-1",
        "an NVIDIA AMI without a GPU",
        {f"{EKS}.instanceType": "m6i.2xlarge", f"{EKS}.amiType": "BOTTLEROCKET_x86_64_NVIDIA"},
        "error",
        "EKS-1",
        f"{EKS}.instanceType",
        "no NVIDIA GPU",
    ),
    case(
        "EKS-1",
        "an AMI by id without its bootstrap",
        {f"{EKS}.amiType": None, f"{EKS}.amiId": "ami-0123456789abcdef0"},
        "error",
        "EKS-1",
        f"{EKS}.bootstrap",
        "nodeadm",
    ),
    case(
        "EKS-1",
        "an AMI by id and by type",
        {f"{EKS}.amiId": "ami-0123456789abcdef0", f"{EKS}.bootstrap": "nodeadm"},
        "error",
        "EKS-1",
        f"{EKS}.amiId",
        "not both",
    ),
    case(
        "EKS-1",
        "an AMI of another architecture",
        {f"{EKS}.amiType": "AL2023_ARM_64_NVIDIA"},
        "error",
        "EKS-1",
        f"{EKS}.amiType",
        "x86",
    ),
    case(
        "EKS-1",
        "an AMI line that has ended",
        {f"{EKS}.amiType": "AL2_x86_64_GPU"},
        "error",
        "EKS-1",
        f"{EKS}.amiType",
        "",
    ),
    case("EKS-1", "a quota of nothing", {f"{EKS}.quotaVcpus": 0}, "error", "EKS-QUOTA", f"{EKS}.quotaVcpus", "16"),
    case(
        "EKS-2",
        "volumes of one zone, nodes of two",
        {f"{EKS}.subnets": TWO_ZONES, f"{EKS}.zone": None},
        "warn",
        "EKS-2",
        f"{EKS}.zone",
        "zone",
    ),
]


@pytest.mark.parametrize("each", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(each: Case) -> None:
    each.check()


def test_eks_1_the_needed_quota_is_said() -> None:
    said = [each for each in findings({}, shipped=STACK) if each.rule == "EKS-QUOTA"]
    assert said, "a new account may run none"
    assert "16" in said[0].message, "two g6e.2xlarge have 16 vCPUs"
    assert said[0].level != "error", "the neighbour: an account whose quota nobody declared"
