"""What the planner must know of a model: its layout and the bytes of its weights."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

_POSITION_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""Keys whose least value vLLM takes as the model's length (vllm/config/model.py)."""

_UNSCALED_ROPE = ("default", "mrope", "su", "longrope", "llama3")
"""Kinds of rope scaling that do not lengthen what the position keys say (vllm/config/model.py)."""

_PERIODIC_SLIDING = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
"""Every n-th layer attends to everything, where the config does not list its layers (transformers' defaults)."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


class UnknownModelError(ValueError):
    """No facts of this model are in the catalogue."""


@dataclass(frozen=True)
class ModelFacts:
    """A model's layout, from its ``config.json``, and its weights, from the safetensors index.

    ``weight_bytes`` is ``metadata.total_size`` of the index. ``max_position_embeddings`` is the longest context that
    vLLM derives from the config, tokens. ``sliding_window`` is None when no layer uses one (Qwen2 carries the key
    with ``use_sliding_window: false``), ``sliding_layers`` counts the layers that do.
    ``quantization_group_size`` is how many weights share a scale. ``unknown`` names what of the layout the planner
    cannot compute with; ``estimated`` is true when the bytes are not exact.
    """

    id: str
    revision: str | None
    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    dtype: str
    quantization: str | None
    quantization_bits: int | None
    quantization_group_size: int | None
    weight_bytes: int
    tied_embeddings: bool
    sliding_window: int | None
    sliding_layers: int
    kv_lora_rank: int | None
    qk_rope_head_dim: int | None
    experts: int | None
    experts_per_token: int | None
    moe_intermediate_size: int | None
    chat_template: bool | None
    gated: bool
    unknown: tuple[str, ...]
    source: str
    estimated: bool


def facts(model_id: str) -> ModelFacts:
    """The facts of a model of the catalogue, by its name on the hub.

    Raises:
        UnknownModelError: it is not in the catalogue; the message has the nearest names and how to add it.
    """
    known = _files()
    if model_id not in known:
        near = difflib.get_close_matches(model_id, known, n=3, cutoff=0.6)
        offer = f"did you mean {' or '.join(near)}? " if near else ""
        raise UnknownModelError(
            f"model {model_id!r} is not in the catalogue; {offer}`vllm-infra models add {model_id}` adds its facts"
        )
    entry = known[model_id]
    return from_config(
        model_id,
        entry["config"],
        entry["weightBytes"],
        revision=entry.get("revision"),
        chat_template=entry.get("chatTemplate"),
        gated=entry["gated"],
        source=entry["source"],
        estimated=entry["estimated"],
    )


def known_models() -> tuple[str, ...]:
    """The names of all models of the catalogue."""
    return tuple(sorted(_files()))


@cache
def _files() -> Mapping[str, Mapping[str, Any]]:
    folder = resources.files("planner") / "data" / "models"
    documents = [json.loads(entry.read_text(encoding="utf-8")) for entry in folder.iterdir()]
    return {document["id"]: document for document in documents}


def from_config(
    model_id: str,
    config: Mapping[str, Any],
    weight_bytes: int,
    *,
    revision: str | None = None,
    chat_template: bool | None = None,
    gated: bool = False,
    source: str,
    estimated: bool = False,
) -> ModelFacts:
    """Facts from the content of a model's ``config.json`` and the size of its safetensors, bytes.

    Raises:
        KeyError: the config lacks a size without which nothing can be computed; the key is the argument.
    """
    text: Mapping[str, Any] = config.get("text_config") or config
    heads = text["num_attention_heads"]
    quantization = config.get("quantization_config") or text.get("quantization_config")
    window, sliding_layers = _sliding(text)
    experts = _first(text, "num_local_experts", "num_experts", "n_routed_experts")
    return ModelFacts(
        id=model_id,
        revision=revision,
        architecture=(config.get("architectures") or ["unknown"])[0],
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        layers=text["num_hidden_layers"],
        attention_heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        vocab_size=text["vocab_size"],
        max_position_embeddings=_longest_context(text),
        dtype=_dtype(config, text) or "float32",
        quantization=quantization["quant_method"] if quantization else None,
        quantization_bits=_bits(quantization) if quantization else None,
        quantization_group_size=_group_size(quantization) if quantization else None,
        weight_bytes=weight_bytes,
        tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        sliding_window=window,
        sliding_layers=sliding_layers,
        kv_lora_rank=text.get("kv_lora_rank"),
        qk_rope_head_dim=text.get("qk_rope_head_dim"),
        experts=experts,
        experts_per_token=_first(text, "num_experts_per_tok", "experts_per_token") if experts else None,
        moe_intermediate_size=_first(text, "moe_intermediate_size", "intermediate_size") if experts else None,
        chat_template=chat_template,
        gated=gated,
        unknown=tuple(_unknown(config, text, quantization)),
        source=source,
        estimated=estimated,
    )


def weight_bytes_of(config: Mapping[str, Any]) -> int:
    """Bytes of the safetensors of a decoder with gated MLPs, from its layout alone.

    Norms, biases, routers and embeddings keep the config's dtype; AWQ stores each linear layer of the decoder as
    packed 4-bit integers with one scale and one zero point for each group. For a model without an index.

    Raises:
        ValueError: the layout is not one of dense, mixture of experts or MLA, or its quantisation is not AWQ.
    """
    quantization = config.get("quantization_config")
    if quantization is not None and quantization["quant_method"] != "awq":
        raise ValueError(f"the bytes of {quantization['quant_method']} weights do not follow from the layout alone")
    width = _BYTES[_dtype(config, config) or "float32"]
    linear = _linear_parameters(config)
    packed = linear * width
    if quantization is not None:
        bits, group = quantization["bits"], quantization["group_size"]
        packed = linear * bits // 8 + linear // group * width + linear // group * bits // 8
    embeddings = config["vocab_size"] * config["hidden_size"] * (1 if config.get("tie_word_embeddings") else 2)
    return int(packed + (embeddings + _small_parameters(config)) * width)


def _linear_parameters(config: Mapping[str, Any]) -> int:
    """Parameters of the matrices of attention and MLP in all layers."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts") or 0
    dense = layers if not experts else config.get("first_k_dense_replace", 0)
    each = 3 * hidden * (config.get("moe_intermediate_size") or config["intermediate_size"])
    mlp = dense * 3 * hidden * config["intermediate_size"]
    mixture = (layers - dense) * each * (experts + (config.get("n_shared_experts") or 0))
    return int(layers * _attention_parameters(config) + mlp + mixture)


def _attention_parameters(config: Mapping[str, Any]) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if config.get("kv_lora_rank"):
        rank, rope, nope = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
        value = config["v_head_dim"]
        if config.get("q_lora_rank"):
            raise ValueError("an MLA layout with a low-rank query is not computed from the layout alone")
        return int(
            hidden * heads * (nope + rope)
            + hidden * (rank + rope)
            + rank * heads * (nope + value)
            + heads * value * hidden
        )
    dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * hidden * heads * dim + 2 * hidden * kv_heads * dim)


def _small_parameters(config: Mapping[str, Any]) -> int:
    """Norms, biases of the attention and routers: what no quantisation touches."""
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    kind = config.get("model_type", "")
    each_layer = (4 if kind == "gemma2" else 2) * hidden
    each_layer += config.get("kv_lora_rank") or 0
    if kind in ("qwen3", "qwen3_moe"):
        each_layer += 2 * dim
    if kind == "qwen2":
        each_layer += (heads + 2 * config["num_key_value_heads"]) * dim
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts") or 0
    routers = (layers - config.get("first_k_dense_replace", 0)) * experts * hidden
    return int(layers * each_layer + routers + hidden)


def _longest_context(text: Mapping[str, Any]) -> int:
    stated = [text[key] for key in _POSITION_KEYS if text.get(key)]
    if not stated:
        raise KeyError("max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in _UNSCALED_ROPE or "factor" not in scaling:
        return int(min(stated))
    start = scaling.get("original_max_position_embeddings", min(stated)) if kind == "yarn" else min(stated)
    return int(start * scaling["factor"])


def _sliding(text: Mapping[str, Any]) -> tuple[int | None, int]:
    """The window that is in use, tokens, and the number of layers that use it."""
    window, layers = text.get("sliding_window"), text["num_hidden_layers"]
    if not window or text.get("use_sliding_window") is False:
        return None, 0
    period = text.get("sliding_window_pattern") or _PERIODIC_SLIDING.get(text.get("model_type", ""))
    if text.get("layer_types"):
        count = list(text["layer_types"]).count(_SLIDING)
    elif "max_window_layers" in text:
        count = max(0, layers - text["max_window_layers"])
    else:
        count = layers - layers // period if period else layers
    return (window, count) if count else (None, 0)


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    named = _first(config, "torch_dtype", "dtype") or _first(text, "torch_dtype", "dtype")
    return None if named is None else str(named).removeprefix("torch.")


def _bits(quantization: Mapping[str, Any]) -> int | None:
    """Bits of a quantised weight, where the config or the method says it."""
    if "bits" in quantization:
        return int(quantization["bits"])
    groups = quantization.get("config_groups") or {}
    bits = {(group.get("weights") or {}).get("num_bits") for group in groups.values()}
    if len(bits) == 1:
        only: int | None = bits.pop()
        return only
    return {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}.get(quantization["quant_method"])


def _group_size(quantization: Mapping[str, Any]) -> int | None:
    """Weights that share one scale, along the input of a layer, where the config says it."""
    block = quantization.get("weight_block_size")
    groups = quantization.get("config_groups") or {}
    sizes = {(group.get("weights") or {}).get("group_size") for group in groups.values()}
    found = block[-1] if block else quantization.get("group_size", sizes.pop() if len(sizes) == 1 else None)
    return int(found) if found and found > 0 else None


def _unknown(
    config: Mapping[str, Any], text: Mapping[str, Any], quantization: Mapping[str, Any] | None
) -> Iterable[str]:
    """What the formulas of the planner do not cover, in words."""
    other = sorted(set(text.get("layer_types") or ()) - {_FULL, _SLIDING})
    if other:
        yield f"KV cache of layers of type {', '.join(other)}"
    if any(key in text for key in ("ssm_state_size", "state_size", "mamba_d_state", "linear_num_value_heads")):
        yield "state of the recurrent layers"
    if text.get("attention_chunk_size"):
        yield "KV cache of the chunked attention"
    if "vision_config" in config or "audio_config" in config:
        yield "memory of the encoder for images or sound"
    if quantization is not None and _bits(quantization) is None:
        yield f"bits of {quantization['quant_method']} weights"
    if _dtype(config, text) is None:
        yield "dtype of the weights"
    if text.get("num_kv_shared_layers"):
        yield "layers that share one KV cache"


def _first(mapping: Mapping[str, Any], *keys: str) -> Any:
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)
