"""Rules about several replicas: a node and a claim for each, on cards that are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from components import placement
from infra.preflight.dra import nodes_of
from infra.preflight.rule import LiveSubject, Said, ServiceSubject, StackSubject, rule
from planner.spec import ExistingClaimCache, OwnStorageClassCache, PoolSpec, ServiceSpec

NODES = "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"
BINDING = "https://kubernetes.io/docs/concepts/storage/storage-classes/#volume-binding-mode"
NODE_LOCAL = frozenset(
    {
        "kubernetes.io/host-path",
        "kubernetes.io/no-provisioner",
        "local.csi.openebs.io",
        "microk8s.io/hostpath",
        "openebs.io/local",
        "rancher.io/local-path",
        "topolvm.io",
    }
)
"""Provisioners whose volumes stay on the node of their first pod; each name is from its project's manifests."""


@rule("SCH-PIN", NODES)
def pins_name_every_node(subject: StackSubject) -> Iterator[Said]:
    """A pool pins by one way, and each of its nodes has its place in it."""
    for name, pool in subject.config.nodes.items():
        if pool.node_names and pool.ordinal_label:
            message = f"{pool.ordinal_label!r}, and nodeNames is set too: a replica has one node"
            yield Said("error", f"nodes.{name}.ordinalLabel", message, "one of the two")
        if pool.node_names and len(set(pool.node_names)) != pool.nodes:
            message = f"names {len(set(pool.node_names))} node(s), and the pool has {pool.nodes}"
            yield Said("error", f"nodes.{name}.nodeNames", message, "each node of the pool once")


@rule("SCH-PIN", NODES)
def first_node_is_there(subject: ServiceSubject) -> Iterator[Said]:
    """Where replica 0 goes is a node of the pool, and matters only where the pool pins."""
    service, pool = subject.plan.service, subject.plan.pool
    if service.first_node >= pool.nodes:
        message = f"{service.first_node}, and the pool {service.pool!r} has the nodes 0 to {pool.nodes - 1}"
        yield Said("error", "firstNode", message, f"at most {pool.nodes - 1}")
    elif service.first_node and not (pool.node_names or pool.ordinal_label):
        message = f"{service.first_node} has no effect: the pool {service.pool!r} pins nobody"
        yield Said("warn", "firstNode", message, f"nodes.{service.pool}.nodeNames or ordinalLabel")


@rule("SCH-GPUS", NODES)
def pinned_node_has_the_cards(subject: StackSubject) -> Iterator[Said]:
    """Replicas that are pinned to one node share its cards, whatever other nodes have free."""
    wanted: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[str, int]]] = defaultdict(list)
    for key, service in subject.config.services.items():
        pool = subject.config.nodes[service.pool]
        for replica in range(service.replicas if _is_sound(pool) else 0):
            labels = placement.pinned_labels(pool, service, replica)
            if labels:
                wanted[service.pool, tuple(labels.items())].append((key, service.gpus))
    for (name, pins), users in wanted.items():
        cards, there = sum(gpus for _, gpus in users), subject.config.nodes[name].gpus_per_node
        node = "=".join(pins[0])
        if cards > there and len(users) > 1:
            among = ", ".join(dict.fromkeys(key for key, _ in users))
            what = "GPUs" if subject.config.nodes[name].kind == "gpu" else "workers"
            message = f"{cards} {what} are wanted on the node with {node}, by {among}; it has {there}"
            yield Said("error", f"services.{users[-1][0]}", message, "firstNode, fewer replicas, or more nodes")


def _is_sound(pool: PoolSpec) -> bool:
    return not pool.node_names or len(pool.node_names) == pool.nodes


@rule("SCH-PIN", BINDING)
def replicas_have_a_node_each(subject: ServiceSubject) -> Iterator[Said]:
    """The first pod of a claim decides where its volume is, and that pod, the seed Job, asks for no card."""
    service, pool = subject.plan.service, subject.plan.pool
    if not _may_meet(service, pool):
        return
    cache = service.cache
    local = isinstance(cache, OwnStorageClassCache) and cache.provisioner in NODE_LOCAL
    yield Said(
        "error" if local else "warn",
        "replicas",
        f"{service.replicas} on {pool.nodes} nodes, and none is pinned: the volumes of two replicas may be made on "
        "one node, and a later download may wait for a volume that a server on another node holds",
        f"nodes.{service.pool}.nodeNames or ordinalLabel",
    )


def _may_meet(service: ServiceSpec, pool: PoolSpec) -> bool:
    """Whether replicas with volumes of one node each could end on one node by accident."""
    mode = getattr(service.cache, "access_mode", "ReadWriteOnce")
    alone = service.replicas == 1 or pool.nodes == 1 or placement.is_pinned(pool, service)
    return not (alone or isinstance(service.cache, ExistingClaimCache) or mode == "ReadWriteMany")


@rule("LIVE-MODE", "https://kubernetes.io/docs/concepts/storage/persistent-volumes/#access-modes")
def claim_is_of_the_declared_mode(subject: LiveSubject) -> Iterator[Said]:
    """What an existing claim can do is what it is, not what the stack says."""
    for key, service in subject.config.services.items():
        cache = service.cache
        if not isinstance(cache, ExistingClaimCache):
            continue
        claim = subject.live.get("PersistentVolumeClaim", cache.claim_name)
        modes = claim["spec"].get("accessModes") if claim else None
        if modes and service.replicas > 1 and cache.access_mode not in modes:
            message = f"{cache.access_mode}, and the claim {cache.claim_name!r} is {', '.join(modes)}"
            yield Said("error", f"services.{key}.cache.accessMode", message, "another claim, or one replica")


@rule("LIVE-PIN", NODES)
def pinned_nodes_are_there(subject: LiveSubject) -> Iterator[Said]:
    """A replica that is pinned to a node that is not there stays Pending; the others serve on."""
    for name, pool in subject.config.nodes.items():
        key = pool.ordinal_label or placement.HOSTNAME
        wanted = pool.node_names or (map(str, range(pool.nodes)) if pool.ordinal_label else ())
        nodes = nodes_of(subject.live, pool)
        there = {_label(node, key) for node in nodes.values()}
        absent = [value for value in wanted if value not in there]
        if nodes and absent and pool.eks is None:  # else this stack makes them, with their labels
            field = "ordinalLabel" if pool.ordinal_label else "nodeNames"
            message = f"no node of the pool has {key}={' or '.join(absent)}: whoever is pinned to it stays Pending"
            remedy = f"there are {', '.join(sorted(filter(None, there))) or 'none with that label'}"
            yield Said("error" if len(absent) == pool.nodes else "warn", f"nodes.{name}.{field}", message, remedy)


def _label(node: Mapping[str, Any], key: str) -> str:
    return str((node["metadata"].get("labels") or {}).get(key, ""))


@rule("SCH-PIN", BINDING)
def local_volumes_are_apart(subject: LiveSubject) -> Iterator[Said]:
    """Volumes that stay on a node need replicas that are pinned, or two may be made on one node."""
    for key, service in subject.config.services.items():
        pool = subject.config.nodes[service.pool]
        class_name = getattr(service.cache, "storage_class", None)
        found = subject.live.get("StorageClass", class_name) if class_name else None
        if found and _may_meet(service, pool) and found.get("provisioner") in NODE_LOCAL:
            message = f"{service.replicas}, unpinned, and volumes of {class_name!r} stay on the node of their first pod"
            yield Said("error", f"services.{key}.replicas", message, f"nodes.{service.pool}.nodeNames or ordinalLabel")


STACK_RULES = (pins_name_every_node, pinned_node_has_the_cards)
RULES = (first_node_is_there, replicas_have_a_node_each)
LIVE_RULES = (claim_is_of_the_declared_mode, pinned_nodes_are_there, local_volumes_are_apart)
