"""What is checked of an EKS cluster of its own before it is built: where its control plane is, and who reaches it."""

from __future__ import annotations

from collections.abc import Iterator

from infra.config.stack import EKS_CLUSTER
from planner.findings import Finding
from planner.spec import EksClusterSpec

ACCESS = "https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html"
SUBNETS = "https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html"


def check_cluster(spec: EksClusterSpec) -> tuple[Finding, ...]:
    """What the section alone tells, without AWS."""
    return (*_subnets(spec), *_access(spec))


def _subnets(spec: EksClusterSpec) -> Iterator[Finding]:
    zones = sorted({subnet.zone for subnet in spec.subnets})
    path = f"vllm:{EKS_CLUSTER}.subnets"
    if len(zones) < 2:
        message = f"all are in {zones[0]}: EKS refuses a control plane in one zone"
        yield Finding("error", path, message, "a subnet in a second zone", "EKS-SUBNETS", SUBNETS)
    outside = [zone for zone in zones if not zone.startswith(spec.region)]
    if outside:
        message = f"{', '.join(outside)} are not in {spec.region}"
        yield Finding("error", path, message, f"subnets of {spec.region}", "EKS-SUBNETS", SUBNETS)


def _access(spec: EksClusterSpec) -> Iterator[Finding]:
    path = f"vllm:{EKS_CLUSTER}.publicAccessCidrs"
    if not spec.public_access_cidrs:
        message = "is not set: the API server answers inside the VPC only"
        remedy = "run Pulumi and kubectl there (VPN, peering, a runner in the VPC), or name your address ranges"
        yield Finding("warn", path, message, remedy, "EKS-ACCESS", ACCESS)
    elif "0.0.0.0/0" in spec.public_access_cidrs:
        message = "0.0.0.0/0: the whole internet reaches the API server"
        yield Finding("warn", path, message, "your own address ranges", "EKS-ACCESS", ACCESS)
