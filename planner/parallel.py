"""How the GPUs of a replica share a model, and which shares the model's sizes allow.

vLLM ends at start when a size is not divisible (`vllm/config/model.py`, `layers/linear.py`, the quantised layers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.capability import capabilities
from planner.models import ModelFacts
from planner.spec import ServiceSpec

_GROUPED = ("awq", "gptq", "fp8", "compressed-tensors")
"""Methods whose layers cannot be cut inside a group of weights that share a scale."""
_PADDED = ("mxfp4",)
"""Methods whose layers are padded to a size that fits (`vllm/model_executor/layers/quantization/mxfp4.py`)."""
_MARLIN = ("awq", "gptq")


@dataclass(frozen=True)
class Shares:
    """``tensor`` GPUs share each layer, ``pipeline`` groups of them hold successive layers, ``data`` copies run."""

    tensor: int
    pipeline: int
    data: int

    @property
    def gpus(self) -> int:
        """GPUs that the server uses."""
        return self.tensor * self.pipeline * self.data


def tensor_parallel_size(service: ServiceSpec) -> int:
    """GPUs that share each layer: as set, else all of the replica that no other kind of parallelism takes."""
    engine = service.engine
    if engine.tensor_parallel_size is not None:
        return engine.tensor_parallel_size
    return max(1, service.gpus // ((engine.pipeline_parallel_size or 1) * (engine.data_parallel_size or 1)))


def shares_of(service: ServiceSpec) -> Shares:
    """The parallel sizes that are rendered for a service."""
    engine = service.engine
    return Shares(tensor_parallel_size(service), engine.pipeline_parallel_size or 1, engine.data_parallel_size or 1)


def indivisible(facts: ModelFacts, tensor: int, *, expert_parallel: bool = False) -> tuple[str, ...]:
    """What of the model cannot be cut into ``tensor`` equal parts, in words; empty when all of it can."""
    return tuple(_indivisible(facts, tensor, expert_parallel))


def _indivisible(facts: ModelFacts, tensor: int, expert_parallel: bool) -> Iterator[str]:
    if facts.attention_heads % tensor:
        yield f"{facts.attention_heads} attention heads"
        return
    heads = facts.kv_heads
    # MLA keeps one latent for all heads; fewer KV heads than GPUs are copied, each the same number of times.
    if facts.kv_lora_rank is None and (heads % tensor if tensor < heads else tensor % heads):
        yield f"{heads} KV heads"
    for name, size in _inner_sizes(facts, expert_parallel):
        if facts.quantization in _PADDED:
            continue
        group = facts.quantization_group_size if facts.quantization in _GROUPED else None
        if size % tensor:
            yield f"{name} {size}"
        elif group and tensor > 1 and (size // tensor) % group:
            yield f"{name} {size} in groups of {group} quantised weights"


def _inner_sizes(facts: ModelFacts, expert_parallel: bool) -> Iterator[tuple[str, int]]:
    yield "intermediate size", facts.intermediate_size
    # With expert parallelism whole experts are spread over the GPUs.
    if facts.experts and facts.moe_intermediate_size and not expert_parallel:
        yield "intermediate size of an expert", facts.moe_intermediate_size


def without_marlin(facts: ModelFacts, tensor: int) -> tuple[str, ...]:
    """The sizes that the fast kernels for 4-bit weights (Marlin) cannot work on when cut into ``tensor`` parts."""
    if facts.quantization not in _MARLIN:
        return ()
    least = capabilities()["marlin"]
    heads = facts.attention_heads * facts.head_dim // tensor
    keys = 2 * max(1, facts.kv_heads // tensor) * facts.head_dim
    inner = facts.intermediate_size // tensor
    layers = (
        (heads + keys, "output of the attention's query, key and value", least["output"]),
        (heads, "input of the attention's output", least["input"]),
        (2 * inner, "output of the MLP's gate and up", least["output"]),
        (inner, "input of the MLP's down", least["input"]),
    )
    return tuple(f"{name} {size} (a multiple of {divisor})" for size, name, divisor in layers if size % divisor)


def tensor_sizes(facts: ModelFacts, most: int, *, expert_parallel: bool = False) -> tuple[int, ...]:
    """The tensor parallel sizes up to ``most`` that the model's sizes allow."""
    sizes = range(1, most + 1)
    return tuple(size for size in sizes if not indivisible(facts, size, expert_parallel=expert_parallel))
