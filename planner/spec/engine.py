"""Typed settings of the vLLM engine. A setting that is not given is left to the release's default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from planner.spec.base import Fraction, PositiveInt, Spec


class EngineSpec(Spec):
    """Arguments of `vllm serve`, by the names that vLLM gives them."""

    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None = None
    """Type of weights and activations. `half` is needed on cards older than Ampere."""

    quantization: Annotated[str, Field(min_length=1)] | None = None
    """Quantisation method. Unset: what the model's own config says."""

    gpu_memory_utilization: Fraction | None = None
    """Share of the card's memory that vLLM plans with. It is a budget, not a limit: it isolates nothing,
    and the CUDA context comes on top. On a pool of kind `cpu` it is a share of the container's memory limit."""

    kv_cache_memory_bytes: PositiveInt | None = None
    """KV cache size in bytes; replaces the computation from gpuMemoryUtilization."""

    cpu_kv_cache_space: PositiveInt | None = None
    """KV cache size of each worker on a pool of kind `cpu`, GiB (VLLM_CPU_KVCACHE_SPACE). Unset: what the
    release makes of the memory that it finds."""

    max_model_len: PositiveInt | None = None
    """Longest context, prompt and answer together, tokens. Unset: the model's own maximum."""

    max_num_seqs: PositiveInt | None = None
    """Most sequences in one step of the scheduler."""

    max_num_batched_tokens: PositiveInt | None = None
    """Most tokens in one step: larger is better for time to first token, smaller for time between tokens."""

    max_num_queued_reqs: PositiveInt | None = None
    """Most waiting requests; further ones are refused at once instead of queueing for ever."""

    kv_cache_dtype: Annotated[str, Field(min_length=1)] | None = None
    """Type of the KV cache, for example fp8."""

    block_size: PositiveInt | None = None
    """Tokens in one block of the KV cache."""

    tensor_parallel_size: PositiveInt | None = None
    """GPUs that share each layer. Unset: all GPUs of the replica where the model's heads allow it."""

    pipeline_parallel_size: PositiveInt | None = None
    """Groups of GPUs that hold successive layers."""

    data_parallel_size: PositiveInt | None = None
    """Copies of the model in one server."""

    enforce_eager: bool | None = None
    """Switch compilation and CUDA graphs off: starts faster, uses less memory, may serve slower."""

    cudagraph_capture_sizes: tuple[PositiveInt, ...] | None = None
    """Batch sizes that CUDA graphs are recorded for; other sizes run unrecorded."""

    compilation_config: dict[str, Any] | None = None
    """Further compilation settings."""

    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of equal prompt beginnings."""

    enable_chunked_prefill: bool | None = None
    """Split long prompts over several steps."""

    load_format: Annotated[str, Field(min_length=1)] | None = None
    """How weights are loaded, for example auto, safetensors, runai_streamer, dummy."""

    trust_remote_code: bool | None = None
    """Run Python code that comes with the model. Only for publishers you trust."""

    seed: int | None = None
    """Random seed."""

    chat_template: Annotated[str, Field(min_length=1)] | None = None
    """Chat template: a path in the container or the template itself."""

    enable_auto_tool_choice: bool | None = None
    """Let the model decide to call tools; needs toolCallParser."""

    tool_call_parser: Annotated[str, Field(min_length=1)] | None = None
    """Parser of the model's tool calls."""

    reasoning_parser: Annotated[str, Field(min_length=1)] | None = None
    """Parser of the model's reasoning."""

    speculative_config: dict[str, Any] | None = None
    """Speculative decoding."""

    structured_outputs_config: dict[str, Any] | None = None
    """Structured outputs."""

    hf_overrides: dict[str, Any] | None = None
    """Overrides of the model's Hugging Face config."""

    kv_transfer_config: dict[str, Any] | None = None
    """KV transfer between servers."""

    api_server_count: PositiveInt | None = None
    """Processes that speak HTTP; more than one when they, not the GPU, are the limit."""

    otlp_traces_endpoint: Annotated[str, Field(min_length=1)] | None = None
    """Address of an OpenTelemetry collector that traces are sent to."""

    enable_request_id_headers: bool | None = None
    """Answer with the client's X-Request-Id."""

    kv_cache_metrics: bool | None = None
    """Export histograms of how long KV blocks live and idle."""

    extra_args: tuple[str, ...] = ()
    """Further arguments, one element for each word, checked against the release."""
