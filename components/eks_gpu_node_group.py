"""EksGpuNodeGroup: the managed node group of a GPU pool, with a launch template of our own.

EKS makes a copy of the template, so a change reaches the nodes only as a new version of it: the group names the
concrete number. Blocks that would be empty are left out, since AWS answers without them (pulumi-eks#980).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

import pulumi
import pulumi_aws as aws

from components import naming
from components.aws_roles import CNI_POLICY, NODE_POLICIES, service_role
from components.node_user_data import Connection, Registration, bottlerocket_user_data, nodeadm_user_data
from planner.instances import DEFAULT_AMI_TYPES, AmiFamily, architecture_of, family_of, zones_used
from planner.spec import PoolSpec
from planner.spec.aws import CapacityBlock, EksNodeGroupSpec, OnDemandCapacity, SpotCapacity

EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
"""Taint effects as EKS spells them."""
CAPACITY_TYPES = {
    "onDemand": "ON_DEMAND",
    "reservation": "ON_DEMAND",
    "spot": "SPOT",
    "capacityBlock": "CAPACITY_BLOCK",
}
GPU_LABEL = {"nvidia.com/gpu.present": "true"}
"""The label by which the charts of device plugin and DRA driver find their nodes without feature discovery."""
NODE_MINUTES = 30
"""To drain a node, start its successor and bring it to Ready; EKS itself waits 15 minutes for a drain."""


@dataclass(frozen=True)
class ClusterArgs:
    """The EKS cluster that the nodes join."""

    name: pulumi.Input[str]
    endpoint: pulumi.Input[str]
    certificate_authority: pulumi.Input[str]
    service_cidr: pulumi.Input[str]


@dataclass(frozen=True)
class EksGpuNodeGroupArgs:
    """``image_id``: an AMI that this stack bakes, in place of the group's own. ``after``: what must be there first."""

    stack: str
    region: str
    cluster: ClusterArgs
    pool: PoolSpec
    group: EksNodeGroupSpec
    image_id: pulumi.Input[str] | None = None
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)


def node_labels(pool: PoolSpec) -> dict[str, str]:
    """Labels of the nodes: those that the pool selects by, and the one that the charts look for."""
    return {**GPU_LABEL, **pool.selector}


def own_image(args: EksGpuNodeGroupArgs) -> pulumi.Input[str] | None:
    """The AMI by id, where there is one."""
    return args.image_id if args.image_id is not None else args.group.ami_id


def block_devices(group: EksNodeGroupSpec, family: AmiFamily) -> list[aws.ec2.LaunchTemplateBlockDeviceMappingArgs]:
    """Encrypted gp3. Bottlerocket keeps images on a second volume, which can come from a snapshot that has them."""
    disk = group.disk
    images = aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3",
        volume_size=disk.size_gib,
        throughput=disk.throughput,
        iops=disk.iops,
        volume_initialization_rate=disk.initialization_rate,
        snapshot_id=group.data_volume_snapshot,
        # Strings: the provider tells "not set" from false by them.
        encrypted="true",
        kms_key_id=disk.kms_key_id,
        delete_on_termination="true",
    )
    system = aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
        volume_type="gp3", encrypted="true", kms_key_id=disk.kms_key_id, delete_on_termination="true"
    )
    volumes = {family.root_device: images}
    if family.data_device is not None:
        volumes = {family.root_device: system, family.data_device: images}
    return [
        aws.ec2.LaunchTemplateBlockDeviceMappingArgs(device_name=device, ebs=volume)
        for device, volume in volumes.items()
    ]


def capacity_reservation(
    group: EksNodeGroupSpec,
) -> aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs | None:
    """The reservation or block by id; nothing for capacity that is not reserved."""
    if isinstance(group.capacity, OnDemandCapacity | SpotCapacity):
        return None
    return aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
        capacity_reservation_target=aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
            capacity_reservation_id=group.capacity.id
        )
    )


def market_options(group: EksNodeGroupSpec) -> aws.ec2.LaunchTemplateInstanceMarketOptionsArgs | None:
    """Only capacity blocks have a market of their own; for spot it is the group that says so."""
    if isinstance(group.capacity, CapacityBlock):
        return aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
    return None


def user_data(args: EksGpuNodeGroupArgs, family: AmiFamily) -> pulumi.Output[str]:
    """User data in base64, as a launch template takes it."""
    write = bottlerocket_user_data if family.bootstrap == "bottlerocket" else nodeadm_user_data
    pulls = args.group.max_parallel_image_pulls
    registration = Registration(node_labels(args.pool), args.pool.taints)
    if own_image(args) is None:
        return pulumi.Output.from_input(_base64(write(pulls, None, registration)))
    cluster = args.cluster
    return pulumi.Output.all(cluster.name, cluster.endpoint, cluster.certificate_authority, cluster.service_cidr).apply(
        lambda known: _base64(write(pulls, Connection(*known), registration))
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def subnet_ids(group: EksNodeGroupSpec) -> list[str]:
    """The subnets in the zones that are used."""
    zones = zones_used(group)
    return [subnet.id for subnet in group.subnets if subnet.zone in zones]


def taints(pool: PoolSpec) -> list[aws.eks.NodeGroupTaintArgs] | None:
    """The pool's taints as EKS spells them; nothing rather than an empty list."""
    return [
        aws.eks.NodeGroupTaintArgs(key=taint.key, value=taint.value or None, effect=EFFECTS[taint.effect])
        for taint in pool.taints
    ] or None


class EksGpuNodeGroup(pulumi.ComponentResource):
    """GPU nodes of an EKS cluster."""

    node_group: aws.eks.NodeGroup

    def __init__(self, name: str, args: EksGpuNodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:EksGpuNodeGroup", name, None, opts)
        family = family_of(args.group)
        if family is None:
            raise pulumi.InputPropertyError("group", f"{args.group.ami_type or args.group.ami_id}: which AMI is this?")
        self._name, self._args = name, args
        self._tags = {naming.STACK_LABEL: args.stack, "Name": name}
        role_arn, attachments = self._role()
        template = self._launch_template(family)
        self.node_group = self._node_group(role_arn, attachments, template)
        self.register_outputs({"nodeGroupName": self.node_group.node_group_name})

    def _role(self) -> tuple[pulumi.Input[str], list[pulumi.Resource]]:
        if self._args.group.node_role_arn is not None:
            return self._args.group.node_role_arn, []
        policies = [*NODE_POLICIES, *([CNI_POLICY] if self._args.group.cni_policy else [])]
        made = service_role(
            f"{self._name}-node",
            "ec2.amazonaws.com",
            region=self._args.region,
            policies=policies,
            tags=self._tags,
            parent=self,
        )
        return made.role.arn, made.attachments

    def _launch_template(self, family: AmiFamily) -> aws.ec2.LaunchTemplate:
        group = self._args.group
        block = isinstance(group.capacity, CapacityBlock)
        return aws.ec2.LaunchTemplate(
            f"{self._name}-template",
            image_id=own_image(self._args),
            # A block wants the type in the template, everything else in the group; both at once is refused.
            instance_type=group.instance_type if block else None,
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=group.metadata_hop_limit,
            ),
            block_device_mappings=block_devices(group, family),
            capacity_reservation_specification=capacity_reservation(group),
            instance_market_options=market_options(group),
            user_data=user_data(self._args, family),
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=self._tags)
                for kind in ("instance", "volume")
            ],
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _node_group(
        self, role_arn: pulumi.Input[str], attachments: list[pulumi.Resource], template: aws.ec2.LaunchTemplate
    ) -> aws.eks.NodeGroup:
        args, group = self._args, self._args.group
        by_id = own_image(args) is not None
        rolling = f"{NODE_MINUTES * (args.pool.nodes + 1)}m"
        return aws.eks.NodeGroup(
            f"{self._name}-group",
            cluster_name=args.cluster.name,
            node_role_arn=role_arn,
            subnet_ids=subnet_ids(group),
            ami_type=None if by_id else group.ami_type or DEFAULT_AMI_TYPES[architecture_of(group)],
            release_version=None if by_id else group.release_version,
            capacity_type=CAPACITY_TYPES[group.capacity.kind],
            instance_types=None if isinstance(group.capacity, CapacityBlock) else [group.instance_type],
            launch_template=aws.eks.NodeGroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(str)
            ),
            scaling_config=aws.eks.NodeGroupScalingConfigArgs(
                desired_size=args.pool.nodes,
                min_size=group.min_nodes,
                max_size=max(group.max_nodes or 0, args.pool.nodes),
            ),
            update_config=aws.eks.NodeGroupUpdateConfigArgs(
                max_unavailable=group.update.max_unavailable, update_strategy=group.update.strategy
            ),
            labels=node_labels(args.pool),
            taints=taints(args.pool),
            tags=self._tags,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[*attachments, *args.after],
                ignore_changes=["scalingConfig.desiredSize"],
                custom_timeouts=pulumi.CustomTimeouts(create=f"{NODE_MINUTES}m", update=rolling, delete=rolling),
            ),
        )
