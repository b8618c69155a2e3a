"""Rules that compare a stack with what is in its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from components import naming
from components.monitoring_names import objects as monitoring_objects
from components.placement import runtime_class
from infra.config import StackConfig
from infra.preflight import dra
from infra.preflight.rule import LiveSubject, Said, rule
from planner.spec import ExistingClaimCache, HostPathCache, OwnStorageClassCache, PoolSpec, ServiceSpec, quantity
from planner.spec.monitoring import NoMonitoring

ADOPTABLE = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Service")
CLAIMS = "https://kubernetes.io/docs/concepts/storage/persistent-volumes/"


class Wanted(NamedTuple):
    """An object that the stack will create, and the field that decides its name."""

    kind: str
    name: str
    path: str


def wanted(config: StackConfig) -> Iterator[Wanted]:
    """Every object with a fixed name."""
    namespace = config.cluster.namespace
    yield Wanted("Namespace", namespace, "cluster.namespace")
    for key, service in config.services.items():
        here = f"services.{key}"
        yield Wanted("ServiceAccount", key, here)
        yield Wanted("NetworkPolicy", key, here)
        yield from (Wanted("Deployment", naming.server_name(key, one), here) for one in range(service.replicas))
        if service.replicas > 1:
            yield Wanted("PodDisruptionBudget", key, here)
        yield Wanted("Service", naming.service_name(key, service), f"{here}.exposure.serviceName")
        if config.nodes[service.pool].image_delivery == "daemonSet":
            yield Wanted("DaemonSet", naming.pre_pull_name(key), here)
        yield from wanted_for_cache(namespace, key, service)
    if not isinstance(config.monitoring, NoMonitoring):
        for kind, name in monitoring_objects(config.monitoring, config.services, namespace, crds_present=True):
            yield Wanted(kind, name, "monitoring.mode")


def wanted_for_cache(namespace: str, key: str, service: ServiceSpec) -> Iterator[Wanted]:
    """What the caches of a service's replicas consist of."""
    here = f"services.{key}"
    claims = naming.claim_names(key, service)
    if service.cache.seed.enabled:
        yield from (Wanted("Job", naming.seed_name(key, service, replica), here) for replica in range(len(claims)))
        yield Wanted("NetworkPolicy", f"{key}-seed", here)
    if isinstance(service.cache, ExistingClaimCache):
        return
    for claim in claims:
        yield Wanted("PersistentVolumeClaim", claim, f"{here}.cache.claimName")
        if isinstance(service.cache, HostPathCache):
            yield Wanted("PersistentVolume", naming.volume_name(namespace, claim), f"{here}.cache.claimName")
    if isinstance(service.cache, OwnStorageClassCache):
        yield Wanted("StorageClass", naming.storage_class_name(namespace, key), here)


@rule("LIVE-FOREIGN", "https://github.com/pulumi/pulumi-kubernetes/issues/2926")
def nothing_foreign_is_taken(subject: LiveSubject) -> Iterator[Said]:
    """An object that somebody else made is not taken over, changed or deleted by accident."""
    config = subject.config
    for kind, name, path in wanted(config):
        existing = subject.live.get(kind, name)
        if existing is None or f"{kind}/{name}" in config.cluster.adopt:
            continue
        labels = existing["metadata"].get("labels") or {}
        if naming.is_of_stack(labels, subject.stack):
            continue
        owner = labels.get(naming.STACK_LABEL)
        whose = f"belongs to the stack {owner!r}" if owner else "was not made by this stack"
        way = f"let the stack take it over with cluster.adopt: [{kind}/{name}], or " if kind in ADOPTABLE else ""
        yield Said("error", path, f"{kind} {name!r} exists already and {whose}", f"{way}choose another name")


@rule("LIVE-NAMESPACE", "https://kubernetes.io/docs/concepts/overview/working-with-objects/namespaces/")
def namespace_is_not_going(subject: LiveSubject) -> Iterator[Said]:
    """Nothing can be created in a namespace that is being deleted."""
    name = subject.config.cluster.namespace
    existing = subject.live.get("Namespace", name)
    if existing and existing.get("status", {}).get("phase") == "Terminating":
        yield Said("error", "cluster.namespace", f"{name!r} is being deleted", f"wait: kubectl get namespace {name}")


@rule("LIVE-VOLUME", CLAIMS)
def static_volume_can_bind(subject: LiveSubject) -> Iterator[Said]:
    """A released volume, or one that points elsewhere, never binds to the claim."""
    config = subject.config
    for key, service in config.services.items():
        if not isinstance(service.cache, HostPathCache):
            continue
        for claim in naming.claim_names(key, service):
            name = naming.volume_name(config.cluster.namespace, claim)
            volume = subject.live.get("PersistentVolume", name)
            if volume is not None:
                yield from _volume_faults(f"services.{key}.cache", name, volume, service.cache, claim)


def _volume_faults(path: str, name: str, volume: dict[str, Any], cache: HostPathCache, claim: str) -> Iterator[Said]:
    spec = volume["spec"]
    if volume.get("status", {}).get("phase") == "Released":
        clear = f"""kubectl patch pv {name} --type json -p '[{{"op":"remove","path":"/spec/claimRef/uid"}}]'"""
        yield Said(
            "error",
            path,
            f"PersistentVolume {name!r} is Released: its claim was deleted, and it binds to no other by itself",
            f"if the files in {spec.get('hostPath', {}).get('path')} may be used again: {clear}",
        )
    folder = spec.get("hostPath", {}).get("path")
    if folder != cache.path:
        yield Said(
            "error",
            f"{path}.path",
            f"found {cache.path}, and PersistentVolume {name!r} is the folder {folder}: that cannot change",
            f"{folder}, or another claimName for a second cache",
        )
    bound = spec.get("claimRef") or {}
    if bound and bound.get("name") != claim:
        message = f"PersistentVolume {name!r} is reserved for the claim {bound.get('namespace')}/{bound.get('name')}"
        yield Said("error", f"{path}.claimName", message, "another claimName")


@rule("LIVE-CLAIM", CLAIMS)
def claim_is_compatible(subject: LiveSubject) -> Iterator[Said]:
    """What a claim is cannot change under the files that it holds; only growing is possible."""
    for key, service in subject.config.services.items():
        for name in naming.claim_names(key, service):
            claim = subject.live.get("PersistentVolumeClaim", name)
            if isinstance(service.cache, ExistingClaimCache):
                if claim is None:
                    message = f"there is no claim {name!r} in the namespace"
                    remedy = "create it, or another kind of cache"
                    yield Said("error", f"services.{key}.cache.claimName", message, remedy)
            elif claim is not None:
                yield from _claim_faults(subject, key, service, claim)


def _claim_faults(subject: LiveSubject, key: str, service: ServiceSpec, claim: dict[str, Any]) -> Iterator[Said]:
    cache = service.cache
    if isinstance(cache, ExistingClaimCache):
        return
    path, name, live = f"services.{key}.cache", claim["metadata"]["name"], claim["spec"]
    another = "another claimName makes a second claim beside it; the old one and its files stay"
    wanted_class = _class_name(subject.config.cluster.namespace, key, service)
    live_class = live.get("storageClassName") or ""
    if live_class != wanted_class:
        message = (
            f"claim {name!r} is of class {live_class!r}, the stack wants {wanted_class!r}: a claim keeps its class"
        )
        yield Said(
            "error", f"{path}.kind" if "" in {live_class, wanted_class} else f"{path}.storageClass", message, another
        )
        return
    mode = "ReadWriteOnce" if isinstance(cache, HostPathCache) else cache.access_mode
    if live["accessModes"] != [mode]:
        message = f"claim {name!r} is {', '.join(live['accessModes'])}, the stack wants {mode}: a claim keeps its mode"
        yield Said("error", f"{path}.accessMode", message, another)
    yield from _size_faults(subject, path, cache.size, claim)


def _size_faults(subject: LiveSubject, path: str, size: str, claim: dict[str, Any]) -> Iterator[Said]:
    name, live = claim["metadata"]["name"], claim["spec"]
    held = live["resources"]["requests"]["storage"]
    if quantity(size) < quantity(held):
        message = f"claim {name!r} has {held}, the stack wants {size}: a claim never shrinks"
        yield Said("error", f"{path}.size", message, f"{held}")
    elif quantity(size) > quantity(held):
        class_name = live.get("storageClassName") or ""
        if class_name == "":
            message = f"claim {name!r} has {held}, the stack wants {size}: a static volume cannot grow"
            remedy = f"{held}: the number is no quota, a folder holds as much as its disk has"
            yield Said("error", f"{path}.size", message, remedy)
        elif not (subject.live.get("StorageClass", class_name) or {}).get("allowVolumeExpansion"):
            message = (
                f"claim {name!r} has {held}, the stack wants {size}, and its class {class_name!r} allows no growing"
            )
            yield Said("error", f"{path}.size", message, f"{held}, or allowVolumeExpansion: true on the class first")
        elif claim.get("status", {}).get("phase") == "Pending":
            # Kubernetes, pkg/apis/core/validation: the request of a claim may change "for bound claims" only.
            message = f"claim {name!r} has {held}, the stack wants {size}, and only a bound claim can grow"
            remedy = f"{held} until its first pod runs, or delete it: it holds nothing yet"
            yield Said("error", f"{path}.size", message, remedy)


def _class_name(namespace: str, key: str, service: ServiceSpec) -> str:
    match service.cache:
        case HostPathCache():
            return ""
        case OwnStorageClassCache():
            return naming.storage_class_name(namespace, key)
    return getattr(service.cache, "storage_class", "")


@rule("LIVE-CLASS", "https://kubernetes.io/docs/concepts/storage/storage-classes/")
def classes_exist(subject: LiveSubject) -> Iterator[Said]:
    """A claim of a class that is not there stays Pending, and the server with it."""
    known = subject.live.objects["StorageClass"]
    for key, service in subject.config.services.items():
        class_name = getattr(service.cache, "storage_class", None)
        if class_name is not None and class_name not in known:
            there = ", ".join(sorted(known)) or "none"
            message = f"found {class_name!r}: there is no such class in the cluster"
            yield Said("error", f"services.{key}.cache.storageClass", message, f"classes: {there}")


@rule("LIVE-NODES", "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/")
def nodes_have_the_gpus(subject: LiveSubject) -> Iterator[Said]:
    """A pool whose nodes or cards are not there leaves its servers Pending."""
    for name, pool in subject.config.nodes.items():
        nodes = list(dra.nodes_of(subject.live, pool).values())
        if not nodes and pool.eks is not None:
            continue  # this stack makes them
        if not nodes:
            labels = ", ".join(f"{key}={value}" for key, value in pool.selector.items())
            message = f"no node of the cluster has {labels}"
            yield Said("error", f"nodes.{name}.selector", message, "kubectl get nodes --show-labels")
            continue
        for node in nodes:
            if not _is_ready(node):
                message = f"node {node['metadata']['name']!r} is not Ready: its image pull would be waited for"
                yield Said("warn", f"nodes.{name}", message, "prePull.await: false while it is down")
        if pool.allocation == "dra":
            continue
        cards = sum(dra.offered_cards(subject.live, node["metadata"]["name"]) for node in nodes)
        declared = pool.nodes * pool.gpus_per_node
        if cards < declared:
            message = f"declares {declared} GPU(s), and its nodes offer {cards} of {dra.GPU}"
            remedy = "device plugin or GPU Operator running? kubectl describe node; or correct nodes and gpusPerNode"
            yield Said("error" if cards == 0 else "warn", f"nodes.{name}", message, remedy)
        elif cards > declared:
            message = f"declares {declared} GPU(s), and its nodes offer {cards} of {dra.GPU}"
            yield Said("warn", f"nodes.{name}", message, "time-sliced copies share one memory: switch time-slicing off")


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@rule("LIVE-SWAP", "https://www.pulumi.com/docs/iac/concepts/how-pulumi-works/#creation-and-deletion-order")
def new_server_waits_for_no_leaving_one(subject: LiveSubject) -> Iterator[Said]:
    """A new server is created before one that leaves is deleted, so for a while both need their cards."""
    config = subject.config
    names = {name for kind, name, _ in wanted(config) if kind == "Deployment"}
    ours = {name: item for name, item in subject.live.objects["Deployment"].items() if _is_server(item, subject.stack)}
    for pool_name, pool in config.nodes.items():
        users = {key: service for key, service in config.services.items() if service.pool == pool_name}
        coming = [key for key, service in users.items() if not _servers(key, service) & ours.keys()]
        leaving = [name for name, item in ours.items() if name not in names and _runs_on(item, pool)]
        wanted_cards = sum(service.gpus * service.replicas for service in users.values())
        held = sum(_cards(ours[name]) for name in leaving)
        if coming and leaving and wanted_cards + held > pool.nodes * pool.gpus_per_node:
            message = f"would wait for the card that {', '.join(leaving)} holds, and that leaves only afterwards"
            remedy = f"first take it away (`up` without services.{coming[0]}), then add this one: the claim is kept"
            yield Said("error", f"services.{coming[0]}", message, remedy)


def _is_server(deployment: dict[str, Any], stack: str) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    return naming.is_of_stack(labels, stack) and labels.get(naming.COMPONENT_LABEL) == "server"


def _servers(key: str, service: ServiceSpec) -> set[str]:
    return {naming.server_name(key, replica) for replica in range(service.replicas)}


def _runs_on(deployment: dict[str, Any], pool: PoolSpec) -> bool:
    selector = deployment["spec"]["template"]["spec"].get("nodeSelector") or {}
    return pool.selector.items() <= selector.items()


def _cards(deployment: dict[str, Any]) -> int:
    """Cards that a server holds; one for each resource claim where it asks for no extended resource."""
    pod = deployment["spec"]["template"]["spec"]
    limits = pod["containers"][0].get("resources", {}).get("limits") or {}
    return int(limits.get("nvidia.com/gpu", 0)) or len(pod.get("resourceClaims") or ())


@rule("LIVE-RUNTIME", "https://github.com/NVIDIA/k8s-device-plugin/issues/406")
def runtime_class_exists(subject: LiveSubject) -> Iterator[Said]:
    """A pod whose RuntimeClass is not there is refused by the API server."""
    config = subject.config
    for name, pool in config.nodes.items():
        wanted_class = runtime_class(pool, config.cluster.flavour)
        if wanted_class and wanted_class not in subject.live.objects["RuntimeClass"]:
            message = f"there is no RuntimeClass {wanted_class!r} in the cluster"
            yield Said("error", f"nodes.{name}.runtimeClass", message, "install the NVIDIA container toolkit's class")


@rule("LIVE-VERSION", "https://kubernetes.io/releases/version-skew-policy/")
def version_is_as_declared(subject: LiveSubject) -> Iterator[Said]:
    """Objects are rendered for the declared version."""
    declared = subject.config.cluster.kubernetes_version
    served = ".".join(subject.live.version.removeprefix("v").split(".")[:2])
    if served != declared:
        message = f"{declared}, and the cluster is {subject.live.version}"
        yield Said("warn", "cluster.kubernetesVersion", message, f'"{served}"')


RULES = (
    nothing_foreign_is_taken,
    namespace_is_not_going,
    static_volume_can_bind,
    claim_is_compatible,
    classes_exist,
    nodes_have_the_gpus,
    new_server_waits_for_no_leaving_one,
    runtime_class_exists,
    version_is_as_declared,
)
