"""What the preview refuses on EKS: each refusal beside a neighbour that must pass."""

from __future__ import annotations

from typing import Any

import pytest

from infra.live import LISTS, LiveCluster
from infra.preflight import aws, check_plan
from infra.preflight.rule import LiveSubject
from planner.findings import Finding
from planner.plan import plan_services
from tests.aws.arguments import (
    BAKED,
    BLOCK,
    BOTTLEROCKET,
    DIGEST,
    OWN_AMI,
    RESERVATION,
    STACK,
    SUBNETS,
    in_pool,
)
from tests.stack_files import config

IDS = {rule.id for rule in (*aws.STACK_RULES, *aws.LIVE_RULES)}
TWO_ZONES: dict[str, Any] = {"eks.subnets": SUBNETS, "eks.zone": None}
ELSEWHERE = {"id": "subnet-0aaaaaaaaaaaaaaa3", "zone": "us-east-1e", "zoneId": "use1-az3"}
SNAPSHOT = {"imageDelivery": "snapshot", "eks.dataVolumeSnapshot": "snap-0123456789abcdef0"}
DEFAULT = {"eks.update": {"strategy": "DEFAULT"}}
DRA = {"allocation": "dra", "eks.devices": {"kind": "draDriver"}}
PINNED = {"services.qwen.image.digest": DIGEST}


def findings(changes: dict[str, Any]) -> list[Finding]:
    """What the rules of this module say; keys without a section are of the pool."""
    sections = ("nodes.", "services.", "cluster.")
    whole = {key: value for key, value in changes.items() if key.startswith(sections)}
    stack = config(STACK, {**in_pool({key: changes[key] for key in changes if key not in whole}), **whole})
    plans, _ = plan_services(stack.nodes, stack.services)
    return [one for one in check_plan(stack, frozenset(), plans) if one.rule in IDS]


# what: (changes, rule, level, path, words, neighbour)
CASES: dict[str, tuple[dict[str, Any], str, str, str, str, dict[str, Any]]] = {
    "a GPU instance with an AMI without driver": (
        {"eks.amiType": "AL2023_x86_64_STANDARD"},
        "EKS-1",
        "error",
        "eks.amiType",
        "no NVIDIA driver",
        {"eks.amiType": "AL2023_x86_64_NVIDIA"},
    ),
    "an NVIDIA AMI with an instance without GPU": (
        {**BOTTLEROCKET, "eks.instanceType": "m6i.large"},
        "EKS-1",
        "error",
        "eks.amiType",
        "has none",
        BOTTLEROCKET,
    ),
    "a GPU pool without GPU": (
        {"eks.instanceType": "m6i.2xlarge"},
        "EKS-1",
        "error",
        "eks.instanceType",
        "no NVIDIA GPU",
        {},
    ),
    "an instance that came after the table": (
        {"eks.instanceType": "g9z.2xlarge"},
        "EKS-1",
        "warn",
        "eks.instanceType",
        "not in the table",
        {},
    ),
    "an arm AMI with an x86 instance": (
        {"eks.amiType": "AL2023_ARM_64_NVIDIA"},
        "EKS-1",
        "error",
        "eks.amiType",
        "is for arm64",
        {"eks.amiType": "AL2023_x86_64_NVIDIA"},
    ),
    "an AMI type that nobody has": (
        {"eks.amiType": "AL2023_x86_64_NVIDA"},
        "EKS-1",
        "error",
        "eks.amiType",
        "no AMI type",
        {"eks.amiType": None},
    ),
    "Amazon Linux 2": (
        {"eks.amiType": "AL2_x86_64_GPU"},
        "EKS-1",
        "error",
        "eks.amiType",
        "2025-11-26",
        {},
    ),
    "both an AMI type and an AMI": (
        {**OWN_AMI, "eks.amiType": "AL2023_x86_64_NVIDIA"},
        "EKS-1",
        "error",
        "eks.amiId",
        "one AMI",
        OWN_AMI,
    ),
    "an AMI without bootstrap": (
        {**OWN_AMI, "eks.bootstrap": None},
        "EKS-1",
        "error",
        "eks.bootstrap",
        "how it joins",
        OWN_AMI,
    ),
    "a bootstrap without AMI": (
        {"eks.bootstrap": "nodeadm"},
        "EKS-1",
        "error",
        "eks.bootstrap",
        "no amiId",
        OWN_AMI,
    ),
    "a release of an AMI by id": (
        {**OWN_AMI, "eks.releaseVersion": "1.34.2-20260101"},
        "EKS-1",
        "error",
        "eks.releaseVersion",
        "no AMI type",
        {"eks.releaseVersion": "1.34.2-20260101"},
    ),
    "a zone that lacks the type": (
        {"eks.subnets": [ELSEWHERE], "eks.zone": "us-east-1e"},
        "EKS-ZONE",
        "error",
        "eks.subnets.0.zoneId",
        "use1-az3",
        {"eks.subnets": [SUBNETS[0], ELSEWHERE]},
    ),
    "a zone without subnet": (
        {"eks.zone": "us-east-1f"},
        "EKS-ZONE",
        "error",
        "eks.zone",
        "no subnet",
        {"eks.zone": "us-east-1a"},
    ),
    "volumes of one zone and nodes in two": (
        TWO_ZONES,
        "EKS-2",
        "warn",
        "eks.zone",
        "us-east-1a, us-east-1b",
        {"eks.subnets": SUBNETS},
    ),
    "a reservation and two zones": (
        {**TWO_ZONES, "eks.capacity": RESERVATION},
        "EKS-CAPACITY",
        "error",
        "eks.zone",
        "in one zone",
        {"eks.subnets": SUBNETS, "eks.capacity": RESERVATION},
    ),
    "fewer reserved instances than nodes": (
        {"eks.capacity": {**BLOCK, "instances": 1}},
        "EKS-CAPACITY",
        "error",
        "eks.capacity.instances",
        "holds 1",
        {"eks.capacity": BLOCK},
    ),
    "DEFAULT without room in the quota": (
        {**DEFAULT, "eks.quotaVcpus": 16},
        "EKS-UPDATE",
        "error",
        "eks.update.strategy",
        "3 nodes",
        {**DEFAULT, "eks.quotaVcpus": 24},
    ),
    "DEFAULT without room in the reservation": (
        {**DEFAULT, "eks.capacity": RESERVATION},
        "EKS-UPDATE",
        "error",
        "eks.update.strategy",
        "room for 2",
        {"eks.capacity": RESERVATION},
    ),
    "DEFAULT and a quota that is not known": (
        DEFAULT,
        "EKS-UPDATE",
        "warn",
        "eks.update.strategy",
        "must have them",
        {**DEFAULT, "eks.quotaVcpus": 64},
    ),
    "both nodes of a pair at once": (
        {"eks.update": {"maxUnavailable": 2}},
        "EKS-UPDATE",
        "warn",
        "eks.update.maxUnavailable",
        "no replica",
        {"eks.update": {"maxUnavailable": 1}},
    ),
    "a quota that is not known": (
        {},
        "EKS-QUOTA",
        "warn",
        "eks.quotaVcpus",
        "Running On-Demand G and VT instances",
        {"eks.quotaVcpus": 16},
    ),
    "a quota that is too small": (
        {"eks.quotaVcpus": 8},
        "EKS-QUOTA",
        "error",
        "eks.quotaVcpus",
        "16 vCPUs",
        {"eks.quotaVcpus": 16},
    ),
    "CUDA that is too new for the AMI": (
        {"driver": None, "eks.instanceType": "g7.2xlarge"},
        "CAP-3",
        "error",
        "eks.instanceType",
        "needs driver 595",
        {"driver": None},
    ),
    "a driver that the AMI has not": (
        {"driver": "570.124"},
        "CAP-3",
        "warn",
        "driver",
        "has 580",
        {"driver": "580"},
    ),
    "a plugin beside the AMI's own": (
        {**BOTTLEROCKET, "eks.devices": {"kind": "devicePlugin"}},
        "EKS-DEVICES",
        "error",
        "eks.devices.kind",
        "one already",
        BOTTLEROCKET,
    ),
    "DRA beside the AMI's plugin": (
        {**BOTTLEROCKET, **DRA},
        "EKS-DEVICES",
        "error",
        "eks.devices.kind",
        "same cards",
        DRA,
    ),
    "DRA asked for and a plugin installed": (
        {"allocation": "dra"},
        "EKS-DEVICES",
        "error",
        "eks.devices.kind",
        "nobody offers",
        DRA,
    ),
    "DRA asked for and only the AMI's plugin": (
        {**BOTTLEROCKET, "allocation": "dra"},
        "EKS-DEVICES",
        "error",
        "eks.devices.kind",
        "nothing answers",
        BOTTLEROCKET,
    ),
    "nothing that offers the GPUs": (
        {"eks.devices": {"kind": "none"}},
        "EKS-DEVICES",
        "warn",
        "eks.devices.kind",
        "somebody else",
        BOTTLEROCKET,
    ),
    "throughput without operations": (
        {"eks.disk": {"throughput": 800}},
        "EKS-DISK",
        "error",
        "eks.disk.throughput",
        "3200 iops",
        {"eks.disk": {"throughput": 590, "iops": 3200}},
    ),
    "throughput above what the instance reads": (
        {"eks.disk": {"throughput": 700}, "eks.instanceType": "g6e.xlarge", "cpus": 4, "memory": "32Gi"},
        "EKS-DISK",
        "warn",
        "eks.disk.throughput",
        "reaches 596",
        {"eks.disk": {"throughput": 590}, "eks.instanceType": "g6e.xlarge", "cpus": 4, "memory": "32Gi"},
    ),
    "a disk that two images fill": (
        {"eks.disk": {"sizeGib": 30}},
        "EKS-DISK",
        "error",
        "eks.disk.sizeGib",
        "two unpacked images",
        {"eks.disk": {"sizeGib": 200}},
    ),
    "an image that is baked without digest": (
        BAKED,
        "EKS-BAKE",
        "error",
        "services.qwen.image.digest",
        "a tag can move",
        {**BAKED, **PINNED},
    ),
    "baking that does not say how": (
        {"imageDelivery": "bakedImage", **PINNED},
        "EKS-BAKE",
        "error",
        "eks.bakedImage",
        "how it is built",
        {**BAKED, **PINNED},
    ),
    "baking that nobody asked for": (
        {"eks.bakedImage": BAKED["eks.bakedImage"]},
        "EKS-BAKE",
        "error",
        "eks.bakedImage",
        "no AMI is baked",
        {**BAKED, **PINNED},
    ),
    "baking into Bottlerocket": (
        {**BAKED, **PINNED, **BOTTLEROCKET},
        "EKS-BAKE",
        "error",
        "eks.amiType",
        "no shell",
        {**SNAPSHOT, **BOTTLEROCKET},
    ),
    "baking and an AMI of one's own": (
        {**BAKED, **PINNED, **OWN_AMI},
        "EKS-BAKE",
        "error",
        "eks.amiId",
        "baked by this stack",
        {**BAKED, **PINNED},
    ),
    "a snapshot for another AMI than Bottlerocket": (
        SNAPSHOT,
        "EKS-BAKE",
        "error",
        "eks.dataVolumeSnapshot",
        "only Bottlerocket",
        {**SNAPSHOT, **BOTTLEROCKET},
    ),
    "a delivery by snapshot without snapshot": (
        {**BOTTLEROCKET, "imageDelivery": "snapshot"},
        "EKS-BAKE",
        "error",
        "eks.dataVolumeSnapshot",
        "not set",
        {**SNAPSHOT, **BOTTLEROCKET},
    ),
    "a selector that no node may carry": (
        {"selector": {"node.kubernetes.io/instance-type": "g6e.2xlarge"}},
        "EKS-LABELS",
        "error",
        "selector",
        "cannot be given",
        {"selector": {"example.com/pool": "l40s"}},
    ),
    "names of nodes that EKS gives": (
        {"ordinalLabel": None, "nodeNames": ["a", "b"]},
        "EKS-NAMES",
        "error",
        "nodeNames",
        "EKS names the nodes",
        {"ordinalLabel": "pulumi-vllm/ordinal"},
    ),
    "another card than the instance has": (
        {"gpu": "l4"},
        "EKS-FACTS",
        "error",
        "gpu",
        "1 x L40S",
        {"gpu": "l40s"},
    ),
    "more cards than the instance has": (
        {"gpusPerNode": 2},
        "EKS-FACTS",
        "error",
        "gpusPerNode",
        "has 1",
        {"gpusPerNode": 1},
    ),
    "more CPUs than the instance has": ({"cpus": 16}, "EKS-FACTS", "error", "cpus", "has 8", {"cpus": 8}),
    "more RAM than the instance has": (
        {"memory": "128Gi"},
        "EKS-FACTS",
        "error",
        "memory",
        "64Gi",
        {"memory": "60Gi"},
    ),
    "no price": ({"pricePerHour": None}, "EKS-PRICE", "info", "pricePerHour", "$2.242", {"pricePerHour": 1.5}),
    "a node group outside EKS": (
        {"cluster.kind": "existing", "cluster.eks": None},
        "EKS-KIND",
        "error",
        "eks",
        "cluster.kind is existing",
        {},
    ),
    "EKS without a cluster": (
        {"cluster.eks": None},
        "EKS-KIND",
        "error",
        "cluster.kind",
        "not set",
        {},
    ),
    "a baked image without a node group": (
        {"eks": None, "imageDelivery": "bakedImage"},
        "EKS-KIND",
        "error",
        "imageDelivery",
        "no nodes",
        {"eks": None},
    ),
}


def full(path: str) -> str:
    return f"vllm:{path}" if path.startswith(("services.", "cluster.")) else f"vllm:nodes.l40s.{path}"


def said(found: list[Finding], rule: str, level: str, path: str, words: str) -> list[Finding]:
    return [
        one for one in found if (one.rule, one.level, one.path) == (rule, level, full(path)) and words in one.message
    ]


@pytest.mark.parametrize(("changes", "rule", "level", "path", "words", "neighbour"), CASES.values(), ids=CASES.keys())
def test_a_rule_speaks_and_lets_its_neighbour_pass(
    changes: dict[str, Any], rule: str, level: str, path: str, words: str, neighbour: dict[str, Any]
) -> None:
    found = findings(changes)
    (finding,) = said(found, rule, level, path, words) or pytest.fail(f"nothing said of it: {found}")
    assert finding.remedy, "a finding without a way out is a riddle"
    assert finding.source.startswith("https://"), "a rule has a source"
    beside = findings(neighbour)
    assert not said(beside, rule, level, path, words), f"it speaks where it must not: {beside}"
    if level == "error":
        errors = [one for one in beside if one.level == "error"]
        assert not errors, f"the neighbour must pass: {errors}"


def test_every_rule_has_a_case() -> None:
    covered = {rule for _, rule, *_ in CASES.values()}
    assert covered == IDS, "a rule that no case speaks about"


# binding mode: (class, level of what is said)
BINDINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "Immediate over two zones": (TWO_ZONES, {"volumeBindingMode": "Immediate"}, "error"),
    "no mode, which is Immediate": (TWO_ZONES, {}, "error"),
    "WaitForFirstConsumer over two zones": (TWO_ZONES, {"volumeBindingMode": "WaitForFirstConsumer"}, "warn"),
    "Immediate in one zone": ({"eks.subnets": SUBNETS}, {"volumeBindingMode": "Immediate"}, None),
    "a file system for all zones": (TWO_ZONES, {"provisioner": "efs.csi.aws.com"}, None),
}


@pytest.mark.parametrize(("changes", "manifest", "level"), BINDINGS.values(), ids=BINDINGS.keys())
def test_a_volume_is_not_made_before_its_node(
    changes: dict[str, Any], manifest: dict[str, Any], level: str | None
) -> None:
    cache = {"kind": "storageClass", "storageClass": "gp3", "size": "80Gi"}
    stack = config(STACK, {**in_pool(changes), "services.qwen.cache": cache})
    objects: dict[str, dict[str, Any]] = {kind: {} for kind in LISTS}
    objects["StorageClass"] = {"gp3": {"provisioner": "ebs.csi.aws.com", **manifest}}
    subject = LiveSubject(stack, "test", LiveCluster("v1.34.0", objects))
    found = [one for rule in aws.LIVE_RULES for one in rule.findings(subject, "vllm:")]
    assert [one.level for one in found] == ([] if level is None else [level]), f"{found}"
    assert all(one.path == "vllm:services.qwen.cache.storageClass" for one in found)
