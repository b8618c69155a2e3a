"""Where a replica runs: its node, its cache (the same for its seed Job and its server), its runtime class.

The first pod of a WaitForFirstConsumer claim decides where the volume is. The seed Job asks for no
GPU, so without a pin two Jobs may end on one node, and two servers would then want its card.
"""

from __future__ import annotations

from planner.spec import ExistingClaimCache, HostPathCache, PoolSpec, ServiceSpec

HOSTNAME = "kubernetes.io/hostname"


def is_pinned(pool: PoolSpec, service: ServiceSpec) -> bool:
    """Whether each replica of the service has a node of its own choice."""
    return bool(_folder_node(service) or pool.node_names or pool.ordinal_label)


def node_ordinal(pool: PoolSpec, service: ServiceSpec, replica: int) -> int:
    """Which node of the pool a replica is pinned to, counted from 0; round and round."""
    return (service.first_node + replica) % pool.nodes


def pinned_labels(pool: PoolSpec, service: ServiceSpec, replica: int) -> dict[str, str]:
    """The labels of the one node that a replica may run on; empty where any node of the pool will do."""
    ordinal = node_ordinal(pool, service, replica)
    if folder_node := _folder_node(service):
        return {HOSTNAME: folder_node}
    if pool.node_names:
        return {HOSTNAME: pool.node_names[ordinal]}
    return {pool.ordinal_label: str(ordinal)} if pool.ordinal_label else {}


def share_one_claim(service: ServiceSpec) -> bool:
    """Whether all replicas mount one claim: one that exists is used under the name that it has."""
    return isinstance(service.cache, ExistingClaimCache) and service.replicas > 1


def share_one_folder(pool: PoolSpec, service: ServiceSpec) -> bool:
    """Whether replicas write into one folder, through one claim or through volumes of one node's folder."""
    folders = 1 if _folder_node(service) else pool.nodes
    return share_one_claim(service) or (isinstance(service.cache, HostPathCache) and service.replicas > folders)


def _folder_node(service: ServiceSpec) -> str | None:
    return service.cache.node if isinstance(service.cache, HostPathCache) else None


def runtime_class(pool: PoolSpec, flavour: str) -> str | None:
    """The RuntimeClass of a server: k3s and microk8s do not make `nvidia` the default, which a GPU needs."""
    needed = pool.kind == "gpu" and flavour in {"k3s", "microk8s"}
    return pool.runtime_class or ("nvidia" if needed else None)
