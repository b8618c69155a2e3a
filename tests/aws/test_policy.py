"""The shipped policy is enough for what the components make, and lets nobody become more than that."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.aws.arguments import BAKED, baked_image, eks_cluster, node_group
from tests.aws.policy import POLICY, allowed_actions, allows
from tests.aws.service_model import CALLS, service
from tests.recorder import Registration

LONGEST = 6144
"""Characters of a managed policy without white space (IAM quotas)."""
NO_OPERATION = {"iam:PassRole"}
"""Permissions that are asked for inside other calls."""
AFTERWARDS: Mapping[str, tuple[str, ...]] = {
    "aws:ec2/launchTemplate:LaunchTemplate": (
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribeLaunchTemplateVersions",
        "ec2:CreateLaunchTemplateVersion",
        "ec2:ModifyLaunchTemplate",
        "ec2:DeleteLaunchTemplate",
        "ec2:CreateTags",
        "ec2:RunInstances",  # EKS asks whether the caller may start what the template describes
    ),
    "aws:eks/nodeGroup:NodeGroup": (
        "eks:DescribeNodegroup",
        "eks:UpdateNodegroupConfig",
        "eks:UpdateNodegroupVersion",
        "eks:DescribeUpdate",
        "eks:DeleteNodegroup",
        "eks:TagResource",
    ),
    "aws:eks/cluster:Cluster": (
        "eks:DescribeCluster",
        "eks:UpdateClusterConfig",
        "eks:UpdateClusterVersion",
        "eks:DeleteCluster",
    ),
    "aws:eks/addon:Addon": (
        "eks:DescribeAddon",
        "eks:UpdateAddon",
        "eks:DeleteAddon",
        "eks:CreatePodIdentityAssociation",
        "eks:DescribePodIdentityAssociation",
    ),
    "aws:eks/accessEntry:AccessEntry": ("eks:DescribeAccessEntry", "eks:UpdateAccessEntry", "eks:DeleteAccessEntry"),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": (
        "eks:ListAssociatedAccessPolicies",
        "eks:DisassociateAccessPolicy",
    ),
    "aws:iam/role:Role": (
        "iam:GetRole",
        "iam:DeleteRole",
        "iam:UpdateAssumeRolePolicy",
        "iam:ListInstanceProfilesForRole",
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": ("iam:ListAttachedRolePolicies", "iam:DetachRolePolicy"),
    "aws:iam/instanceProfile:InstanceProfile": (
        "iam:AddRoleToInstanceProfile",
        "iam:GetInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
        "iam:DeleteInstanceProfile",
    ),
    **{
        f"aws:imagebuilder/{kind[0].lower()}{kind[1:]}:{kind}": (
            f"imagebuilder:Get{kind}",
            f"imagebuilder:Delete{kind}",
        )
        for kind in (
            "Component",
            "ImageRecipe",
            "InfrastructureConfiguration",
            "DistributionConfiguration",
            "Image",
            "ImagePipeline",
        )
    },
}
"""What the provider calls besides the call of creation: reading, changing, deleting."""


def test_every_resource_can_be_made_read_and_deleted() -> None:
    assert set(AFTERWARDS) == set(CALLS), "a resource whose life is not written down"
    wanted = {f"{call.service}:{call.operation}" for call in CALLS.values()}
    wanted |= {action for actions in AFTERWARDS.values() for action in actions}
    assert not wanted - allowed_actions(POLICY), "the deploying role would be refused in the middle of an update"


def test_every_action_exists() -> None:
    for action in allowed_actions(POLICY) - NO_OPERATION:
        name, operation = action.split(":")
        names = service({"servicequotas": "service-quotas"}.get(name, name)).operation_names
        assert operation in names, f"{action}: IAM would accept the policy and never allow this"


def test_no_action_is_a_wildcard() -> None:
    assert not [action for action in allowed_actions(POLICY) if "*" in action], "a wildcard allows what nobody checked"
    assert len(json.dumps(POLICY, separators=(",", ":"))) <= LONGEST, "IAM takes no longer managed policy"


def registered(type_: str) -> list[Registration]:
    recordings = (node_group(), node_group(BAKED, image_id="ami-1"), baked_image(), eks_cluster())
    return [item for recording in recordings for item in recording.all(type_)]


def test_our_roles_are_inside_the_policy_and_others_are_not() -> None:
    roles = registered("aws:iam/role:Role")
    assert len(roles) >= 7, "nodes, builder, cluster, add-ons, system nodes"
    for item in roles:
        arn = f"arn:aws:iam::123456789012:role/{item.inputs['namePrefix']}20260101"
        assert allows(POLICY, "iam:CreateRole", arn), f"{item.name} could not be made"
        assert len(item.inputs["namePrefix"]) <= 38, "IAM takes no longer prefix"
    assert not allows(POLICY, "iam:CreateRole", "arn:aws:iam::123456789012:role/admin"), "no other role can be made"


def test_only_the_policies_that_are_needed_can_be_attached() -> None:
    role = "arn:aws:iam::123456789012:role/pulumi-vllm-x"
    for item in registered("aws:iam/rolePolicyAttachment:RolePolicyAttachment"):
        context = {"iam:PolicyARN": item.inputs["policyArn"]}
        assert allows(POLICY, "iam:AttachRolePolicy", role, context), f"{item.name} could not be attached"
    admin = {"iam:PolicyARN": "arn:aws:iam::aws:policy/AdministratorAccess"}
    assert not allows(POLICY, "iam:AttachRolePolicy", role, admin), "the deploying role could make itself administrator"


@pytest.mark.parametrize(
    ("passed_to", "allowed"),
    [("eks.amazonaws.com", True), ("ec2.amazonaws.com", True), ("lambda.amazonaws.com", False)],
)
def test_a_role_is_handed_only_to_the_service_that_it_is_for(passed_to: str, *, allowed: bool) -> None:
    role = "arn:aws:iam::123456789012:role/pulumi-vllm-x"
    assert allows(POLICY, "iam:PassRole", role, {"iam:PassedToService": passed_to}) is allowed, passed_to
