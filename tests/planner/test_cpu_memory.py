"""The memory plan of a container that computes on CPUs, against starts of the real vLLM and by its structure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cpu_memory import plan_cpu_memory
from planner.gpus import Cpu, device_of
from planner.memory import MIB, MemoryPlan, settings_of
from planner.models import ModelFacts, facts, from_config
from planner.releases import release_at
from planner.spec import PoolSpec
from tests.planner.test_memory import service

NODE = Cpu("cpu", cpus=2, memory_mib=23.54 * 1024)
TINY = from_config(
    "tiny",
    {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 451,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    },
    906_904,
    source="the model of the measured starts",
)
"""The model of the measured starts: 512 bytes of KV cache for each token."""
QWEN = "Qwen/Qwen2.5-0.5B-Instruct"


def plan(
    engine: dict[str, Any] | None = None,
    *,
    model: ModelFacts = TINY,
    version: str = "0.32.0",
    limit: str = "8Gi",
    node: Cpu = NODE,
    **fields: Any,
) -> MemoryPlan:
    spec = service(engine or {}, resources={"memoryLimit": limit}, **fields)
    return plan_cpu_memory(node, model, release_at(version), spec)


@pytest.mark.parametrize(
    ("engine", "tokens", "concurrency"),
    [
        ({"cpuKvCacheSpace": 1}, 2_097_152, 512.0),
        ({"cpuKvCacheSpace": 1, "enforceEager": True}, 2_097_152, 512.0),
        ({"kvCacheMemoryBytes": 4_194_304}, 8_192, 2.0),
    ],
)
def test_kv_tokens_of_the_measured_starts(engine: dict[str, Any], tokens: int, concurrency: float) -> None:
    result = plan(engine)
    assert result.kv_tokens == tokens, "`CPU KV cache size: N tokens` of the log"
    assert result.full_length_requests == concurrency, "`Maximum concurrency for 4,096 tokens per request` of the log"
    assert result.fits == "yes", "the server started"


def test_kv_tokens_of_a_measured_start_that_sized_the_cache_itself() -> None:
    result = plan({"gpuMemoryUtilization": 0.5, "maxModelLen": 2048}, limit="5Gi")
    assert result.kv_tokens == pytest.approx(3_063_808, rel=0.02), "a limit of 5 GiB, 1.04 GiB of it the worker's"
    assert result.used_mib == pytest.approx(3_193 + 450, abs=150), "what the container had, and the mapped libraries"


def test_blocks_are_of_128_tokens_and_rounded_down() -> None:
    result = plan({"kvCacheMemoryBytes": 130 * 512})
    assert (result.block_size, result.kv_blocks, result.kv_tokens) == (128, 1, 128), "a block is whole or not there"
    assert plan({"kvCacheMemoryBytes": 130 * 512, "blockSize": 32}).kv_tokens == 128, "four blocks of 32"


def test_the_container_holds_what_a_card_would() -> None:
    small, large = plan({"cpuKvCacheSpace": 1}), plan({"cpuKvCacheSpace": 3})
    assert large.used_mib - small.used_mib == 2048, "the KV cache is memory of the container"
    model = facts(QWEN)
    grown = plan({"cpuKvCacheSpace": 1}, model=model).used_mib - small.used_mib
    assert grown * MIB > model.weight_bytes, "and so are the weights"


@pytest.mark.parametrize(
    ("space", "limit", "fits"),
    [(1, "5Gi", "yes"), (1, "2Gi", "no"), (4, "5Gi", "no"), (4, "8Gi", "yes")],
)
def test_fits_is_about_the_limit_of_the_container(space: int, limit: str, fits: str) -> None:
    assert plan({"cpuKvCacheSpace": space}, limit=limit).fits == fits, f"{space} GiB of KV cache in {limit}"


def test_a_limit_above_the_nodes_memory_gives_no_more() -> None:
    tight = replace(NODE, memory_mib=4096.0)
    assert plan({"cpuKvCacheSpace": 1}, limit="64Gi", node=tight).limit_mib == 4096, "the node has no more"


def test_a_request_that_is_longer_than_the_cache_does_not_fit() -> None:
    model = facts(QWEN)
    engine = {"cpuKvCacheSpace": 1, "maxModelLen": 32_768}
    assert plan(engine, model=model).fits == "yes", "the neighbour: 12,288 bytes a token are 0.4 GiB"
    short = {"kvCacheMemoryBytes": 100 * MIB, "maxModelLen": 32_768}
    result = plan(short, model=model)
    assert result.fits == "no", "384 MiB are needed"
    assert 8_000 < result.largest_context < 8_533, "what 100 MiB hold, a block in reserve"


@pytest.mark.parametrize(
    ("version", "engine", "kv_gib"),
    [
        ("0.11.0", {}, 4.0),
        ("0.19.1", {}, 23.54 / 2),
        ("0.19.1", {"gpuMemoryUtilization": 0.3}, 23.54 / 2),
        ("0.19.1", {"kvCacheMemoryBytes": 2**30}, 23.54 / 2),
        ("0.19.1", {"cpuKvCacheSpace": 2}, 2.0),
        ("0.31.0", {"kvCacheMemoryBytes": 2**30}, 1.0),
        ("0.31.0", {"kvCacheMemoryBytes": 2**30, "cpuKvCacheSpace": 3}, 3.0),
    ],
)
def test_the_cache_is_what_the_release_makes_of_it(version: str, engine: dict[str, Any], kv_gib: float) -> None:
    result = plan(engine, version=version)
    assert result.kv_mib / 1024 == pytest.approx(kv_gib, abs=0.01), "4 GiB, half of the node, or what is said"


def test_half_of_the_node_is_more_than_the_container_may_have() -> None:
    assert plan(version="0.19.1").fits == "no", "that release does not look at the container's limit"
    assert plan(version="0.19.1", limit="20Gi").fits == "yes", "the neighbour: a limit that leaves it half of the node"


def test_a_share_is_a_share_of_the_limit_less_what_the_worker_has() -> None:
    half, more = (plan({"gpuMemoryUtilization": share}) for share in (0.5, 0.6))
    assert more.kv_mib - half.kv_mib == pytest.approx(0.1 * 8192), "of the container's limit, not of the node"


def test_steps_are_sized_by_workers() -> None:
    one = settings_of(NODE, facts(QWEN), release_at("0.32.0"), service({}))
    two = settings_of(NODE, facts(QWEN), release_at("0.32.0"), service({}, gpus=2))
    assert (one.max_num_batched_tokens, one.max_num_seqs) == (2048, 128), "the defaults of one worker"
    assert (two.max_num_batched_tokens, two.max_num_seqs) == (4096, 256), "and of two"
    assert one.captures == 0, "CPUs record no graphs"


def test_two_workers_hold_the_weights_once_and_a_cache_each() -> None:
    one, two = (plan({"cpuKvCacheSpace": 1}, model=facts(QWEN), gpus=gpus) for gpus in (1, 2))
    assert two.weights_mib == pytest.approx(one.weights_mib / 2, rel=0.1), "each worker has its part"
    assert two.used_mib > one.used_mib + 1024, "a second cache, and a second Python"
    assert any("NUMA" in note for note in two.unknown), "how memory is spread over NUMA nodes is not known"
    assert not one.unknown, "the neighbour: one worker was measured"


def test_adapters_switch_the_compiler_off() -> None:
    lora = service({"extraArgs": ["--enable-lora"]})
    assert not settings_of(NODE, TINY, release_at("0.32.0"), lora).compiles, "vllm/platforms/cpu.py"
    assert settings_of(NODE, TINY, release_at("0.32.0"), service({})).compiles, "the neighbour: none"


def test_a_pool_is_cards_or_cpus() -> None:
    pool = PoolSpec.model_validate_json(
        '{"gpu": "cpu", "selector": {"kubernetes.io/hostname": "real-node"}, "cpus": 4, "memory": "16Gi"}'
    )
    assert pool.kind == "cpu", "the nodes have no card"
    assert device_of(pool) == Cpu("cpu", cpus=4, memory_mib=16_384.0), "what there is instead"
    assert pool.model_copy(update={"gpu": "l4"}).kind == "gpu", "every other name is a card"
