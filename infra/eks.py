"""The AWS side of an environment: the nodes of each pool, the AMI that they start from, what offers their GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from components.baked_node_image import BakedNodeImage, BakedNodeImageArgs
from components.eks_gpu_node_group import ClusterArgs, EksGpuNodeGroup, EksGpuNodeGroupArgs
from components.gpu_devices import GpuDevices, GpuDevicesArgs
from infra.config import StackConfig
from planner.instances import architecture_of, zones_used
from planner.plan import ServicePlan
from planner.spec import PoolSpec
from planner.spec.aws import EksNodeGroupSpec, EksReferenceSpec, NoDevices


class EksNodes:
    """Nodes of every pool that this stack makes. ``ready``: pool → what a pod on it must wait for."""

    def __init__(
        self,
        stack: str,
        config: StackConfig,
        reference: EksReferenceSpec,
        plans: Mapping[str, ServicePlan],
        kubernetes: pulumi.ProviderResource,
    ) -> None:
        self._stack, self._config, self._plans = stack, config, plans
        self._region, self._kubernetes = reference.region, kubernetes
        self._provider = aws.Provider("aws", region=reference.region)
        self._cluster = look_up(reference, self._provider)
        self.ready: dict[str, list[pulumi.Resource]] = {
            name: self._pool(name, pool, pool.eks) for name, pool in config.nodes.items() if pool.eks is not None
        }

    def _pool(self, name: str, pool: PoolSpec, group: EksNodeGroupSpec) -> list[pulumi.Resource]:
        baked = self._baked(name, pool, group)
        nodes: list[pulumi.Resource] = []
        for part, pool_part in parts(name, pool).items():
            args = EksGpuNodeGroupArgs(
                stack=self._stack,
                region=self._region,
                cluster=self._cluster,
                pool=pool_part,
                group=group,
                image_id=baked.image_id if baked else None,
                # One after the other: an update of both at once would leave no replica.
                after=nodes[-1:],
            )
            nodes.append(EksGpuNodeGroup(part, args, pulumi.ResourceOptions(provider=self._provider)))
        if isinstance(group.devices, NoDevices):
            return nodes
        devices = GpuDevicesArgs(pool, group.devices, after=nodes)
        return [*nodes, GpuDevices(name, devices, pulumi.ResourceOptions(provider=self._kubernetes))]

    def _baked(self, name: str, pool: PoolSpec, group: EksNodeGroupSpec) -> BakedNodeImage | None:
        if pool.image_delivery != "bakedImage" or group.baked_image is None:
            return None
        services = [plan.service for plan in self._plans.values() if plan.service.pool == name]
        zones = zones_used(group)
        args = BakedNodeImageArgs(
            stack=self._stack,
            region=self._region,
            kubernetes_version=self._config.cluster.kubernetes_version,
            architecture=architecture_of(group),
            images=[service.image for service in services],
            disk_gib=group.disk.size_gib,
            subnet=group.baked_image.subnet or next(one.id for one in group.subnets if one.zone in zones),
            spec=group.baked_image,
        )
        return BakedNodeImage(name, args, pulumi.ResourceOptions(provider=self._provider))


def parts(name: str, pool: PoolSpec) -> dict[str, PoolSpec]:
    """The node groups of a pool: one, or one for each ordinal, since all nodes of a group have the same labels."""
    if pool.ordinal_label is None:
        return {name: pool}
    return {
        f"{name}-{ordinal}": pool.model_copy(
            update={"nodes": 1, "selector": {**pool.selector, pool.ordinal_label: str(ordinal)}}
        )
        for ordinal in range(pool.nodes)
    }


def look_up(reference: EksReferenceSpec, provider: aws.Provider) -> ClusterArgs:
    """What EKS says about the cluster that the stack names; a cluster that is not there stops the preview."""
    found = aws.eks.get_cluster_output(name=reference.name, opts=pulumi.InvokeOutputOptions(provider=provider))
    return ClusterArgs(
        name=reference.name,
        endpoint=found.endpoint,
        certificate_authority=found.certificate_authorities[0].data,
        service_cidr=found.kubernetes_network_configs[0].service_ipv4_cidr,
    )
