"""GpuDevices: what makes the GPUs of a pool visible to Kubernetes, by its chart: device plugin or DRA driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from planner.instances import chart_of
from planner.spec import PoolSpec
from planner.spec.aws import DevicePluginDevices, DraDriverDevices

NAMESPACES = {"devicePlugin": "nvidia-device-plugin", "draDriver": "dra-driver-nvidia-gpu"}
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class GpuDevicesArgs:
    """The pool whose nodes have the GPUs, and which of the two offers them. ``after``: what must be there first; a
    component hands its own dependencies down to none of its children."""

    pool: PoolSpec
    devices: DevicePluginDevices | DraDriverDevices
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)


def scheduling(pool: PoolSpec) -> dict[str, Any]:
    """Only the pool's nodes, whatever their taints: a chart's own toleration misses other values of a taint and then
    runs on no node, without any event (NVIDIA/k8s-device-plugin#1934)."""
    return {
        "nodeSelector": dict(pool.selector),
        "tolerations": [{"key": taint.key, "operator": "Exists", "effect": taint.effect} for taint in pool.taints],
    }


def chart_values(args: GpuDevicesArgs) -> dict[str, Any]:
    """The chart's values: GPUs only, on the pool's nodes only."""
    if args.devices.kind == "devicePlugin":
        return {**scheduling(args.pool), "gfd": {"enabled": False}, "nfd": {"enabled": False}}
    return {
        # The chart refuses whole GPUs unless one says that no device plugin offers the same cards.
        "gpuResourcesEnabledOverride": True,
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": False}},
        "kubeletPlugin": scheduling(args.pool),
    }


class GpuDevices(pulumi.ComponentResource):
    """The device plugin or the DRA driver on the nodes of one pool."""

    release: k8s.helm.v3.Release

    def __init__(self, name: str, args: GpuDevicesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:GpuDevices", name, None, opts)
        chart = chart_of(args.devices.kind)
        version = args.devices.chart_version or chart.version
        self.release = k8s.helm.v3.Release(
            f"{name}-release",
            chart=chart.chart,
            version=version,
            repository_opts=(
                None if chart.repository is None else k8s.helm.v3.RepositoryOptsArgs(repo=chart.repository)
            ),
            namespace=NAMESPACES[args.devices.kind],
            create_namespace=True,
            values=chart_values(args),
            timeout=TIMEOUT_SECONDS,
            cleanup_on_fail=True,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after]),
        )
        self.register_outputs({"chartVersion": version})
