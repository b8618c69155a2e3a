"""What a card, a driver and a node must be: the table's figures, release by release, and between the releases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner import capability
from planner.capability import Least, least_for
from planner.gpus import Gpu, catalogue
from planner.models import ModelFacts, facts
from planner.releases import known_releases, release_at, release_of
from planner.spec import ImageSpec, PoolSpec, ServiceSpec
from tests.stack_files import config


def service(**engine: Any) -> ServiceSpec:
    return config(changes={"services.qwen.engine": engine}).services["qwen"]


def card(number: int) -> Gpu:
    return replace(catalogue()["l40s"], compute_capability=(number // 10, number % 10))


BF16 = facts("Qwen/Qwen2.5-7B-Instruct")
GEMMA = facts("google/gemma-2-9b-it")
AWQ = facts("Qwen/Qwen2.5-7B-Instruct-AWQ")
FP32 = replace(BF16, dtype="float32")


@pytest.mark.parametrize(
    ("model", "number", "dtype", "resolved"),
    [
        (BF16, 89, None, "bfloat16"),
        (BF16, 75, None, "float16"),
        (BF16, 75, "auto", "float16"),
        (BF16, 75, "bfloat16", "bfloat16"),
        (BF16, 75, "half", "float16"),
        (AWQ, 89, None, "float16"),
        (GEMMA, 75, None, "float32"),
        (GEMMA, 89, None, "bfloat16"),
        (FP32, 89, None, "bfloat16"),
        (FP32, 75, None, "float16"),
        (FP32, 89, "float32", "float32"),
        (replace(BF16, dtype="unheard-of"), 89, None, None),
    ],
)
def test_the_data_type_is_resolved_as_the_engine_does(
    model: ModelFacts, number: int, dtype: str | None, resolved: str | None
) -> None:
    given = service(dtype=dtype) if dtype else service()
    assert capability.resolved_dtype(card(number), model, given) == resolved, f"{model.dtype} on {number}"


@pytest.mark.parametrize(
    ("method", "bits", "release", "least"),
    [
        ("awq", 4, "0.11.0", Least(75, 75)),
        ("awq_marlin", 4, "0.11.0", Least(80, 80)),
        ("awq_marlin", 4, "0.15.0", Least(75, 80)),
        ("awq_marlin", 4, "0.19.1", Least(75, 75)),
        ("awq_marlin", 4, "0.33.0", Least(75, 75)),
        ("fp8", 8, "0.11.0", Least(80, 80)),
        ("fp8", 8, "0.31.0", Least(75, 75)),
        ("compressed-tensors", 4, "0.11.0", Least(80, 80)),
        ("compressed-tensors", 8, "0.11.0", Least(75, 80)),
        ("compressed-tensors", None, "0.11.0", Least(70, 89)),
        ("bitsandbytes", 4, "0.19.1", Least(70, 70)),
        ("bitsandbytes", 4, "0.25.0", Least(None, 70)),
        ("bitsandbytes", 4, "0.31.0", Least(None, None)),
        ("auto_awq", 4, "0.19.1", Least(None, None)),
        ("auto_awq", 4, "0.31.0", Least(75, 75)),
        ("unheard-of", None, "0.31.0", None),
    ],
)
def test_a_method_needs_what_its_release_says(method: str, bits: int | None, release: str, least: Least | None) -> None:
    assert least_for(method, bits, release_at(release)) == least, f"{method} at {release}"


@pytest.mark.parametrize("name", catalogue())
def test_every_card_of_the_catalogue_runs_the_newest_image(name: str) -> None:
    newest = release_at(known_releases()[-1])
    certain, _ = capability.image_cards(newest)
    assert capability.has_code(capability.capability_number(catalogue()[name]), certain), f"{name} has no code"


@pytest.mark.parametrize(
    ("number", "release", "runs"),
    [
        (70, "0.19.1", True),
        (70, "0.31.0", False),
        (86, "0.11.0", True),
        (121, "0.31.0", True),
        (61, "0.11.0", False),
        (130, "0.33.0", False),
    ],
)
def test_a_card_runs_code_of_its_own_major_number(number: int, release: str, runs: bool) -> None:
    certain, _ = capability.image_cards(release_at(release))
    assert capability.has_code(number, certain) is runs, f"{number} at {release}: {sorted(certain)}"


@pytest.mark.parametrize(
    ("tag", "driver", "older"),
    [
        ("v0.11.0", 525, None),
        ("v0.19.1", 525, None),
        ("v0.20.2", 580, "v0.20.2-cu129"),
        ("v0.20.2-cu129", 525, None),
        ("v0.31.0", 580, "v0.31.0-cu129"),
    ],
)
def test_the_driver_follows_the_cuda_of_the_tag(tag: str, driver: int, older: str | None) -> None:
    image = ImageSpec(tag=tag)
    release = release_of(image)
    assert capability.least_driver(release) == driver, f"{tag} is CUDA {release.cuda}"
    if older is not None:
        assert capability.older_cuda_tag(image, release) == older, "a build with CUDA 12 stands beside it"
    elif tag.startswith("v0.1"):
        assert capability.older_cuda_tag(image, release) is None, "it is CUDA 12 itself"


def test_a_suffixed_or_foreign_tag_is_offered_nothing() -> None:
    for image in (ImageSpec(tag="v0.31.0-cu129"), ImageSpec(repository="mine/vllm", tag="v0.31.0")):
        assert capability.older_cuda_tag(image, release_of(image)) is None, f"{image} may not have one"


@pytest.mark.parametrize(
    ("tag", "architecture"),
    [
        ("v0.31.0", None),
        ("v0.31.0-x86_64", "amd64"),
        ("v0.20.2-aarch64-cu129", "arm64"),
        ("v0.31.0-arm64", "arm64"),
        ("v0.31.0-charm64x", None),
    ],
)
def test_a_tag_names_its_architecture_as_a_word(tag: str, architecture: str | None) -> None:
    assert capability.image_architecture(ImageSpec(tag=tag)) == architecture


@pytest.mark.parametrize(("driver", "branch"), [("570.124", 570), ("580.65.06", 580), (None, None)])
def test_the_branch_of_a_driver(driver: str | None, branch: int | None) -> None:
    pool = config(changes={"nodes.lab.driver": driver}).nodes["lab"]
    assert isinstance(pool, PoolSpec)
    assert capability.driver_branch(pool) == branch


def test_the_labs_limit_holds_its_weights() -> None:
    stack = config()
    needed = capability.host_memory_gib(AWQ, stack.services["qwen"], 0.0)
    assert 5.19 < needed < 10, f"{needed:.1f} GiB: the weights fit in, and the lab of the seed ran with 10Gi"


def test_every_figure_has_its_source() -> None:
    document = capability.capabilities()
    for name in ("bfloat16", "float16Refused", "imageCards", "float16Only", "drivers", "olderCuda", "unpackedFactor"):
        assert document[name]["source"], f"{name} is from nowhere"
    assert document["quantizationSource"], "the table of methods as well"
    tables = len(document["tables"])
    for entry in document["quantization"]:
        for key in ("least", "atMost"):
            assert len(entry.get(key, entry["least"])) == tables, f"{json.dumps(entry)}: one for each table"
