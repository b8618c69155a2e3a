"""EksCluster: a minimal EKS cluster for GPU pools, with the add-ons that a model cache on EBS needs.

Access is by EKS' own entries, never by the aws-auth ConfigMap, and whoever creates the cluster is no administrator by
that. Add-ons that run on every node come before the first node, those that run as Deployments after it: EKS calls an
add-on active only when its pods are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components import naming
from components.aws_roles import CNI_POLICY, NODE_POLICIES, partition, service_role
from planner.spec.aws import EksAddon, EksClusterSpec

POD_IDENTITY_AGENT: EksAddon = "eks-pod-identity-agent"
ADMINISTRATOR_POLICY = "AmazonEKSClusterAdminPolicy"
SYSTEM_AMI_TYPE = "AL2023_x86_64_STANDARD"


@dataclass(frozen=True)
class AddonRole:
    """What an add-on's service account may do, by AWS' own policy."""

    service_account: str
    policy: str


ADDON_ROLES = {
    "vpc-cni": AddonRole("aws-node", CNI_POLICY),
    "aws-ebs-csi-driver": AddonRole("ebs-csi-controller-sa", "service-role/AmazonEBSCSIDriverPolicy"),
}
BEFORE_NODES: tuple[EksAddon, ...] = ("vpc-cni", "kube-proxy")
AFTER_NODES: tuple[EksAddon, ...] = ("coredns", "aws-ebs-csi-driver")


@dataclass(frozen=True)
class EksClusterArgs:
    """``stack`` is the name of the stack that the cluster belongs to."""

    stack: str
    spec: EksClusterSpec


def vpc_config(spec: EksClusterSpec) -> aws.eks.ClusterVpcConfigArgs:
    """The API server is always reachable from the VPC, from outside it only for the ranges that are named."""
    public = bool(spec.public_access_cidrs)
    return aws.eks.ClusterVpcConfigArgs(
        subnet_ids=[subnet.id for subnet in spec.subnets],
        endpoint_private_access=True,
        endpoint_public_access=public,
        public_access_cidrs=list(spec.public_access_cidrs) if public else None,
    )


def principal_name(arn: str) -> str:
    """A logical name for an administrator: role/ops/deployer is deployer."""
    return arn.rsplit("/", maxsplit=1)[-1]


class EksCluster(pulumi.ComponentResource):
    """Control plane, access, add-ons and the few nodes that they need."""

    cluster: aws.eks.Cluster

    def __init__(self, name: str, args: EksClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:EksCluster", name, None, opts)
        self._name, self._spec = name, args.spec
        self._tags = {naming.STACK_LABEL: args.stack}
        self.cluster = self._control_plane()
        for arn in self._spec.administrators:
            self._administrator(arn)
        agent = self._addon(POD_IDENTITY_AGENT, [])
        on_every_node = [self._addon(addon, [agent]) for addon in BEFORE_NODES]
        nodes = self._system_nodes([agent, *on_every_node])
        for addon in AFTER_NODES:
            self._addon(addon, [agent, nodes])
        self.register_outputs({"name": self.cluster.name, "endpoint": self.cluster.endpoint})

    def _control_plane(self) -> aws.eks.Cluster:
        spec = self._spec
        role = service_role(
            f"{self._name}-cluster",
            "eks.amazonaws.com",
            region=spec.region,
            policies=["AmazonEKSClusterPolicy"],
            tags=self._tags,
            parent=self,
        )
        return aws.eks.Cluster(
            f"{self._name}-cluster",
            name=spec.name,
            version=spec.kubernetes_version,
            role_arn=role.role.arn,
            vpc_config=vpc_config(spec),
            access_config=aws.eks.ClusterAccessConfigArgs(
                authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
            ),
            bootstrap_self_managed_addons=False,
            # A version after its standard support costs six times as much: EKS then upgrades instead.
            upgrade_policy=aws.eks.ClusterUpgradePolicyArgs(support_type="STANDARD"),
            enabled_cluster_log_types=["api", "audit", "authenticator"],
            deletion_protection=spec.deletion_protection,
            tags=self._tags,
            # Without its policies the role cannot remove what EKS made, and deletion leaks it.
            opts=pulumi.ResourceOptions(parent=self, depends_on=role.attachments),
        )

    def _administrator(self, arn: str) -> None:
        name = f"{self._name}-administrator-{principal_name(arn)}"
        entry = aws.eks.AccessEntry(
            name,
            cluster_name=self.cluster.name,
            principal_arn=arn,
            type="STANDARD",
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        aws.eks.AccessPolicyAssociation(
            name,
            cluster_name=self.cluster.name,
            principal_arn=arn,
            policy_arn=f"arn:{partition(self._spec.region)}:eks::aws:cluster-access-policy/{ADMINISTRATOR_POLICY}",
            access_scope=aws.eks.AccessPolicyAssociationAccessScopeArgs(type="cluster"),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[entry]),
        )

    def _addon(self, addon: EksAddon, after: Sequence[pulumi.Resource]) -> aws.eks.Addon:
        associations, attachments = self._addon_role(addon)
        return aws.eks.Addon(
            f"{self._name}-{addon}",
            cluster_name=self.cluster.name,
            addon_name=addon,
            addon_version=self._spec.addon_versions.get(addon),
            pod_identity_associations=associations,
            resolve_conflicts_on_create="OVERWRITE",
            resolve_conflicts_on_update="PRESERVE",
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*after, *attachments]),
        )

    def _addon_role(
        self, addon: str
    ) -> tuple[list[aws.eks.AddonPodIdentityAssociationArgs] | None, list[pulumi.Resource]]:
        wanted = ADDON_ROLES.get(addon)
        if wanted is None:
            return None, []
        made = service_role(
            f"{self._name}-{addon}",
            "pods.eks.amazonaws.com",
            region=self._spec.region,
            policies=[wanted.policy],
            tags=self._tags,
            parent=self,
        )
        association = aws.eks.AddonPodIdentityAssociationArgs(
            role_arn=made.role.arn, service_account=wanted.service_account
        )
        return [association], made.attachments

    def _system_nodes(self, after: Sequence[pulumi.Resource]) -> aws.eks.NodeGroup:
        wanted = self._spec.system_nodes
        role = service_role(
            f"{self._name}-system-node",
            "ec2.amazonaws.com",
            region=self._spec.region,
            policies=NODE_POLICIES,
            tags=self._tags,
            parent=self,
        )
        template = aws.ec2.LaunchTemplate(
            f"{self._name}-system-template",
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self),
        )
        return aws.eks.NodeGroup(
            f"{self._name}-system-group",
            cluster_name=self.cluster.name,
            node_role_arn=role.role.arn,
            subnet_ids=[subnet.id for subnet in self._spec.subnets],
            ami_type=SYSTEM_AMI_TYPE,
            instance_types=[wanted.instance_type],
            launch_template=aws.eks.NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(str)
            ),
            scaling_config=aws.eks.NodeGroupScalingConfigArgs(
                desired_size=wanted.nodes, min_size=1, max_size=wanted.nodes + 1
            ),
            update_config=aws.eks.NodeGroupUpdateConfigArgs(max_unavailable=1),
            tags=self._tags,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*after, *role.attachments],
                ignore_changes=["scalingConfig.desiredSize"],
            ),
        )
