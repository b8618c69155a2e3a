"""The program of a stack that is an EKS cluster of its own: check, build, export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulumi

from infra.config.stack import EKS_CLUSTER
from infra.preflight import check_cluster
from infra.report import announce
from planner.spec import EksClusterSpec

if TYPE_CHECKING:
    from components.eks_cluster import EksCluster


def deploy_cluster(stack: str, spec: EksClusterSpec) -> None:
    """Check first; nothing is registered when there is an error."""
    announce(check_cluster(spec))
    built = build_cluster(stack, spec).cluster
    outputs = {"name": built.name, "endpoint": built.endpoint, "kubernetesVersion": built.version}
    pulumi.export(EKS_CLUSTER, outputs)


def build_cluster(stack: str, spec: EksClusterSpec) -> EksCluster:
    """The cluster, in its region."""
    import pulumi_aws as aws  # noqa: PLC0415 - it takes a second to load, and only a stack with EKS needs it

    from components.eks_cluster import EksCluster, EksClusterArgs  # noqa: PLC0415

    provider = aws.Provider("aws", region=spec.region)
    return EksCluster(spec.name, EksClusterArgs(stack, spec), pulumi.ResourceOptions(provider=provider))
