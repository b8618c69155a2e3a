"""What only the cluster tells, on fabricated clusters: each refusal beside a neighbour that must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from components import naming
from infra.live import LiveCluster
from infra.preflight import check_live
from planner.findings import Finding
from tests.infra.live_objects import (
    OURS,
    STACK,
    THEIRS,
    an_object,
    card_slice,
    cards_by_dra,
    claim,
    cluster,
    device_class,
    foreign_service,
    host,
    node,
    our_server,
    servers_of,
    volume,
    without_dra,
)
from tests.stack_files import config

DYNAMIC = {
    "services.qwen.cache": {"kind": "storageClass", "storageClass": "fast", "size": "20Gi", "claimName": "vllm-model"}
}


def found(live: LiveCluster, changes: Mapping[str, Any] | None = None) -> list[Finding]:
    return list(check_live(config(changes=changes), STACK, live))


EXPANDABLE = {"StorageClass": [an_object("fast", allowVolumeExpansion=True)]}
RIGID = {"StorageClass": [an_object("fast")]}
GROWN = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "size": "40Gi"}}
SHRUNK = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "size": "10Gi"}}
SHARED = {"services.qwen.cache": {**DYNAMIC["services.qwen.cache"], "accessMode": "ReadWriteMany"}}
K3S = {"cluster.flavour": "k3s"}
DRA = {"nodes.lab.allocation": "dra"}
ADOPTED = {"cluster.adopt": [f"Service/{naming.service_name('qwen', config().services['qwen'])}"]}
PINS = {"nodes.lab.nodes": 2, "nodes.lab.nodeNames": ["lab", "lab-1"]}
EXISTING = {"kind": "existingClaim", "claimName": "models"}
TWO_CARDS = {"nodes.lab.gpusPerNode": 2}
HOSTS = {"Node": [node("lab", labels=host("lab")), node("lab-1", labels=host("lab-1"))]}
ORDINAL = {"nodes.lab.nodes": 2, "nodes.lab.ordinalLabel": "ordinal", "services.qwen.cache.node": "lab"}
APART = {"services.qwen.replicas": 2, "nodes.lab.nodes": 2, **DYNAMIC}

# what is in the cluster, changes of the stack, (level, path, words) or None where nothing may be said
CASES: dict[str, tuple[LiveCluster, dict[str, Any], tuple[str, str, str] | None]] = {
    "nothing there yet": (cluster(), {}, None),
    "a foreign namespace": (
        cluster(Namespace=[an_object("ai-infra")]),
        {},
        ("error", "cluster.namespace", "cluster.adopt: [Namespace/ai-infra]"),
    ),
    "a namespace that may be taken over": (
        cluster(Namespace=[an_object("ai-infra")]),
        {"cluster.adopt": ["Namespace/ai-infra"]},
        None,
    ),
    "our own namespace": (cluster(Namespace=[an_object("ai-infra", OURS)]), {}, None),
    "the namespace of another stack": (
        cluster(Namespace=[an_object("ai-infra", {naming.STACK_LABEL: "other"})]),
        {},
        ("error", "cluster.namespace", "belongs to the stack 'other'"),
    ),
    "a namespace that is going": (
        cluster(Namespace=[an_object("ai-infra", OURS, status={"phase": "Terminating"})]),
        {},
        ("error", "cluster.namespace", "being deleted"),
    ),
    "a foreign claim": (
        cluster(PersistentVolumeClaim=[claim(other="x")]),
        {},
        ("error", "services.qwen.cache.claimName", "cluster.adopt: [PersistentVolumeClaim/vllm-model-0]"),
    ),
    "a foreign Service": (
        cluster(Service=[an_object("vllm-service")]),
        {},
        ("error", "services.qwen.exposure.serviceName", "cluster.adopt: [Service/vllm-service]"),
    ),
    "a foreign Deployment": (
        cluster(Deployment=[an_object("qwen-0")]),
        {},
        ("error", "services.qwen", "choose another name"),
    ),
    "our kept claim and volume": (cluster(PersistentVolumeClaim=[claim()], PersistentVolume=[volume()]), {}, None),
    "a released volume": (
        cluster(PersistentVolume=[volume("Released")]),
        {},
        ("error", "services.qwen.cache", "kubectl patch pv ai-infra-vllm-model-0"),
    ),
    "a volume of another folder": (
        cluster(PersistentVolume=[volume(path="/elsewhere")]),
        {},
        ("error", "services.qwen.cache.path", "/elsewhere"),
    ),
    "a volume of another claim": (
        cluster(PersistentVolume=[volume(claim_name="theirs")]),
        {},
        ("error", "services.qwen.cache.claimName", "ai-infra/theirs"),
    ),
    "a static claim that should grow": (
        cluster(PersistentVolumeClaim=[claim(size="10Gi")]),
        {},
        ("error", "services.qwen.cache.size", "no quota"),
    ),
    "a claim that should grow in an expandable class": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        GROWN,
        None,
    ),
    "a claim that should grow in a rigid class": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **RIGID),
        GROWN,
        ("error", "services.qwen.cache.size", "allowVolumeExpansion"),
    ),
    "a claim that should shrink": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        SHRUNK,
        ("error", "services.qwen.cache.size", "never shrinks"),
    ),
    "the same size in another spelling": (
        cluster(PersistentVolumeClaim=[claim(size="20480Mi", class_name="fast")], **EXPANDABLE),
        DYNAMIC,
        None,
    ),
    "another storage class": (
        cluster(PersistentVolumeClaim=[claim(class_name="slow")], **EXPANDABLE),
        DYNAMIC,
        ("error", "services.qwen.cache.storageClass", "second claim"),
    ),
    "from a folder to a class": (
        cluster(PersistentVolumeClaim=[claim()], **EXPANDABLE),
        DYNAMIC,
        ("error", "services.qwen.cache.kind", "keeps its class"),
    ),
    "another access mode": (
        cluster(PersistentVolumeClaim=[claim(class_name="fast")], **EXPANDABLE),
        SHARED,
        ("error", "services.qwen.cache.accessMode", "keeps its mode"),
    ),
    "an existing claim that is not there": (
        cluster(),
        {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}},
        ("error", "services.qwen.cache.claimName", "no claim 'models'"),
    ),
    "an existing claim": (
        cluster(PersistentVolumeClaim=[an_object("models", spec={})]),
        {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}},
        None,
    ),
    "a class that is not there": (cluster(), DYNAMIC, ("error", "services.qwen.cache.storageClass", "classes: none")),
    "no node of the pool": (
        cluster(Node=[node(labels={})]),
        {},
        ("error", "nodes.lab.selector", "nvidia.com/gpu.present=true"),
    ),
    "a node without its card": (cluster(Node=[node(cards=0)]), {}, ("error", "nodes.lab", "offer 0")),
    "fewer cards than declared": (
        cluster(Node=[node()]),
        {"nodes.lab.nodes": 2, "services.qwen.cache.node": "lab"},
        ("warn", "nodes.lab", "offer 1"),
    ),
    "time-sliced copies of one card": (cluster(Node=[node(cards=4)]), {}, ("warn", "nodes.lab", "time-sl")),
    "a Service to take over with another port without a name": (
        foreign_service({"port": 80}),
        ADOPTED,
        ("error", "services.qwen.exposure.serviceName", '[{"op":"add","path":"/spec/ports/0/name","value":"other"}]'),
    ),
    "a Service to take over with another port of our port's name": (
        foreign_service({"name": "grpc", "port": 9000}, {"name": "http", "port": 80}),
        ADOPTED,
        ("error", "services.qwen.exposure.serviceName", "/spec/ports/1/name"),
    ),
    "a Service to take over with the same number of another protocol": (
        foreign_service({"port": 8000, "protocol": "UDP"}),
        ADOPTED,
        ("error", "services.qwen.exposure.serviceName", "without a name"),
    ),
    "a Service to take over with another port of another name": (
        foreign_service({"name": "grpc", "port": 9000}, {"name": "web", "port": 8000}),
        ADOPTED,
        None,
    ),
    "a Service to take over with our port, which has no name": (foreign_service({"port": 8000}), ADOPTED, None),
    "our own Service whose port is changed": (
        foreign_service({"name": "http", "port": 80}, labels=OURS),
        ADOPTED,
        None,
    ),
    "a node that is down": (cluster(Node=[node(ready="Unknown")]), {}, ("warn", "nodes.lab", "prePull.await: false")),
    "a renamed service on a pool without a spare card": (
        cluster(Deployment=[our_server("old-0")]),
        {},
        ("error", "services.qwen", "kubectl --namespace ai-infra scale deployment old-0 --replicas=0"),
    ),
    "a renamed service whose old server is scaled to zero": (
        cluster(Deployment=[our_server("old-0", replicas=0)]),
        {},
        None,
    ),
    "a renamed service on a pool with a card that is not declared": (
        cluster(Deployment=[our_server("old-0")], Node=[node(), node("lab-1")]),
        {},
        ("warn", "nodes.lab", "declares 1 GPU(s), and its nodes offer 2"),
    ),
    "another namespace while the old one holds the card": (
        servers_of("before", our_server("qwen-0")),
        {},
        ("error", "cluster.namespace", "kubectl --namespace before scale deployment qwen-0 --replicas=0"),
    ),
    "another namespace once the old server is scaled to zero": (
        servers_of("before", our_server("qwen-0", replicas=0)),
        {},
        None,
    ),
    "another namespace and a spare card": (
        servers_of("before", our_server("qwen-0"), Node=[node(cards=2)]),
        TWO_CARDS,
        None,
    ),
    "another stack's server in another namespace": (
        servers_of("theirs", an_object("qwen-0", THEIRS, spec=our_server("qwen-0")["spec"])),
        {},
        None,
    ),
    "the own servers are seen among all": (
        servers_of("ai-infra", our_server("qwen-0"), Deployment=[our_server("qwen-0")]),
        {},
        None,
    ),
    "a renamed service on a pool with a spare card": (
        cluster(Deployment=[our_server("old-0")], Node=[node(cards=2)]),
        {"nodes.lab.gpusPerNode": 2},
        None,
    ),
    "a leaving server on another pool": (
        cluster(Deployment=[our_server("old-0", {"pool": "other"})]),
        {},
        None,
    ),
    "a server that stays": (cluster(Deployment=[our_server("qwen-0")]), {}, None),
    "no RuntimeClass on k3s": (cluster(), K3S, ("error", "nodes.lab.runtimeClass", "no RuntimeClass 'nvidia'")),
    "the RuntimeClass on k3s": (cluster(RuntimeClass=[an_object("nvidia")]), K3S, None),
    "an older cluster than declared": (cluster("v1.36.1"), {}, ("warn", "cluster.kubernetesVersion", '"1.36"')),
    "a foreign second Deployment": (
        cluster(Deployment=[an_object("qwen-1")], Node=[node(cards=2)]),
        {"services.qwen.replicas": 2, **TWO_CARDS},
        ("error", "services.qwen", "Deployment 'qwen-1'"),
    ),
    "a foreign Deployment that a second replica would be": (cluster(Deployment=[an_object("qwen-1")]), {}, None),
    "a foreign disruption budget": (
        cluster(PodDisruptionBudget=[an_object("qwen")], Node=[node(cards=2)]),
        {"services.qwen.replicas": 2, **TWO_CARDS},
        ("error", "services.qwen", "PodDisruptionBudget 'qwen'"),
    ),
    "a disruption budget beside one replica": (cluster(PodDisruptionBudget=[an_object("qwen")]), {}, None),
    "a second claim of another class": (
        cluster(
            PersistentVolumeClaim=[claim(name="vllm-model-1", class_name="slow")], Node=[node(cards=2)], **EXPANDABLE
        ),
        {"services.qwen.replicas": 2, **TWO_CARDS, **DYNAMIC},
        ("error", "services.qwen.cache.storageClass", "'vllm-model-1'"),
    ),
    "cards by DRA": (cards_by_dra(), DRA, None),
    "cards by DRA in the older shape": (
        cards_by_dra(version="v1.32.4", ResourceSlice=[card_slice(beta=True)]),
        {**DRA, "cluster.kubernetesVersion": "1.32"},
        None,
    ),
    "a cluster that does not serve DRA": (
        without_dra(cards_by_dra()),
        DRA,
        ("error", "nodes.lab.allocation", "--runtime-config=resource.k8s.io/v1=true"),
    ),
    "a cluster without DRA and a device plugin": (without_dra(cluster()), {}, None),
    "no such device class": (
        cards_by_dra(DeviceClass=[device_class("other")]),
        DRA,
        ("error", "nodes.lab.deviceClass", "classes: other"),
    ),
    "fewer cards in slices than declared": (
        cards_by_dra(),
        {**DRA, **TWO_CARDS},
        ("warn", "nodes.lab", "declares 2 GPU(s), and the ResourceSlices of its nodes offer 1"),
    ),
    "no card in any slice": (cards_by_dra(ResourceSlice=[]), DRA, ("error", "nodes.lab", "offer 0")),
    "a slice that is outdated": (
        cards_by_dra(ResourceSlice=[card_slice("old", ("gpu", "gpu")), card_slice("new", generation=2)]),
        {**DRA, **TWO_CARDS},
        ("warn", "nodes.lab", "offer 1"),
    ),
    "parts of cards in a slice": (
        cards_by_dra(ResourceSlice=[card_slice(types=("gpu", "mig"))]),
        {**DRA, **TWO_CARDS},
        ("warn", "nodes.lab", "offer 1"),
    ),
    "an older kubelet on a node with DRA": (
        cards_by_dra(Node=[node(cards=0, kubelet="v1.36.1")]),
        DRA,
        ("warn", "nodes.lab", "kubelet v1.36.1"),
    ),
    "an older kubelet with a device plugin": (cluster(Node=[node(kubelet="v1.36.1")]), {}, None),
    "cards that device plugin and DRA hand out": (
        cards_by_dra(Node=[node(cards=1)]),
        DRA,
        ("error", "nodes.lab.allocation", "the same cards"),
    ),
    "cards that DRA hands out beside the device plugin": (
        cards_by_dra(Node=[node(cards=1)]),
        {},
        ("error", "nodes.lab.allocation", "switch one of them off"),
    ),
    "a device class that serves requests of the plugin's kind": (
        cards_by_dra(DeviceClass=[device_class(extendedResourceName="nvidia.com/gpu")]),
        {},
        None,
    ),
    "such a class before it is served": (
        cards_by_dra(version="v1.35.1", DeviceClass=[device_class(extendedResourceName="nvidia.com/gpu")]),
        {"cluster.kubernetesVersion": "1.35"},
        ("error", "nodes.lab", "offer 0"),
    ),
    "both pinned nodes": (cluster(**HOSTS), PINS, None),
    "a pinned node that is not there": (
        cluster(Node=[node(cards=2, labels=host("lab"))]),
        PINS,
        ("warn", "nodes.lab.nodeNames", "kubernetes.io/hostname=lab-1"),
    ),
    "no pinned node is there": (
        cluster(Node=[node(cards=2, labels=host("other"))]),
        PINS,
        ("error", "nodes.lab.nodeNames", "there are other"),
    ),
    "both ordinals": (
        cluster(Node=[node(labels=host("lab", ordinal="0")), node("b", labels=host("b", ordinal="1"))]),
        ORDINAL,
        None,
    ),
    "an ordinal that no node has": (
        cluster(Node=[node(labels=host("lab", ordinal="0")), node("b", labels=host("b"))]),
        ORDINAL,
        ("warn", "nodes.lab.ordinalLabel", "ordinal=1"),
    ),
    "unpinned replicas on volumes of a node": (
        cluster(StorageClass=[an_object("fast", provisioner="rancher.io/local-path")], **HOSTS),
        APART,
        ("error", "services.qwen.replicas", "stay on the node"),
    ),
    "unpinned replicas on volumes that move": (
        cluster(StorageClass=[an_object("fast", provisioner="ebs.csi.aws.com")], **HOSTS),
        APART,
        None,
    ),
    "an existing claim that only one node can mount": (
        cluster(PersistentVolumeClaim=[an_object("models", spec={"accessModes": ["ReadWriteOnce"]})], **HOSTS),
        {**APART, "services.qwen.cache": {**EXISTING, "accessMode": "ReadWriteMany"}},
        ("error", "services.qwen.cache.accessMode", "is ReadWriteOnce"),
    ),
    "an existing claim that many nodes can mount": (
        cluster(PersistentVolumeClaim=[an_object("models", spec={"accessModes": ["ReadWriteMany"]})], **HOSTS),
        {**APART, "services.qwen.cache": {**EXISTING, "accessMode": "ReadWriteMany"}},
        None,
    ),
}


@pytest.mark.parametrize(("live", "changes", "expected"), CASES.values(), ids=CASES.keys())
def test_the_cluster_is_compared_with_the_stack(
    live: LiveCluster, changes: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    findings = found(live, changes)
    if expected is None:
        assert not findings, f"this runs, and was not let through: {findings}"
        return
    level, path, words = expected
    assert [(item.level, item.path) for item in findings] == [(level, f"vllm:{path}")], findings
    assert words in f"{findings[0].message} {findings[0].remedy}", f"{findings[0]} does not say {words!r}"


STANDALONE = {
    "mode": "standalone",
    "prometheusImage": "registry.example/prometheus:v3.16.0",
    "alertmanagerImage": "registry.example/alertmanager:v0.35.0",
    "size": "20Gi",
    "receiver": {"kind": "webhook"},
}
ON_FAST = {**STANDALONE, "storageClass": "fast"}
DEFAULT_CLASS = {"storageclass.kubernetes.io/is-default-class": "true"}


def samples(size: str = "20Gi", class_name: str = "fast") -> dict[str, Any]:
    return claim(size, class_name, name="vllm-prometheus")


def default_class() -> dict[str, Any]:
    made = an_object("fast", allowVolumeExpansion=True)
    return {**made, "metadata": {**made["metadata"], "annotations": DEFAULT_CLASS}}


# what is in the cluster, the section monitoring, (level, field, words) or None where nothing may be said
SAMPLES: dict[str, tuple[dict[str, list[dict[str, Any]]], dict[str, Any], tuple[str, str, str] | None]] = {
    "a class that is there": (EXPANDABLE, ON_FAST, None),
    "the default class": ({"StorageClass": [default_class()]}, STANDALONE, None),
    "no default class": (EXPANDABLE, STANDALONE, ("warn", "storageClass", "one of fast")),
    "no class at all": ({}, STANDALONE, ("warn", "storageClass", "a volume for each of the two claims")),
    "a class that is not there": (EXPANDABLE, {**STANDALONE, "storageClass": "fats"}, ("warn", "storageClass", "fast")),
    "a claim that was kept": ({"PersistentVolumeClaim": [samples()], **EXPANDABLE}, ON_FAST, None),
    "a kept claim and no class in the stack": (
        {"PersistentVolumeClaim": [samples()], **EXPANDABLE},
        STANDALONE,
        None,
    ),
    "a claim of another class": (
        {"PersistentVolumeClaim": [samples(class_name="slow")], **EXPANDABLE},
        ON_FAST,
        ("error", "storageClass", "'slow'"),
    ),
    "a claim that would shrink": (
        {"PersistentVolumeClaim": [samples(size="40Gi")], **EXPANDABLE},
        ON_FAST,
        ("error", "size", "never shrinks"),
    ),
    "a claim that grows": ({"PersistentVolumeClaim": [samples(size="10Gi")], **EXPANDABLE}, ON_FAST, None),
    "a claim that cannot grow": (
        {"PersistentVolumeClaim": [samples(size="10Gi")], **RIGID},
        ON_FAST,
        ("error", "size", "allowVolumeExpansion"),
    ),
    "another mode": ({"PersistentVolumeClaim": [samples(class_name="slow")]}, {"mode": "none"}, None),
}


@pytest.mark.parametrize(("objects", "monitoring", "expected"), SAMPLES.values(), ids=SAMPLES.keys())
def test_the_claims_of_monitoring_are_compared_with_the_stack(
    objects: dict[str, list[dict[str, Any]]], monitoring: dict[str, Any], expected: tuple[str, str, str] | None
) -> None:
    findings = [one for one in found(cluster(**objects), {"monitoring": monitoring}) if "LIVE-SAMPLES" in one.rule]
    if expected is None:
        assert not findings, f"this runs, and was not let through: {findings}"
        return
    level, field, words = expected
    assert [(item.level, item.path) for item in findings] == [(level, f"vllm:monitoring.{field}")], findings
    assert words in f"{findings[0].message} {findings[0].remedy}", f"{findings[0]} does not say {words!r}"
