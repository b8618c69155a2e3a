"""The whole program of the pair on EKS: AWS first, then what runs on it, in an order that never leaves it dark."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aws.arguments import BAKED, DIGEST, STACK, in_pool
from tests.infra.test_program import DAEMON_SET, run
from tests.recorder import BAKED_AMI, Recording

GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
RELEASE = "kubernetes:helm.sh/v3:Release"
BAKING = {**in_pool(BAKED), "services.qwen.image.digest": DIGEST}


def program(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any] | None = None) -> Recording:
    return run(monkeypatch, STACK, changes)


def test_each_replica_has_a_node_group_with_its_ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = program(monkeypatch)
    for ordinal in ("0", "1"):
        inputs = recording.one(GROUP, f"l40s-{ordinal}-group").inputs
        assert inputs["labels"]["pulumi-vllm/ordinal"] == ordinal, "the replica is pinned to this label"
        assert inputs["scalingConfig"]["desiredSize"] == 1, "one node for one replica"
        selector = recording.one("kubernetes:apps/v1:Deployment", f"qwen-deployment-{ordinal}").inputs["spec"]
        wanted = selector["template"]["spec"]["nodeSelector"]
        wanted = {key: value for key, value in wanted.items() if not key.startswith("kubernetes.io/")}
        assert wanted.items() <= inputs["labels"].items(), "no node of this stack would take the server"


def test_a_pool_without_ordinals_is_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = program(monkeypatch, {"nodes.l40s.ordinalLabel": None}).one(GROUP).inputs
    assert inputs["scalingConfig"]["desiredSize"] == 2


def test_node_groups_are_changed_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = program(monkeypatch)
    waits = recording.dependencies(recording.one(GROUP, "l40s-1-group"))
    assert f"{GROUP}::l40s-0-group" in waits, "both at once would leave no replica"


def test_what_runs_on_the_nodes_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = program(monkeypatch)
    for type_ in (RELEASE, DAEMON_SET):
        waits = recording.dependencies(recording.one(type_))
        for group in ("l40s-0-group", "l40s-1-group"):
            assert f"{GROUP}::{group}" in waits, f"{type_}: a DaemonSet without nodes is ready at once"


def test_the_ami_is_built_before_a_node_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = program(monkeypatch, BAKING)
    for ordinal in ("0", "1"):
        template = recording.one(TEMPLATE, f"l40s-{ordinal}-template")
        assert template.inputs["imageId"] == BAKED_AMI, "nodes start from what was built"
        assert "aws:imagebuilder/image:Image::l40s-image" in recording.dependencies(template), "hence after it"
    assert not recording.all(DAEMON_SET), "the image is in the AMI: nothing is pulled"


def test_a_stack_without_eks_loads_nothing_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = run(monkeypatch, "lab-3060")
    assert not [item for item in recording.registrations if item.type.startswith(("aws:", "pulumi:providers:aws"))]
