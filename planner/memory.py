"""How a GPU's memory is divided when vLLM starts: what is left for the KV cache, and what nvidia-smi will show.

`planner.cpu_memory` does the same for nodes without cards.

The sums follow the engine's own order: budget = utilisation x usable memory; less weights, the peak of the profile
run and what else is gone; the rest is KV blocks; CUDA graphs and the CUDA context come on top (`gpu_worker.py`,
`kv_cache_utils.py`, `kv_cache_interface.py` under `vllm/v1`). Everything is per GPU, in MiB (2^20 bytes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from planner.gpus import Cpu, Device, Gpu
from planner.models import ModelFacts
from planner.parallel import tensor_parallel_size
from planner.releases import Release
from planner.spec import EngineSpec, ServiceSpec

MIB = 2**20
LORA = "--enable-lora"
Fits = Literal["yes", "within band", "no"]
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_ONLINE_QUANTIZATION_BITS = {"fp8": 8, "bitsandbytes": 4}


@dataclass(frozen=True)
class MemoryPlan:
    """The division of one GPU's memory, or of the memory of a container that computes on CPUs.

    ``requested_mib`` is the budget (``gpuMemoryUtilization``), ``overhead_mib`` what libraries and runner buffers take
    of it, ``graphs_charged_mib`` what is set aside in it for CUDA graphs and ``graphs_mib`` what they really take.
    ``context_mib`` is taken beside the budget: by the CUDA context, or by the processes that are no worker.
    ``used_mib`` is what is taken after the start: what nvidia-smi shows, or what counts against the container's memory
    limit. ``limit_mib`` is what it must stay below: the card's usable memory, or that limit.
    ``needed_mib`` is the KV cache of one request of ``max_model_len`` tokens.
    ``kv_bytes_per_token`` counts every layer; ``kv_tokens`` is the figure that the engine logs. ``kv_tokens_compiling``
    and ``kv_tokens_cached`` are the same figure on a start that compiles and on one that finds its compile cache.
    ``band_mib`` is the uncertainty of ``kv_mib``; ``fits`` compares it with one request of ``max_model_len`` tokens.
    ``largest_context`` is in tokens, ``utilization_that_fits`` the least that leaves the band free (None: none does).
    ``full_length_requests`` is the engine's "maximum concurrency"; ``typical_requests`` also heeds ``max_num_seqs``.
    """

    requested_mib: float
    weights_mib: float
    activations_mib: float
    overhead_mib: float
    graphs_charged_mib: float
    graphs_mib: float
    kv_mib: float
    needed_mib: float
    kv_bytes_per_token: float
    kv_blocks: int
    kv_tokens: int
    kv_tokens_compiling: int
    kv_tokens_cached: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    utilization: float
    tensor_parallel: int
    context_mib: float
    used_mib: float
    limit_mib: float
    band_mib: float
    fits: Fits
    largest_context: int
    utilization_that_fits: float | None
    full_length_requests: float
    typical_requests: float
    typical_tokens: int
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """Engine settings with the defaults of the release filled in. ``captures`` counts recorded CUDA graphs."""

    version: tuple[int, ...]
    runner: Literal["V1", "V2"]
    compiles: bool
    benchmarks_kernels: bool
    tensor_parallel: int
    pipeline_parallel: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    utilization: float
    activation_bytes: int
    kv_element_bytes: int
    captures: int
    largest_capture: int


@dataclass(frozen=True)
class KvPool:
    """How the KV pool is cut: one block of every group holds ``block_size`` tokens of ``group_layers`` layers."""

    block_bytes: float
    full_groups: int
    sliding_groups: int
    window_tokens: int
    block_size: int
    null_blocks: int

    def blocks(self, mib: float) -> int:
        return max(0, math.floor(mib * MIB / self.block_bytes))

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one request of this many tokens holds at once."""
        full = self.full_groups * math.ceil(tokens / self.block_size)
        if not self.sliding_groups:
            return full
        # One more block, since a window need not begin at the beginning of a block (SlidingWindowSpec).
        inside = math.ceil(min(self.window_tokens, tokens) / self.block_size) + 1
        return full + self.sliding_groups * inside

    def needed_mib(self, tokens: int) -> float:
        return (self.blocks_of(tokens) + self.null_blocks) * self.block_bytes / MIB


@cache
def constants() -> Mapping[str, Any]:
    """The measured figures of ``data/memory.json``, each with its source."""
    document: dict[str, Any] = json.loads(
        (resources.files("planner") / "data" / "memory.json").read_text(encoding="utf-8")
    )
    return document


def version_of(release: Release) -> tuple[int, ...]:
    """``0.31.0`` as ``(0, 31, 0)``."""
    return _version(release.version)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def since(entries: list[dict[str, Any]], version: tuple[int, ...]) -> Any:
    """The value of the newest entry that is not newer than ``version``."""
    held = [entry for entry in entries if _version(entry["since"]) <= version]
    return max(held, key=lambda entry: _version(entry["since"]))["value"]


def settings_of(device: Device, facts: ModelFacts, release: Release, service: ServiceSpec) -> Settings:
    """The engine's settings as it resolves them (`vllm/engine/arg_utils.py`, API server)."""
    engine, version = service.engine, version_of(release)
    length = engine.max_model_len or facts.max_position_embeddings
    tokens, sequences = _batch(_batch_default(device, version, service), engine, version, length)
    eager = bool(engine.enforce_eager)
    recorded = not (eager or _graphs_off(engine))
    sizes = capture_sizes(device, version, engine, sequences, tokens) if recorded and isinstance(device, Gpu) else ()
    return Settings(
        version=version,
        runner=_runner(facts, release, service),
        # On CPUs adapters switch the compiler off (`platforms/cpu.py`).
        compiles=not eager and not (isinstance(device, Cpu) and LORA in engine.extra_args),
        benchmarks_kernels=_version(release.torch.split("+")[0])[:2]
        >= tuple(constants()["compilePeakMib"]["sinceTorch"]),
        tensor_parallel=tensor_parallel_size(service),
        pipeline_parallel=engine.pipeline_parallel_size or 1,
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        block_size=engine.block_size or _default_block_size(device, facts),
        utilization=engine.gpu_memory_utilization or since(constants()["utilization"], version),
        activation_bytes=4 if engine.dtype in {"float", "float32"} else 2,
        kv_element_bytes=_kv_element_bytes(engine),
        captures=len(sizes) + sum(size <= sequences for size in sizes),
        largest_capture=max(sizes, default=0),
    )


def _runner(facts: ModelFacts, release: Release, service: ServiceSpec) -> Literal["V1", "V2"]:
    asked = service.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked in {"0", "1"}:
        return "V2" if asked == "1" else "V1"
    # Before 0.29.0 only some mixture-of-experts models ran on the V2 runner (vllm/config/vllm.py of 0.26.0).
    early = facts.experts is not None and version_of(release) < (0, 29)
    return (
        "V1"
        if early and facts.architecture not in {"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM"}
        else release.model_runner
    )


def _batch_default(device: Device, version: tuple[int, ...], service: ServiceSpec) -> Mapping[str, int]:
    """Tokens and sequences of one step where the stack says nothing."""
    if isinstance(device, Cpu):
        default = constants()["cpu"]["batchDefault"]
        workers = (service.engine.pipeline_parallel_size or 1) * tensor_parallel_size(service)
        return {name: default[name] * workers for name in ("tokens", "sequences")}
    a100 = "a100" in device.name.lower()
    found: Mapping[str, int] = next(
        entry
        for entry in constants()["batchDefaults"]
        if device.total_mib >= entry["minimumMib"]
        and version >= _version(entry["since"])
        and not (a100 and entry["minimumMib"])
    )
    return found


def _batch(default: Mapping[str, int], engine: EngineSpec, version: tuple[int, ...], length: int) -> tuple[int, int]:
    sequences = engine.max_num_seqs or default["sequences"]
    tokens = engine.max_num_batched_tokens
    if tokens is None:
        tokens = max(length, default["tokens"]) if engine.enable_chunked_prefill is False else default["tokens"]
        tokens = min(tokens, sequences * length) if version >= (0, 19) else tokens
        tokens = max(tokens, engine.max_num_seqs or 1)
    return tokens, sequences if engine.max_num_seqs else min(sequences, tokens)


def _default_block_size(device: Device, facts: ModelFacts) -> int:
    if isinstance(device, Cpu):
        return int(constants()["cpu"]["latentBlockSize" if facts.kv_lora_rank else "blockSize"]["value"])
    # MLA kernels (FlashMLA, CUTLASS-MLA) work on blocks of 64 (`platforms/cuda.py`).
    return 64 if facts.kv_lora_rank else 16


def _graphs_off(engine: EngineSpec) -> bool:
    return (engine.compilation_config or {}).get("cudagraph_mode") == "NONE"


def capture_sizes(
    gpu: Gpu, version: tuple[int, ...], engine: EngineSpec, sequences: int, tokens: int
) -> tuple[int, ...]:
    """Batch sizes that graphs are recorded for, in tokens (`vllm/config/vllm.py`, `_set_cudagraph_sizes`).

    Each is recorded once piecewise; those that are no larger than ``sequences`` once more in full, for decoding.
    """
    if engine.cudagraph_capture_sizes is not None:
        return tuple(size for size in sorted(engine.cudagraph_capture_sizes) if size <= tokens)
    most = 1024 if version >= (0, 31) and gpu.compute_capability[0] == 10 else 512
    # 0.13.0 thinned the sizes above 256 together with the flag's new name (vllm#26016).
    large = range(256, most + 1, 16) if version >= (0, 13) else range(256, most + 1, 8)
    limit = min(2 * sequences, most, tokens)
    return tuple(size for size in (1, 2, 4, *range(8, 256, 8), *large) if size <= limit)


def _kv_element_bytes(engine: EngineSpec) -> int:
    kind = engine.kv_cache_dtype or "auto"
    if kind.startswith(("fp8", "int8")):
        return 1
    return _DTYPE_BYTES.get(kind, 4 if engine.dtype in {"float", "float32"} else 2)


def _aligned(size_bytes: float) -> float:
    """Bytes that PyTorch's allocator gives to a tensor of this size.

    From 10 MiB on a segment is a multiple of 2 MiB, and up to 1 MiB of rest stays with the tensor
    (`c10/cuda/CUDACachingAllocator.cpp`: kRoundLarge, kSmallSize).
    """
    if size_bytes < 10 * MIB:
        return size_bytes
    segment = math.ceil(size_bytes / (2 * MIB)) * 2 * MIB
    return segment if segment - size_bytes <= MIB else size_bytes


def _linear_sizes(facts: ModelFacts, tensor_parallel_size: int, width: float) -> list[float]:
    """Bytes of the large linear layers of one decoder layer on one GPU, as vLLM merges them."""
    heads = facts.attention_heads * facts.head_dim / tensor_parallel_size
    keys = max(1, facts.kv_heads // tensor_parallel_size) * facts.head_dim
    inner = facts.intermediate_size / tensor_parallel_size
    shapes = [(heads + 2 * keys) * facts.hidden_size, heads * facts.hidden_size]
    if facts.experts is None:
        shapes += [2 * inner * facts.hidden_size, inner * facts.hidden_size]
    return [shape * width for shape in shapes]


def _weights(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> float:
    """Weights on one GPU after loading, MiB: what the tensors hold, and what their alignment adds."""
    layers = math.ceil(facts.layers / settings.pipeline_parallel)
    width = (facts.quantization_bits or 8 * settings.activation_bytes) / 8
    linear = _linear_sizes(facts, settings.tensor_parallel, width)
    vocabulary = facts.vocab_size * facts.hidden_size * settings.activation_bytes / settings.tensor_parallel
    waste = layers * sum(_aligned(size) - size for size in linear)
    waste += (1 if facts.tied_embeddings else 2) * (_aligned(vocabulary) - vocabulary)
    return (weights_bytes(facts, engine, settings) + waste) / MIB


def weights_bytes(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> float:
    """Weights of one worker as its tensors hold them: the files' bytes, copied KV heads and the rope table."""
    ways = settings.tensor_parallel * settings.pipeline_parallel
    layers = math.ceil(facts.layers / settings.pipeline_parallel)
    width = (facts.quantization_bits or 8 * settings.activation_bytes) / 8
    copies = max(0, settings.tensor_parallel - facts.kv_heads) / settings.tensor_parallel
    copied = 0.0 if facts.kv_lora_rank else copies * 2 * facts.head_dim * facts.hidden_size * width * layers
    rope_dimensions = facts.qk_rope_head_dim or facts.head_dim
    rope = facts.max_position_embeddings * rope_dimensions * settings.activation_bytes
    return _stored_bytes(facts, engine, settings) / ways + copied + rope


def _stored_bytes(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> float:
    """The safetensors' bytes, converted where dtype or quantisation differ from what is stored."""
    if facts.quantization is not None:
        return facts.weight_bytes
    whole = facts.weight_bytes * settings.activation_bytes / _DTYPE_BYTES.get(facts.dtype, 2)
    bits = _ONLINE_QUANTIZATION_BITS.get(engine.quantization or "")
    if bits is None:
        return whole
    kept = facts.vocab_size * facts.hidden_size * settings.activation_bytes * (1 if facts.tied_embeddings else 2)
    return kept + (whole - kept) * bits / (8 * settings.activation_bytes)


def _hopper(gpu: Gpu) -> bool:
    return gpu.compute_capability[0] == 9


def _gemm_workspace(gpu: Gpu) -> float:
    return float(constants()["gemmWorkspaceHopperMib" if _hopper(gpu) else "gemmWorkspaceMib"]["value"])


def layer_peak(facts: ModelFacts, settings: Settings) -> float:
    """Largest intermediate tensors of one decoder layer for a full batch, MiB.

    Dense: gate and up (2 I), their product (I), and hidden states (3 h fused by the compiler, 4 h eager). Experts: the
    two workspaces that all experts share (`fused_moe.py`), one row for each token and chosen expert.
    """
    if facts.experts is None:
        inner = 3 * facts.intermediate_size / settings.tensor_parallel
    else:
        expert = (facts.moe_intermediate_size or facts.intermediate_size) / settings.tensor_parallel
        inner = (facts.experts_per_token or 1) * (max(2 * expert, facts.hidden_size) + expert)
    hidden = (3 if settings.compiles else 4) * facts.hidden_size
    return settings.max_num_batched_tokens * settings.activation_bytes * (inner + hidden) / MIB


def sampler_peak(facts: ModelFacts, settings: Settings, multiprocessors: int = 0) -> float:
    """Logits, and what the sampler makes of them, for the most rows of one step, MiB."""
    rows = min(settings.max_num_seqs, settings.max_num_batched_tokens) * facts.vocab_size
    hidden = settings.max_num_batched_tokens * facts.hidden_size * settings.activation_bytes
    if settings.runner == "V2":
        return (rows * settings.activation_bytes + hidden) / MIB
    # V1 also keeps fp32 logits, probabilities and a copy (12 bytes); from 0.19.1 one fp32 row for each SM.
    scratch = multiprocessors * facts.vocab_size * 4 if settings.version >= (0, 19) else 0
    return (rows * (settings.activation_bytes + 12) + scratch + hidden) / MIB


def _activations(gpu: Gpu, facts: ModelFacts, settings: Settings, warm: bool) -> float:
    """Peak of torch's memory in the profile run above the weights, MiB."""
    layer = layer_peak(facts, settings)
    if settings.compiles and settings.benchmarks_kernels and not warm:
        layer += constants()["compilePeakMib"]["value"]
    workspace = _gemm_workspace(gpu)
    # Quantised layers bring their own kernels: cuBLAS and its workspace come with the logits only.
    during_layers = 0.0 if facts.quantization else workspace
    return float(max(layer + during_layers, sampler_peak(facts, settings, gpu.multiprocessors) + workspace))


def _penalty_counts(facts: ModelFacts, settings: Settings) -> float:
    """Token counts of the V2 sampler: int32 and one bit for each sequence and word (`sample/penalties.py`), MiB."""
    if settings.runner == "V1":
        return 0.0
    return settings.max_num_seqs * facts.vocab_size * (4 + 1 / 8) / MIB


def _charges_consumed(settings: Settings) -> bool:
    return settings.version >= _version(constants()["consumedSince"]["value"])


def _overhead(gpu: Gpu, facts: ModelFacts, settings: Settings) -> float:
    entries = [entry for entry in constants()["nonTorchMib"] if entry["runner"] == settings.runner]
    total = float(since(entries, settings.version))
    total += constants()["nonTorchHopperMib"]["value"] if _hopper(gpu) else 0
    return total + (_penalty_counts(facts, settings) if _charges_consumed(settings) else 0.0)


def _graphs(facts: ModelFacts, settings: Settings) -> float:
    """Memory of the recorded CUDA graphs, MiB: their pool (tensors of the largest batch) and a share for each."""
    if not settings.captures:
        return 0.0
    figures = constants()["graphs"]
    width = 3 * facts.intermediate_size / settings.tensor_parallel + 3 * facts.hidden_size
    pool = settings.largest_capture * width * settings.activation_bytes / MIB
    layers = math.ceil(facts.layers / settings.pipeline_parallel)
    each = since(figures["perCaptureAndLayer"], settings.version) * layers
    return float(figures["base"]["value"] + pool + each * settings.captures)


def _graphs_charged(graphs: float, settings: Settings, service: ServiceSpec) -> float:
    figures = constants()["graphs"]
    if service.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0":
        return 0.0
    charged = settings.version >= _version(figures["chargedSince"][settings.runner])
    return graphs * float(figures["estimateFactor"]["value"]) if charged else 0.0


def kv_pool(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> KvPool:
    sliding = math.ceil((facts.sliding_layers if facts.sliding_window else 0) / settings.pipeline_parallel)
    full = math.ceil(facts.layers / settings.pipeline_parallel) - sliding
    kinds = [count for count in (full, sliding) if count]
    # From 0.19.1 layers are padded to the larger kind when that wastes little (`kv_cache_utils.py`).
    padded = settings.version >= (0, 19) and max(kinds) < 1.5 * min(kinds)
    group = max(kinds) if padded else min(kinds)
    # Async scheduling keeps one more batch in flight (`VllmConfig.max_in_flight_tokens`, 0.26.0).
    batches = settings.pipeline_parallel + 1 if settings.runner == "V2" else settings.pipeline_parallel
    return KvPool(
        block_bytes=group * settings.block_size * _layer_token_bytes(facts, engine, settings),
        full_groups=math.ceil(full / group),
        sliding_groups=math.ceil(sliding / group),
        window_tokens=(facts.sliding_window or 1) - 1 + batches * settings.max_num_batched_tokens,
        block_size=settings.block_size,
        null_blocks=1 if _charges_consumed(settings) else 0,
    )


def _layer_token_bytes(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> float:
    """KV bytes of one token in one layer on one GPU (`kv_cache_interface.py`)."""
    if facts.kv_lora_rank:
        if engine.kv_cache_dtype == "fp8_ds_mla":
            return 656.0
        # MLA stores one latent vector, the same on every GPU.
        return float((facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)) * settings.kv_element_bytes)
    heads = max(1, facts.kv_heads // settings.tensor_parallel)
    return float(2 * heads * facts.head_dim * settings.kv_element_bytes)


def token_bytes(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> float:
    """KV bytes of one token in all layers of one GPU."""
    return _layer_token_bytes(facts, engine, settings) * math.ceil(facts.layers / settings.pipeline_parallel)


def logged_tokens(pool: KvPool, blocks: int, settings: Settings) -> int:
    groups = pool.full_groups + pool.sliding_groups
    if groups == 1 or settings.version < (0, 26):
        return blocks // groups * pool.block_size
    return int(blocks / pool.blocks_of(settings.max_model_len) * settings.max_model_len)


def _retained(gpu: Gpu, facts: ModelFacts, settings: Settings) -> float:
    """What stays in torch's cache, or was never charged, after the start, MiB."""
    if settings.runner == "V1":
        # The sampler's warm-up runs last and brings the peak back; the benchmark buffers of a compile are gone.
        return _activations(gpu, facts, settings, warm=True)
    rows = settings.max_num_seqs * facts.vocab_size * (settings.activation_bytes + 4) / MIB
    if _charges_consumed(settings):
        return rows
    early = float(constants()["unchargedBuffersMib"]["value"]) + _penalty_counts(facts, settings)
    return rows + early + (0.0 if settings.compiles else layer_peak(facts, settings))


def largest_context(pool: KvPool, kv_mib: float, most: int) -> int:
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pool.needed_mib(middle) <= kv_mib else (low, middle - 1)
    return low


def _band(gpu: Gpu, facts: ModelFacts, settings: Settings, shares: _Shares, *, exact: bool) -> float:
    """How far the KV cache may be from the plan, MiB."""
    figures = {name: entry["value"] for name, entry in constants()["band"].items()}
    band = max(figures["leastMib"], figures["shareOfUsable"] * gpu.usable_mib) + shares.charged / 2
    band += figures["estimatedGpuShare"] * gpu.usable_mib if gpu.estimated else 0
    band += figures["estimatedWeightsShare"] * shares.weights if facts.estimated else 0
    band += figures["unknownLayoutShare"] * shares.weights if facts.unknown else 0
    unmeasured = (settings.tensor_parallel > 1, facts.experts is not None, not exact)
    return float(band + sum(unmeasured) * figures["unmeasuredMib"])


def _unknown(facts: ModelFacts, engine: EngineSpec, release: Release, settings: Settings) -> tuple[str, ...]:
    notes = {
        "buffers of NCCL with tensor parallelism (not measured)": settings.tensor_parallel > 1,
        "which model runner this release takes for a mixture of experts": facts.experts is not None
        and not release.exact,
    }
    return (*unknown_parts(facts, engine, settings), *(note for note, holds in notes.items() if holds))


def unknown_parts(facts: ModelFacts, engine: EngineSpec, settings: Settings) -> tuple[str, ...]:
    """What takes memory and is not modelled, on whatever the server computes."""
    kind = engine.kv_cache_dtype or "auto"
    online = engine.quantization is not None and facts.quantization is None
    notes = {
        f"size of KV cache type {kind}, planned as {settings.kv_element_bytes} bytes": not (
            kind == "auto" or kind in _DTYPE_BYTES or kind.startswith(("fp8", "int8"))
        ),
        f"weights after {engine.quantization} while loading": online
        and engine.quantization not in _ONLINE_QUANTIZATION_BITS,
        "memory of speculative decoding": engine.speculative_config is not None,
        "memory of LoRA adapters": LORA in engine.extra_args,
    }
    return (*facts.unknown, *(note for note, holds in notes.items() if holds))


@dataclass(frozen=True)
class _Shares:
    """What takes a part of the budget besides the KV cache, MiB."""

    weights: float
    overhead: float
    graphs: float
    charged: float
    compiling: float
    cached: float

    def besides(self, warm: bool) -> float:
        return self.weights + self.overhead + self.charged + (self.cached if warm else self.compiling)


def _shares(gpu: Gpu, facts: ModelFacts, settings: Settings, service: ServiceSpec) -> _Shares:
    graphs = _graphs(facts, settings)
    return _Shares(
        weights=_weights(facts, service.engine, settings),
        overhead=_overhead(gpu, facts, settings),
        graphs=graphs,
        charged=_graphs_charged(graphs, settings, service),
        compiling=_activations(gpu, facts, settings, warm=False),
        cached=_activations(gpu, facts, settings, warm=True),
    )


def plan_memory(
    gpu: Gpu, facts: ModelFacts, release: Release, service: ServiceSpec, *, compile_cache_warm: bool = False
) -> MemoryPlan:
    """Divide one GPU's memory as the engine will.

    ``compile_cache_warm`` says that this start finds its compile cache; one that compiles has a higher peak and so
    fewer KV tokens.
    """
    settings = settings_of(gpu, facts, release, service)
    pool, shares = kv_pool(facts, service.engine, settings), _shares(gpu, facts, settings, service)
    context = _context(gpu, settings)
    fixed = service.engine.kv_cache_memory_bytes
    besides = shares.besides(compile_cache_warm)
    # With kvCacheMemoryBytes the pool has that size, whatever the utilisation says.
    requested = settings.utilization * gpu.usable_mib if fixed is None else besides + fixed / MIB
    kv = requested - besides
    swing = 0.0 if fixed is not None else shares.besides(warm=False) - shares.besides(warm=True)
    compiling, cached = (kv - swing, kv) if compile_cache_warm else (kv, kv + swing)
    band = _band(gpu, facts, settings, shares, exact=release.exact)
    needed = pool.needed_mib(settings.max_model_len)
    blocks = pool.blocks(kv)
    typical = service.workload.typical_tokens or max(1, settings.max_model_len // 4)
    used = context + shares.weights + shares.overhead + max(kv, 0.0) + shares.graphs
    return MemoryPlan(
        requested_mib=requested,
        weights_mib=shares.weights,
        activations_mib=shares.cached if compile_cache_warm else shares.compiling,
        overhead_mib=shares.overhead,
        graphs_charged_mib=shares.charged,
        graphs_mib=shares.graphs,
        kv_mib=kv,
        needed_mib=needed,
        kv_bytes_per_token=token_bytes(facts, service.engine, settings),
        kv_blocks=blocks,
        kv_tokens=logged_tokens(pool, blocks, settings),
        kv_tokens_compiling=logged_tokens(pool, pool.blocks(compiling), settings),
        kv_tokens_cached=logged_tokens(pool, pool.blocks(cached), settings),
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        utilization=settings.utilization,
        tensor_parallel=settings.tensor_parallel,
        context_mib=context,
        used_mib=used + _retained(gpu, facts, settings),
        limit_mib=gpu.usable_mib,
        band_mib=band,
        fits=_fits(kv - needed, band, free=gpu.usable_mib - context - requested),
        largest_context=largest_context(pool, kv, facts.max_position_embeddings),
        utilization_that_fits=_utilization_that_fits(gpu, context, besides + needed + band),
        full_length_requests=blocks / pool.blocks_of(settings.max_model_len),
        typical_requests=min(blocks / pool.blocks_of(typical), settings.max_num_seqs),
        typical_tokens=typical,
        unknown=_unknown(facts, service.engine, release, settings),
    )


def _context(gpu: Gpu, settings: Settings) -> float:
    """What is gone before the engine looks at the free memory: the CUDA context, and NCCL's buffers, MiB."""
    context = float(constants()["contextMibPerMultiprocessor"]["value"]) * gpu.multiprocessors
    return context + (constants()["tensorParallelMib"]["value"] if settings.tensor_parallel > 1 else 0)


def _fits(room: float, band: float, free: float) -> Fits:
    """Compare what one full-length request leaves of the pool, and the budget with the free memory (both MiB)."""
    free_band = constants()["band"]["freeMemoryMib"]["value"]
    if room < -band or free < -free_band:
        return "no"
    return "yes" if room >= band and free >= free_band else "within band"


def _utilization_that_fits(gpu: Gpu, context: float, mib: float) -> float | None:
    share = math.ceil(100 * mib / gpu.usable_mib) / 100
    free_band = constants()["band"]["freeMemoryMib"]["value"]
    return share if share * gpu.usable_mib <= gpu.usable_mib - context - free_band else None
