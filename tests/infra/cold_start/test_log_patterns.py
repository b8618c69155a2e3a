"""The table of log lines: complete, consistent, and each pattern finds what a release prints."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

from infra.cold_start.log import patterns, read_log
from infra.cold_start.start import PhaseName
from planner.releases import version_number
from tests.infra.cold_start import starts as made

TABLE = json.loads((resources.files("planner") / "data" / "log_patterns.json").read_text("utf-8"))
LINES = {line["name"]: line for line in TABLE["lines"]}
IN_BANNER = {"eager", "device", "graphsOff"}

SAID = [
    ("platform", "INFO 09-28 23:20:08 [__init__.py:216] Automatically detected platform cuda."),
    ("banner", "(APIServer pid=1) INFO 09-28 23:20:08 [api_server.py:1839] vLLM API server version 0.11.0"),
    ("banner", "(APIServer pid=1) INFO [utils.py:299]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.19.1"),
    ("banner", "INFO vLLM server version 0.31.0, serving model org/name"),
    ("arguments", "non-default args: {'model': 'org/name', 'api_key': ['__REDACTED__']}"),
    ("architecture", "Resolved architecture: Qwen2ForCausalLM"),
    ("context", "Using max model len 32768"),
    ("engineBanner", "Initializing a V1 LLM engine (v0.33.0) with config: model='org/name'"),
    ("loadStarts", "Starting to load model org/name..."),
    ("download", "Time spent downloading weights for org/name: 185.493367 seconds"),
    ("read", "Loading weights took 14.76 seconds"),
    ("loaded", "Model loading took 14.2488 GiB and 201.220095 seconds"),
    ("loaded", "Model loading took 14.29 GiB memory and 3.100000 seconds"),
    ("cacheFolder", "Using cache directory: /x/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile"),
    ("cacheOff", "vLLM's torch.compile cache is disabled."),
    ("trace", "Dynamo bytecode transform time: 4.20 s"),
    ("cacheWritten", "Cache the graph for dynamic shape for later use"),
    ("cacheWritten", "Cache the graph of compile range (1, 8192) for later use"),
    ("compiled", "Compiling a graph for dynamic shape takes 14.54 s"),
    ("compiled", "Compiling a graph for compile range (1, 2048) takes 17.60 s"),
    ("cacheHit", "Directly load the compiled graph(s) for dynamic shape from the cache, took 1.100 s"),
    ("cacheHit", "Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took 0.700 s"),
    ("cacheHit", "Directly load AOT compilation from path /x/torch_aot_compile/ab/rank_0_0/model"),
    ("warmUpStarts", "(Worker pid=7) INFO [cpu_model_runner.py:87] Warming up model for the compilation..."),
    ("warmUpEnds", "(Worker pid=7) INFO [cpu_model_runner.py:91] Warming up done."),
    ("cacheSaved", "saved AOT compiled function to /x/torch_aot_compile/ab/rank_0_0/model"),
    ("cacheBroken", "Compiling model again due to a load failure from /x/model, reason: bad magic"),
    ("compile", "torch.compile takes 19.84 s in total"),
    ("compile", "backbone: torch.compile took 19.84 s in total"),
    ("compileAndProfile", "torch.compile and initial profiling/warmup run together took 55.27 s in total"),
    ("profile", "Initial profiling/warmup run took 9.02 s"),
    ("graphEstimate", "Estimated CUDA graph memory: 0.27 GiB total"),
    ("kvMemory", "Available KV cache memory: -0.35 GiB"),
    ("kvTokens", "GPU KV cache size: 470,624 tokens, Maximum concurrency for 32,768 tokens per request: 14.36x"),
    ("graphs", "Graph capturing finished in 6 secs, took 0.59 GiB"),
    ("initEngine", "init engine (profile, create kv cache, warmup model) took 36.35 seconds"),
    ("initEngine", "init engine (profile, create kv cache, warmup model) took 36.35 s (compilation: 19.84 s)"),
    ("http", "Starting vLLM API server 0 on http://0.0.0.0:8000"),
    ("http", "Starting vLLM server on http://0.0.0.0:8000"),
    ("ready", "INFO:     Application startup complete."),
    ("failure", "RuntimeError: Engine core initialization failed. See root cause above."),
]


@pytest.mark.parametrize(("name", "text"), SAID)
def test_a_line_is_known_by_one_pattern(name: str, text: str) -> None:
    assert {pattern.name for pattern in patterns() if pattern.search.search(text)} == {name}, text


def test_every_pattern_has_a_line() -> None:
    assert {name for name, _ in SAID} == set(LINES) - IN_BANNER, "these are parts of the engine's banner"


@pytest.mark.parametrize(
    "text",
    [
        "vLLM is using nccl==2.27.5",
        "NCCL version 2.27.3+cuda12.9",
        "Using FlashAttention version 2",
        "Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:14<00:00,  3.60s/it]",
        "Prefetching checkpoint files into page cache finished in 0.77s",
        "Maximum concurrency for 32,768 tokens per request: 14.36x",
        "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)",
    ],
)
def test_a_line_that_is_like_one_is_none(text: str) -> None:
    assert not [pattern.name for pattern in patterns() if pattern.search.search(text)], text


def test_the_table_is_whole() -> None:
    assert len(LINES) == len(TABLE["lines"]), "a name stands for one line"
    phases = set(PhaseName.__args__)  # type: ignore[attr-defined]
    known = {*LINES, "compile"}
    for name, line in LINES.items():
        assert line["source"], f"{name}: where is that from"
        assert line.get("phase", "read") in phases, f"{name} measures no phase of a start"
        assert line.get("part", "loaded") in known, f"{name} is part of a line that nobody knows"
        assert line["since"] in TABLE["releases"], f"{name} begins with a release that was looked at"
        assert ("seconds" in re.compile(line["pattern"]).groupindex) >= ("phase" in line), f"{name} measures seconds"


@pytest.mark.parametrize("release", made.RELEASES)
def test_what_is_always_printed_is_in_every_release(release: str) -> None:
    log = read_log(made.log(made.lines(release, made.L40S["nothing"], 0)))
    assert log.absent(version_number(release)) == (), f"{release} has another word for it"
    assert "kvTokens" in read_log("").absent(version_number(release)), "an empty log lacks them all"
