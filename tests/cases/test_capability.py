"""CAP: cards, drivers and nodes that cannot run what the image or the checkpoint asks for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.case import CLAIM, Case, findings
from tests.cases.rendered import pods, render
from tests.cases.test_memory import model
from tests.infra.test_live_rules import OURS, an_object, cluster, found, node
from tests.stack_files import config

ENGINE = "services.qwen.engine"
TAG = "services.qwen.image.tag"
DRIVER = "nodes.lab.driver"
QWEN_0_5B = "Qwen/Qwen2.5-0.5B-Instruct"
VOLTA = {
    "nodes.lab.gpu": "v100",
    "nodes.lab.declaredGpu": {
        "totalMib": 32768,
        "multiprocessors": 80,
        "computeCapability": "7.0",
        "memoryBandwidth": 900,
    },
}
ARM = {"nodes.lab.architecture": "arm64"}
V20 = {TAG: "v0.20.2", DRIVER: "570.124"}


def small(gpu: str, **engine: Any) -> dict[str, Any]:
    """A small bfloat16 checkpoint on a card."""
    return model(QWEN_0_5B, gpu, **{ENGINE: {"maxModelLen": 4096, **engine}})


def gemma(gpu: str, **engine: Any) -> dict[str, Any]:
    """A model that does not take float16."""
    return model("google/gemma-2-9b-it", gpu, **{ENGINE: {"maxModelLen": 4096, **engine}})


CASES = [
    Case(
        "CAP-1",
        "bfloat16 by name on a T4",
        small("t4", dtype="bfloat16"),
        "error",
        "CAP-1",
        ".engine.dtype",
        "engine.dtype: half",
        small("t4", dtype="half"),
    ),
    Case(
        "CAP-1",
        "a bfloat16 checkpoint on a T4, which these releases compute in float16",
        small("t4", dtype="auto"),
        "warn",
        "CAP-1",
        ".engine.dtype",
        "float16",
        small("rtx-3060-12gb", dtype="auto"),
    ),
    Case(
        "CAP-1",
        "bfloat16 by name on a V100",
        {**small("v100", dtype="bfloat16"), **VOLTA, TAG: "v0.19.1"},
        "error",
        "CAP-1",
        ".engine.dtype",
        "has compute capability 7.0",
        {**small("v100", dtype="half"), **VOLTA, TAG: "v0.19.1"},
    ),
    Case(
        "CAP-1",
        "float16 for a model that overflows in it",
        gemma("l40s", dtype="half"),
        "error",
        "CAP-1",
        ".engine.dtype",
        "bfloat16",
        gemma("l40s", dtype="bfloat16"),
    ),
    Case(
        "CAP-1",
        "8-bit weights on a card before Ampere in 0.11.0",
        model("Qwen/Qwen3-8B-FP8", "t4", **{TAG: "v0.11.0", ENGINE: {"maxModelLen": 2048, "dtype": "half"}}),
        "error",
        "CAP-2",
        ".model.id",
        "needs compute capability 8.0",
        model("Qwen/Qwen3-8B-FP8", "t4", **{TAG: "v0.31.0", ENGINE: {"maxModelLen": 2048, "dtype": "half"}}),
    ),
    Case(
        "CAP-1",
        "4-bit floats on a T4",
        model("openai/gpt-oss-20b", "t4", **{ENGINE: {"maxModelLen": 1024, "dtype": "half"}}),
        "error",
        "CAP-2",
        ".model.id",
        "mxfp4",
        model("openai/gpt-oss-20b", "l40s"),
    ),
    Case(
        "CAP-1",
        "another method than the checkpoint's",
        {f"{ENGINE}.quantization": "fp8"},
        "error",
        "CAP-6",
        ".engine.quantization",
        "are awq",
        {f"{ENGINE}.quantization": "awq_marlin"},
    ),
    Case(
        "CAP-1",
        "a method that the release lost",
        {**small("l40s"), f"{ENGINE}.quantization": "bitsandbytes"},
        "error",
        "CAP-2",
        ".engine.quantization",
        "has no method bitsandbytes",
        {**small("l40s"), f"{ENGINE}.quantization": "bitsandbytes", TAG: "v0.19.1"},
    ),
    Case(
        "CAP-1",
        "a method that nobody knows",
        {**small("l40s"), f"{ENGINE}.quantization": "fp9"},
        "warn",
        "CAP-2",
        ".engine.quantization",
        "did you mean fp8",
        {**small("l40s"), f"{ENGINE}.quantization": "fp8"},
    ),
    Case(
        "CAP-1",
        "an image without code for the card",
        {**small("v100", dtype="half"), **VOLTA},
        "error",
        "CAP-4",
        ".image.tag",
        "an older release",
        {**small("v100", dtype="half"), **VOLTA, TAG: "v0.19.1"},
    ),
    Case(
        "CAP-3",
        "CUDA 13 on driver 570",
        V20,
        "error",
        "CAP-3",
        ".image.tag",
        "v0.20.2-cu129",
        {TAG: "v0.20.2-cu129", DRIVER: "570.124"},
    ),
    Case("CAP-3", "the release before", V20, "error", "CAP-3", ".image.tag", "570.124", {**V20, TAG: "v0.19.1"}),
    Case("CAP-3", "an image of today's nodes", V20, "error", "CAP-3", ".image.tag", "580", {**V20, DRIVER: "580.65"}),
    Case(
        "CAP-3",
        "forward compatibility, which only some cards have",
        V20,
        "error",
        "CAP-3",
        ".image.tag",
        "from 580 on",
        {TAG: "v0.31.0", DRIVER: "570.124", "services.qwen.env": {"VLLM_ENABLE_CUDA_COMPATIBILITY": "1"}},
    ),
    Case(
        "CAP-3",
        "a driver that nobody declared",
        {},
        "warn",
        "CAP-3",
        "nodes.lab.driver",
        "580",
        {DRIVER: "580.82"},
    ),
    Case(
        "CAP-5",
        "an image for amd64 on arm64",
        {**ARM, TAG: "v0.31.0-x86_64"},
        "error",
        "CAP-5",
        ".image.tag",
        "the nodes of 'lab' are arm64",
        {**ARM, TAG: "v0.31.0-aarch64"},
    ),
    Case(
        "CAP-5",
        "an image for arm64 on amd64",
        {TAG: "v0.31.0-aarch64"},
        "error",
        "CAP-5",
        ".image.tag",
        "is for arm64",
        {TAG: "v0.31.0"},
    ),
    Case(
        "CAP-5",
        "an image of which nobody knows",
        {**ARM, "services.qwen.image.repository": "registry.example/vllm"},
        "warn",
        "CAP-5",
        ".image.tag",
        "docker manifest inspect",
        {**ARM},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_cap_3_a_custom_image_is_offered_no_official_tag() -> None:
    changes = {**V20, "services.qwen.image.repository": "registry.example/vllm"}
    (refused,) = [each for each in findings(changes) if each.level == "error"]
    assert "cu129" not in refused.remedy, "nobody knows which tags that registry has"
    (neighbour,) = [each for each in findings(V20) if each.level == "error"]
    assert "v0.20.2-cu129" in neighbour.remedy, "the neighbour: official images have it"


def labelled(**labels: str) -> dict[str, Any]:
    return node(labels={**config().nodes["lab"].selector, **{key.replace("__", "/"): labels[key] for key in labels}})


@pytest.mark.parametrize("label", ["nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"])
def test_cap_3_the_driver_that_is_really_there_decides(label: str) -> None:
    old = cluster(Node=[labelled(**{label: "570"})])
    (refused,) = [each for each in found(old) if each.rule == "LIVE-DRIVER"]
    assert (refused.level, refused.path) == ("error", "vllm:services.qwen.image.tag")
    assert "v0.31.0-cu129" in refused.remedy, "the way out without touching the node"
    for changes, driver in (({}, "580"), ({TAG: "v0.19.1"}, "570")):
        neighbour = found(cluster(Node=[labelled(**{label: driver})]), changes)
        assert not [each for each in neighbour if each.rule == "LIVE-DRIVER"], f"the neighbour: {changes} on {driver}"


def test_cap_3_a_version_bump_that_changes_the_cuda_family_is_said() -> None:
    def running(tag: str) -> dict[str, Any]:
        containers = [{"image": f"vllm/vllm-openai:{tag}@sha256:{'0' * 64}"}]
        return an_object("qwen-0", OURS, spec={"template": {"spec": {"containers": containers}}})

    said = [each for each in found(cluster(Deployment=[running("v0.19.1")])) if each.rule == "LIVE-CUDA"]
    assert [each.level for each in said] == ["warn"], "12.9 before, 13.0 after"
    for tag in ("v0.26.0", "nightly"):
        neighbour = found(cluster(Deployment=[running(tag)]))
        assert not [each for each in neighbour if each.rule == "LIVE-CUDA"], f"the neighbour: {tag}"


def test_cap_5_the_architecture_that_is_really_there_decides() -> None:
    arm = cluster(Node=[labelled(**{"kubernetes.io__arch": "arm64"})])
    (refused,) = [each for each in found(arm) if each.rule == "LIVE-ARCH"]
    assert (refused.level, refused.path) == ("error", "vllm:nodes.lab.architecture"), "every pod would stay Pending"
    neighbour = found(arm, {**ARM})
    assert not [each for each in neighbour if each.rule == "LIVE-ARCH"], "the neighbour: declared as it is"


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_cap_5_every_pod_goes_to_nodes_of_the_images_architecture(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    for kind, spec in pods(render(monkeypatch, {"nodes.lab.architecture": architecture})):
        assert spec["nodeSelector"]["kubernetes.io/arch"] == architecture, f"{kind} could meet `exec format error`"


def test_cap_1_float32_in_place_of_both_is_said() -> None:
    changes = {**gemma("t4"), "services.qwen.cache": CLAIM}
    said = [each for each in findings(changes) if each.rule == "CAP-1"]
    assert [each.level for each in said] == ["warn"], f"it starts, in float32: {said}"
    assert "float32" in said[0].message, "twice the memory must be said"
    neighbour = [each for each in findings(gemma("l40s")) if each.rule == "CAP-1"]
    assert not neighbour, "the neighbour: bfloat16 on a card that has it"
