"""Lines about a pool: its nodes, their cards and who holds them, the class and the disk that pods need there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components import naming
from components.placement import runtime_class
from infra.check.closer import Closer, Unknown
from infra.check.report import Findings, told
from infra.config import StackConfig
from infra.lines import Line
from infra.live import LiveCluster
from infra.preflight import dra
from infra.preflight.live import is_ready
from planner.capability import unpacked_image_bytes
from planner.releases import UnknownReleaseError, release_of
from planner.spec import PoolSpec, ServiceSpec, gibibytes

MOST_IMAGES_LISTED = 50
"""A kubelet lists its largest images and no more than this (KubeletConfiguration.nodeStatusMaxImages)."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class PoolLook:
    """A pool beside its nodes in the cluster."""

    config: StackConfig
    stack: str
    name: str
    live: LiveCluster
    closer: Closer
    findings: Findings

    @property
    def pool(self) -> PoolSpec:
        """The pool as declared."""
        return self.config.nodes[self.name]

    @property
    def nodes(self) -> dict[str, Any]:
        """Its nodes in the cluster."""
        return dra.nodes_of(self.live, self.pool)

    @property
    def services(self) -> list[ServiceSpec]:
        """The services that run on it."""
        return [service for service in self.config.services.values() if service.pool == self.name]

    @property
    def place(self) -> str:
        """The place in the stack file."""
        return f"nodes.{self.name}"

    def lines(self) -> Iterator[Line]:
        """Every line about it."""
        if self.pool.eks is not None and not self.nodes:
            yield Line("ok", f"{self.name} nodes", "none yet: this stack makes them")
            return
        yield from self._nodes()
        if self.nodes and self.pool.kind == "gpu":
            yield from self._cards()
            yield from self._operator()
            yield self._free_cards()
        yield from self._runtime_class()
        if self.nodes:
            yield from self._disks()

    def _nodes(self) -> Iterator[Line]:
        states = {name: _state(node, self.pool) for name, node in self.nodes.items()}
        fact = ", ".join(f"{name} {state or 'Ready'}" for name, state in states.items()) or "none"
        wanted = f"{self.pool.nodes} with {', '.join(f'{key}={value}' for key, value in self.pool.selector.items())}"
        taken = self.findings.take(("LIVE-NODES", "LIVE-PIN", "LIVE-ARCH"), self.place)
        question = f"{self.name} nodes"
        if states and all(states.values()):
            yield Line("fail", question, f"{fact}: no pod of this stack can start", wanted, _remedy(states))
            others = [one for one in taken if one.rule != "LIVE-NODES"]
            yield from told(question, fact, others) if others else ()
        elif any(states.values()) and not taken:
            yield Line("warn", question, fact, wanted, _remedy(states))
        elif 0 < len(states) < self.pool.nodes and not taken:
            yield Line("warn", question, fact, wanted, "add the node, or correct `nodes` of the pool")
        else:
            yield from told(question, fact, taken, wanted)

    def _usable(self) -> dict[str, Any]:
        return {name: node for name, node in self.nodes.items() if not _state(node, self.pool)}

    def _offered(self) -> Mapping[str, int]:
        if self.pool.allocation == "dra":
            return dra.devices(self.live, self.pool.device_class)
        return {name: dra.offered_cards(self.live, name) for name in self.nodes}

    def _cards(self) -> Iterator[Line]:
        offered = self._offered()
        by_node = ", ".join(f"{name} {offered.get(name, 0)}" for name in self.nodes)
        kind = f"devices of {self.pool.device_class}" if self.pool.allocation == "dra" else dra.GPU
        rules = ("LIVE-CARDS", "LIVE-DRA", "LIVE-SLICES", "LIVE-DRIVER", "SCH-BOTH", "SCH-6")
        wanted = f"{self.pool.gpus_per_node} on each of {self.pool.nodes}"
        yield from told(f"{self.name} GPUs", f"{by_node} {kind}", self.findings.take(rules, self.place), wanted)

    def _operator(self) -> Iterator[Line]:
        """Whoever makes the cards known: the GPU Operator says of itself whether it could."""
        question, policies = f"{self.name} GPU Operator", self.closer.policies
        if isinstance(policies, Unknown):
            yield Line("warn", question, f"not known: {policies.why}")
        elif not policies:
            by = "a DRA driver" if self.pool.allocation == "dra" else "a device plugin of its own"
            if any(self._offered().get(name) for name in self.nodes):
                yield Line("ok", question, f"not installed; {by} offers the cards")
        else:
            states = {_name(one): (one.get("status") or {}).get("state", "no state yet") for one in policies}
            fact = ", ".join(f"ClusterPolicy {name} is {state}" for name, state in states.items())
            ready = all(state == "ready" for state in states.values())
            remedy = "" if ready else "kubectl get pods -A -l app.kubernetes.io/managed-by=gpu-operator"
            yield Line("ok" if ready else "warn", question, fact, "" if ready else "ready", remedy)

    def _free_cards(self) -> Line:
        """Cards that others hold are not free, however many a node has."""
        question = f"{self.name} free GPUs"
        holders = self._holders()
        if isinstance(holders, Unknown):
            return Line("warn", question, f"not known: {holders.why}", remedy="grant list of it to this identity")
        offered, usable = self._offered(), self._usable()
        held = Counter[str]()
        for (node, _), cards in holders.items():
            held[node] += cards
        free = sum(max(0, offered.get(name, 0) - held[name]) for name in usable)
        needed = sum(service.gpus * service.replicas for service in self.services)
        others = ", ".join(f"{pod} ({cards} on {node})" for (node, pod), cards in holders.items())
        fact = f"{free} for {needed} that this stack uses; held by others: {others or 'none'}"
        facts = {"free": free, "needed": needed, "holders": [pod for _, pod in holders]}
        if free >= needed:
            return Line("ok", question, fact, facts=facts)
        remedy = "wait for those pods or end them; " if holders else "make more nodes and cards usable; "
        return Line("fail", question, fact, f"{needed} free", f"{remedy}else fewer replicas", facts)

    def _holders(self) -> dict[tuple[str, str], int] | Unknown:
        """(node, namespace/pod) → cards of pods that are not this stack's."""
        if isinstance(self.closer.pods, Unknown):
            return self.closer.pods
        claimed = self._claimed() if self.pool.allocation == "dra" else {}
        if isinstance(claimed, Unknown):
            return claimed
        found: dict[tuple[str, str], int] = {}
        for pod in self.closer.pods:
            where, node = f"{pod['metadata']['namespace']}/{_name(pod)}", pod["spec"].get("nodeName", "")
            cards = claimed.get(where, 0) or _plugin_cards(pod)
            if node in self.nodes and cards and not naming.is_of_stack(pod["metadata"].get("labels"), self.stack):
                found[node, where] = cards
        return found

    def _claimed(self) -> dict[str, int] | Unknown:
        """namespace/pod → devices of this pool's drivers that are allocated to it."""
        if isinstance(self.closer.claims, Unknown):
            return self.closer.claims
        found: dict[str, int] = {}
        for claim in self.closer.claims or ():
            status = claim.get("status") or {}
            results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
            for user in status.get("reservedFor") or []:
                if user.get("resource") == "pods":
                    where = f"{claim['metadata']['namespace']}/{user['name']}"
                    found[where] = found.get(where, 0) + len(results)
        return found

    def _runtime_class(self) -> Iterator[Line]:
        wanted = runtime_class(self.pool, self.config.cluster.flavour)
        fact = f"{wanted} is there" if wanted else "none is needed"
        taken = self.findings.take(("LIVE-RUNTIME",), self.place)
        yield from told(f"{self.name} runtime class", "" if taken else fact, taken)

    def _disks(self) -> Iterator[Line]:
        """Room for images: the API tells how large the disk is, never how much of it is free."""
        question = f"{self.name} disk"
        references = {service.image.reference: service for service in self.services}
        for name, node in self._usable().items():
            size = node["status"].get("allocatable", {}).get("ephemeral-storage")
            images = {reference: _presence(node, reference) for reference in references}
            needed = sum(
                _unpacked_gib(service) for reference, service in references.items() if images[reference] != "there"
            )
            room = "size not known" if size is None else f"{gibibytes(size):.0f} GiB, free part not known"
            said = "; ".join(f"image {reference} {presence}" for reference, presence in images.items())
            fact = f"{name}: {room}; {said}"
            if size is not None and needed > gibibytes(size):
                wanted = f"about {needed:.0f} GiB for the unpacked image"
                yield Line("warn", question, fact, wanted, "a larger disk, unless images have one of their own")
            elif _condition(node, "DiskPressure"):
                yield Line("fail", question, f"{fact}; DiskPressure", "", f"free space on {name}: pods are evicted")
            else:
                yield Line("ok", question, fact)


def _state(node: Manifest, pool: PoolSpec) -> str:
    """Why no pod of the pool can start on a node; empty where one can."""
    spec = node.get("spec") or {}
    if not is_ready(dict(node)):
        return "NotReady"
    if spec.get("unschedulable"):
        return "cordoned"
    tolerated = {(taint.key, taint.effect) for taint in pool.taints}
    repelling = [
        taint
        for taint in spec.get("taints") or []
        if taint["effect"] != "PreferNoSchedule" and (taint["key"], taint["effect"]) not in tolerated
    ]
    return (
        f"has the taint {repelling[0]['key']}:{repelling[0]['effect']}, which the pool does not list"
        if repelling
        else ""
    )


def _remedy(states: Mapping[str, str]) -> str:
    name, state = next((name, state) for name, state in states.items() if state)
    if state == "cordoned":
        return f"kubectl uncordon {name}"
    return f"kubectl describe node {name}" if state == "NotReady" else "add it to `taints` of the pool"


def _condition(node: Manifest, kind: str) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _presence(node: Manifest, reference: str) -> str:
    """Whether a node has an image: the list of its images ends after the largest."""
    images: Sequence[Manifest] = node["status"].get("images") or []
    names = {name.removeprefix("docker.io/") for image in images for name in image.get("names") or []}
    plain = reference.removeprefix("docker.io/")
    digest = plain.partition("@")[2]
    if plain in names or (digest and any(name.endswith(f"@{digest}") for name in names)):
        return "there"
    return "not there yet" if 0 < len(images) < MOST_IMAGES_LISTED else "not known to be there"


def _unpacked_gib(service: ServiceSpec) -> float:
    try:
        return unpacked_image_bytes(release_of(service.image)) / 1024**3
    except UnknownReleaseError:
        return 0.0


def _plugin_cards(pod: Manifest) -> int:
    """Cards that a device plugin has given a pod: the most that its init containers or all others hold at once."""
    spec = pod["spec"]
    running = sum(_limit(one) for one in spec.get("containers") or [])
    return max(running, *(_limit(one) for one in spec.get("initContainers") or []), 0)


def _limit(container: Manifest) -> int:
    return int(((container.get("resources") or {}).get("limits") or {}).get(dra.GPU, 0))


def _name(item: Manifest) -> str:
    return str(item["metadata"]["name"])
