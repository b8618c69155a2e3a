"""A new image tag: first onto the node, then the old server goes, then the new one comes."""

from __future__ import annotations

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import until

pytestmark = pytest.mark.engine

SERVER = "app.kubernetes.io/component=server"


def test_a_new_image_is_on_the_node_before_the_server_is_replaced(new_stack: NewStack) -> None:
    stack = new_stack("image")
    stack.write({"services.qwen.image.tag": "v0.31.0"})
    stack.up()
    kept = stack.kept()
    specs = [stack.get("pvc", "vllm-model-0")["spec"], stack.get("pv", f"{stack.name}-vllm-model-0")["spec"]]
    old = stack.server_pod()["metadata"]["name"]

    stack.write({"services.qwen.image.tag": "v0.33.0"})
    with stack.watched_pods(SERVER) as seen:
        answer = stack.up()
        new = stack.server_pod()["metadata"]["name"]
        until(lambda: ("ADDED", new) in seen(), "the watch sees the new pod")
        pods = seen()

    pulled, seeding = answer.position("end", "DaemonSet", last=True), answer.position("start", "Job")
    # Its predecessor goes last of all.
    seeded, server = answer.position("end", "Job"), answer.position("start", "Deployment")
    assert pulled < seeding, "the seed Job runs in the new image, which must be on the node"
    assert max(pulled, seeded) < server, "whatever is missing when the old server stops is downtime"
    revision = max(one["metadata"]["creationTimestamp"] for one in stack.find("controllerrevision"))
    job = stack.find("job")[0]["metadata"]["creationTimestamp"]
    replica_set = max(one["metadata"]["creationTimestamp"] for one in stack.find("replicaset"))
    assert revision <= job <= replica_set, "the cluster's own times say the same"

    assert pods == [("ADDED", old), ("DELETED", old), ("ADDED", new)], "Recreate: both pods would need the same card"
    for kind, name in (("daemonset", "qwen-pre-pull"), ("deployment", "qwen-0")):
        found = stack.get(kind, name)
        assert found["metadata"]["generation"] == 2, f"{name} was changed once, in place"
        assert found["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v0.33.0"), "the new image"
    assert stack.kept() == kept, "claim, volume and namespace are the ones that were there"
    after = [stack.get("pvc", "vllm-model-0")["spec"], stack.get("pv", f"{stack.name}-vllm-model-0")["spec"]]
    assert after == specs, "an update of the image is none of the cache"
    stack.preview("--expect-no-changes")
