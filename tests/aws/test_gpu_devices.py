"""What makes GPUs visible: one chart at a pinned version, on the pool's nodes and on no other."""

from __future__ import annotations

from typing import Any

import pytest

from components.gpu_devices import GpuDevices, GpuDevicesArgs
from planner.instances import chart_of
from planner.spec.aws import DevicePluginDevices, DraDriverDevices
from tests.aws.arguments import pool
from tests.recorder import Registration, record

TAINTS = {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}
Devices = DevicePluginDevices | DraDriverDevices
KINDS: dict[str, Devices] = {
    "devicePlugin": DevicePluginDevices(kind="devicePlugin"),
    "draDriver": DraDriverDevices(kind="draDriver"),
}


def release(devices: Devices, changes: dict[str, Any] | None = None) -> Registration:
    args = GpuDevicesArgs(pool(changes), devices)
    return record(lambda: GpuDevices("l40s", args)).one("kubernetes:helm.sh/v3:Release")


@pytest.mark.parametrize("kind", KINDS)
def test_the_version_is_pinned_and_can_be_chosen(kind: str) -> None:
    devices = KINDS[kind]
    assert release(devices).inputs["version"] == chart_of(devices.kind).version, "a floating chart changes by itself"
    chosen = devices.model_copy(update={"chart_version": "9.9.9"})
    assert release(chosen).inputs["version"] == "9.9.9"


@pytest.mark.parametrize(("kind", "place"), [("devicePlugin", ()), ("draDriver", ("kubeletPlugin",))])
def test_it_runs_on_the_pools_nodes_whatever_value_their_taint_has(kind: str, place: tuple[str, ...]) -> None:
    values = release(KINDS[kind], TAINTS).inputs["values"]
    for key in place:
        values = values[key]
    assert values["nodeSelector"] == {"pool": "l40s"}, "other pools have drivers of their own"
    assert values["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], (
        "a toleration of one value misses nodes with another, without any event (k8s-device-plugin#1934)"
    )


def test_the_dra_driver_offers_gpus_and_nothing_else() -> None:
    values = release(KINDS["draDriver"]).inputs["values"]
    assert values["resources"] == {"gpus": {"enabled": True}, "computeDomains": {"enabled": False}}, (
        "compute domains need a webhook and cards with NVLink between nodes"
    )
    assert values["gpuResourcesEnabledOverride"] is True, "the chart refuses whole GPUs without it"


def test_the_plugin_brings_no_feature_discovery() -> None:
    values = release(KINDS["devicePlugin"]).inputs["values"]
    assert (values["gfd"], values["nfd"]) == ({"enabled": False}, {"enabled": False}), (
        "the label of the node group takes its place, and its taint is not tolerated by the chart's own"
    )
