"""Rules about claims and volumes, from the stack file alone."""

from __future__ import annotations

from collections.abc import Iterator

from components import naming
from components.placement import is_pinned
from infra.preflight.rule import Said, ServiceSubject, StackSubject, rule
from planner import caches
from planner.capability import unpacked_image_bytes
from planner.plan import ServicePlan
from planner.spec import ExistingClaimCache, HostPathCache, gibibytes

WEIGHTS_MARGIN = 1.15
"""The hub's cache needs more than the weights: tokenizer, other files, the file being written (llm-d#857)."""

SCRATCH_GIB = 6
"""Limit of one server's writes to the node's disk (components/vllm_server.py), GiB."""
ATOMIC_SINCE_TORCH = (2, 10)
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@rule("STO-HOSTPATH", "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath")
def folder_is_on_one_node(subject: ServiceSubject) -> Iterator[Said]:
    """A node's folder is on that node only, so the service must run there."""
    cache = subject.plan.service.cache
    pinned = is_pinned(subject.plan.pool, subject.plan.service)
    if isinstance(cache, HostPathCache) and not pinned and subject.plan.pool.nodes > 1:
        yield Said(
            "error",
            "cache.node",
            f"is not set, and the pool {subject.plan.service.pool!r} has {subject.plan.pool.nodes} nodes",
            "name the node that has the folder (the volume then carries its node affinity), or use a storage class",
        )


@rule("STO-FOLDER", "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath")
def folder_has_no_quota(subject: ServiceSubject) -> Iterator[Said]:
    """A folder must be made by hand, and its size is not limited by what the volume says."""
    cache = subject.plan.service.cache
    if isinstance(cache, HostPathCache):
        yield Said(
            "info",
            "cache.path",
            f"{cache.path} must exist on the node; {cache.size} is only what volume and claim are matched by",
            f"on the node: sudo mkdir -p {cache.path}",
        )


@rule("STO-2", "https://github.com/llm-d/llm-d/issues/857")
def claim_holds_the_weights(subject: ServiceSubject) -> Iterator[Said]:
    """A claim that is smaller than the weights fails in the middle of the download."""
    cache = subject.plan.service.cache
    if isinstance(cache, ExistingClaimCache):
        return
    needed = subject.plan.model.weight_bytes * WEIGHTS_MARGIN / 1024**3
    if gibibytes(cache.size) < needed:
        yield Said(
            # A folder is not limited by the number, so there it does not stop anything.
            "warn" if isinstance(cache, HostPathCache) else "error",
            "cache.size",
            f"{cache.size} is less than the weights of {subject.plan.model.id} need: {needed:.1f} GiB",
            f"at least {int(needed) + 1}Gi",
        )


@rule("STO-4", "https://github.com/llm-d/llm-d/issues/485")
def folder_belongs_to_the_user(subject: ServiceSubject) -> Iterator[Said]:
    """Kubernetes cannot change the owner of a node's folder, so another user cannot write it."""
    cache, user = subject.plan.service.cache, subject.plan.service.security.run_as_user
    if isinstance(cache, HostPathCache) and user is not None and cache.owner != user:
        yield Said(
            "error",
            "cache.owner",
            f"is {cache.owner or 'not set'}, and the server runs as user {user}: it could not write {cache.path}",
            f"on the node: sudo chown -R {user}:{user} {cache.path}; then cache.owner: {user}",
        )


@rule("STO-1", "https://github.com/vllm-project/production-stack/issues/107")
def replicas_have_a_cache_each(subject: ServiceSubject) -> Iterator[Said]:
    """A ReadWriteOnce claim is mounted by one node at a time: replicas on others wait for it for ever."""
    service, pool = subject.plan.service, subject.plan.pool
    cache = service.cache
    if not isinstance(cache, ExistingClaimCache) or cache.access_mode == "ReadWriteMany":
        return
    if service.replicas > 1 and pool.nodes > 1:
        message = f"is ReadWriteOnce, and {service.replicas} replicas on {pool.nodes} nodes share the claim"
        remedy = "ReadWriteMany if the claim is, or kind storageClass: each replica then has a claim of its own"
        yield Said("error", "cache.accessMode", f"{message} {cache.claim_name!r}", remedy)


@rule("STO-2", "https://github.com/vllm-project/vllm/issues/17163")
def disk_holds_the_images(subject: StackSubject) -> Iterator[Said]:
    """An update keeps the old image while the new one is unpacked; a full disk evicts the node's pods."""
    for name, pool in subject.config.nodes.items():
        images = [unpacked_image_bytes(plan.release) for plan in subject.plans.values() if plan.service.pool == name]
        if pool.disk is None or not images:
            continue
        gib = max(images) / 1024**3
        needed = 2 * gib + SCRATCH_GIB * pool.gpus_per_node
        if gibibytes(pool.disk) < needed:
            message = f"{pool.disk}; two unpacked images of about {gib:.0f} GiB and scratch space need {needed:.0f} GiB"
            yield Said("warn", f"nodes.{name}.disk", message, f"{int(needed) + 1}Gi or more")


@rule("STO-5", "https://github.com/NovaSky-AI/SkyRL/pull/2138")
def compile_caches_are_apart(subject: StackSubject) -> Iterator[Said]:
    """Two engines that write one compile cache have broken it before torch 2.10."""
    seen: dict[tuple[str, ...], ServicePlan] = {}
    for name, plan in subject.plans.items():
        place = _compile_cache(name, plan)
        other = seen.setdefault(place, plan)
        if other is plan:
            continue
        atomic = _torch(plan) >= ATOMIC_SINCE_TORCH
        message = f"services.{other.name} writes its compile cache to the same place: {'/'.join(place)}"
        said = "its writes are atomic, and a broken entry is still shared" if atomic else "it can be left broken"
        remedy = "another cache.path" if isinstance(plan.service.cache, HostPathCache) else "a claim of its own"
        yield Said("info" if atomic else "warn", f"services.{name}.cache", f"{message}; {said}", remedy)


def _compile_cache(name: str, plan: ServicePlan) -> tuple[str, ...]:
    """Where the compile cache of a service's first replica is: the volume, and the folder in it."""
    cache = plan.service.cache
    key = caches.compile_cache_key(plan.service.image, plan.gpu.name, 0)
    if isinstance(cache, HostPathCache):
        return (cache.node or plan.service.pool, cache.path, key)
    return (naming.claim_name(name, plan.service, 0), key)


def _torch(plan: ServicePlan) -> tuple[int, ...]:
    return tuple(int(part) for part in plan.release.torch.split("+")[0].split(".")[:2])


@rule("NAM-2", "https://github.com/ai-runway/airunway/issues/269")
def cache_places_are_ours(subject: ServiceSubject) -> Iterator[Said]:
    """A variable that moves a cache off its claim makes the server download, compile or fail to write."""
    service = subject.plan.service
    for name, place in caches.environment(offline=True, kind=subject.plan.pool.kind).items():
        if service.env.get(name, place) == place:
            continue
        if name in OFFLINE:
            yield Said("error", f"env.{name}", "says again what `offline` says", f"offline: {_on(service.env[name])}")
        else:
            message = f"{service.env[name]!r}, and the claim is mounted so that it is {place}"
            yield Said("error", f"env.{name}", message, "leave it out")


def _on(value: str) -> str:
    return "false" if value.lower() in {"", "0", "false", "no", "off"} else "true"


@rule("HF-3", "https://github.com/vllm-project/vllm/issues/23684")
def variables_agree_with_offline(subject: ServiceSubject) -> Iterator[Said]:
    """A server that may ask the hub and is told not to finds only what is on its claim."""
    service = subject.plan.service
    for name in OFFLINE:
        if not service.offline and _on(service.env.get(name, "")) == "true":
            message = f"{service.env[name]!r}, and `offline` is false: nothing sees to it that the model is there"
            yield Said("error", f"env.{name}", message, "leave it out; offline: true with the seed Job")


@rule("HF-3", "https://github.com/open-webui/open-webui/issues/3168")
def offline_needs_a_snapshot(subject: ServiceSubject) -> Iterator[Said]:
    """An offline server finds only what is on its claim already."""
    service = subject.plan.service
    if service.offline and not service.cache.seed.enabled:
        yield Said(
            "warn",
            "cache.seed.enabled",
            f"is false, so nothing checks that the claim holds {service.model.id} whole",
            "leave the seed Job on: it does nothing when the files are there and complete",
        )


STACK_RULES = (compile_caches_are_apart, disk_holds_the_images)
RULES = (
    folder_is_on_one_node,
    folder_has_no_quota,
    claim_holds_the_weights,
    folder_belongs_to_the_user,
    replicas_have_a_cache_each,
    cache_places_are_ours,
    variables_agree_with_offline,
    offline_needs_a_snapshot,
)
