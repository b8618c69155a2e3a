"""IAM roles of the AWS components: who may take them on, and nothing but the policies that are named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

CNI_POLICY = "AmazonEKS_CNI_Policy"
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
"""To join a cluster, and to pull from ECR. https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html"""


NAME_PREFIX = "pulumi-vllm-"
"""What every role of ours begins with: the deploying role may touch no other (docs/iam-deploy-policy.json)."""
LONGEST_PREFIX = 38
"""IAM appends 26 characters to a prefix, and a role's name has 64."""


def name_prefix(name: str) -> str:
    """The beginning of a role's name; the provider makes it unique."""
    return f"{NAME_PREFIX}{name}-"[:LONGEST_PREFIX]


def partition(region: str) -> str:
    """The partition that a region belongs to: part of every ARN."""
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(region.rsplit("-", maxsplit=2)[0], "aws")


def managed_policy(region: str, name: str) -> str:
    """ARN of a policy that AWS keeps."""
    return f"arn:{partition(region)}:iam::aws:policy/{name}"


def trust_policy(service: str) -> str:
    """Who may take the role on. Pod Identity also tags its sessions with the pod."""
    actions = ["sts:AssumeRole", "sts:TagSession"] if service.startswith("pods.") else ["sts:AssumeRole"]
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@dataclass(frozen=True)
class ServiceRole:
    """A role, and the attachments that must be there before it is used."""

    role: aws.iam.Role
    attachments: list[pulumi.Resource]


def service_role(
    name: str, service: str, *, region: str, policies: Sequence[str], tags: dict[str, str], parent: pulumi.Resource
) -> ServiceRole:
    """A role for one AWS service with AWS' own policies, by the names that follow ``policy/`` in their ARN."""
    options = pulumi.ResourceOptions(parent=parent)
    role = aws.iam.Role(
        name, name_prefix=name_prefix(name), assume_role_policy=trust_policy(service), tags=tags, opts=options
    )
    attachments: list[pulumi.Resource] = [
        aws.iam.RolePolicyAttachment(
            f"{name}-{policy.rsplit('/', maxsplit=1)[-1]}",
            role=role.name,
            policy_arn=managed_policy(region, policy),
            opts=options,
        )
        for policy in policies
    ]
    return ServiceRole(role, attachments)
