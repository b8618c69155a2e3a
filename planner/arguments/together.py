"""What is wrong with arguments that do not go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.arguments.extra import ExtraArgument, set_flags
from planner.findings import Finding
from planner.releases import Release
from planner.spec import ServiceSpec

BACK_DOOR_FLAGS: Mapping[str, str] = {
    "--profiler-config": "/start_profile and /stop_profile",
    "--enable-tokenizer-info-endpoint": "/tokenizer_info",
}
"""Flags that add endpoints which the API key does not guard."""


def check_together(service: ServiceSpec, extra: tuple[ExtraArgument, ...], release: Release) -> Iterator[Finding]:
    """Combinations that the server refuses to start with, and flags that open a back door."""
    given = set_flags(extra, release)
    yield from _check_typed_together(service)
    yield from _check_extra_together(service, given, release)
    for name, effect in BACK_DOOR_FLAGS.items():
        if name in given and given[name][1] not in (False, "{}"):
            path = given[name][0].path
            message = f"{name} adds {effect}, which no API key guards"
            yield Finding("error", path, message, "remove it", "SEC-DEV", "vllm/entrypoints/openai/api_server.py")


def _check_typed_together(service: ServiceSpec) -> Iterator[Finding]:
    engine = service.engine
    tokens, sequences, length = engine.max_num_batched_tokens, engine.max_num_seqs, engine.max_model_len
    if engine.enable_auto_tool_choice and engine.tool_call_parser is None:
        message = "the server does not start with enableAutoToolChoice and no toolCallParser"
        remedy = "set engine.toolCallParser to the parser of this model, for example hermes"
        yield Finding("error", "engine.enableAutoToolChoice", message, remedy, "ARG-3", "vllm/entrypoints")
    if tokens is not None and sequences is not None and tokens < sequences:
        message = f"maxNumBatchedTokens {tokens} is less than maxNumSeqs {sequences}"
        remedy = f"raise it to {sequences} at least, or lower maxNumSeqs"
        yield Finding("error", "engine.maxNumBatchedTokens", message, remedy, "ARG-3", "vllm/config/scheduler.py")
    if engine.enable_chunked_prefill is False and tokens is not None and length is not None and tokens < length:
        message = f"maxNumBatchedTokens {tokens} is less than maxModelLen {length}, and prompts are not split"
        remedy = f"raise it to {length} at least, or leave enableChunkedPrefill out"
        yield Finding("error", "engine.maxNumBatchedTokens", message, remedy, "ARG-3", "vllm/config/scheduler.py")


def _check_extra_together(
    service: ServiceSpec, given: Mapping[str, tuple[ExtraArgument, Any]], release: Release
) -> Iterator[Finding]:
    def on(name: str) -> bool:
        return name in given and given[name][1] is not False

    source = f"argument parser of vLLM {release.version}"
    if on("--enable-log-outputs") and not on("--enable-log-requests"):
        message = "the server does not start with --enable-log-outputs and no --enable-log-requests"
        path = given["--enable-log-outputs"][0].path
        yield Finding("error", path, message, "add --enable-log-requests, or remove it", "ARG-3", source)
    if on("--enable-per-request-metrics") and on("--disable-log-stats"):
        message = "--enable-per-request-metrics and --disable-log-stats exclude each other"
        yield Finding("error", given["--disable-log-stats"][0].path, message, "remove one", "ARG-3", source)
    if on("--headless"):
        message = "--headless starts no HTTP server, so no probe and no client would be answered"
        yield Finding("error", given["--headless"][0].path, message, "remove it", "NAM-2", source)
    active, most = given.get("--max-num-active-seqs"), service.engine.max_num_seqs
    if active and most is not None and str(active[1]).isdigit() and int(active[1]) > most:
        message = f"--max-num-active-seqs {active[1]} is more than maxNumSeqs {most}"
        yield Finding("error", active[0].path, message, f"lower it to {most}", "ARG-3", source)
    largest, sizes = given.get("--max-cudagraph-capture-size"), service.engine.cudagraph_capture_sizes
    if largest and sizes and str(largest[1]) != str(max(sizes)):
        message = f"--max-cudagraph-capture-size {largest[1]} is not the largest of cudagraphCaptureSizes, {max(sizes)}"
        yield Finding("error", largest[0].path, message, "remove it", "ARG-3", source)
