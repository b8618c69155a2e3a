"""The image is on every node before a server is touched, and fetching it needs nothing that a server needs."""

from __future__ import annotations

from typing import Any

from components.image_pre_pull import ImagePrePull
from tests.components.arguments import pre_pull_args
from tests.recorder import Registration, record

DAEMON_SET = "kubernetes:apps/v1:DaemonSet"
TAINTS = {"nodes.lab.taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}


def registered(changes: dict[str, Any] | None = None) -> Registration:
    return record(lambda: ImagePrePull("qwen", pre_pull_args(changes))).one(DAEMON_SET)


def pod(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return registered(changes).inputs["spec"]["template"]["spec"]


def test_it_runs_the_very_image_of_the_server() -> None:
    digest = "sha256:" + "a" * 64
    (container,) = pod({"services.qwen.image.digest": digest})["containers"]
    assert container["image"] == f"vllm/vllm-openai:v0.31.0@{digest}", "another reference would be another pull"
    assert container["imagePullPolicy"] == "IfNotPresent", "a present image must not be pulled again"


def test_it_asks_for_no_gpu_and_is_given_none() -> None:
    (container,) = pod()["containers"]
    asked = {**container["resources"]["requests"], **container["resources"]["limits"]}
    assert "nvidia.com/gpu" not in asked, "the server would have to wait for the card"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"], "a runtime could inject the GPUs"
    assert "runtimeClassName" not in pod({"cluster.flavour": "k3s"}), "the GPU runtime is not needed to hold an image"


def test_it_goes_wherever_the_pool_is() -> None:
    spec = pod(TAINTS)
    assert spec["nodeSelector"]["nvidia.com/gpu.present"] == "true", "it must run on the pool's nodes"
    assert spec["nodeSelector"]["kubernetes.io/arch"] == "amd64", "the image is of one architecture"
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], (
        "whatever value the taint has, the image must arrive"
    )


def test_all_nodes_pull_at_once_and_let_go_at_once() -> None:
    spec = registered().inputs["spec"]
    assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "100%", "one node after the other is slower"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 1, "there is nothing to finish"
    assert "trap" in spec["template"]["spec"]["containers"][0]["command"][-1], "it must end on TERM"


def test_its_timeout_covers_the_pull() -> None:
    timeouts = registered().request.customTimeouts
    assert timeouts.create == timeouts.update, "an update pulls as much as a creation"
    assert int(timeouts.create.removesuffix("s")) > 36 * 60, "the lab's image took 36 minutes and nothing was wrong"


def test_a_pool_with_a_dead_node_need_not_be_waited_for() -> None:
    waiting = registered().inputs["metadata"].get("annotations") or {}
    assert "pulumi.com/skipAwait" not in waiting, "by default the server waits for its image"
    skipping = registered({"nodes.lab.prePull": {"await": False}}).inputs["metadata"]["annotations"]
    assert skipping["pulumi.com/skipAwait"] == "true", "prePull.await: false must not wait"


def test_its_selector_and_name_have_no_version() -> None:
    old, new = registered(), registered({"services.qwen.image.tag": "v0.33.0"})
    assert old.inputs["metadata"]["name"] == new.inputs["metadata"]["name"], "a new image is an update in place"
    assert old.inputs["spec"]["selector"] == new.inputs["spec"]["selector"], "a selector cannot be changed"
