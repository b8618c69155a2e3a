"""Which shares of a model its sizes allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.models import facts
from planner.parallel import Shares, indivisible, shares_of, tensor_sizes, without_marlin
from tests.stack_files import config

AWQ = facts("Qwen/Qwen2.5-7B-Instruct-AWQ")
MIXTURE = facts("Qwen/Qwen3-30B-A3B")


@pytest.mark.parametrize(
    ("engine", "gpus", "shares"),
    [
        ({}, 1, Shares(1, 1, 1)),
        ({}, 4, Shares(4, 1, 1)),
        ({"pipelineParallelSize": 2}, 4, Shares(2, 2, 1)),
        ({"dataParallelSize": 4}, 4, Shares(1, 1, 4)),
        ({"tensorParallelSize": 2}, 4, Shares(2, 1, 1)),
    ],
)
def test_the_shares_are_those_that_are_rendered(engine: dict[str, Any], gpus: int, shares: Shares) -> None:
    service = config(changes={"services.qwen.gpus": gpus, "services.qwen.engine": engine}).services["qwen"]
    assert shares_of(service) == shares
    assert shares.gpus <= gpus, "no more than there are"


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", (1, 2, 4)),
        ("Qwen/Qwen2.5-7B-Instruct", (1, 2, 4)),
        ("meta-llama/Llama-3.1-8B-Instruct", (1, 2, 4, 8, 16)),
        ("Qwen/Qwen2.5-32B-Instruct", (1, 2, 4, 8)),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", (1, 2, 4, 8, 16)),
        ("openai/gpt-oss-20b", (1, 2, 4, 8, 16)),
    ],
)
def test_the_sizes_of_known_models(model: str, sizes: tuple[int, ...]) -> None:
    found = tensor_sizes(facts(model), 16)
    assert set(sizes) - set(found) == set(), f"{model} runs on {sizes}, found {found}"
    assert not [size for size in found if facts(model).attention_heads % size], "heads are divisible by each"


def test_what_is_in_the_way_is_named() -> None:
    assert indivisible(AWQ, 3) == ("28 attention heads",)
    assert indivisible(AWQ, 1) == (), "one GPU divides nothing"
    odd = replace(AWQ, quantization=None, attention_heads=24, kv_heads=8, intermediate_size=1000)
    assert indivisible(odd, 3) == ("8 KV heads", "intermediate size 1000")
    assert indivisible(replace(odd, kv_lora_rank=512, intermediate_size=999), 3) == (), "MLA has one latent for all"


def test_a_group_of_quantised_weights_is_not_cut() -> None:
    # 29,568 / 8 = 3,696 is no multiple of 128: a 72B model in AWQ that starts on 4 GPUs and not on 8.
    large = replace(AWQ, attention_heads=64, kv_heads=8, intermediate_size=29568)
    assert indivisible(large, 8) == ("intermediate size 29568 in groups of 128 quantised weights",)
    assert indivisible(replace(large, quantization_group_size=48), 8) == (), "3,696 is a multiple of 48"
    assert indivisible(replace(large, quantization=None, quantization_group_size=None), 8) == (), "not quantised"
    assert indivisible(replace(large, intermediate_size=29696), 8) == (), "the same, padded"


def test_whole_experts_need_no_division() -> None:
    odd = replace(MIXTURE, moe_intermediate_size=770)
    assert indivisible(odd, 4) == ("intermediate size of an expert 770",)
    assert indivisible(odd, 4, expert_parallel=True) == (), "experts are spread, not cut"
    assert indivisible(MIXTURE, 4) == (), "768 in four parts"


def test_a_block_of_8_bit_weights_is_not_cut_inside_an_expert() -> None:
    fp8 = replace(MIXTURE, quantization="fp8", quantization_group_size=128)
    assert indivisible(fp8, 4) == ("intermediate size of an expert 768 in groups of 128 quantised weights",)
    assert indivisible(fp8, 2) == (), "384 is three blocks"


def test_slow_kernels_are_known_by_their_sizes() -> None:
    assert without_marlin(AWQ, 4) == (), "4,736 = 37 x 128"
    small = replace(AWQ, quantization_group_size=32, intermediate_size=4800)
    assert indivisible(small, 2) == (), "2,400 is a multiple of 32: it runs"
    assert without_marlin(small, 2), "2,400 is no multiple of 128: not with the fast kernels"
    assert without_marlin(replace(small, quantization="fp8"), 2) == (), "only 4-bit weights have those"
