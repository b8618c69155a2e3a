"""What a stack says about AWS: an EKS cluster, and the managed node group behind a GPU pool."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from planner.spec.base import PositiveInt, Spec

ClusterName = Annotated[str, Field(pattern=r"^[0-9A-Za-z][A-Za-z0-9\-_]*$", max_length=100)]
"""A name as EKS takes it."""
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
"""An AWS region, for example us-east-1."""
Zone = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d[a-z]$")]
"""An availability zone by the name that your account gives it, for example us-east-1a."""
ZoneId = Annotated[str, Field(pattern=r"^[a-z]+\d-az\d$")]
"""An availability zone by the id that is the same in all accounts, for example use1-az4."""
RoleArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$")]
PrincipalArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:iam::\d{12}:(role|user)/[\w+=,.@/-]+$")]
InstanceType = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$")]
EksAddon = Literal["eks-pod-identity-agent", "vpc-cni", "kube-proxy", "coredns", "aws-ebs-csi-driver"]
"""An add-on of a cluster of our own."""
EKS_ADDONS: tuple[EksAddon, ...] = get_args(EksAddon)
GIB_OF_EBS = Field(ge=1, le=65536)


class SubnetSpec(Spec):
    """A subnet that exists. `aws ec2 describe-subnets --query
    'Subnets[].[SubnetId,AvailabilityZone,AvailabilityZoneId]'` prints all three values."""

    id: Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")]
    """Id of the subnet."""

    zone: Zone
    """Its availability zone, for example us-east-1a. The letter differs from account to account."""

    zone_id: ZoneId
    """The zone's id, for example use1-az4: which instance types it offers is known by this one."""


class NodeDiskSpec(Spec):
    """The gp3 volume of each node for images and ephemeral storage. It is always encrypted."""

    size_gib: Annotated[int, GIB_OF_EBS] = 200
    """Size, GiB. Two images must fit at once while one replaces the other."""

    throughput: Annotated[int, Field(ge=125, le=2000)] = 500
    """Throughput, MiB/s. 125 is free; an instance type has a limit of its own that can be lower."""

    iops: Annotated[int, Field(ge=3000, le=80000)] = 3000
    """Operations per second. 3000 are free; throughput needs one for each 0.25 MiB/s."""

    initialization_rate: Annotated[int, Field(ge=100, le=300)] | None = None
    """How fast the volume is filled from its snapshot, MiB/s. Unset: blocks are fetched when they are
    first read, which makes the first read of a baked image slow. It is billed by size."""

    kms_key_id: Annotated[str, Field(min_length=1)] | None = None
    """Key of the encryption. Unset: the account's key for EBS."""


class OnDemandCapacity(Spec):
    """Instances at the on-demand price, when AWS has them."""

    kind: Literal["onDemand"]
    """On demand."""


class SpotCapacity(Spec):
    """Spare instances that AWS takes back with two minutes' notice."""

    kind: Literal["spot"]
    """Spot: cheaper, and a replica can vanish at any time."""


class ReservationCapacity(Spec):
    """An on-demand capacity reservation that exists. All its nodes are in its zone."""

    kind: Literal["reservation"]
    """Capacity reservation."""

    id: Annotated[str, Field(pattern=r"^cr-[0-9a-f]{17}$")]
    """Id of the reservation."""

    instances: PositiveInt
    """How many instances it holds."""


class CapacityBlock(Spec):
    """A capacity block for ML that was bought. Its nodes live from its start to its end."""

    kind: Literal["capacityBlock"]
    """Capacity block."""

    id: Annotated[str, Field(pattern=r"^cr-[0-9a-f]{17}$")]
    """Id of the block's reservation."""

    instances: PositiveInt
    """How many instances it holds."""


CapacitySpec = Annotated[
    OnDemandCapacity | SpotCapacity | ReservationCapacity | CapacityBlock, Field(discriminator="kind")
]


class UpdateSpec(Spec):
    """How nodes are replaced when their image or template changes."""

    strategy: Literal["MINIMAL", "DEFAULT"] = "MINIMAL"
    """`MINIMAL` ends an old node before its successor starts, and needs no spare card. `DEFAULT` starts
    the new node first: it needs quota and capacity for one node more."""

    max_unavailable: PositiveInt = 1
    """How many nodes are replaced at a time. With 1, one replica of a pair always serves."""


class DevicePluginDevices(Spec):
    """NVIDIA's device plugin, installed by this stack. It offers nvidia.com/gpu."""

    kind: Literal["devicePlugin"]
    """The device plugin's chart. Bottlerocket's NVIDIA AMIs have a plugin of their own."""

    chart_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] | None = None
    """Version of the chart. Unset: the one that this release of pulumi-vllm was written against."""


class DraDriverDevices(Spec):
    """NVIDIA's DRA driver, installed by this stack. It offers the device class gpu.nvidia.com."""

    kind: Literal["draDriver"]
    """The DRA driver's chart, for pools with `allocation: dra`."""

    chart_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] | None = None
    """Version of the chart. Unset: the one that this release of pulumi-vllm was written against."""


class NoDevices(Spec):
    """Nothing is installed: the AMI has a device plugin, or somebody else installs one."""

    kind: Literal["none"]
    """Install nothing."""


DevicesSpec = Annotated[DevicePluginDevices | DraDriverDevices | NoDevices, Field(discriminator="kind")]


class BakedImageSpec(Spec):
    """How the AMI with the vLLM image is built, for `imageDelivery: bakedImage`."""

    instance_type: InstanceType = "m6i.xlarge"
    """Instance that builds and tests. It needs no GPU, hence no GPU quota."""

    subnet: Annotated[str, Field(pattern=r"^subnet-[0-9a-f]{8,17}$")] | None = None
    """Subnet of the build, with a way to the registry. Unset: the first subnet of the pool."""

    security_group_ids: Annotated[
        tuple[Annotated[str, Field(pattern=r"^sg-[0-9a-f]{8,17}$")], ...], Field(min_length=1)
    ]
    """Security groups of the build instance. Outgoing HTTPS is all it needs."""

    parent_image: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")] | None = None
    """AMI to start from. Unset: the NVIDIA AMI that AWS recommends for the cluster's version at the time
    of the build."""

    further_images: tuple[Annotated[str, Field(pattern=r"^[a-z0-9][\w.:/-]*@sha256:[0-9a-f]{64}$")], ...] = ()
    """Further images that the AMI holds, REPOSITORY@DIGEST: the one that is being replaced, so that its pods
    need no pull while nodes roll before the servers do."""

    rebuild_schedule: Annotated[str, Field(pattern=r"^(cron|rate)\(.+\)$")] | None = None
    """When a pipeline builds again with newer packages, for example "cron(0 3 ? * sun *)". Its AMI reaches
    the nodes only by name (amiId). Unset: no pipeline."""

    timeout_minutes: Annotated[int, Field(ge=90, le=720)] = 120
    """How long Pulumi waits for the AMI."""


class EksNodeGroupSpec(Spec):
    """The managed node group of a pool on EKS."""

    instance_type: InstanceType
    """Instance type, for example g6e.2xlarge."""

    subnets: Annotated[tuple[SubnetSpec, ...], Field(min_length=1)]
    """Subnets in which nodes may start."""

    zone: Zone | None = None
    """The one zone in which nodes start, although there are subnets in others. An EBS volume stays in its
    zone, so caches on EBS need it. Unset: all zones of the subnets."""

    ami_type: Annotated[str, Field(min_length=1)] | None = None
    """AMI type, for example AL2023_x86_64_NVIDIA. Unset, and without amiId: AL2023 with NVIDIA's driver, for
    the architecture of the instance."""

    ami_id: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")] | None = None
    """An AMI of your own, in place of amiType. Needs `bootstrap`."""

    bootstrap: Literal["nodeadm", "bottlerocket"] | None = None
    """How the AMI of amiId joins the cluster: `nodeadm` (Amazon Linux 2023) or `bottlerocket`."""

    release_version: Annotated[str, Field(pattern=r"^\d+\.\d+.*$")] | None = None
    """Release of the AMI type. Unset: the newest when the group is made; it never changes by itself."""

    disk: NodeDiskSpec = NodeDiskSpec()
    """The volume of each node."""

    data_volume_snapshot: Annotated[str, Field(pattern=r"^snap-[0-9a-f]{8,17}$")] | None = None
    """Snapshot of a Bottlerocket data volume that holds the image already."""

    capacity: CapacitySpec = OnDemandCapacity(kind="onDemand")
    """Where instances come from."""

    min_nodes: Annotated[int, Field(ge=0)] = 0
    """Least nodes. The number of nodes that run is set once and then left to you and your autoscaler."""

    max_nodes: PositiveInt | None = None
    """Most nodes. Unset: the pool's nodes."""

    update: UpdateSpec = UpdateSpec()
    """How nodes are replaced."""

    devices: DevicesSpec
    """What makes the GPUs visible to Kubernetes."""

    baked_image: BakedImageSpec | None = None
    """How the AMI with the image is built, for `imageDelivery: bakedImage`."""

    max_parallel_image_pulls: Annotated[int, Field(ge=2, le=10)] = 3
    """How many images a node pulls at once. One at a time, the device plugin waits behind vLLM's image."""

    metadata_hop_limit: Literal[1, 2] = 1
    """Hops that an answer of the instance metadata may take. 1 keeps pods from the node's role."""

    node_role_arn: RoleArn | None = None
    """Role of the nodes. Unset: one is made, with the rights to join and to pull from ECR."""

    cni_policy: bool = True
    """Give the node role the rights of the VPC CNI. Set false where the CNI has a role of its own, as in a
    cluster of EksCluster."""

    quota_vcpus: Annotated[int, Field(ge=0)] | None = None
    """Your account's quota for this kind of instance, vCPUs. Unset: the preview says which quota to look at."""


class EksReferenceSpec(Spec):
    """The EKS cluster that a stack runs on. It is looked up by name and never changed."""

    name: ClusterName
    """Name of the cluster."""

    region: Region
    """Region of the cluster."""


class SystemNodesSpec(Spec):
    """Small nodes without GPU: CoreDNS and the controller of the EBS driver run there."""

    instance_type: InstanceType = "t3.medium"
    """Instance type."""

    nodes: PositiveInt = 2
    """Number of nodes."""


class EksClusterSpec(Spec):
    """The section ``vllm:eksCluster``: a minimal EKS cluster, in a stack of its own."""

    name: ClusterName
    """Name of the cluster."""

    region: Region
    """Region."""

    kubernetes_version: Annotated[str, Field(pattern=r"^1\.\d+$")]
    """Version of the control plane, quoted: "1.34"."""

    subnets: Annotated[tuple[SubnetSpec, ...], Field(min_length=2)]
    """Subnets of the control plane, in two zones at least."""

    public_access_cidrs: tuple[Annotated[str, Field(pattern=r"^[0-9.]+/\d{1,2}$")], ...] = ()
    """Address ranges that reach the API server from outside the VPC. Unset: none does."""

    administrators: Annotated[tuple[PrincipalArn, ...], Field(min_length=1)]
    """Roles and users that administer the cluster, by ARN. Whoever runs `pulumi up` is none by itself."""

    addon_versions: dict[EksAddon, Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+.*$")]] = {}
    """Versions of add-ons by name, for example {vpc-cni: v1.20.4-eksbuild.1}. Unset: EKS' default."""

    system_nodes: SystemNodesSpec = SystemNodesSpec()
    """Nodes for what every cluster runs."""

    deletion_protection: bool = True
    """Refuse to delete the cluster until this is false and applied."""
