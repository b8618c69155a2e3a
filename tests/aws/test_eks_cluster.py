"""A cluster of our own: who may enter, which add-ons it has, and in which order they come."""

from __future__ import annotations

import json

import pytest

from components.aws_roles import managed_policy, partition
from tests.aws.arguments import cluster_spec, eks_cluster

CLUSTER = "aws:eks/cluster:Cluster"
ADDON = "aws:eks/addon:Addon"
GROUP = "aws:eks/nodeGroup:NodeGroup"


def test_access_is_by_entries_only() -> None:
    recording = eks_cluster()
    config = recording.one(CLUSTER).inputs["accessConfig"]
    assert config == {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False}, (
        "whoever created the cluster would be administrator for ever, and nobody would see it"
    )
    arn = "arn:aws:iam::123456789012:role/deployer"
    assert recording.one("aws:eks/accessEntry:AccessEntry").inputs["principalArn"] == arn
    association = recording.one("aws:eks/accessPolicyAssociation:AccessPolicyAssociation").inputs
    assert association["policyArn"].endswith("/AmazonEKSClusterAdminPolicy")
    assert association["accessScope"] == {"type": "cluster"}


def test_a_cluster_without_administrator_is_refused() -> None:
    with pytest.raises(ValueError, match="administrators"):
        cluster_spec({"administrators": []})


def test_the_api_server_is_private_unless_somebody_is_named() -> None:
    closed = eks_cluster().one(CLUSTER).inputs["vpcConfig"]
    assert (closed["endpointPrivateAccess"], closed["endpointPublicAccess"]) == (True, False)
    assert "publicAccessCidrs" not in closed, "an empty list would mean everybody"
    opened = eks_cluster({"publicAccessCidrs": ["203.0.113.0/24"]}).one(CLUSTER).inputs["vpcConfig"]
    assert opened["endpointPublicAccess"] is True
    assert opened["publicAccessCidrs"] == ["203.0.113.0/24"]


def test_what_eks_installs_by_itself_is_left_out() -> None:
    inputs = eks_cluster().one(CLUSTER).inputs
    assert inputs["bootstrapSelfManagedAddons"] is False, "an add-on that is there already cannot be managed"
    assert inputs["upgradePolicy"] == {"supportType": "STANDARD"}, "extended support costs six times as much"
    assert inputs["deletionProtection"] is True, "a cluster is not deleted by accident"


def test_addons_come_in_an_order_in_which_they_can_become_active() -> None:
    recording = eks_cluster()

    def waits(addon: str) -> set[str]:
        return recording.dependencies(recording.one(ADDON, f"l40s-pair-{addon}"))

    agent, nodes = f"{ADDON}::l40s-pair-eks-pod-identity-agent", f"{GROUP}::l40s-pair-system-group"
    for addon in ("vpc-cni", "kube-proxy", "coredns", "aws-ebs-csi-driver"):
        assert agent in waits(addon), f"{addon}: its role is handed out by the agent"
    for addon in ("coredns", "aws-ebs-csi-driver"):
        assert nodes in waits(addon), f"{addon} is a Deployment and becomes active on a node only"
    for addon in ("eks-pod-identity-agent", "vpc-cni", "kube-proxy"):
        assert nodes not in waits(addon), f"{addon} must be there before the first node"
    group = recording.dependencies(recording.one(GROUP))
    assert f"{ADDON}::l40s-pair-vpc-cni" in group, "a node without network never becomes Ready"


def test_the_ebs_driver_has_a_role_of_its_own() -> None:
    recording = eks_cluster()
    (association,) = recording.one(ADDON, "l40s-pair-aws-ebs-csi-driver").inputs["podIdentityAssociations"]
    assert association["serviceAccount"] == "ebs-csi-controller-sa"
    role = recording.one("aws:iam/role:Role", "l40s-pair-aws-ebs-csi-driver").inputs
    (statement,) = json.loads(role["assumeRolePolicy"])["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}, "pods take it on, nodes cannot"
    assert set(statement["Action"]) == {"sts:AssumeRole", "sts:TagSession"}, "Pod Identity tags its sessions"
    attached = recording.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    policies = [item.inputs["policyArn"] for item in attached if item.name.startswith("l40s-pair-aws-ebs-csi-driver")]
    assert policies == ["arn:aws:iam::aws:policy/service-role/AmazonEBSCSIDriverPolicy"]
    assert "podIdentityAssociations" not in recording.one(ADDON, "l40s-pair-coredns").inputs


def test_an_addon_can_be_pinned() -> None:
    recording = eks_cluster({"addonVersions": {"coredns": "v1.12.4-eksbuild.1"}})
    assert recording.one(ADDON, "l40s-pair-coredns").inputs["addonVersion"] == "v1.12.4-eksbuild.1"
    assert "addonVersion" not in recording.one(ADDON, "l40s-pair-vpc-cni").inputs, "EKS knows the version that fits"


def test_system_nodes_have_no_gpu_and_no_imds_for_pods() -> None:
    recording = eks_cluster()
    assert recording.one(GROUP).inputs["instanceTypes"] == ["t3.medium"]
    options = recording.one("aws:ec2/launchTemplate:LaunchTemplate").inputs["metadataOptions"]
    assert (options["httpTokens"], options["httpPutResponseHopLimit"]) == ("required", 1)


@pytest.mark.parametrize(
    ("region", "name"),
    [("us-east-1", "aws"), ("eu-central-1", "aws"), ("us-gov-west-1", "aws-us-gov"), ("cn-north-1", "aws-cn")],
)
def test_arns_are_of_the_regions_partition(region: str, name: str) -> None:
    assert partition(region) == name
    assert managed_policy(region, "X") == f"arn:{name}:iam::aws:policy/X"
