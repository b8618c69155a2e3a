"""How long a server takes from the pod's creation to Ready, phase by phase, from bytes, rates and warm caches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from planner.cpu_memory import fixed_kv_mib
from planner.gpus import Cpu, Device, Gpu
from planner.memory import Settings, settings_of
from planner.models import ModelFacts
from planner.releases import Release
from planner.spec import PoolSpec, ServiceSpec

PhaseName = Literal["node", "image", "sandbox", "import", "download", "read", "profile", "compile", "kernels", "graphs"]
_ENGINE_PHASES = frozenset({"profile", "compile", "kernels", "graphs"})
_OUTSIDE_CONTAINER = frozenset({"node", "image", "sandbox"})


@dataclass(frozen=True)
class Phase:
    """One stretch of a start, in seconds, with what it was computed from. Phases follow each other."""

    name: PhaseName
    seconds: float
    why: str


@dataclass(frozen=True)
class StartupPlan:
    """A start from the pod's creation to Ready.

    ``init_engine_seconds`` is what the engine logs as "init engine (profile, create kv cache, warmup model)": it is
    the sum of its four phases and must not be added to them.
    """

    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def init_engine_seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases if phase.name in _ENGINE_PHASES)

    @property
    def in_container_seconds(self) -> float:
        """What the startup probe has to wait for."""
        return sum(phase.seconds for phase in self.phases if phase.name not in _OUTSIDE_CONTAINER)


@dataclass(frozen=True)
class CacheState:
    """What is there already: the image on the node, weights on the volume, weights in the node's page cache, and the
    compile cache (torch.compile's and Triton's) of exactly these settings."""

    image: bool
    weights: bool
    page_cache: bool
    compile_cache: bool


COLD = CacheState(image=False, weights=False, page_cache=False, compile_cache=False)
IMAGE_THERE = CacheState(image=True, weights=False, page_cache=False, compile_cache=False)
WEIGHTS_THERE = CacheState(image=True, weights=True, page_cache=True, compile_cache=False)
WARM = CacheState(image=True, weights=True, page_cache=True, compile_cache=True)


@cache
def figures(section: str) -> Mapping[str, Any]:
    """One section of ``data/startup.json``: figures by name, each with its source."""
    document = json.loads((resources.files("planner") / "data" / "startup.json").read_text(encoding="utf-8"))
    chosen: dict[str, Any] = document[section]
    return chosen


def _figure(name: str) -> float:
    return float(figures("startup")[name]["value"])


def _on(pool: PoolSpec, name: str) -> float:
    """A figure of the start on what the pool computes on."""
    return float(figures("cpuStartup" if pool.kind == "cpu" else "startup")[name]["value"])


def downloads_in_container(service: ServiceSpec) -> bool:
    """Whether the server itself fetches weights: an offline one cannot, a seed Job has done it before."""
    return not service.offline and not service.cache.seed.enabled


def pull_seconds(release: Release, pool: PoolSpec) -> float:
    """Pulling and unpacking the image on one node, seconds."""
    return release.image_bytes / (pool.rates.registry_mb_per_second * 1e6)


def on_the_nodes(pool: PoolSpec) -> bool:
    """Whether a node has the image when it starts: in its AMI, or on a volume from a snapshot."""
    return pool.image_delivery in {"bakedImage", "snapshot"}


def download_seconds(facts: ModelFacts, pool: PoolSpec) -> float:
    """Downloading the weights from the hub, seconds."""
    return facts.weight_bytes / (pool.rates.hub_mb_per_second * 1e6)


def read_seconds(facts: ModelFacts, pool: PoolSpec, *, page_cache: bool) -> float:
    """Reading the weights into their place, seconds: from the volume, or from the page cache of the node."""
    disk = facts.weight_bytes / (pool.rates.disk_mb_per_second * 1e6)
    memory = facts.weight_bytes / _on(pool, "pageCacheBytesPerSecond")
    return memory if page_cache else max(disk, memory)


def _before_engine(
    facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec, state: CacheState
) -> list[Phase]:
    rates = pool.rates
    image = "on the node" if state.image else f"{release.image_bytes:,} B at {rates.registry_mb_per_second:g} MB/s"
    weights = f"{facts.weight_bytes:,} B"
    # What was downloaded a moment ago is still in the page cache.
    fresh = state.page_cache or not state.weights
    # On CPUs the worker is a process of its own even when it is the only one (`vllm/platforms/cpu.py`).
    several = service.gpus > 1 or pool.kind == "cpu"
    start = _on(pool, "processStart") + (_figure("workerStart") if service.gpus > 1 else 0.0)
    imported = "API server, EngineCore" + (", workers" if several else "")
    if pool.kind == "cpu" and not state.compile_cache:
        # What that process finds out is kept beside the compile cache; on cards it is part of the measured import.
        start, imported = start + _on(pool, "inspectModel"), f"{imported}, a look at the model's class"
    return [
        Phase("node", 0.0, "the pool's nodes are there"),
        Phase("image", 0.0 if state.image else pull_seconds(release, pool), image),
        Phase("sandbox", _figure("sandbox"), "scheduling, volumes, network"),
        Phase("import", start, imported),
        Phase(
            "download",
            0.0 if state.weights else download_seconds(facts, pool),
            "on the volume" if state.weights else f"{weights} at {rates.hub_mb_per_second:g} MB/s",
        ),
        Phase(
            "read",
            read_seconds(facts, pool, page_cache=fresh),
            f"{weights} from " + ("the page cache" if fresh else f"the volume at {rates.disk_mb_per_second:g} MB/s"),
        ),
    ]


def _engine(facts: ModelFacts, settings: Settings, state: CacheState) -> list[Phase]:
    profile = Phase("profile", _figure("profile"), "profile run, KV cache, warm-up")
    missed = not state.compile_cache
    if not settings.compiles:
        kernels = _figure("firstKernelsEager") if missed else 0.0
        return [
            profile,
            Phase("compile", 0.0, "off: eager"),
            Phase("kernels", kernels, "kernels built at first use" if missed else "kernel cache found"),
            Phase("graphs", 0.0, "off: eager"),
        ]
    trace = _figure("traceEachLayer") * facts.layers
    first = next(entry for entry in figures("startup")["firstKernels"] if entry["runner"] == settings.runner)["value"]
    return [
        profile,
        Phase(
            "compile",
            trace + (_figure("compileGraph") if missed else 0.0),
            f"trace of {facts.layers} layers" + (", compile" if missed else ", compile cache found"),
        ),
        Phase("kernels", first if missed else 0.0, "kernels built at first use" if missed else "kernel cache found"),
        Phase(
            "graphs",
            _figure("captureEachLayer") * facts.layers * settings.captures,
            f"{settings.captures} graphs of {facts.layers} layers",
        ),
    ]


def _cpu_engine(facts: ModelFacts, service: ServiceSpec, settings: Settings, state: CacheState) -> list[Phase]:
    """No graphs are recorded on CPUs, and no kernels are built besides what the compiler makes.

    Every start traces the model, layer by layer: on CPUs the whole of it is one graph (`vllm/platforms/cpu.py`).
    """
    cpu = {name: entry["value"] for name, entry in figures("cpuStartup").items()}
    missed = not state.compile_cache
    compiling = cpu["traceEachLayer"] * facts.layers + cpu["compileGraph" if missed else "loadCompiled"]
    said = f"trace of {facts.layers} layers, " + ("C++ compiler" if missed else "compiled code found")
    # Eager with a KV cache of a given size: nothing to compile, nothing to measure (`v1/worker/cpu_worker.py`).
    warm_up = settings.compiles or fixed_kv_mib(service, settings) is None
    return [
        Phase("profile", cpu["profile"], "warm-up, KV cache" if warm_up else "KV cache"),
        Phase("compile", compiling if settings.compiles else 0.0, said if settings.compiles else "off: eager"),
        Phase("kernels", 0.0, "none on CPUs"),
        Phase("graphs", 0.0, "none on CPUs"),
    ]


def plan_startup(  # noqa: PLR0917 - five facts of every plan, and the caches
    device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec, state: CacheState
) -> StartupPlan:
    """The expected start with these caches, in seconds for each phase."""
    settings = settings_of(device, facts, release, service)
    on_cpus = isinstance(device, Cpu)
    engine = _cpu_engine(facts, service, settings, state) if on_cpus else _engine(facts, settings, state)
    return StartupPlan((*_before_engine(facts, release, service, pool, state), *engine))


def cold_start(
    device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec
) -> StartupPlan:
    """The first start of all: nothing is cached but an image that nodes start with.

    The pull of a DaemonSet counts as the pull, the download of the seed Job as the download.
    """
    return plan_startup(device, facts, release, service, pool, IMAGE_THERE if on_the_nodes(pool) else COLD)


def warm_restart(
    device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec
) -> StartupPlan:
    """A restart with every cache in place; with the stop of the old pod it is the downtime of a change."""
    return plan_startup(device, facts, release, service, pool, WARM)


@dataclass(frozen=True)
class ColdStartStep:
    """A start with one cache more than the step before: ``there`` is what was added."""

    there: str
    start: StartupPlan


def cold_start_steps(
    device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec
) -> tuple[ColdStartStep, ...]:
    """What each cache saves: starts from nothing to everything, the last with the stack's own graph sizes.

    Each row keeps what the rows above have. A stack that records the release's own graph sizes, or none, has no
    last row. "nothing" is without the image also where nodes start with it: the next row then says what that is worth.
    """
    sizes = service.engine.cudagraph_capture_sizes
    engine = service.engine.model_copy(update={"cudagraph_capture_sizes": None})
    states = {
        "nothing": COLD,
        "image on the node": IMAGE_THERE,
        "weights on the claim": WEIGHTS_THERE,
        "compile cache on the claim": WARM,
    }
    given = (device, facts, release, service.model_copy(update={"engine": engine}), pool)
    steps = [ColdStartStep(there, plan_startup(*given, state)) for there, state in states.items()]
    if sizes is not None and not service.engine.enforce_eager and isinstance(device, Gpu):
        last = warm_restart(device, facts, release, service, pool)
        steps.append(ColdStartStep(f"graphs of {len(sizes)} sizes", last))
    return tuple(steps)


def worst_credible(device: Device, facts: ModelFacts, release: Release, service: ServiceSpec, pool: PoolSpec) -> float:
    """The longest start inside the container that is still healthy, seconds.

    Everything that can be cold there is: page cache, compile cache, and the weights where the server itself downloads
    them; reading is slower than planned by ``readFactor``, all of it by the factor ``uncertainty`` (its reason is in
    ``data/startup.json``).
    """
    downloads = downloads_in_container(service)
    state = CacheState(image=True, weights=not downloads, page_cache=False, compile_cache=False)
    plan = plan_startup(device, facts, release, service, pool, state)
    slower = (_figure("readFactor") - 1) * read_seconds(facts, pool, page_cache=False)
    return _figure("uncertainty") * (plan.in_container_seconds + slower)
