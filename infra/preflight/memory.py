"""Rules about the memory of cards and of the host."""

from __future__ import annotations

import math
from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule
from planner.capability import host_memory_gib
from planner.memory import MemoryPlan
from planner.spec import gibibytes

ROOMY_SHARED_MEMORY_GIB = 8
"""NCCL and multi-process workers exchange tensors through /dev/shm (vllm#1710)."""


@rule("MEM-1", "https://github.com/kaito-project/kaito/issues/2132")
def context_fits(subject: ServiceSubject) -> Iterator[Said]:
    """vLLM ends at start when one request of full length does not fit into the KV cache."""
    memory = subject.plan.memory
    if subject.plan.pool.kind == "cpu":
        yield from _context_fits_on_cpus(memory)
        return
    if memory.fits == "yes":
        return
    utilization = memory.utilization_that_fits
    other = f", or gpuMemoryUtilization {utilization:.2f}" if utilization is not None else ""
    remedy = f"engine.maxModelLen at most {memory.largest_context}{other}"
    if memory.largest_context <= 0:
        remedy = f"a larger card, a quantised model, or more GPUs{other}"
    yield Said(
        "warn" if memory.fits == "within band" else "error",
        "engine.maxModelLen",
        f"{memory.max_model_len} tokens, and the KV cache holds {memory.kv_tokens} "
        f"({memory.kv_mib / 1024:.2f} GiB, ± {memory.band_mib / 1024:.2f} GiB)",
        remedy,
    )


def _context_fits_on_cpus(memory: MemoryPlan) -> Iterator[Said]:
    """The KV cache's size is given, or a share of the limit; whether all of it fits there is MEM-LIMIT's question."""
    if memory.kv_mib >= memory.needed_mib:
        return
    larger = f"engine.cpuKvCacheSpace: {max(1, math.ceil(memory.needed_mib / 1024))}"
    shorter = f", or engine.maxModelLen at most {memory.largest_context}" if memory.largest_context > 0 else ""
    message = (
        f"{memory.max_model_len} tokens, and the KV cache holds {memory.kv_tokens} ({memory.kv_mib / 1024:.2f} GiB)"
    )
    yield Said("error", "engine.maxModelLen", message, larger + shorter)


@rule("MEM-UNKNOWN", "https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/")
def layout_is_known(subject: ServiceSubject) -> Iterator[Said]:
    """A layout that the planner does not know makes its memory figures uncertain."""
    for unknown in subject.plan.memory.unknown:
        yield Said("warn", "model.id", f"the plan does not know: {unknown}", "compare the plan with the server's log")


@rule("MEM-5", "https://github.com/kubernetes/kubernetes/issues/85360")
def shared_memory_is_inside_the_limit(subject: ServiceSubject) -> Iterator[Said]:
    """What is written to /dev/shm counts as memory of the container."""
    plan = subject.plan
    limit = plan.service.resources.memory_limit
    if gibibytes(plan.shared_memory) >= gibibytes(limit):
        yield Said(
            "error",
            "resources.sharedMemory",
            f"{plan.shared_memory} is counted inside the memory limit of {limit}",
            f"less than {limit}, or a larger memoryLimit",
        )


@rule("MEM-5", "https://github.com/vllm-project/vllm/issues/28923")
def host_memory_holds_the_weights(subject: ServiceSubject) -> Iterator[Said]:
    """Weights that are read are page cache of the container; a limit below them makes loading slow, or ends it."""
    plan = subject.plan
    if plan.pool.kind == "cpu":
        return  # there the weights are not page cache but the container's own: MEM-LIMIT
    shared = gibibytes(plan.shared_memory) if plan.service.gpus > 1 else 0.0
    needed = host_memory_gib(plan.model, plan.service, shared)
    limit = plan.service.resources.memory_limit
    if gibibytes(limit) < needed:
        weights = plan.model.weight_bytes / 1024**3
        yield Said(
            "warn",
            "resources.memoryLimit",
            f"{limit}, and processes and {weights:.1f} GiB of weights come to about {needed:.0f} GiB: "
            "weights are read from disk again, and a loader that copies them ends with OOMKilled",
            f"{math.ceil(needed)}Gi or more (host RAM, not GPU memory)",
        )


@rule("MEM-ORDER", "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/")
def request_is_below_the_limit(subject: ServiceSubject) -> Iterator[Said]:
    """Kubernetes refuses a pod that reserves more memory than it may use."""
    wanted = subject.plan.service.resources
    if wanted.memory is not None and gibibytes(wanted.memory) > gibibytes(wanted.memory_limit):
        yield Said(
            "error",
            "resources.memory",
            f"{wanted.memory} is more than the limit of {wanted.memory_limit}",
            f"at most {wanted.memory_limit}",
        )


@rule("NET-1", "https://github.com/vllm-project/vllm/issues/1710")
def shared_memory_is_roomy(subject: ServiceSubject) -> Iterator[Said]:
    """Tensor parallelism exchanges data through /dev/shm and fails when it is small."""
    plan = subject.plan
    if plan.service.gpus > 1 and gibibytes(plan.shared_memory) < ROOMY_SHARED_MEMORY_GIB:
        tiny = gibibytes(plan.shared_memory) < 1
        yield Said(
            "error" if tiny else "warn",
            "resources.sharedMemory",
            f"{plan.shared_memory} for {plan.service.gpus} {'GPUs' if plan.pool.kind == 'gpu' else 'workers'}",
            f"{ROOMY_SHARED_MEMORY_GIB}Gi or more",
        )


RULES = (
    context_fits,
    layout_is_known,
    shared_memory_is_inside_the_limit,
    host_memory_holds_the_weights,
    request_is_below_the_limit,
    shared_memory_is_roomy,
)
