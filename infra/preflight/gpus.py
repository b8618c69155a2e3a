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
            what, more = ("GPU(s)", "GPUs") if pool.kind == "gpu" else ("worker(s) on CPUs", "gpusPerNode")
            yield Said(
                "error",
                f"nodes.{name}",
                f"declares {declared} {what}, and {', '.join(users)} want {wanted}",
                f"add nodes or {more} to the pool, or take replicas away",
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


@rule("SCH-ROOM", "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/")
def pool_has_room(subject: StackSubject) -> Iterator[Said]:
    """All servers of a pool together need CPU and RAM, and the scheduler counts what they reserve."""
    for name, pool in subject.config.nodes.items():
        plans = [plan for plan in subject.plans.values() if plan.service.pool == name]
        if len(plans) < 2:
            continue
        cpus = sum(quantity(plan.cpu) * plan.service.replicas for plan in plans)
        wanted = [plan.service.resources for plan in plans for _ in range(plan.service.replicas)]
        memory = sum(gibibytes(each.memory or each.memory_limit) for each in wanted)
        there = gibibytes(pool.memory) * pool.nodes
        users = ", ".join(plan.name for plan in plans)
        if cpus >= pool.cpus * pool.nodes:
            message = f"has {pool.cpus * pool.nodes} CPUs, and {users} reserve {cpus}: one of them stays Pending"
            yield Said("error", f"nodes.{name}.cpus", message, "more nodes, or smaller resources.cpu")
        if memory >= there:
            message = f"has {there:.0f} GiB, and {users} reserve {memory:.0f}: one of them stays Pending"
            yield Said("error", f"nodes.{name}.memory", message, "more nodes, or smaller resources.memory")


@rule("CPU-ORDER", "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/")
def request_is_below_the_cpu_limit(subject: ServiceSubject) -> Iterator[Said]:
    """Kubernetes refuses a pod that reserves more CPUs than it may use."""
    limit = subject.plan.service.resources.cpu_limit
    if limit is not None and quantity(subject.plan.cpu) > quantity(limit):
        yield Said(
            "error",
            "resources.cpuLimit",
            f"{limit} is less than the {subject.plan.cpu} CPUs that are reserved",
            f"at least {subject.plan.cpu}, or no limit",
        )


@rule("SCH-3", "https://github.com/NVIDIA/k8s-device-plugin/issues/406")
def cards_are_given_by_kubernetes(subject: ServiceSubject) -> Iterator[Said]:
    """Which card a container sees is the device plugin's answer; a variable of our own takes others' cards."""
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if name in subject.plan.service.env:
            yield Said(
                # The first decides which cards are mounted, the second only hides some of those.
                "error" if name.startswith("NVIDIA") else "warn",
                f"env.{name}",
                f"{subject.plan.service.env[name]!r} overrides the cards that Kubernetes gave to the pod",
                "leave it out; the number of cards is `gpus`",
            )


@rule("CPU-1", "https://docs.vllm.ai/en/latest/configuration/optimization/")
def engine_has_cpus(subject: ServiceSubject) -> Iterator[Said]:
    """The API server, the engine's loop and each worker keep a CPU busy."""
    wanted, needed = subject.plan.cpu, 2 + subject.plan.service.gpus
    what = "GPU(s)" if subject.plan.pool.kind == "gpu" else "worker(s)"
    if quantity(wanted) < needed:
        yield Said(
            "warn",
            "resources.cpu",
            f"{wanted}, and vLLM keeps {needed} CPUs busy with {subject.plan.service.gpus} {what}",
            f"{needed} or more",
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


STACK_RULES = (cards_suffice, pool_has_room)
RULES = (
    one_node_has_the_cards,
    node_has_room,
    request_is_below_the_cpu_limit,
    cards_are_given_by_kubernetes,
    engine_has_cpus,
    image_is_there_before,
)
