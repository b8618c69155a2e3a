"""Starts as a cluster shows them: logs in the format of each release, events and pods."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from infra.cold_start import Evidence
from planner.plan import ServicePlan, plan_service
from tests.stack_files import config

RELEASES = ("0.11.0", "0.19.1", "0.31.0", "0.33.0")
CREATED = datetime(2026, 9, 28, 23, 0, 0, tzinfo=timezone.utc)
MODEL = "Qwen/Qwen2.5-7B-Instruct"
ARGUMENTS = (
    "{'model_tag': 'Qwen/Qwen2.5-7B-Instruct', 'host': '0.0.0.0', 'model': 'Qwen/Qwen2.5-7B-Instruct', "
    "'served_model_name': ['qwen2.5-7b-instruct'], 'gpu_memory_utilization': 0.9}"
)


@dataclass(frozen=True)
class Row:
    """One measured start, seconds; ``pull`` and ``download`` are None when there was none."""

    pull: float | None
    download: float | None
    read: float
    trace: float
    compiled: float | None
    loaded_from_cache: float | None
    graphs: int
    graphs_gib: float
    init_engine: float
    total: float
    process_start: float = 36.4


L40S = {
    "nothing": Row(220.2, 185.493367, 14.76, 5.3, 14.54, None, 6, 0.59, 36.35, 526.9),
    "image": Row(None, 144.389314, 2.33, 5.3, 26.38, None, 6, 0.59, 50.33, 254.9),
    "weights": Row(None, None, 2.22, 5.3, 14.54, None, 6, 0.59, 35.21, 87.8),
    "compile cache": Row(None, None, 2.22, 4.2, None, 1.1, 5, 0.59, 12.5, 51.7, 22.1),
    "seven graphs": Row(None, None, 2.22, 4.2, None, 1.1, 1, 0.11, 8.60, 41.8, 22.1),
}
"""The five measured rows; the trace, and the load from the cache, are assumed: nobody printed them.
EngineCore took between 5.4 and 19.7 s to start; which start took what was not printed either."""
BEFORE_CONTAINER = 2.0


def plan(changes: dict[str, Any] | None = None) -> ServicePlan:
    """The L40S pair as shipped, without its own graph sizes unless they are given."""
    stack = config("l40s-pair", {"services.qwen.engine.cudagraphCaptureSizes": None, **(changes or {})})
    return plan_service("qwen", stack.services["qwen"], stack.nodes["l40s"])


def kubelet(seconds: float) -> str:
    """A stamp as `timestamps=true` has it, so many seconds after the pod's creation."""
    return (CREATED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f") + "789Z"


def whole(seconds: float) -> str:
    """A stamp as Kubernetes' objects have it."""
    return (CREATED + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def line(release: str, when: float, process: str, file: str, text: str, level: str = "INFO") -> str:
    """A line as vLLM's own format prints it: ``(EngineCore pid=91) INFO 09-28 23:01:02 [core.py:1] text``."""
    name = {"engine": "EngineCore_DP0" if release == "0.11.0" else "EngineCore", "api": "APIServer"}.get(
        process, process
    )
    own = (CREATED + timedelta(seconds=when)).strftime("%m-%d %H:%M:%S")
    return f"({name} pid={1 if process == 'api' else 91}) {level} {own} [{file}] {text}"


def banner(release: str, when: float) -> list[tuple[float, str]]:
    if release == "0.11.0":
        return [(when, line(release, when, "api", "api_server.py:1839", f"vLLM API server version {release}"))]
    logo = (
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {release}",
        f"  █▄█▀ █     █  model   {MODEL}",
    )
    return [(when, line(release, when, "api", "utils.py:299", text)) for text in logo]


def lines(release: str, row: Row, begin: float, arguments: str = ARGUMENTS) -> list[tuple[float, str]]:
    """Every known line of one start with its moment; ``begin`` is the container's start."""
    said: list[tuple[float, str]] = []

    def say(when: float, process: str, file: str, text: str) -> None:
        said.append((when, line(release, when, process, file, text)))

    say(begin + 10.2, "api", "__init__.py:216", "Automatically detected platform cuda.")
    said += banner(release, begin + 11)
    say(begin + 11, "api", "utils.py:233", f"non-default args: {arguments}")
    say(begin + 14, "api", "model.py:547", "Resolved architecture: Qwen2ForCausalLM")
    say(begin + 14, "api", "model.py:1510", "Using max model len 32768")
    say(begin + row.process_start - 6.5, "engine", "__init__.py:216", "Automatically detected platform cuda.")
    say(
        begin + row.process_start - 6.4,
        "engine",
        "core.py:77",
        f"Initializing a V1 LLM engine (v{release}) with config: model='{MODEL}', enforce_eager=False",
    )
    loads = begin + row.process_start
    if release in ("0.11.0", "0.19.1"):
        say(loads, "engine", "gpu_model_runner.py:2602", f"Starting to load model {MODEL}...")
    if row.download is not None:
        text = f"Time spent downloading weights for {MODEL}: {row.download:.6f} seconds"
        say(loads + row.download, "engine", "weight_utils.py:413", text)
    loading = (row.download or 0.0) + row.read + 0.967
    say(loads + loading - 0.9, "engine", "default_loader.py:267", f"Loading weights took {row.read:.2f} seconds")
    memory = "" if release == "0.11.0" else " memory"
    say(
        loads + loading,
        "engine",
        "gpu_model_runner.py:2653",
        f"Model loading took 14.2488 GiB{memory} and {loading:.6f} seconds",
    )
    said += engine_lines(release, row, loads + loading)
    ends = loads + loading + row.init_engine
    server = "API server 0" if release == "0.11.0" else "server"
    say(ends + 3, "api", "api_server.py:1912", f"Starting vLLM {server} on http://0.0.0.0:8000")
    said.append((ends + 3.4, "(APIServer pid=1) INFO:     Application startup complete."))
    return said


def engine_lines(release: str, row: Row, begin: float) -> list[tuple[float, str]]:
    """What `init engine` prints, in the words of the release."""
    old = release == "0.11.0"
    shape = "dynamic shape" if old else "compile range (1, 2048)"
    folder = "/models/compile/vllm/torch_compile_cache/44ec65dd4d/rank_0_0/backbone"
    total = row.trace + (row.compiled or 0.0) + (row.loaded_from_cache or 0.0)
    end = begin + row.init_engine
    texts: list[tuple[float, str, str]] = [
        (begin + 3, "backends.py:548", f"Using cache directory: {folder} for vLLM's torch.compile"),
        (begin + 3, "backends.py:559", f"Dynamo bytecode transform time: {row.trace:.2f} s"),
    ]
    if row.compiled is not None:
        later = f"Cache the graph {'for' if old else 'of'} {shape} for later use"
        texts += [(begin + 4, "backends.py:197", later)]
        texts += [(begin + 5, "backends.py:218", f"Compiling a graph for {shape} takes {row.compiled:.2f} s")]
    else:
        hit = f"Directly load the compiled graph(s) for {shape} from the cache, took {row.loaded_from_cache:.3f} s"
        texts += [(begin + 4, "backends.py:164", hit)]
    texts += [(begin + 6, "monitor.py:34", f"torch.compile {'takes' if old else 'took'} {total:.2f} s in total")]
    if not old:
        texts += [(begin + 7, "monitor.py:76", "Initial profiling/warmup run took 1.50 s")]
    if release in ("0.31.0", "0.33.0"):
        # The V2 runner captures once for its estimate: only the second line is the capture.
        texts += [(begin + 7, "model_runner.py:600", "Graph capturing finished in 1 secs, took 0.20 GiB")]
    texts += [(end - 2, "gpu_worker.py:298", "Available KV cache memory: 25.13 GiB")]
    concurrency = "Maximum concurrency for 32,768 tokens per request: 14.36x"
    if release in ("0.31.0", "0.33.0"):
        texts += [(end - 2, "kv_cache_utils.py:1087", f"GPU KV cache size: 470,624 tokens, {concurrency}")]
    else:
        texts += [(end - 2, "kv_cache_utils.py:1087", "GPU KV cache size: 470,624 tokens")]
        texts += [(end - 2, "kv_cache_utils.py:1091", concurrency)]
    texts += [
        (
            end - 0.1,
            "gpu_model_runner.py:3480",
            f"Graph capturing finished in {row.graphs} secs, took {row.graphs_gib} GiB",
        )
    ]
    took = f"{row.init_engine:.2f} " + {"0.11.0": "seconds", "0.19.1": "seconds", "0.31.0": "s"}.get(
        release, f"s (compilation: {total:.2f} s)"
    )
    texts += [(end, "core.py:210", f"init engine (profile, create kv cache, warmup model) took {took}")]
    return [(when, line(release, when, "engine", file, text)) for when, file, text in texts]


def log(said: Iterable[tuple[float, str]], *, stamped: bool = True) -> str:
    """The log as the kubelet gives it; without its stamps vLLM's own are all there is."""
    return "".join(f"{kubelet(when)} {text}\n" if stamped else f"{text}\n" for when, text in said)


def event(reason: str, message: str, when: float, name: str = "qwen-0-abc-1", kind: str = "Pod") -> dict[str, Any]:
    return {
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": whole(when),
        "source": {"host": "l40s-0"},
    }


def pulled(seconds: float, when: float, name: str = "qwen-0-abc-1", size: int = 12_454_045_526) -> dict[str, Any]:
    minutes, rest = divmod(seconds, 60)
    took = f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:g}s"
    image = "vllm/vllm-openai:v0.11.0"
    message = f'Successfully pulled image "{image}" in {took} ({took} including waiting). Image size: {size} bytes.'
    return event("Pulled", message, when, name)


def present(when: float, name: str = "qwen-0-abc-1") -> dict[str, Any]:
    return event("Pulled", 'Container image "vllm/vllm-openai:v0.11.0" already present on machine', when, name)


def pod(
    started: float, ready: float | None, *, restarts: int = 0, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The pod; ``started`` and ``ready`` are seconds after its creation."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": whole(0)}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": whole(ready)})
    status = {
        "name": "vllm",
        "restartCount": restarts,
        "state": {"running": {"startedAt": whole(started)}},
        "lastState": {"terminated": last} if last else {},
    }
    owner = {"kind": "ReplicaSet", "name": "qwen-0-abc", "uid": "abc"}
    return {
        "metadata": {"name": "qwen-0-abc-1", "creationTimestamp": whole(0), "ownerReferences": [owner]},
        "spec": {
            "nodeName": "l40s-0",
            "containers": [{"name": "vllm", "ports": [{"containerPort": 8000}], "env": []}],
        },
        "status": {"conditions": conditions, "containerStatuses": [status]},
    }


def measured(name: str, release: str = "0.11.0", **more: Any) -> Evidence:
    """One row of the L40S as everything that it left behind."""
    row = L40S[name]
    started = BEFORE_CONTAINER + (row.pull or 0.0)
    said = lines(release, row, started)
    events = (pulled(row.pull, started) if row.pull else present(1),)
    given = {"pod": pod(started, row.total), "events": events, "log": log(said), **more}
    return Evidence(service="qwen", replica=0, read_at=whole(row.total), **given)


def seed_line(size: int, seconds: float) -> str:
    return "seed: " + json.dumps({"path": "/models/hf/x", "bytes": size, "seconds": seconds, "megabytesPerSecond": 1.0})
