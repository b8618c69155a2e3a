"""The program of a stack that is an EKS cluster and nothing else: the section `vllm:eksCluster`, checked, built."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from infra.config.errors import ConfigError, findings_of
from planner.findings import Finding
from planner.spec import Spec
from planner.spec.aws import EksClusterSpec

if TYPE_CHECKING:
    from components.eks_cluster import EksCluster

SECTION = "eksCluster"
ACCESS = "https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html"
SUBNETS = "https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"


class EksClusterStackConfig(Spec):
    """A stack file with a cluster of its own."""

    eks_cluster: EksClusterSpec
    """The cluster."""


def is_cluster_stack(values: Mapping[str, Any]) -> bool:
    """Whether a stack file (its sections, without the project's name) is about a cluster of its own."""
    return SECTION in values


def cluster_of(values: Mapping[str, Any]) -> EksClusterSpec:
    """The cluster that a stack file describes.

    Raises:
        ConfigError: with every fault at once, other sections among them: a cluster outlives what runs on it, so it is
            a stack of its own.
    """
    try:
        return EksClusterStackConfig.model_validate_json(json.dumps(dict(values))).eks_cluster
    except ValidationError as error:
        raise ConfigError(findings_of(error, EksClusterStackConfig)) from None


def check_cluster(spec: EksClusterSpec) -> Iterator[Finding]:
    """What the section alone tells."""
    zones = sorted({subnet.zone for subnet in spec.subnets})
    if len(zones) < 2:
        message = f"all are in {zones[0]}: EKS refuses a control plane in one zone"
        remedy = "a subnet in a second zone"
        yield Finding("error", f"vllm:{SECTION}.subnets", message, remedy, "EKS-SUBNETS", SUBNETS)
    outside = sorted({subnet.zone for subnet in spec.subnets if not subnet.zone.startswith(spec.region)})
    if outside:
        message = f"{', '.join(outside)} are not in {spec.region}"
        yield Finding("error", f"vllm:{SECTION}.subnets", message, f"subnets of {spec.region}", "EKS-SUBNETS", SUBNETS)
    if not spec.public_access_cidrs:
        message = "is not set: the API server answers inside the VPC only"
        remedy = "run Pulumi and kubectl there (VPN, peering, a runner in the VPC), or name your address ranges"
        yield Finding("warn", f"vllm:{SECTION}.publicAccessCidrs", message, remedy, "EKS-ACCESS", ACCESS)
    elif "0.0.0.0/0" in spec.public_access_cidrs:
        message = "0.0.0.0/0: the whole internet reaches the API server"
        yield Finding(
            "warn", f"vllm:{SECTION}.publicAccessCidrs", message, "your own address ranges", "EKS-ACCESS", ACCESS
        )


def build_cluster(stack: str, spec: EksClusterSpec) -> EksCluster:
    """The cluster, in its region."""
    import pulumi  # noqa: PLC0415 - a plan needs neither of these
    import pulumi_aws as aws  # noqa: PLC0415

    from components.eks_cluster import EksCluster, EksClusterArgs  # noqa: PLC0415

    provider = aws.Provider("aws", region=spec.region)
    return EksCluster(spec.name, EksClusterArgs(stack, spec), pulumi.ResourceOptions(provider=provider))
