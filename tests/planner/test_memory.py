"""The memory plan against starts that were measured, and its structure on layouts that were not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.arguments import render
from planner.gpus import Gpu, catalogue
from planner.memory import MIB, MemoryPlan, plan_memory, settings_of
from planner.models import ModelFacts, facts
from planner.releases import release_at
from planner.spec import ServiceSpec

QWEN = "Qwen/Qwen2.5-7B-Instruct"
QWEN_AWQ = "Qwen/Qwen2.5-7B-Instruct-AWQ"
LLAMA = "meta-llama/Llama-3.1-8B"
SEVEN = [1, 2, 4, 8, 16, 32, 64]
LAB = {"gpuMemoryUtilization": 0.8, "maxModelLen": 2048, "maxNumSeqs": 4, "enforceEager": True}


def service(engine: dict[str, Any], **fields: Any) -> ServiceSpec:
    document = {
        "pool": "gpu",
        "model": {"id": "ORG/NAME".lower()},
        "image": {"tag": "v0.31.0"},
        "cache": {"kind": "existingClaim", "claimName": "cache"},
        "resources": {"memoryLimit": "64Gi"},
        "engine": engine,
    }
    return ServiceSpec.model_validate_json(json.dumps(document | fields))


def plan(
    gpu: str | Gpu,
    model: str | ModelFacts,
    version: str,
    engine: dict[str, Any] | None = None,
    *,
    warm: bool = False,
    **fields: Any,
) -> MemoryPlan:
    return plan_memory(
        catalogue()[gpu] if isinstance(gpu, str) else gpu,
        facts(model) if isinstance(model, str) else model,
        release_at(version),
        service(engine or {}, **fields),
        compile_cache_warm=warm,
    )


@pytest.mark.parametrize(
    ("utilization", "tokens", "blocks", "kv_gib", "used"),
    [(0.9, 470_624, 29_414, 25.13, 42_097), (0.5, 138_128, 8_633, 7.38, 23_897)],
)
def test_l40s_rows(utilization: float, tokens: int, blocks: int, kv_gib: float, used: int) -> None:
    result = plan("l40s", QWEN, "0.11.0", {"gpuMemoryUtilization": utilization})
    assert result.kv_tokens == pytest.approx(tokens, rel=0.005), "KV tokens of the measured start"
    assert result.kv_blocks == pytest.approx(blocks, rel=0.005), "KV blocks of the measured start"
    assert result.kv_mib / 1024 == pytest.approx(kv_gib, abs=0.1), "KV memory that the engine logged"
    assert result.used_mib == pytest.approx(used, abs=100), "nvidia-smi after the measured start"


def test_l40s_ledger_adds_up_to_what_nvidia_smi_shows() -> None:
    result = plan("l40s", QWEN, "0.11.0", {"gpuMemoryUtilization": 0.9})
    weights, kv, graphs = (mib / 1024 for mib in (result.weights_mib, result.kv_mib, result.graphs_mib))
    assert weights == pytest.approx(14.2488, abs=0.001), "aligned tensors and the rope table explain all but 1 MiB"
    assert kv == pytest.approx(25.13, abs=0.05), "KV cache of the ledger"
    assert graphs == pytest.approx(0.59, abs=0.05), "102 graphs take 0.59 GiB"
    rest = result.used_mib / 1024 - weights - kv - graphs
    assert rest == pytest.approx(1.14, abs=0.06), "context, libraries and the sampler's buffers are the rest"
    assert result.kv_bytes_per_token == 57_344, "28 layers x 2 x 4 heads x 128 x 2 bytes"


def test_seven_graph_sizes_take_a_fifth() -> None:
    result = plan("l40s", QWEN, "0.11.0", {"gpuMemoryUtilization": 0.9, "cudagraphCaptureSizes": SEVEN})
    assert result.graphs_mib / 1024 == pytest.approx(0.11, abs=0.03), "measured: 0.11 GiB for seven sizes"


def test_rtx_3060_row() -> None:
    result = plan("rtx-3060-12gb", QWEN_AWQ, "0.31.0", LAB)
    assert result.used_mib == pytest.approx(9_371, abs=100), "nvidia-smi of both measured starts"
    assert result.fits == "yes", "the lab runs"
    assert result.graphs_mib == 0, "eager records no graphs"


@pytest.mark.parametrize(
    ("model", "engine", "warm", "tokens", "used"),
    [
        (QWEN, {}, False, 2_064_624, 129_427),
        (QWEN, {}, True, 2_078_720, 130_147),
        (QWEN, {"cudagraphCaptureSizes": SEVEN}, False, 2_064_624, 129_171),
        (QWEN, {"enforceEager": True}, False, 2_078_464, 129_877),
        (QWEN, {"gpuMemoryUtilization": 0.5}, True, 1_031_648, 72_915),
        (LLAMA, {"maxModelLen": 8192}, False, 897_680, 129_447),
        (QWEN, {"cudagraphCaptureSizes": SEVEN}, True, 2_078_720, 129_911),
        (QWEN_AWQ, {"maxNumSeqs": 4, "dtype": "half", "enforceEager": True}, False, 2_245_984, 129_527),
        (QWEN_AWQ, {"maxNumSeqs": 4, "dtype": "half"}, False, 2_231_536, 128_539),
    ],
)
def test_h200_starts(model: str, engine: dict[str, Any], warm: bool, tokens: int, used: int) -> None:
    given = {"gpuMemoryUtilization": 0.9, "maxModelLen": 32_768, "maxNumBatchedTokens": 2048, "maxNumSeqs": 256}
    result = plan("h200", model, "0.26.0", given | engine, warm=warm)
    assert result.kv_tokens == pytest.approx(tokens, rel=0.01), "KV tokens of the measured start"
    assert result.used_mib == pytest.approx(used, abs=400), "nvidia-smi after the measured start"
    assert result.fits == "yes", "it started"


def test_a100_public_log() -> None:
    result = plan("a100-80gb", LLAMA, "0.31.0", {"maxModelLen": 8192})
    assert result.kv_tokens == pytest.approx(460_496, rel=0.01), "KV tokens of the public log"
    assert result.used_mib == pytest.approx(74_143, abs=400), "memory after start in the public log"


def test_a_start_that_compiles_has_fewer_tokens_than_the_next() -> None:
    result = plan("h200", QWEN, "0.26.0")
    difference = (result.kv_tokens_cached - result.kv_tokens_compiling) * result.kv_bytes_per_token / 2**30
    assert difference == pytest.approx(0.75, abs=0.02), "0.75 GiB were measured between the two starts"
    eager = plan("h200", QWEN, "0.26.0", {"enforceEager": True})
    assert eager.kv_tokens_cached == eager.kv_tokens_compiling, "nothing is compiled"
    old = plan("l40s", QWEN, "0.11.0")
    assert old.kv_tokens_cached == old.kv_tokens_compiling, "torch 2.8 does not benchmark while it compiles"


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "sequences"),
    [
        ("l40s", "0.11.0", 2048, 256),
        ("a100-80gb", "0.31.0", 2048, 256),
        ("h100", "0.31.0", 8192, 1024),
        ("b200", "0.19.1", 8192, 1024),
        ("b200", "0.31.0", 16384, 1024),
    ],
)
def test_batch_defaults_follow_card_and_release(gpu: str, version: str, tokens: int, sequences: int) -> None:
    result = plan(gpu, QWEN, version)
    assert (result.max_num_batched_tokens, result.max_num_seqs) == (tokens, sequences), "API server's defaults"


@pytest.mark.parametrize(
    ("version", "engine", "captures"),
    [
        ("0.11.0", {}, 67 + 35),
        ("0.31.0", {}, 51 + 35),
        ("0.31.0", {"maxNumSeqs": 4}, 4 + 3),
        ("0.11.0", {"cudagraphCaptureSizes": SEVEN}, 7 + 7),
        ("0.31.0", {"enforceEager": True}, 0),
        ("0.31.0", {"compilationConfig": {"cudagraph_mode": "NONE"}}, 0),
    ],
)
def test_number_of_graphs(version: str, engine: dict[str, Any], captures: int) -> None:
    settings = settings_of(catalogue()["l40s"], facts(QWEN), release_at(version), service(engine))
    assert settings.captures == captures, "piecewise sizes and those for decoding"


@pytest.mark.parametrize(
    ("version", "engine", "env", "charged"),
    [
        ("0.11.0", {}, {}, False),
        ("0.26.0", {}, {}, False),
        ("0.28.0", {}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, True),
        ("0.31.0", {}, {}, True),
        ("0.31.0", {"enforceEager": True}, {}, False),
        ("0.31.0", {}, {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
    ],
)
def test_graphs_are_charged_by_release_and_runner(
    version: str, engine: dict[str, Any], env: dict[str, str], charged: bool
) -> None:
    result = plan("l40s", QWEN, version, engine, env=env)
    assert (result.graphs_charged_mib > 0) is charged, "V1 charges from 0.21.0, V2 from 0.29.0"


def test_penalty_counts_of_the_v2_runner_are_charged() -> None:
    few, many = (plan("l40s", QWEN, "0.31.0", {"maxNumSeqs": count}) for count in (4, 256))
    counts = 252 * 152_064 * (4 + 1 / 8) / MIB
    assert many.overhead_mib - few.overhead_mib == pytest.approx(counts), (
        "an int32 and a bit for each sequence and word"
    )
    few, many = (plan("l40s", QWEN, "0.11.0", {"maxNumSeqs": count}) for count in (4, 256))
    assert many.overhead_mib == few.overhead_mib, "V1 makes them for each request that asks"


def test_fp8_kv_halves_the_bytes_of_a_token() -> None:
    full, half = (plan("l40s", QWEN, "0.31.0", {"kvCacheDtype": kind}) for kind in ("auto", "fp8"))
    assert half.kv_bytes_per_token == full.kv_bytes_per_token / 2, "one byte instead of two"
    assert half.kv_tokens == pytest.approx(2 * full.kv_tokens, rel=0.001), "the same memory holds twice the tokens"


def test_unknown_kv_type_is_said() -> None:
    assert any("nvfp4" in note for note in plan("b200", QWEN, "0.31.0", {"kvCacheDtype": "nvfp4"}).unknown), (
        "its packed size is not modelled"
    )
    assert plan("b200", QWEN, "0.31.0", {"kvCacheDtype": "fp8"}).unknown == (), "fp8 is"


@pytest.mark.parametrize(("gpus", "share"), [(2, 2), (4, 4)])
def test_tensor_parallel_divides_weights_and_kv(gpus: int, share: int) -> None:
    one, several = plan("l40s", QWEN, "0.31.0"), plan("l40s", QWEN, "0.31.0", gpus=gpus)
    assert several.weights_mib == pytest.approx(one.weights_mib / share, rel=0.01), "each GPU holds its part"
    assert several.kv_bytes_per_token == one.kv_bytes_per_token / share, "KV heads are divided"


def test_kv_heads_are_copied_when_there_are_fewer_than_gpus() -> None:
    model = replace(facts(QWEN), attention_heads=32, kv_heads=2)
    two, eight = (plan("l40s", model, "0.31.0", gpus=gpus) for gpus in (2, 8))
    assert eight.kv_bytes_per_token == two.kv_bytes_per_token, "each GPU keeps one whole KV head"
    assert eight.weights_mib > two.weights_mib / 4, "copied heads cost weights as well"


@pytest.mark.parametrize("engine", [{}, {"tensorParallelSize": 4}, {"pipelineParallelSize": 2}])
def test_memory_is_planned_for_the_parallel_size_that_vllm_is_told(engine: dict[str, Any]) -> None:
    words = render(service(engine, gpus=8), release_at("0.31.0"))
    told = words[words.index("--tensor-parallel-size") + 1]
    planned = plan("l40s", QWEN, "0.31.0", engine, gpus=8).tensor_parallel
    assert str(planned) == told, "also where the heads cannot be divided by it, which a rule refuses"


def test_mla_is_not_divided_by_tensor_parallel() -> None:
    model = facts("deepseek-ai/DeepSeek-V2-Lite-Chat")
    one, two = plan("a100-80gb", model, "0.31.0"), plan("a100-80gb", model, "0.31.0", gpus=2)
    assert model.kv_lora_rank is not None, "the example is an MLA model"
    assert one.kv_bytes_per_token == model.layers * 576 * 2, "one latent of 512 + 64 elements for each layer"
    assert two.kv_bytes_per_token == one.kv_bytes_per_token, "every GPU keeps the same latent"


def test_sliding_window_layers_stop_growing() -> None:
    sliding = facts("google/gemma-2-9b-it")
    full = replace(sliding, sliding_window=None, sliding_layers=0)
    assert sliding.sliding_layers == sliding.layers // 2, "every second layer slides"
    engine = {"maxModelLen": 8192, "maxNumBatchedTokens": 512}
    windowed, plain = (plan("l40s", model, "0.31.0", engine) for model in (sliding, full))
    assert windowed.full_length_requests > 1.1 * plain.full_length_requests, "a window holds fewer blocks"
    short = {"maxModelLen": 1024, "maxNumBatchedTokens": 512}
    windowed, plain = (plan("l40s", model, "0.31.0", short) for model in (sliding, full))
    assert windowed.full_length_requests == pytest.approx(plain.full_length_requests, rel=0.02), (
        "inside the window both hold the same"
    )


def test_experts_cost_all_their_weights_and_only_chosen_activations() -> None:
    model = facts("Qwen/Qwen3-30B-A3B")
    all_chosen = replace(model, experts_per_token=model.experts)
    usual, all_of_them = plan("a100-80gb", model, "0.31.0"), plan("a100-80gb", all_chosen, "0.31.0")
    assert usual.weights_mib * MIB == pytest.approx(model.weight_bytes, rel=0.01), "every expert is loaded"
    assert usual.activations_mib < all_of_them.activations_mib, "activations follow the experts of one token"


def test_kv_cache_memory_bytes_replaces_the_budget() -> None:
    result = plan("l40s", QWEN, "0.31.0", {"kvCacheMemoryBytes": 10 * 2**30, "maxModelLen": 8192})
    assert result.kv_mib == pytest.approx(10 * 1024), "the pool has the size that was asked for"
    assert result.fits == "yes", "10 GiB beside 14.2 GiB of weights fit on 44 GiB"
    assert plan("l40s", QWEN, "0.31.0", {"kvCacheMemoryBytes": 40 * 2**30}).fits == "no", "40 GiB do not"


@pytest.mark.parametrize(
    ("gpu", "engine", "fits"),
    [
        ("l40s", {}, "yes"),
        ("rtx-3060-12gb", {}, "no"),
        ("l4", {"maxModelLen": 32_768, "gpuMemoryUtilization": 0.7}, "no"),
        ("l4", {"maxModelLen": 4096, "gpuMemoryUtilization": 0.9}, "yes"),
        ("l40s", {"gpuMemoryUtilization": 0.999}, "no"),
        ("l40s", {"gpuMemoryUtilization": 0.98}, "yes"),
    ],
)
def test_fits(gpu: str, engine: dict[str, Any], fits: str) -> None:
    assert plan(gpu, QWEN, "0.11.0", engine).fits == fits, "one request of full length, and the free memory at start"


def test_inside_the_band_is_neither_yes_nor_no() -> None:
    least = plan("l40s", QWEN, "0.31.0").utilization_that_fits
    assert least is not None, "an L40S can hold it"
    assert plan("l40s", QWEN, "0.31.0", {"gpuMemoryUtilization": least}).fits == "yes", "the offered value fits"
    below = plan("l40s", QWEN, "0.31.0", {"gpuMemoryUtilization": round(least - 0.02, 2)})
    assert below.fits == "within band", "a little less is inside the uncertainty"
    assert plan("l40s", QWEN, "0.31.0", {"gpuMemoryUtilization": round(least - 0.1, 2)}).fits == "no", "far less is not"


def test_no_utilization_fits_a_card_that_is_too_small() -> None:
    assert plan("rtx-3060-12gb", QWEN, "0.31.0").utilization_that_fits is None, "14.2 GiB of weights on 11.6 GiB"


def test_largest_context_is_the_most_that_fits() -> None:
    tight = {"gpuMemoryUtilization": 0.7, "enforceEager": True, "maxModelLen": 2048, "maxNumSeqs": 16}
    result = plan("l4", QWEN, "0.31.0", tight)
    assert 2048 < result.largest_context < 32_768, "more than asked for, less than the model's maximum"
    at_limit = plan("l4", QWEN, "0.31.0", tight | {"maxModelLen": result.largest_context})
    assert at_limit.full_length_requests >= 1, "one request of that length fits"
    above = plan("l4", QWEN, "0.31.0", tight | {"maxModelLen": result.largest_context + 32})
    assert above.full_length_requests < 1 + 2 / 500, "two blocks more do not, the null block included"


def test_typical_requests_heed_the_sequence_limit() -> None:
    result = plan("h200", QWEN, "0.31.0", {"maxNumSeqs": 8}, workload={"typicalTokens": 1000})
    assert result.typical_requests == 8, "the scheduler admits no more"
    assert plan("h200", QWEN, "0.31.0", {"maxModelLen": 4000}).typical_tokens == 1000, "a quarter unless it is said"


@pytest.mark.parametrize("change", [{"estimated": True}, {"unknown": ("layer types",)}])
def test_uncertain_facts_widen_the_band(change: dict[str, Any]) -> None:
    known = replace(facts(QWEN), estimated=False, unknown=())
    uncertain = replace(known, **change)
    assert plan("l40s", uncertain, "0.31.0").band_mib > plan("l40s", known, "0.31.0").band_mib, "less is known"


def test_an_estimated_card_widens_the_band() -> None:
    card = catalogue()["l40s"]
    assert plan(replace(card, estimated=True), QWEN, "0.11.0").band_mib > plan(card, QWEN, "0.11.0").band_mib, (
        "its usable memory was not observed"
    )


def test_quantising_while_loading_halves_the_linear_layers() -> None:
    whole, online = plan("l40s", QWEN, "0.31.0"), plan("l40s", QWEN, "0.31.0", {"quantization": "fp8"})
    embeddings = 2 * 152_064 * 3584 * 2 / MIB
    expected = embeddings + (whole.weights_mib - embeddings) / 2
    assert online.weights_mib == pytest.approx(expected, rel=0.01), "embeddings stay as they are"
    assert any("torchao" in note for note in plan("l40s", QWEN, "0.31.0", {"quantization": "torchao"}).unknown), (
        "what other methods leave is not known"
    )
