"""The start of a server that computes on CPUs: the phases that it has, and what its caches save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.compile_cache import compare, key_of
from planner.plan import ServicePlan, plan_services
from planner.releases import release_of
from planner.spec import ImageSpec
from planner.startup import StartupPlan
from tests.stack_files import CPUS, config

ENGINE = "services.qwen.engine"


def planned(changes: Mapping[str, Any] | None = None) -> ServicePlan:
    stack = config(changes={**CPUS, **(changes or {})})
    plans, unknown = plan_services(stack.nodes, stack.services)
    assert not unknown, f"it can be planned: {unknown}"
    return plans["qwen"]


def seconds(start: StartupPlan) -> dict[str, float]:
    return {phase.name: phase.seconds for phase in start.phases}


def test_nothing_is_recorded_and_no_kernel_is_built() -> None:
    first = seconds(planned().cold)
    assert (first["graphs"], first["kernels"]) == (0, 0), "CPUs have neither"
    assert first["compile"] > 0, "but the model is compiled"


def test_a_restart_finds_what_the_compiler_made_and_what_the_model_is() -> None:
    plan = planned()
    first, again = seconds(plan.cold), seconds(plan.warm)
    assert again["compile"] < first["compile"], "the C++ compiler is not run again"
    assert again["compile"] > 0, "the model is traced at every start"
    assert again["import"] < first["import"], "the look at the model's class is kept with the compile cache"


def test_eager_compiles_nothing() -> None:
    eager = planned({f"{ENGINE}.enforceEager": True})
    assert seconds(eager.cold)["compile"] == 0, "there is nothing to compile"
    assert eager.cold.seconds < planned().cold.seconds, "so the first start is shorter"


def test_the_probe_waits_for_the_worst_credible_start() -> None:
    plan = planned()
    compiling = plan.cold.in_container_seconds - seconds(plan.cold)["download"]
    assert plan.clocks.startup_window_seconds >= 2 * compiling, "nodes with few CPUs are slow; the Job has downloaded"
    assert plan.clocks.progress_deadline_seconds > plan.clocks.startup_window_seconds, "the clocks follow as on cards"


@pytest.mark.parametrize(
    ("changes", "verdict", "changed"),
    [
        ({}, "hit", ()),
        ({f"{ENGINE}.cpuKvCacheSpace": 3}, "hit", ()),
        ({f"{ENGINE}.maxModelLen": 2048}, "miss", ("engine.maxModelLen",)),
        ({f"{ENGINE}.cudagraphCaptureSizes": [1, 2]}, "hit", ()),
        ({"services.qwen.image.tag": "v0.31.0"}, "miss", ("image and GPU",)),
        ({f"{ENGINE}.enforceEager": True}, "off", ()),
    ],
)
def test_a_change_hits_or_misses_the_compile_cache(
    changes: dict[str, Any], verdict: str, changed: tuple[str, ...]
) -> None:
    found = compare(key_of(planned()), key_of(planned(changes)))
    assert (found.verdict, found.changed) == (verdict, changed), "the release's key, without graphs"


def test_another_image_repository_has_another_size() -> None:
    cards = release_of(ImageSpec(tag="v0.32.0"))
    cpus = release_of(ImageSpec(repository="vllm/vllm-openai-cpu", tag="v0.32.0"))
    assert cpus.image_bytes < cards.image_bytes / 2, "no CUDA is in it"
    assert cpus.image_bytes_estimated, "its size was not looked up"
    known = release_of(ImageSpec(repository="vllm/vllm-openai-cpu", tag="v0.32.0", sizeBytes=7_000_000_000))
    assert (known.image_bytes, known.image_bytes_estimated) == (7_000_000_000, False), "the stack knows it better"
