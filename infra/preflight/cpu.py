"""Rules about pools of kind `cpu`: what a server on CPUs needs, and settings that mean something on cards only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from infra.preflight.rule import Said, ServiceSubject, StackSubject, rule
from planner import capability
from planner.arguments import KV_SPACE
from planner.capability import capabilities
from planner.cpu_memory import GIB, fixed_kv_mib, reads_kv_bytes, workers_of
from planner.memory import MIB, settings_of
from planner.plan import ServicePlan
from planner.spec import CPU

INSTALLATION = "https://docs.vllm.ai/en/latest/getting_started/installation/cpu/"
WORKER = "https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/cpu_worker.py"
ATTENTION = "https://github.com/vllm-project/vllm/blob/main/vllm/v1/attention/backends/cpu_attn.py"
LIMITS = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#how-pods-with-resource-limits-are-run"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
SLEEP_MODE = "--enable-sleep-mode"


@rule("CPU-IMAGE", INSTALLATION)
def image_computes_on_what_the_pool_has(subject: ServiceSubject) -> Iterator[Said]:
    """The image for cards finds no device on CPUs and ends; the one for CPUs leaves a card idle."""
    plan = subject.plan
    image, kind = plan.service.image, capability.runs_on(plan.service.image)
    if kind == "gpu" and plan.pool.kind == "cpu":
        message = f"{image.repository} is built for cards, and the nodes of {plan.service.pool!r} have none"
        yield Said("error", "image.repository", message, _official("cpu"))
    elif kind == "cpu" and plan.pool.kind == "gpu":
        message = f"{image.repository} computes on CPUs, and the cards of {plan.service.pool!r} would idle"
        yield Said("warn", "image.repository", message, f"{_official('gpu')}, or a pool with gpu: {CPU}")


def _official(kind: str) -> str:
    repositories: Mapping[str, str] = capabilities()["officialImages"]["repositories"]
    return next(name for name, computes_on in repositories.items() if computes_on == kind)


@rule("CPU-POOL", INSTALLATION)
def pool_says_nothing_about_cards(subject: StackSubject) -> Iterator[Said]:
    """Nodes without cards have no card to describe, no driver, and no device to claim."""
    for name, pool in subject.config.nodes.items():
        if pool.kind == "gpu":
            continue
        if pool.declared_gpu is not None:
            message = f"describes a card, and gpu: {CPU} says that the nodes have none"
            yield Said("error", f"nodes.{name}.declaredGpu", message, "leave it out, or give the card another name")
        if pool.allocation == "dra":
            message = f"dra, and a pool of kind {CPU} has no device to claim"
            yield Said("error", f"nodes.{name}.allocation", message, "leave it out")
        if pool.eks is not None:
            message = f"makes nodes with NVIDIA's AMI, which a pool of kind {CPU} has no use for"
            yield Said("error", f"nodes.{name}.eks", message, "nodes that are there already, and no eks")
        if pool.driver is not None:
            message = f"{pool.driver} has no effect: there is no card that it drives"
            yield Said("warn", f"nodes.{name}.driver", message, "leave it out")


@rule("CPU-KV", WORKER)
def kv_cache_space_is_for_cpus(subject: ServiceSubject) -> Iterator[Said]:
    """The setting and its variable are read on CPUs only, and they are the same thing."""
    plan = subject.plan
    space = plan.service.engine.cpu_kv_cache_space
    if KV_SPACE in plan.service.env:
        yield Said("error", f"env.{KV_SPACE}", "is rendered from a setting", "engine.cpuKvCacheSpace, whole GiB")
    if space is not None and plan.pool.kind == "gpu":
        message = f"{space} GiB, and {plan.service.pool!r} has cards: the KV cache is on them"
        remedy = "engine.gpuMemoryUtilization or engine.kvCacheMemoryBytes"
        yield Said("error", "engine.cpuKvCacheSpace", message, remedy)


@rule("CPU-KV", WORKER)
def kv_cache_is_sized_in_one_way(subject: ServiceSubject) -> Iterator[Said]:
    """On CPUs a size that is given wins over every share, and older releases read the variable only."""
    plan = subject.plan
    if plan.pool.kind == "gpu":
        return
    engine = plan.service.engine
    space, size, share = engine.cpu_kv_cache_space, engine.kv_cache_memory_bytes, engine.gpu_memory_utilization
    heeded = reads_kv_bytes(settings_of(plan.gpu, plan.model, plan.release, plan.service))
    given = {"kvCacheMemoryBytes": size, "gpuMemoryUtilization": share}
    for field, value in given.items():
        if value is None:
            continue
        if not heeded:
            message = f"{value} has no effect on CPUs in vLLM {plan.release.version}"
            yield Said("warn", f"engine.{field}", message, "engine.cpuKvCacheSpace")
        elif space is not None or (field == "gpuMemoryUtilization" and size is not None):
            other = f"cpuKvCacheSpace says {space} GiB" if space is not None else f"kvCacheMemoryBytes says {size}"
            yield Said("warn", f"engine.{field}", f"{value} has no effect: {other}", "keep one of them")


@rule("MEM-LIMIT", LIMITS)
def container_holds_weights_and_kv_cache(subject: ServiceSubject) -> Iterator[Said]:
    """On CPUs weights and KV cache are memory of the container, and the kernel kills it at its limit."""
    plan = subject.plan
    memory = plan.memory
    if plan.pool.kind == "gpu" or memory.used_mib + memory.band_mib <= memory.limit_mib:
        return
    certain = memory.used_mib - memory.band_mib > memory.limit_mib
    workers = workers_of(plan.service, settings_of(plan.gpu, plan.model, plan.release, plan.service))
    each = f"{workers} x " if workers > 1 else ""
    kv = memory.kv_mib / GIB
    end = "it does not start, or ends with OOMKilled" if certain else "it may end with OOMKilled"
    yield Said(
        "error" if certain else "warn",
        "resources.memoryLimit",
        f"{plan.service.resources.memory_limit}, and the container takes about {memory.used_mib / GIB:.1f} GiB: {each}"
        f"({memory.weights_mib / GIB:.1f} of weights, {kv:.1f} of KV cache, "
        f"{(memory.activations_mib + memory.overhead_mib) / GIB:.1f} to compute) and {memory.context_mib / GIB:.1f} of "
        f"other processes: {end}",
        f"{math.ceil((memory.used_mib + memory.band_mib) / GIB)}Gi or more, or a smaller engine.cpuKvCacheSpace",
    )


@rule("MEM-CACHE", "https://github.com/vllm-project/vllm/blob/main/vllm/utils/cpu_resource_utils.py")
def files_that_were_read_leave_room(subject: ServiceSubject) -> Iterator[Said]:
    """The engine takes the container's page cache for used memory, and what it has just read is in there."""
    plan = subject.plan
    memory, files = plan.memory, plan.model.weight_bytes / MIB
    free = memory.limit_mib - memory.used_mib
    if plan.pool.kind == "gpu" or free < memory.band_mib or free >= files:
        return  # too small by itself: MEM-LIMIT
    if reads_kv_bytes(settings_of(plan.gpu, plan.model, plan.release, plan.service)):
        yield Said(
            "warn",
            "resources.memoryLimit",
            f"{plan.service.resources.memory_limit} leaves {free / GIB:.1f} GiB, and {files / GIB:.1f} GiB of files "
            "that were just read count as taken: vLLM may end with `less than requested memory for kv`",
            f"{math.ceil((memory.used_mib + files) / GIB)}Gi or more",
        )


@rule("MEM-START", WORKER)
def share_is_free_at_the_start(subject: ServiceSubject) -> Iterator[Said]:
    """A share of the limit must be free when the worker starts, and the other processes have taken theirs by then."""
    plan = subject.plan
    memory = plan.memory
    if plan.pool.kind == "gpu":
        return
    settings = settings_of(plan.gpu, plan.model, plan.release, plan.service)
    if fixed_kv_mib(plan.service, settings) is not None or not reads_kv_bytes(settings):
        return
    taken = memory.context_mib + memory.overhead_mib
    if memory.requested_mib <= memory.limit_mib - taken:
        return
    asked = plan.service.engine.gpu_memory_utilization
    said = f"{asked:g}" if asked else f"is not set, so {memory.utilization:g}"
    yield Said(
        "error",
        "engine.gpuMemoryUtilization",
        f"{said} of {plan.service.resources.memory_limit} is {memory.requested_mib / GIB:.1f} GiB, and processes have "
        f"{taken / GIB:.1f} GiB before it is looked for: vLLM ends with `less than desired CPU memory utilization`",
        f"engine.cpuKvCacheSpace: {_space(plan)}, which asks for no share",
    )


def _space(plan: ServicePlan) -> int:
    """Whole GiB of KV cache for one request of full length."""
    return max(1, math.ceil(plan.memory.needed_mib / GIB))


@rule("CPU-SETTINGS", ATTENTION)
def settings_are_for_cpus(subject: ServiceSubject) -> Iterator[Said]:
    """Some settings do nothing on CPUs, some end the server, and of some nobody knows."""
    plan = subject.plan
    engine, known = plan.service.engine, capabilities()["cpus"]
    if plan.pool.kind == "gpu":
        return
    if engine.cudagraph_capture_sizes is not None:
        yield Said("warn", "engine.cudagraphCaptureSizes", "has no effect: CPUs record no graphs", "leave it out")
    if engine.kv_cache_dtype not in {None, *known["kvCacheTypes"]}:
        message = f"{engine.kv_cache_dtype}, and the attention of CPUs takes {', '.join(known['kvCacheTypes'])}"
        yield Said("warn", "engine.kvCacheDtype", message, "leave it out")
    if engine.block_size is not None and engine.block_size % known["blockSizeMultiple"]:
        message = f"{engine.block_size} is no multiple of {known['blockSizeMultiple']}, which the CPUs' attention wants"
        yield Said("warn", "engine.blockSize", message, "leave it out")
    if plan.model.kv_lora_rank is None and plan.model.head_dim not in known["headSizes"]:
        message = (
            f"heads of {plan.model.head_dim}, and the attention of CPUs takes {', '.join(map(str, known['headSizes']))}"
        )
        yield Said("warn", "model.id", message, "try it before it is rolled out")
    method = capability.quantization_method(plan.model, plan.service)
    if method is not None and method not in known["quantization"]:
        path = "engine.quantization" if engine.quantization else "model.id"
        message = f"whether {method} has kernels for CPUs is not known"
        yield Said("warn", path, message, f"known: {', '.join(known['quantization'])}")


@rule("CPU-SLEEP", "https://github.com/vllm-project/vllm/blob/main/vllm/config/model.py")
def server_does_not_sleep(subject: ServiceSubject) -> Iterator[Said]:
    """Sleep mode is refused at the start on CPUs."""
    words = subject.plan.service.engine.extra_args
    if subject.plan.pool.kind == "cpu" and SLEEP_MODE in words:
        message = f"{SLEEP_MODE}: vLLM ends with `Sleep mode is not supported on current platform`"
        yield Said("error", f"engine.extraArgs[{words.index(SLEEP_MODE)}]", message, "leave it out")


@rule("CPU-BIND", INSTALLATION)
def servers_have_cores_of_their_own(subject: StackSubject) -> Iterator[Said]:
    """A server binds its threads to the first cores that it sees, and it sees all of the node, whatever it reserves."""
    for name, pool in subject.config.nodes.items():
        users = {key: service for key, service in subject.config.services.items() if service.pool == name}
        workers = sum(service.gpus * service.replicas for service in users.values())
        bound = [key for key, service in users.items() if BINDING not in service.env]
        if pool.kind == "cpu" and workers > pool.nodes and bound:
            message = (
                f"is not set, and {workers} workers on {pool.nodes} node(s) would bind their threads to the same cores"
            )
            remedy = "nobind with OMP_NUM_THREADS, cores by number, or the kubelet's static CPU manager"
            yield Said("warn", f"services.{bound[0]}.env.{BINDING}", message, remedy)


@rule("CPU-NUMA", INSTALLATION)
def workers_have_a_numa_node_each(subject: ServiceSubject) -> Iterator[Said]:
    """Several workers of one server are bound to one NUMA node each, and a node that has fewer refuses them."""
    plan = subject.plan
    workers = workers_of(plan.service, settings_of(plan.gpu, plan.model, plan.release, plan.service))
    if plan.pool.kind == "cpu" and workers > 1 and BINDING not in plan.service.env:
        message = f"{workers} workers need {workers} NUMA nodes, and how many a node has is not known"
        yield Said("warn", "gpus", message, f"`lscpu` on the node; cores by number in env.{BINDING} need none")


STACK_RULES = (pool_says_nothing_about_cards, servers_have_cores_of_their_own)
RULES = (
    image_computes_on_what_the_pool_has,
    kv_cache_space_is_for_cpus,
    kv_cache_is_sized_in_one_way,
    container_holds_weights_and_kv_cache,
    files_that_were_read_leave_room,
    share_is_free_at_the_start,
    settings_are_for_cpus,
    server_does_not_sleep,
    workers_have_a_numa_node_each,
)
