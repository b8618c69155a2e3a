"""Everything the planner says about one service, computed once and used by preview, rules and objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.arguments import render, server_environment
from planner.clocks import Clocks, engine_patience, plan_clocks
from planner.cpu_memory import plan_cpu_memory
from planner.findings import Finding
from planner.gpus import Cpu, Device, UnknownGpuError, device_of
from planner.memory import MemoryPlan, plan_memory
from planner.models import ModelFacts, UnknownModelError, facts
from planner.releases import Release, UnknownReleaseError, release_of
from planner.spec import PoolSpec, ServiceSpec, gibibytes
from planner.startup import ColdStartStep, StartupPlan, cold_start, cold_start_steps, warm_restart

SHARED_MEMORY_GIB = 8
"""Size of /dev/shm where the memory limit leaves room for it."""
SHARED_MEMORY_SHARE = 0.25
"""Most of the memory limit that /dev/shm takes unless the stack says more."""


@dataclass(frozen=True)
class ServicePlan:
    """One service as the planner sees it."""

    name: str
    service: ServiceSpec
    pool: PoolSpec
    gpu: Device
    """The card, or the CPUs of a node."""
    model: ModelFacts
    release: Release
    memory: MemoryPlan
    cold: StartupPlan
    """The first start of all, with nothing cached but an image that nodes start with."""
    warm: StartupPlan
    """A restart with every cache in place."""
    steps: tuple[ColdStartStep, ...]
    """What lies between the two, cache by cache."""
    clocks: Clocks
    argv: tuple[str, ...]
    shared_memory: str
    """Size of /dev/shm, a Kubernetes quantity."""
    cpu: str
    """CPUs that are reserved, a Kubernetes quantity."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the server's container except secrets; what the stack file says itself wins."""
        settings = server_environment(self.service, self.pool.kind)
        return {**settings, **engine_patience(self.release, self.clocks), **self.service.env}

    @property
    def away_seconds(self) -> float:
        """How long a change takes one replica away: the old server's stop and a warm start.

        The start counts from the pod's creation; a change that leaves the compile cache cold takes longer.
        """
        return self.clocks.drain_seconds + self.warm.seconds

    @property
    def downtime_seconds(self) -> float:
        """How long a change leaves the service without a server: several replicas go one after the other."""
        return self.away_seconds if self.service.replicas == 1 else 0.0

    @property
    def dollars_per_hour(self) -> float | None:
        """Price of the GPUs that all replicas hold, as a share of their nodes; ``None`` without a price."""
        price = self.pool.price_per_hour
        if price is None:
            return None
        return price / self.pool.gpus_per_node * self.service.gpus * self.service.replicas


def plan_services(
    nodes: Mapping[str, PoolSpec], services: Mapping[str, ServiceSpec]
) -> tuple[dict[str, ServicePlan], list[Finding]]:
    """The plan of each service that can be planned, and why the others cannot."""
    plans: dict[str, ServicePlan] = {}
    findings: list[Finding] = []
    for name, service in services.items():
        unknown = _unknown(name, service, nodes[service.pool])
        findings += unknown
        if not unknown:
            plans[name] = plan_service(name, service, nodes[service.pool])
    return plans, findings


def plan_service(name: str, service: ServiceSpec, pool: PoolSpec) -> ServicePlan:
    """Plan one service.

    Raises:
        UnknownGpuError, UnknownModelError, UnknownReleaseError: something that the tables lack.
    """
    gpu, model, release = device_of(pool), facts(service.model.id), release_of(service.image)
    return ServicePlan(
        name=name,
        service=service,
        pool=pool,
        gpu=gpu,
        model=model,
        release=release,
        memory=memory_of(gpu, model, release, service),
        cold=cold_start(gpu, model, release, service, pool),
        warm=warm_restart(gpu, model, release, service, pool),
        steps=cold_start_steps(gpu, model, release, service, pool),
        clocks=plan_clocks(gpu, model, release, service, pool),
        argv=render(service, release),
        shared_memory=shared_memory(service),
        cpu=service.resources.cpu or str(2 + service.gpus),
    )


def memory_of(device: Device, model: ModelFacts, release: Release, service: ServiceSpec) -> MemoryPlan:
    """The division of a card's memory, or of the container's where there is no card."""
    if isinstance(device, Cpu):
        return plan_cpu_memory(device, model, release, service)
    return plan_memory(device, model, release, service)


def shared_memory(service: ServiceSpec) -> str:
    """Size of /dev/shm: what the stack says, else 8Gi, or a quarter of a memory limit below 32Gi."""
    wanted = service.resources.shared_memory
    if wanted is not None:
        return wanted
    room = gibibytes(service.resources.memory_limit) * SHARED_MEMORY_SHARE
    return f"{SHARED_MEMORY_GIB}Gi" if room >= SHARED_MEMORY_GIB else f"{int(room * 1024)}Mi"


def _unknown(name: str, service: ServiceSpec, pool: PoolSpec) -> list[Finding]:
    """What the tables lack; each error's message says what there is and how to add to it."""
    lookups = (
        (f"vllm:nodes.{service.pool}.gpu", "GPU-UNKNOWN", "planner/data/gpus.json", lambda: device_of(pool)),
        (f"vllm:services.{name}.model.id", "MODEL-UNKNOWN", "planner/data/models", lambda: facts(service.model.id)),
        (
            f"vllm:services.{name}.image.tag",
            "RELEASE-UNKNOWN",
            "planner/data/releases",
            lambda: release_of(service.image),
        ),
    )
    found = []
    for path, rule, source, lookup in lookups:
        try:
            lookup()
        except (UnknownGpuError, UnknownModelError, UnknownReleaseError) as error:
            message, _, remedy = str(error).partition("; ")
            found.append(Finding("error", path, message, remedy or "a release between those", rule, source))
    return found
