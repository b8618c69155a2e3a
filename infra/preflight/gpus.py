"""Rules about cards, nodes and the room on them."""

from __future__ import annotations

from collections.abc import Iterator

from infra.preflight.rule import Said, ServiceSubject, StackSubject, rule
from planner.spec import gibibytes, quantity


@rule("SCH-GPUS", "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/")
def cards_suffice(subject: StackSubject) -> Iterator[Said]:
    """A GPU is given to one pod whole, so all replicas together need that many cards."""
    for name, pool in subject.config.nodes.items():
        users = {key: service for key, service in subject.config.services.items() if service.pool == name}
        wanted = sum(service.gpus * service.replicas for service in users.values())
        declared = pool.gpus_per_node * pool.nodes
        if wanted > declared:
            yield Said(
                "error",
                f"nodes.{name}",
                f"declares {declared} GPU(s), and {', '.join(users)} want {wanted}",
                "add nodes or GPUs to the pool, or take replicas away",
            )


@rule("SCH-NODE", "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/")
def one_node_has_the_cards(subject: ServiceSubject) -> Iterator[Said]:
    """The GPUs of one replica must be in one node."""
    service, pool = subject.plan.service, subject.plan.pool
    if service.gpus > pool.gpus_per_node:
        yield Said(
            "error",
            "gpus",
            f"{service.gpus}, and each node of {service.pool!r} has {pool.gpus_per_node}",
            f"at most {pool.gpus_per_node}",
        )


@rule("SCH-ROOM", "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/")
def node_has_room(subject: ServiceSubject) -> Iterator[Said]:
    """A request that no node can serve stays Pending for ever."""
    plan = subject.plan
    if quantity(plan.cpu) >= plan.pool.cpus:
        yield Said(
            "error",
            "resources.cpu",
            f"{plan.cpu} of the {plan.pool.cpus} CPUs of a node, whose system needs some too",
            f"less than {plan.pool.cpus}",
        )
    limit = plan.service.resources.memory_limit
    if gibibytes(limit) >= gibibytes(plan.pool.memory):
        yield Said(
            "error",
            "resources.memoryLimit",
            f"{limit} of the {plan.pool.memory} of a node, whose system needs some too",
            f"less than {plan.pool.memory}",
        )


@rule("CPU-1", "https://docs.vllm.ai/en/latest/configuration/optimization/")
def engine_has_cpus(subject: ServiceSubject) -> Iterator[Said]:
    """The API server, the engine's loop and one worker for each GPU each keep a CPU busy."""
    wanted, needed = subject.plan.cpu, 2 + subject.plan.service.gpus
    if quantity(wanted) < needed:
        yield Said(
            "warn",
            "resources.cpu",
            f"{wanted}, and vLLM keeps {needed} CPUs busy with {subject.plan.service.gpus} GPU(s)",
            f"{needed} or more",
        )


@rule("REP-1", "https://github.com/vllm-project/production-stack/issues/107")
def one_replica(subject: ServiceSubject) -> Iterator[Said]:
    """Several replicas need a claim and a node each, which this version does not set up yet."""
    if subject.plan.service.replicas > 1:
        yield Said(
            "error",
            "replicas",
            f"{subject.plan.service.replicas}: more than one replica is not offered yet",
            "1; for more capacity add a second service on another pool",
        )


@rule("IMG-PULL", "https://kubernetes.io/docs/concepts/containers/images/")
def image_is_there_before(subject: ServiceSubject) -> Iterator[Said]:
    """Without pre-pull an update stops the old server and only then fetches the image."""
    pool = subject.plan.pool
    if pool.image_delivery == "none":
        seconds = subject.plan.release.image_bytes / 1e6 / pool.rates.registry_mb_per_second
        yield Said(
            "warn",
            "pool",
            f"{subject.plan.service.pool!r} has imageDelivery none: an update waits about {seconds:.0f} s for it",
            "imageDelivery: daemonSet",
        )
    elif not pool.pre_pull.await_ready:
        yield Said(
            "warn",
            "pool",
            f"{subject.plan.service.pool!r} has prePull.await false: a server may stop before the new image is there",
            "set it true once every node of the pool is Ready",
        )


STACK_RULES = (cards_suffice,)
RULES = (one_node_has_the_cards, node_has_room, engine_has_cpus, one_replica, image_is_there_before)
