"""Facts of models, from their own config."""

from __future__ import annotations

from typing import Any

import pytest

from planner.models import ModelFacts, UnknownModelError, facts, from_config, known_models, weight_bytes_of

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def read(**changes: Any) -> ModelFacts:
    return from_config("org/name", DENSE | changes, 16_000_000_000, source="a test")


def test_an_unknown_model_is_refused_with_the_nearest_name_and_the_command() -> None:
    with pytest.raises(UnknownModelError) as refusal:
        facts("Qwen/Qwen2.5-7B-Instuct")
    assert "Qwen/Qwen2.5-7B-Instruct" in str(refusal.value), "a misspelt name is offered its correction"
    assert "vllm-infra models add" in str(refusal.value), "a model that is not there can be added"


@pytest.mark.parametrize(
    ("name", "weight_bytes"),
    [("Qwen/Qwen2.5-7B-Instruct", 15_231_233_024), ("meta-llama/Llama-3.1-8B", 16_060_522_496)],
)
def test_the_layout_gives_the_published_bytes(name: str, weight_bytes: int) -> None:
    assert facts(name).weight_bytes == weight_bytes, "metadata.total_size of its safetensors index"
    config: dict[str, Any] = DENSE
    if name.startswith("Qwen"):
        config = DENSE | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064}
        config |= {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    assert weight_bytes_of(config) == weight_bytes, "the same arithmetic fills in where there is no index"


def test_awq_packs_four_bits_with_a_scale_and_a_zero_point_per_group() -> None:
    awq = facts("Qwen/Qwen2.5-7B-Instruct-AWQ")
    assert (awq.quantization, awq.quantization_bits) == ("awq", 4), "config.json says so"
    assert awq.weight_bytes == pytest.approx(5.58e9, rel=0.003), "the repository has 5.58 GB, tokenizer included"


def test_a_group_of_128_awq_weights_takes_66_and_a_half_bytes() -> None:
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128}
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    saved = weight_bytes_of(DENSE) - weight_bytes_of(DENSE | {"quantization_config": quantization})
    assert saved == linear * (128 * 2 - (64 + 2 + 0.5)) / 128, "64 of weights, 2 of scale, 0.5 of zero point"


def test_bytes_that_do_not_follow_from_the_layout_are_refused() -> None:
    with pytest.raises(ValueError, match="gptq"):
        weight_bytes_of(DENSE | {"quantization_config": {"quant_method": "gptq", "bits": 4}})


def test_the_catalogue_covers_the_layouts() -> None:
    models = [facts(name) for name in known_models()]
    assert len(models) >= 12, "twelve models are promised"
    assert any(each.kv_lora_rank for each in models), "MLA"
    assert any(each.sliding_window for each in models), "sliding window"
    assert any(each.experts for each in models), "mixture of experts"
    assert {"awq", "gptq", "fp8", "compressed-tensors"} <= {each.quantization for each in models}, "quantised layouts"


@pytest.mark.parametrize("name", known_models())
def test_every_model_of_the_catalogue_is_whole(name: str) -> None:
    model = facts(name)
    assert model.attention_heads % model.kv_heads == 0, "each KV head serves the same number of heads"
    assert model.unknown == (), "the catalogue holds what the planner can compute"
    assert model.source, "each file says where it is from"


def test_the_window_that_qwen_carries_and_does_not_use_is_none() -> None:
    model = facts("Qwen/Qwen2.5-7B-Instruct")
    assert (model.sliding_window, model.sliding_layers) == (None, 0), "use_sliding_window is false"


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"sliding_window": None}, None, 0),
        ({"sliding_window": 4096, "model_type": "mistral"}, 4096, 32),
        ({"sliding_window": 4096, "model_type": "gemma2"}, 4096, 16),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 1024, 27),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}, 128, 16),
        ({"sliding_window": 128, "layer_types": ["full_attention"] * 32}, None, 0),
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4096, 4),
        ({"sliding_window": 4096, "use_sliding_window": False}, None, 0),
    ],
)
def test_layers_with_a_sliding_window_are_counted(changes: dict[str, Any], window: int | None, layers: int) -> None:
    model = read(**changes)
    assert (model.sliding_window, model.sliding_layers) == (window, layers), "their KV cache is bounded by the window"


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        (None, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
    ],
)
def test_the_longest_context_is_what_vllm_derives(scaling: dict[str, Any] | None, length: int) -> None:
    assert read(rope_scaling=scaling).max_position_embeddings == length, "vllm/config/model.py scales some kinds only"


@pytest.mark.parametrize(
    ("quantization", "bits", "unknown"),
    [
        ({"quant_method": "gptq", "bits": 8}, 8, ()),
        ({"quant_method": "fp8"}, 8, ()),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, 4, ()),
        ({"quant_method": "newest"}, None, ("bits of newest weights",)),
    ],
)
def test_bits_of_quantised_weights(quantization: dict[str, Any], bits: int | None, unknown: tuple[str, ...]) -> None:
    model = read(quantization_config=quantization)
    assert (model.quantization_bits, model.unknown) == (bits, unknown), "what cannot be known is said"


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["linear_attention"] * 32},
        {"attention_chunk_size": 8192},
        {"vision_config": {}},
        {"mamba_d_state": 128},
        {"torch_dtype": None},
        {"num_kv_shared_layers": 10},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_layout_that_the_formulas_do_not_cover_is_named(changes: dict[str, Any]) -> None:
    assert read(**changes).unknown, "the preview warns with these words instead of computing something wrong"
    assert read().unknown == (), "a plain dense model has nothing unknown"


def test_sizes_of_a_multimodal_model_are_those_of_its_text_part() -> None:
    nested = {"architectures": ["Some"], "text_config": DENSE | {"num_hidden_layers": 40}, "vision_config": {}}
    assert from_config("org/name", nested, 1, source="a test").layers == 40, "text_config holds the decoder"


def test_a_config_without_a_size_is_refused_with_the_key() -> None:
    with pytest.raises(KeyError, match="hidden_size"):
        from_config("org/name", {key: DENSE[key] for key in DENSE if key != "hidden_size"}, 1, source="a test")
