"""`destroy` keeps what holds data, and the next `up` takes it over again."""

from __future__ import annotations

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import KEPT, ROLES, until

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "cache",
    [
        {"kind": "hostPath", "path": "/srv/cache", "size": "20Gi", "claimName": "weights"},
        {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi", "claimName": "weights"},
    ],
    ids=["static", "dynamic"],
)
def test_a_claim_outlives_its_stack(new_stack: NewStack, cache: dict[str, str]) -> None:
    stack = new_stack("kept" if cache["kind"] == "hostPath" else "kept-class")
    stack.write({"services.qwen.cache": cache})
    stack.up()
    kept = stack.kept()
    assert {name.split("/")[0] for name in kept} == set(KEPT), "namespace, volume and claim hold what is precious"

    answer = stack.destroy()
    lines = answer.output.splitlines()
    ours = [f"Namespace {stack.name} ", f"PersistentVolumeClaim {stack.name}/weights-0 "]
    if cache["kind"] == "hostPath":
        ours.append(f"PersistentVolume {stack.name}-weights-0 ")
    for name in ours:
        assert any(name in line and "[retain]" in line for line in lines), f"`destroy` says that {name}stays"
    assert not any("[retain]" in line for line in lines if "Deployment" in line), "and says it of nothing else"
    until(lambda: not stack.find("pod"), "the pods go")
    assert stack.kept() == kept, "the same objects"
    assert stack.export().get("resources", []) == [], "the stack is empty"
    left = [kind for kind in ROLES if kind not in KEPT and stack.find(kind, f"pulumi-vllm/stack={stack.name}")]
    assert left == [], "everything else is gone"

    stack.up()
    assert stack.kept() == kept, "taken over, not made again"
    assert stack.get("pvc", "weights-0")["status"]["phase"] == "Bound", "and bound as before"
    stack.preview("--expect-no-changes")


def test_a_service_with_another_key_keeps_claim_and_address(new_stack: NewStack) -> None:
    stack = new_stack("renamed")
    # Pulumi makes the new server before it deletes the old one: for a moment both have a card.
    stack.give_gpus(2)
    stack.write({"nodes.lab.gpusPerNode": 2})
    stack.up()
    kept, address = stack.kept(), stack.get("service", "vllm-service")["metadata"]["uid"]
    service = stack.sections()["services"]["qwen"]

    stack.write({"nodes.lab.gpusPerNode": 2, "services.qwen": None, "services.chat": service})
    answer = stack.up()

    assert stack.kept() == kept, "cache.claimName decides which claim it is, not the key"
    assert stack.get("service", "vllm-service")["metadata"]["uid"] == address, "exposure.serviceName does as much"
    assert [one["metadata"]["name"] for one in stack.find("deployment")] == ["chat-0"], "the server has the new name"
    lasting = {*KEPT, "Service"}
    touched = {event.operation for event in answer.changes if event.type.split(":")[-1] in lasting}
    assert touched <= {"update"}, "nothing that must last is created or deleted on the way"
    stack.preview("--expect-no-changes")


def test_a_service_that_was_away_finds_its_claim(new_stack: NewStack) -> None:
    stack = new_stack("away")
    service = stack.sections()["services"]["qwen"]
    cpu = {**service, "cache": {**service["cache"], "claimName": "other"}, "exposure": {"serviceName": "other"}}
    both = {"services.other": cpu, "nodes.lab.gpusPerNode": 2}
    stack.give_gpus(2)
    stack.write(both)
    stack.up()
    kept = stack.kept()
    stack.write({"nodes.lab.gpusPerNode": 2})
    stack.up()
    assert stack.kept() == kept, "without its service a claim stays"
    stack.write(both)
    stack.up()
    assert stack.kept() == kept, "and is the same when the service comes back"
    stack.preview("--expect-no-changes")
