"""Rules about claims and volumes, from the stack file alone."""

from __future__ import annotations

from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, rule
from planner.spec import ExistingClaimCache, HostPathCache, gibibytes

WEIGHTS_MARGIN = 1.15
"""The hub's cache needs more than the weights: tokenizer, other files, the file being written (llm-d#857)."""


@rule("STO-HOSTPATH", "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath")
def folder_is_on_one_node(subject: ServiceSubject) -> Iterator[Said]:
    """A node's folder is on that node only, so the service must run there."""
    cache = subject.plan.service.cache
    if isinstance(cache, HostPathCache) and cache.node is None and subject.plan.pool.nodes > 1:
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


RULES = (
    folder_is_on_one_node,
    folder_has_no_quota,
    claim_holds_the_weights,
    folder_belongs_to_the_user,
    offline_needs_a_snapshot,
)
