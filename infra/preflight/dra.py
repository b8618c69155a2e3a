"""Rules about dynamic resource allocation (DRA): who hands out the cards, and whether the cluster can."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

from components import naming
from infra.preflight.rule import LiveSubject, Said, StackSubject, rule
from planner.spec import PoolSpec

if TYPE_CHECKING:
    from infra.live import LiveCluster

DRA = "https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/"
EXTENDED = f"{DRA}#extended-resource"
GPU = "nvidia.com/gpu"
FIRST_MINOR = 32
EXTENDED_RESOURCE_MINOR = 36
"""From here on a DeviceClass with `extendedResourceName` serves pods that ask for nvidia.com/gpu (KEP-5004)."""
DEFAULT_CLASS = str(PoolSpec.model_fields["device_class"].default)

_DRIVER = re.compile(r"""device\.driver\s*==\s*['"](?P<driver>[^'"]+)['"]""")


def minor(version: str) -> int:
    """The minor of a version of Kubernetes: 37 of "1.37" and of "v1.37.2+k3s1"."""
    return int(version.split(".")[1])


@rule("SCH-6", "https://github.com/kai-scheduler/KAI-Scheduler/issues/1214")
def version_has_dra(subject: StackSubject) -> Iterator[Said]:
    """An API server that does not know ResourceClaimTemplate refuses the server's objects."""
    version = subject.config.cluster.kubernetes_version
    for name, pool in subject.config.nodes.items():
        if pool.allocation == "dra" and naming.dra_version(minor(version)) is None:
            yield Said(
                "error",
                f"nodes.{name}.allocation",
                f"dra, and Kubernetes {version} has no version of resource.k8s.io that is supported",
                f"Kubernetes 1.{FIRST_MINOR} or newer, or allocation: devicePlugin",
            )


@rule("SCH-6", DRA)
def device_class_is_used(subject: StackSubject) -> Iterator[Said]:
    """A device plugin knows no device classes."""
    for name, pool in subject.config.nodes.items():
        if pool.allocation == "devicePlugin" and pool.device_class != DEFAULT_CLASS:
            message = f"{pool.device_class!r} has no effect: the pool's allocation is devicePlugin"
            yield Said("warn", f"nodes.{name}.deviceClass", message, "allocation: dra, or leave it out")


@rule("SCH-BOTH", EXTENDED)
def pools_do_not_share_cards(subject: StackSubject) -> Iterator[Said]:
    """Device plugin and DRA driver do not know of each other: both would give one card away."""
    if minor(subject.config.cluster.kubernetes_version) >= EXTENDED_RESOURCE_MINOR:
        return  # There a DeviceClass can serve both kinds of request: the look at the cluster decides.
    for (one, first), (other, second) in combinations(subject.config.nodes.items(), 2):
        if first.allocation != second.allocation and _same_nodes(first, second):
            yield Said(
                "error",
                f"nodes.{other}.allocation",
                f"{second.allocation}, and nodes.{one} with the same nodes has {first.allocation}: "
                "both would hand out the same cards",
                "one allocation for these nodes, or selectors that tell them apart",
            )


def _same_nodes(one: PoolSpec, other: PoolSpec) -> bool:
    """Whether one pool's nodes are surely among the other's."""
    if one.node_names and other.node_names:
        return bool(set(one.node_names) & set(other.node_names))
    return one.selector.items() <= other.selector.items() or other.selector.items() <= one.selector.items()


@rule("LIVE-DRA", DRA)
def device_class_exists(subject: LiveSubject) -> Iterator[Said]:
    """A claim of a class that is not there is never allocated, and its pod stays Pending."""
    classes = subject.live.objects.get("DeviceClass")
    version = naming.dra_version(minor(subject.config.cluster.kubernetes_version))
    for name, pool in subject.config.nodes.items():
        if pool.allocation != "dra" or (pool.eks is not None and pool.eks.devices.kind == "draDriver"):
            continue  # this stack installs the driver, and its class with it
        if classes is None:
            message = f"dra, and the cluster does not serve resource.k8s.io/{version}"
            remedy = (
                f"API server: --runtime-config=resource.k8s.io/{version}=true; or correct cluster.kubernetesVersion"
            )
            yield Said("error", f"nodes.{name}.allocation", message, remedy)
        elif pool.device_class not in classes:
            message = f"there is no DeviceClass {pool.device_class!r} in the cluster"
            remedy = f"install the DRA driver of the cards; classes: {', '.join(sorted(classes)) or 'none'}"
            yield Said("error", f"nodes.{name}.deviceClass", message, remedy)


@rule("LIVE-SLICES", DRA)
def slices_have_the_cards(subject: LiveSubject) -> Iterator[Said]:
    """A card that no ResourceSlice offers cannot be claimed: its replica stays Pending."""
    for name, pool in subject.config.nodes.items():
        nodes = nodes_of(subject.live, pool)
        if pool.allocation != "dra" or subject.live.get("DeviceClass", pool.device_class) is None or not nodes:
            continue
        by_node = devices(subject.live, pool.device_class)
        cards, declared = sum(by_node[node] for node in nodes), pool.nodes * pool.gpus_per_node
        if cards < declared:
            message = f"declares {declared} GPU(s), and the ResourceSlices of its nodes offer {cards}"
            remedy = "DRA driver running on each node? kubectl get resourceslices; or correct nodes and gpusPerNode"
            yield Said("error" if cards == 0 else "warn", f"nodes.{name}", message, remedy)


@rule("SCH-BOTH", EXTENDED)
def cards_have_one_owner(subject: LiveSubject) -> Iterator[Said]:
    """Device plugin and DRA driver do not know of each other: both give one card away."""
    for name, pool in subject.config.nodes.items():
        by_node = devices(subject.live, pool.device_class)
        for node, manifest in nodes_of(subject.live, pool).items():
            plugin = plugin_cards(manifest)
            if plugin and by_node[node]:
                yield Said(
                    "error",
                    f"nodes.{name}.allocation",
                    f"node {node!r} offers {plugin} of {GPU} and {by_node[node]} device(s) in ResourceSlices: "
                    "device plugin and DRA driver would hand out the same cards",
                    "switch one of them off on these nodes; from Kubernetes 1.36 a DeviceClass with "
                    f"extendedResourceName: {GPU} serves requests of both kinds without the plugin",
                )


@rule("SCH-6", "https://kubernetes.io/releases/version-skew-policy/")
def kubelets_know_the_claims(subject: LiveSubject) -> Iterator[Said]:
    """An older kubelet may not prepare what a newer scheduler has allocated."""
    served = minor(subject.live.version)
    for name, pool in subject.config.nodes.items():
        for node, manifest in nodes_of(subject.live, pool).items():
            kubelet = manifest["status"].get("nodeInfo", {}).get("kubeletVersion", "")
            if pool.allocation == "dra" and kubelet and minor(kubelet) < served:
                message = f"node {node!r} runs kubelet {kubelet}, the API server {subject.live.version}"
                yield Said("warn", f"nodes.{name}", message, "update the node")


def nodes_of(live: LiveCluster, pool: PoolSpec) -> dict[str, Any]:
    """The nodes that the pool's selector names."""
    return {
        name: node
        for name, node in live.objects["Node"].items()
        if pool.selector.items() <= (node["metadata"].get("labels") or {}).items()
    }


def plugin_cards(node: Mapping[str, Any]) -> int:
    """How many GPUs the device plugin of a node offers."""
    return int(node["status"].get("allocatable", {}).get(GPU, 0))


def offered_cards(live: LiveCluster, node: str) -> int:
    """How many GPUs a pod that asks for nvidia.com/gpu can get on a node: by the device plugin, or by a
    DeviceClass that serves such requests."""
    plugin = plugin_cards(live.objects["Node"][node])
    if plugin or minor(live.version) < EXTENDED_RESOURCE_MINOR:
        return plugin
    classes = live.objects.get("DeviceClass", {})
    serving = [name for name, one in classes.items() if one["spec"].get("extendedResourceName") == GPU]
    return max((devices(live, name)[node] for name in serving), default=0)


def devices(live: LiveCluster, device_class: str) -> Counter[str]:
    """Node → how many whole GPUs of a class its newest ResourceSlices hold.

    A class selects by CEL, which is not evaluated here: the driver that it names is, and `type: gpu`
    where devices have one, which leaves slices of a card (MIG) out.
    """
    found = live.get("DeviceClass", device_class)
    selectors = found["spec"].get("selectors", []) if found else []
    drivers = {
        match["driver"] for one in selectors if (match := _DRIVER.search(one.get("cel", {}).get("expression", "")))
    }
    specs = [one["spec"] for one in live.objects.get("ResourceSlice", {}).values() if one["spec"]["driver"] in drivers]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        pool = (spec["driver"], spec["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), spec["pool"].get("generation", 0))
    counted: Counter[str] = Counter()
    for spec in specs:
        if spec["pool"].get("generation", 0) == newest[spec["driver"], spec["pool"]["name"]]:
            counted[spec.get("nodeName", "")] += sum(_is_whole_gpu(device) for device in spec.get("devices", []))
    return counted


def _is_whole_gpu(device: Mapping[str, Any]) -> bool:
    # v1beta1 has a device's attributes below `basic`.
    attributes = device.get("basic", device).get("attributes", {})
    return bool(attributes.get("type", {}).get("string", "gpu") == "gpu")


STACK_RULES = (version_has_dra, device_class_is_used, pools_do_not_share_cards)
LIVE_RULES = (device_class_exists, slices_have_the_cards, cards_have_one_owner, kubelets_know_the_claims)
