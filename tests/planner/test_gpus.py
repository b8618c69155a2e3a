"""The catalogue of GPUs."""

from __future__ import annotations

import pytest

from planner.gpus import UnknownGpuError, catalogue, gpu_of, usable_estimate
from planner.spec import DeclaredGpuSpec, PoolSpec

DECLARED = DeclaredGpuSpec(totalMib=46068, multiprocessors=142, computeCapability="8.9", memoryBandwidth=864.0)


def pool(gpu: str, declared: DeclaredGpuSpec | None = None) -> PoolSpec:
    return PoolSpec(gpu=gpu, declaredGpu=declared, selector={"gpu": gpu}, cpus=16, memory="64Gi")


@pytest.mark.parametrize(
    ("name", "total", "usable", "multiprocessors", "capability"),
    [
        ("rtx-3060-12gb", 12288, 11908, 28, (8, 6)),
        ("l40s", 46068, 45458, 142, (8, 9)),
        ("a100-80gb", 81920, 81152, 108, (8, 0)),
        ("h200", 143771, 143155, 132, (9, 0)),
    ],
)
def test_measured_cards_have_their_measured_figures(
    name: str, total: int, usable: int, multiprocessors: int, capability: tuple[int, int]
) -> None:
    gpu = gpu_of(pool(name))
    assert (gpu.total_mib, gpu.usable_mib) == (total, usable), "KV tokens follow from the usable memory"
    assert (gpu.multiprocessors, gpu.compute_capability) == (multiprocessors, capability), (
        "the context follows from SMs"
    )
    assert not gpu.estimated, "the usable memory of this card was observed"


def test_the_catalogue_has_the_cards_that_people_use() -> None:
    expected = {
        *("rtx-3060-12gb", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000"),
        *("t4", "a10", "a10g", "l4", "l40s", "a100-40gb", "a100-80gb", "h100", "h200", "b200"),
    }
    assert expected <= set(catalogue()), "these fifteen are promised"


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_card_is_plausible(name: str) -> None:
    gpu = catalogue()[name]
    assert 0.96 * gpu.total_mib < gpu.usable_mib < gpu.total_mib, "driver and firmware keep a little, never nothing"
    assert gpu.source, "each figure says where it is from"


@pytest.mark.parametrize("name", [name for name, gpu in sorted(catalogue().items()) if not gpu.estimated])
def test_the_estimate_is_near_where_it_can_be_checked(name: str) -> None:
    gpu = catalogue()[name]
    assert usable_estimate(gpu.total_mib) == pytest.approx(gpu.usable_mib, rel=0.015), "unknown cards rely on it"


def test_an_unknown_card_is_refused_with_the_nearest_name_and_the_way_out() -> None:
    with pytest.raises(UnknownGpuError) as refusal:
        gpu_of(pool("RTX_3060"))
    assert "rtx-3060-12gb" in str(refusal.value), "a misspelt name is nearly always meant to be a known one"
    assert "declaredGpu" in str(refusal.value), "a card that is not there must be usable all the same"


def test_a_declared_card_needs_no_catalogue() -> None:
    gpu = gpu_of(pool("my-card", DECLARED))
    assert gpu.name == "my-card", "it is called what the pool calls it"
    assert gpu.estimated, "its usable memory was computed from the total"
    assert gpu.usable_mib == pytest.approx(45458, rel=0.01), "the same card was measured"


def test_a_declared_usable_memory_is_taken_as_it_is() -> None:
    gpu = gpu_of(pool("my-card", DECLARED.model_copy(update={"usable_mib": 45458})))
    assert (gpu.usable_mib, gpu.estimated) == (45458, False), "who declares it has read it from the card"
