"""Rules about the AWS side of a stack on EKS: instance types, AMIs, capacity, zones, node disks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from infra.preflight.rule import LiveSubject, Said, StackSubject, rule
from planner import capability
from planner.instances import (
    DEFAULT_AMI_TYPES,
    KUBERNETES_ARCHITECTURES,
    Instance,
    ami_type_of,
    architecture_of,
    family_of,
    has_no_nvidia_gpu,
    instances,
    nearest_ami_type,
    quota_of,
    zones_used,
)
from planner.plan import ServicePlan
from planner.spec import OwnStorageClassCache, PoolSpec, ServiceSpec, StorageClassCache, quantity
from planner.spec.aws import CapacityBlock, EksNodeGroupSpec, ReservationCapacity

NODE_GROUPS = "https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html"
ACCELERATED = "https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-optimized-ami.html"
TEMPLATES = "https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html"
UPDATE = "https://docs.aws.amazon.com/eks/latest/APIReference/API_NodegroupUpdateConfig.html"
GP3 = "https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html"
EBS_PROVISIONER = "ebs.csi.aws.com"
THROUGHPUT_OF_ONE_OPERATION = 0.25
"""A gp3 volume's throughput may be 0.25 MiB/s for each operation per second (EBS guide, gp3)."""
MIB_PER_MB = 1024**2 / 1e6
RESERVED_LABEL_DOMAINS = ("kubernetes.io", "k8s.io", "eks.amazonaws.com")


class Group(NamedTuple):
    """A pool that this stack makes nodes for."""

    name: str
    pool: PoolSpec
    eks: EksNodeGroupSpec
    instance: Instance | None

    @property
    def path(self) -> str:
        """Where it is in the stack file."""
        return f"nodes.{self.name}.eks"


def groups(subject: StackSubject | LiveSubject) -> Iterator[Group]:
    """Every pool with a node group of ours."""
    for name, pool in subject.config.nodes.items():
        if pool.eks is not None:
            yield Group(name, pool, pool.eks, instances().get(pool.eks.instance_type))


def services_of(subject: StackSubject | LiveSubject, group: Group) -> Iterator[tuple[str, ServiceSpec]]:
    """The services that run on a pool."""
    for name, service in subject.config.services.items():
        if service.pool == group.name:
            yield name, service


def plans_of(subject: StackSubject, group: Group) -> Iterator[tuple[str, ServicePlan]]:
    """Their plans."""
    for name, plan in subject.plans.items():
        if plan.service.pool == group.name:
            yield name, plan


@rule("EKS-KIND", NODE_GROUPS)
def node_groups_need_a_cluster(subject: StackSubject) -> Iterator[Said]:
    """A node group joins the EKS cluster that the stack names."""
    cluster = subject.config.cluster
    kind = cluster.kind
    if (kind == "eks") != (cluster.eks is not None):
        message = f"{kind}, and cluster.eks is {'set' if cluster.eks else 'not set'}"
        yield Said("error", "cluster.kind", message, "kind: eks with eks: {name, region}, or kind: existing without")
    for group in groups(subject):
        if kind != "eks":
            remedy = "cluster.kind: eks with cluster.eks: {name, region}, or no `eks` in the pool"
            yield Said("error", group.path, f"a managed node group, and cluster.kind is {kind}", remedy)
    for name, pool in subject.config.nodes.items():
        if pool.eks is None and pool.image_delivery in {"bakedImage", "snapshot"}:
            message = f"{pool.image_delivery}, and the stack makes no nodes for this pool"
            yield Said("error", f"nodes.{name}.imageDelivery", message, "daemonSet, or `eks` in the pool")


@rule("EKS-1", ACCELERATED)
def instance_has_the_gpus(subject: StackSubject) -> Iterator[Said]:
    """A GPU pool of instances without GPU leaves every server Pending."""
    for group in groups(subject):
        if has_no_nvidia_gpu(group.eks.instance_type):
            message = f"{group.eks.instance_type} has no NVIDIA GPU"
            yield Said("error", f"{group.path}.instanceType", message, "a type with GPUs, for example g6e.2xlarge")
        elif group.instance is None:
            message = f"{group.eks.instance_type} is not in the table of instance types: nothing is checked against it"
            remedy = "check the spelling; `aws ec2 describe-instance-types` knows every type"
            yield Said("warn", f"{group.path}.instanceType", message, remedy)


@rule("EKS-FACTS", "https://aws.amazon.com/ec2/instance-types/accelerated-computing/")
def pool_is_what_the_instance_is(subject: StackSubject) -> Iterator[Said]:
    """Memory and room are planned with what the pool says: a node of another size breaks the plan."""
    for group in groups(subject):
        pool, instance = group.pool, group.instance
        if instance is None:
            continue
        gib = instance.memory_mib / 1024
        facts = (
            ("gpu", pool.gpu, instance.gpu, instance.gpu is None or pool.gpu == instance.gpu),
            ("gpusPerNode", pool.gpus_per_node, instance.gpus, pool.gpus_per_node == instance.gpus),
            ("cpus", pool.cpus, instance.vcpus, pool.cpus <= instance.vcpus),
            ("memory", pool.memory, f"{gib:.0f}Gi", quantity(pool.memory) <= instance.memory_mib * 1024**2),
            (
                "architecture",
                pool.architecture,
                KUBERNETES_ARCHITECTURES[instance.architecture],
                pool.architecture == KUBERNETES_ARCHITECTURES[instance.architecture],
            ),
        )
        for key, said, true, agrees in facts:
            if not agrees:
                message = f"{said}, and an {instance.name} has {true} ({instance.gpus} x {instance.gpu_name})"
                yield Said("error", f"nodes.{group.name}.{key}", message, f"{true}")


@rule("EKS-PRICE", "https://aws.amazon.com/ec2/pricing/on-demand/")
def price_is_known(subject: StackSubject) -> Iterator[Said]:
    """Without a price the preview cannot say what a change costs."""
    for group in groups(subject):
        price = group.instance.price if group.instance else None
        if group.pool.price_per_hour is None and price is not None:
            yield Said(
                "info",
                f"nodes.{group.name}.pricePerHour",
                f"is not set; {group.eks.instance_type} cost ${price.dollars_per_hour:.4g} an hour on demand "
                f"in {price.region} on {price.date} ({price.source})",
                f"pricePerHour: {price.dollars_per_hour:.4g}, or what you pay",
            )


@rule("EKS-1", ACCELERATED)
def ami_type_exists(subject: StackSubject) -> Iterator[Said]:
    """EKS refuses an AMI type that it does not know, and makes no nodes of one that has ended."""
    for group in groups(subject):
        named, known = group.eks.ami_type, ami_type_of(group.eks)
        if named is not None and group.eks.ami_id is None and known is None:
            near = nearest_ami_type(named)
            hint = f"did you mean {near}? " if near else ""
            remedy = f"{hint}NVIDIA's: AL2023_x86_64_NVIDIA, AL2023_ARM_64_NVIDIA, BOTTLEROCKET_x86_64_NVIDIA, …"
            yield Said("error", f"{group.path}.amiType", f"{named!r} is no AMI type of EKS", remedy)
        elif known is not None and known.family.ended is not None:
            message = f"{known.name}: EKS builds no AMIs of Amazon Linux 2 since {known.family.ended}"
            yield Said("error", f"{group.path}.amiType", message, "AL2023_x86_64_NVIDIA")


@rule("EKS-1", "https://github.com/eksctl-io/eksctl/issues/7897")
def ami_fits_the_instance(subject: StackSubject) -> Iterator[Said]:
    """A node without driver, or of another architecture, never offers a GPU; the group fails after half an hour."""
    for group in groups(subject):
        ami = ami_type_of(group.eks)
        if ami is None or ami.family.ended is not None or group.instance is None:
            continue
        if not ami.nvidia:
            yield _unfit(group, f"{ami.name} has no NVIDIA driver, and {group.instance.name} has GPUs")
        elif ami.architecture != group.instance.architecture:
            message = (
                f"{ami.name} is for {ami.architecture}, and {group.instance.name} is {group.instance.architecture}"
            )
            yield _unfit(group, message)


@rule("EKS-1", "https://github.com/eksctl-io/eksctl/issues/7897")
def nvidia_ami_has_a_gpu(subject: StackSubject) -> Iterator[Said]:
    """The services of an NVIDIA AMI fail at start on an instance without a GPU."""
    for group in groups(subject):
        ami = ami_type_of(group.eks)
        if ami is not None and ami.nvidia and has_no_nvidia_gpu(group.eks.instance_type):
            message = f"{ami.name} is for GPUs, and {group.eks.instance_type} has none"
            yield Said("error", f"{group.path}.amiType", message, "an instance type with GPUs")


def _unfit(group: Group, message: str) -> Said:
    right = DEFAULT_AMI_TYPES[architecture_of(group.eks)]
    return Said("error", f"{group.path}.amiType", message, f"{right}, or leave it out")


@rule("EKS-1", "https://github.com/terraform-aws-modules/terraform-aws-eks/issues/2738")
def ami_is_named_once(subject: StackSubject) -> Iterator[Said]:
    """EKS adds nothing to an AMI by id: without its bootstrap a node starts and never joins."""
    for group in groups(subject):
        eks = group.eks
        if eks.ami_id is not None and eks.ami_type is not None:
            message = f"{eks.ami_id}, and amiType says {eks.ami_type}: a group has one AMI"
            yield Said("error", f"{group.path}.amiId", message, "amiId with bootstrap, or amiType, not both")
        if eks.ami_id is not None and eks.bootstrap is None:
            message = f"{eks.ami_id}, and bootstrap does not say how it joins the cluster"
            remedy = "bootstrap: nodeadm for Amazon Linux 2023, bottlerocket for Bottlerocket"
            yield Said("error", f"{group.path}.bootstrap", message, remedy)
        if eks.ami_id is None and eks.bootstrap is not None:
            message = f"{eks.bootstrap}, and there is no amiId: an AMI type brings its own"
            yield Said("error", f"{group.path}.bootstrap", message, "leave it out, or name amiId")
        if eks.ami_id is not None and eks.release_version is not None:
            message = f"{eks.release_version} is a release of an AMI type, and {eks.ami_id} is no AMI type"
            yield Said("error", f"{group.path}.releaseVersion", message, "leave it out")


@rule("EKS-ZONE", "https://github.com/2i2c-org/infrastructure/issues/3334")
def zones_offer_the_type(subject: StackSubject) -> Iterator[Said]:
    """A subnet in a zone without the type makes the group fail, or start its nodes elsewhere."""
    for group in groups(subject):
        used = zones_used(group.eks)
        if not used:
            there = ", ".join(sorted({subnet.zone for subnet in group.eks.subnets}))
            yield Said("error", f"{group.path}.zone", f"{group.eks.zone}: no subnet is in it", f"one of {there}")
        for index, subnet in enumerate(group.eks.subnets):
            known = group.instance.zone_ids if group.instance else frozenset()
            region = subnet.zone_id.rpartition("-")[0]
            offered = sorted(zone for zone in known if zone.startswith(f"{region}-"))
            if subnet.zone in used and known and subnet.zone_id not in known:
                message = f"{subnet.zone_id} ({subnet.zone}) does not offer {group.eks.instance_type}"
                remedy = f"zones of this region that do: {', '.join(offered) or 'none'}"
                yield Said("error", f"{group.path}.subnets.{index}.zoneId", message, remedy)


@rule("EKS-2", "https://github.com/opendatahub-io/odh-manifests/issues/259")
def volumes_stay_with_their_nodes(subject: StackSubject) -> Iterator[Said]:
    """An EBS volume stays in its zone: a second start in another one waits for ever."""
    for group in groups(subject):
        zones = zones_used(group.eks)
        for name, service in services_of(subject, group):
            cache = service.cache
            if len(zones) > 1 and isinstance(cache, OwnStorageClassCache) and cache.provisioner == EBS_PROVISIONER:
                message = (
                    f"nodes can start in {', '.join(zones)}, and the cache of {name!r} stays in the first one's zone"
                )
                yield Said(
                    "warn", f"{group.path}.zone", message, f"zone: {zones[0]}, or a cache on EFS (ReadWriteMany)"
                )


@rule("EKS-2", "https://github.com/kubeflow/kubeflow/issues/7109")
def binding_waits_for_the_node(subject: LiveSubject) -> Iterator[Said]:
    """With Immediate binding the volume picks its zone before anybody knows where the node will be."""
    for group in groups(subject):
        zones = zones_used(group.eks)
        for name, service in services_of(subject, group):
            cache = service.cache
            if len(zones) < 2 or not isinstance(cache, StorageClassCache):
                continue
            live = subject.live.get("StorageClass", cache.storage_class)
            if live is None or live.get("provisioner") != EBS_PROVISIONER:
                continue
            immediate = live.get("volumeBindingMode", "Immediate") == "Immediate"
            message = (
                f"class {cache.storage_class!r} makes volumes of one zone, and nodes can start in {', '.join(zones)}"
            )
            remedy = f"nodes.{group.name}.eks.zone: {zones[0]}" + (", or a class with WaitForFirstConsumer" * immediate)
            yield Said("error" if immediate else "warn", f"services.{name}.cache.storageClass", message, remedy)


@rule("EKS-CAPACITY", "https://docs.aws.amazon.com/eks/latest/userguide/capacity-blocks-mng.html")
def reserved_capacity_is_in_one_zone(subject: StackSubject) -> Iterator[Said]:
    """Reserved instances are in one zone and as many as were reserved."""
    for group in groups(subject):
        capacity, zones = group.eks.capacity, zones_used(group.eks)
        if not isinstance(capacity, ReservationCapacity | CapacityBlock):
            continue
        if len(zones) > 1:
            message = f"nodes can start in {', '.join(zones)}, and {capacity.id} is in one zone"
            yield Said("error", f"{group.path}.zone", message, "the reservation's zone")
        if capacity.instances < group.pool.nodes:
            message = f"{capacity.id} holds {capacity.instances}, and the pool has {group.pool.nodes} nodes"
            yield Said("error", f"{group.path}.capacity.instances", message, f"nodes: {capacity.instances}")


@rule("EKS-UPDATE", UPDATE)
def update_has_the_room(subject: StackSubject) -> Iterator[Said]:
    """DEFAULT starts the new node before it ends the old one; without room for it the update stands still."""
    for group in groups(subject):
        update, nodes = group.eks.update, group.pool.nodes
        if update.max_unavailable >= nodes > 1:
            message = f"{update.max_unavailable} of {nodes} nodes are replaced at a time: no replica serves meanwhile"
            yield Said("warn", f"{group.path}.update.maxUnavailable", message, "1")
        if update.strategy == "MINIMAL":
            continue
        room = _room(group)
        path, needed = f"{group.path}.update.strategy", nodes + 1
        if room is None:
            message = f"DEFAULT starts {needed} nodes during an update: quota and capacity must have them"
            yield Said("warn", path, message, "MINIMAL needs no spare node; or set quotaVcpus, so that this is checked")
        elif room < needed:
            yield Said(
                "error", path, f"DEFAULT needs {needed} nodes during an update, there is room for {room}", "MINIMAL"
            )


def _room(group: Group) -> int | None:
    """How many nodes the quota and the reservation allow; ``None``: not known."""
    capacity, quota = group.eks.capacity, group.eks.quota_vcpus
    known = [capacity.instances] if isinstance(capacity, ReservationCapacity | CapacityBlock) else []
    if quota is not None and group.instance is not None:
        known.append(quota // group.instance.vcpus)
    return min(known, default=None)


@rule("EKS-QUOTA", "https://github.com/klothoplatform/klotho/pull/311")
def quota_is_enough(subject: StackSubject) -> Iterator[Said]:
    """A new account may run no GPU instance at all: the group then fails after half an hour of waiting."""
    for group in groups(subject):
        quota = quota_of(group.eks)
        if quota is None or group.instance is None:
            continue
        needed = group.pool.nodes * group.instance.vcpus
        which = f"{quota.name!r} ({quota.code})"
        sum_of = f"{group.pool.nodes} x {group.eks.instance_type} take {needed} vCPUs of the quota {which}"
        ask = f"aws service-quotas get-service-quota --service-code ec2 --quota-code {quota.code}"
        if group.eks.quota_vcpus is None:
            remedy = f"{ask}; a new account has 0. Write the answer into quotaVcpus"
            yield Said("warn", f"{group.path}.quotaVcpus", sum_of, remedy)
        elif group.eks.quota_vcpus < needed:
            remedy = ask.replace("get-service-quota", "request-service-quota-increase") + f" --desired-value {needed}"
            yield Said("error", f"{group.path}.quotaVcpus", f"{sum_of}, which is {group.eks.quota_vcpus}", remedy)


@rule("CAP-3", "https://github.com/awslabs/amazon-eks-ami/issues/2470")
def ami_driver_runs_the_image(subject: StackSubject) -> Iterator[Said]:
    """CUDA in the image needs a driver that is new enough, and so does the card."""
    for group in groups(subject):
        family = family_of(group.eks)
        if family is None or family.driver is None:
            continue
        wanted = group.instance.minimum_driver if group.instance else None
        if wanted is not None and family.driver < wanted:
            has = f"the current {family.name} AMI has {family.driver}"
            message = f"{group.eks.instance_type} needs driver {wanted}, and {has}"
            if group.eks.ami_id is None:
                yield Said("error", f"{group.path}.instanceType", message, "amiId of an AMI with a newer driver")
            else:
                yield Said("warn", f"{group.path}.instanceType", message, "check that your AMI has it")
        declared = capability.driver_branch(group.pool)
        if declared is not None and declared != family.driver and group.eks.ami_id is None:
            message = f"{group.pool.driver}, and the current {family.name} AMI has {family.driver}"
            yield Said("warn", f"nodes.{group.name}.driver", message, f'"{family.driver}", or leave it out')
        for name, plan in plans_of(subject, group):
            least = capability.least_driver(plan.release)
            if group.pool.driver is None and least is not None and family.driver < least:
                message = (
                    f"{plan.service.image.tag} is CUDA {plan.release.cuda}, which needs driver {least}; "
                    f"the current {family.name} AMI has {family.driver}"
                )
                older = capability.older_cuda_tag(plan.service.image, plan.release)
                yield Said("error", f"services.{name}.image.tag", message, older or "an AMI with a newer driver")


@rule("EKS-DEVICES", "https://docs.aws.amazon.com/eks/latest/userguide/ml-eks-k8s-device-plugin.html")
def one_thing_offers_the_gpus(subject: StackSubject) -> Iterator[Said]:
    """GPUs are offered once: twice they are given away twice, and not at all no server is placed."""
    for group in groups(subject):
        kind, allocation, family = group.eks.devices.kind, group.pool.allocation, family_of(group.eks)
        path, built_in = f"{group.path}.devices.kind", family is not None and family.device_plugin
        offers = {"devicePlugin": "devicePlugin", "draDriver": "dra"}.get(kind)
        if built_in and kind == "draDriver":
            message = (
                "draDriver, and Bottlerocket's NVIDIA AMIs have a device plugin: both would hand out the same cards"
            )
            yield Said("error", path, message, "an AL2023 NVIDIA AMI, or kind: none with allocation: devicePlugin")
        elif built_in and kind == "devicePlugin":
            message = "devicePlugin, and Bottlerocket's NVIDIA AMIs have one already: two plugins offer the same cards"
            yield Said("error", path, message, "none")
        elif offers is not None and offers != allocation:
            message = f"{kind}, and the pool's allocation is {allocation}: its servers ask for what nobody offers"
            yield Said("error", path, message, f"allocation: {offers}")
        elif built_in and allocation == "dra":
            message = "none, and the AMI has a device plugin: nothing answers allocation: dra"
            yield Said("error", path, message, "allocation: devicePlugin, or an AL2023 NVIDIA AMI with draDriver")
        elif kind == "none" and not built_in:
            message = "none, and the AMI has no device plugin: somebody else must install what offers the GPUs"
            yield Said("warn", path, message, "devicePlugin, or draDriver with allocation: dra")


@rule("EKS-DISK", GP3)
def disk_is_possible(subject: StackSubject) -> Iterator[Said]:
    """EBS refuses throughput without operations, and an instance never reads faster than its own limit."""
    for group in groups(subject):
        disk = group.eks.disk
        most = int(disk.iops * THROUGHPUT_OF_ONE_OPERATION)
        if disk.throughput > most:
            needed = int(disk.throughput / THROUGHPUT_OF_ONE_OPERATION)
            message = f"{disk.throughput} MiB/s need {needed} iops, not {disk.iops}"
            yield Said("error", f"{group.path}.disk.throughput", message, f"at most {most}, or more iops")
        if group.instance is not None:
            sustained, highest = (mb / MIB_PER_MB for mb in group.instance.ebs_mb_per_second)
            if disk.throughput > highest:
                message = (
                    f"{disk.throughput} MiB/s are paid for, and {group.instance.name} reaches {highest:.0f} "
                    f"({sustained:.0f} when that lasts)"
                )
                yield Said("warn", f"{group.path}.disk.throughput", message, f"{int(highest)}, or a larger instance")


@rule("EKS-DISK", "https://github.com/vllm-project/vllm/issues/17163")
def disk_holds_two_images(subject: StackSubject) -> Iterator[Said]:
    """An update keeps the old image while the new one is unpacked; a full disk evicts the node's pods."""
    for group in groups(subject):
        images = [capability.unpacked_image_bytes(plan.release) for _, plan in plans_of(subject, group)]
        needed = 2 * max(images, default=0) / 1024**3
        if group.eks.disk.size_gib < needed:
            message = f"{group.eks.disk.size_gib} GiB, and two unpacked images take {needed:.0f} GiB"
            yield Said("error", f"{group.path}.disk.sizeGib", message, f"{int(needed) + 20} or more")


@rule("EKS-BAKE", "https://docs.aws.amazon.com/imagebuilder/latest/userguide/what-is-image-builder.html")
def image_can_be_baked(subject: StackSubject) -> Iterator[Said]:
    """An AMI is baked from exact content, and into an AMI that can pull while it is built."""
    for group in groups(subject):
        eks, delivery, family = group.eks, group.pool.image_delivery, family_of(group.eks)
        bottlerocket = family is not None and family.bootstrap == "bottlerocket"
        if delivery == "bakedImage":
            for name, service in services_of(subject, group):
                if service.image.digest is None:
                    message = "is not set, and the AMI of the pool is baked from it: a tag can move afterwards"
                    yield Said("error", f"services.{name}.image.digest", message, "vllm-infra pin --stack STACK")
            yield from _baking_faults(group, bottlerocket)
        elif eks.baked_image is not None:
            message = f"imageDelivery is {delivery}: no AMI is baked"
            yield Said("error", f"{group.path}.bakedImage", message, "imageDelivery: bakedImage, or leave it out")
        if (eks.data_volume_snapshot is not None) != (delivery == "snapshot"):
            message = f"imageDelivery is {delivery}, and dataVolumeSnapshot is {eks.data_volume_snapshot or 'not set'}"
            yield Said("error", f"{group.path}.dataVolumeSnapshot", message, "imageDelivery: snapshot with its id")
        elif eks.data_volume_snapshot is not None and not bottlerocket:
            message = "only Bottlerocket keeps images on a volume of their own"
            yield Said(
                "error", f"{group.path}.dataVolumeSnapshot", message, "BOTTLEROCKET_x86_64_NVIDIA, or bakedImage"
            )


def _baking_faults(group: Group, bottlerocket: bool) -> Iterator[Said]:
    if group.eks.baked_image is None:
        message = "imageDelivery is bakedImage, and bakedImage does not say how it is built"
        yield Said("error", f"{group.path}.bakedImage", message, "bakedImage: {securityGroupIds: [sg-…]}")
    if bottlerocket:
        message = "Image Builder cannot pull into Bottlerocket: it has no shell"
        remedy = "an AL2023 NVIDIA AMI, or imageDelivery: snapshot with dataVolumeSnapshot"
        yield Said("error", f"{group.path}.amiType", message, remedy)
    if group.eks.ami_id is not None:
        message = f"{group.eks.ami_id}, and the pool's AMI is baked by this stack"
        yield Said("error", f"{group.path}.amiId", message, "bakedImage.parentImage for the AMI to start from")


@rule("EKS-LABELS", "https://docs.aws.amazon.com/eks/latest/userguide/create-managed-node-group.html")
def labels_may_be_set(subject: StackSubject) -> Iterator[Said]:
    """The pool's selector becomes the labels of its nodes, and some domains are Kubernetes' own."""
    for group in groups(subject):
        for key in (*group.pool.selector, *([group.pool.ordinal_label] if group.pool.ordinal_label else [])):
            domain = key.rpartition("/")[0]
            if domain.endswith(RESERVED_LABEL_DOMAINS):
                message = f"{key}: this domain's labels cannot be given to nodes"
                yield Said(
                    "error", f"nodes.{group.name}.selector", message, "a label of your own, for example pool: l40s"
                )


@rule("EKS-NAMES", NODE_GROUPS)
def replicas_are_pinned_to_no_name(subject: StackSubject) -> Iterator[Said]:
    """A node of a group gets another name whenever it is replaced: a replica that is tied to the name is lost then."""
    for group in groups(subject):
        if group.pool.node_names:
            message = f"{', '.join(group.pool.node_names)}: EKS names the nodes, and anew whenever it replaces one"
            remedy = "ordinalLabel: pulumi-vllm/ordinal makes a node group for each replica"
            yield Said("error", f"nodes.{group.name}.nodeNames", message, remedy)


STACK_RULES = (
    node_groups_need_a_cluster,
    instance_has_the_gpus,
    pool_is_what_the_instance_is,
    price_is_known,
    ami_type_exists,
    ami_fits_the_instance,
    nvidia_ami_has_a_gpu,
    ami_is_named_once,
    zones_offer_the_type,
    volumes_stay_with_their_nodes,
    reserved_capacity_is_in_one_zone,
    update_has_the_room,
    quota_is_enough,
    ami_driver_runs_the_image,
    one_thing_offers_the_gpus,
    disk_is_possible,
    disk_holds_two_images,
    image_can_be_baked,
    labels_may_be_set,
    replicas_are_pinned_to_no_name,
)
LIVE_RULES = (binding_waits_for_the_node,)
