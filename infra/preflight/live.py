"""Rules that compare a stack with what is in its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from components import naming
from components.monitoring_names import ALERTMANAGER, PROMETHEUS, SILENCES_SIZE
from components.monitoring_names import objects as monitoring_objects
from components.placement import runtime_class
from infra.config import StackConfig
from infra.preflight import dra
from infra.preflight.rule import LiveSubject, Said, rule
from planner.spec import ExistingClaimCache, HostPathCache, OwnStorageClassCache, PoolSpec, ServiceSpec, quantity
from planner.spec.monitoring import NoMonitoring, StandaloneMonitoring

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


@rule("LIVE-SERVICE", "https://kubernetes.io/docs/concepts/services-networking/service/#multi-port-services")
def adopted_service_can_keep_its_ports(subject: LiveSubject) -> Iterator[Said]:
    """A Service that is taken over keeps the ports that it has beside ours, which a server-side apply merges
    by number and protocol. The API server refuses several ports unless each has a name of its own."""
    config = subject.config
    for key, service in config.services.items():
        name = naming.service_name(key, service)
        existing = subject.live.get("Service", name)
        if existing is None or f"Service/{name}" not in config.cluster.adopt:
            continue
        if naming.is_of_stack(existing["metadata"].get("labels"), subject.stack):
            continue  # what of it is the stack's own is replaced, not kept
        ours = (service.exposure.port, "TCP")
        for position, port in enumerate(existing["spec"].get("ports") or ()):
            kept = (port["port"], port.get("protocol", "TCP")) != ours
            if kept and port.get("name") in {None, naming.HTTP_PORT}:
                called = f"also named {naming.HTTP_PORT!r}" if "name" in port else "without a name"
                message = f"Service {name!r} would keep its port {port['port']}, {called}, beside {ours[0]}"
                where = f"--namespace {config.cluster.namespace}"
                patch = f"""'[{{"op":"add","path":"/spec/ports/{position}/name","value":"other"}}]'"""
                command = f"kubectl {where} patch service {name} --type json -p {patch}"
                remedy = f"another serviceName, or give that port a name of its own: {command}"
                yield Said("error", f"services.{key}.exposure.serviceName", message, remedy)


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


@rule("LIVE-SAMPLES", CLAIMS)
def samples_stay_in_their_claims(subject: LiveSubject) -> Iterator[Said]:
    """The claims of standalone monitoring outlive a change, as those of the weights do."""
    spec = subject.config.monitoring
    if not isinstance(spec, StandaloneMonitoring):
        return
    for name, size in ((PROMETHEUS, spec.size), (ALERTMANAGER, SILENCES_SIZE)):
        claim = subject.live.get("PersistentVolumeClaim", name)
        if claim is None:
            continue
        held = claim["spec"].get("storageClassName") or ""
        if spec.storage_class in {None, held}:
            yield from _size_faults(subject, "monitoring", size, claim)
        else:
            wanted_class = f"{held!r}, the stack wants {spec.storage_class!r}"
            message = f"claim {name!r} is of class {wanted_class}: a claim keeps its class"
            yield Said("error", "monitoring.storageClass", message, f"{held}; or delete the claim, and what it holds")


@rule("LIVE-SAMPLES-CLASS", "https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass")
def samples_have_a_class(subject: LiveSubject) -> Iterator[Said]:
    """A claim of no class waits for a volume that somebody makes by hand; the servers do not wait for it."""
    spec, known = subject.config.monitoring, subject.live.objects["StorageClass"]
    if not isinstance(spec, StandaloneMonitoring) or subject.live.get("PersistentVolumeClaim", PROMETHEUS) is not None:
        return
    remedy = f"one of {', '.join(sorted(known))}" if known else "a class, or a volume for each of the two claims"
    if spec.storage_class is None and not any(_is_default(item) for item in known.values()):
        message = "is not set, and no class of the cluster is the default: Prometheus would wait for a volume"
        yield Said("warn", "monitoring.storageClass", message, remedy)
    elif spec.storage_class is not None and spec.storage_class not in known:
        message = f"found {spec.storage_class!r}: there is no such class in the cluster"
        yield Said("warn", "monitoring.storageClass", message, remedy)


def _is_default(storage_class: dict[str, Any]) -> bool:
    annotations = storage_class["metadata"].get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


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
def nodes_are_there(subject: LiveSubject) -> Iterator[Said]:
    """A pool whose nodes are not there leaves its servers Pending."""
    for name, pool in subject.config.nodes.items():
        nodes = list(dra.nodes_of(subject.live, pool).values())
        if not nodes and pool.eks is None:  # else this stack makes them
            labels = ", ".join(f"{key}={value}" for key, value in pool.selector.items())
            message = f"no node of the cluster has {labels}"
            yield Said("error", f"nodes.{name}.selector", message, "kubectl get nodes --show-labels")
        for node in nodes:
            if not is_ready(node):
                message = f"node {node['metadata']['name']!r} is not Ready: its image pull would be waited for"
                yield Said("warn", f"nodes.{name}", message, "prePull.await: false while it is down")


@rule("LIVE-CARDS", "https://github.com/NVIDIA/k8s-device-plugin")
def nodes_have_the_gpus(subject: LiveSubject) -> Iterator[Said]:
    """A pool whose cards are not there leaves its servers Pending."""
    for name, pool in subject.config.nodes.items():
        nodes = list(dra.nodes_of(subject.live, pool).values())
        if not nodes or pool.allocation == "dra" or pool.kind == "cpu":
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


def is_ready(node: dict[str, Any]) -> bool:
    """Whether the kubelet of a node says so."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


@rule("LIVE-SWAP", "https://www.pulumi.com/docs/iac/concepts/how-pulumi-works/#creation-and-deletion-order")
def new_server_waits_for_no_leaving_one(subject: LiveSubject) -> Iterator[Said]:
    """A new server is created before one that leaves is deleted, so for a while both need their cards."""
    config = subject.config
    names = {name for kind, name, _ in wanted(config) if kind == "Deployment"}
    ours = {name: item for name, item in subject.live.objects["Deployment"].items() if _is_server(item, subject.stack)}
    elsewhere = _servers_elsewhere(subject)
    for pool_name, pool in config.nodes.items():
        if pool.kind == "cpu":
            continue  # no card is held
        users = {key: service for key, service in config.services.items() if service.pool == pool_name}
        coming = [key for key, service in users.items() if not _servers(key, service) & ours.keys()]
        gone = [item for name, item in ours.items() if name not in names] + elsewhere
        leaving = [item for item in gone if _runs_on(item, pool) and _cards(item)]
        wanted_cards = sum(service.gpus * service.replicas for service in users.values())
        held = sum(_cards(item) for item in leaving)
        if coming and leaving and wanted_cards + held > max(pool.nodes * pool.gpus_per_node, _offered(subject, pool)):
            yield _waits(config, coming[0], leaving)


def _waits(config: StackConfig, service: str, leaving: list[dict[str, Any]]) -> Said:
    """What to do about servers whose cards ``service`` would wait for. A stack may not be without services,
    so they cannot be taken away by an `up` alone."""
    places = [item["metadata"].get("namespace", config.cluster.namespace) for item in leaving]
    moved = next((place for place in places if place != config.cluster.namespace), None)
    named = ", ".join(item["metadata"]["name"] for item in leaving) + (f" in namespace {moved!r}" if moved else "")
    message = f"would wait for the card that {named} holds, and that leaves only afterwards"
    if moved:
        message = f"services.{service} {message}"
    stop = "; ".join(
        f"kubectl --namespace {place} scale deployment {item['metadata']['name']} --replicas=0"
        for place, item in zip(places, leaving, strict=True)
    )
    kept = f"claims stay in {moved!r}, with their files" if moved else "the claim is kept"
    remedy = f"first take the card back, then `up`: {stop} ({kept})"
    return Said("error", "cluster.namespace" if moved else f"services.{service}", message, remedy)


def _servers_elsewhere(subject: LiveSubject) -> list[dict[str, Any]]:
    """Servers of this stack in the namespace that it had before."""
    here = subject.config.cluster.namespace
    return [
        item
        for item in subject.live.servers
        if item["metadata"]["namespace"] != here and _is_server(item, subject.stack)
    ]


def _offered(subject: LiveSubject, pool: PoolSpec) -> int:
    """Cards that the pool's nodes have, declared or not."""
    nodes = dra.nodes_of(subject.live, pool)
    if pool.allocation == "dra":
        by_node = dra.devices(subject.live, pool.device_class)
        return sum(by_node[node] for node in nodes)
    return sum(dra.offered_cards(subject.live, node) for node in nodes)


def _is_server(deployment: dict[str, Any], stack: str) -> bool:
    labels = deployment["metadata"].get("labels") or {}
    return naming.is_of_stack(labels, stack) and labels.get(naming.COMPONENT_LABEL) == "server"


def _servers(key: str, service: ServiceSpec) -> set[str]:
    return {naming.server_name(key, replica) for replica in range(service.replicas)}


def _runs_on(deployment: dict[str, Any], pool: PoolSpec) -> bool:
    selector = deployment["spec"]["template"]["spec"].get("nodeSelector") or {}
    return pool.selector.items() <= selector.items()


def _cards(deployment: dict[str, Any]) -> int:
    """Cards that a server holds: none when it is scaled to zero; one for each resource claim where it asks
    for no extended resource."""
    pod = deployment["spec"]["template"]["spec"]
    limits = pod["containers"][0].get("resources", {}).get("limits") or {}
    each = int(limits.get("nvidia.com/gpu", 0)) or len(pod.get("resourceClaims") or ())
    return each * int(deployment["spec"].get("replicas", 1))


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
    adopted_service_can_keep_its_ports,
    namespace_is_not_going,
    static_volume_can_bind,
    claim_is_compatible,
    samples_stay_in_their_claims,
    samples_have_a_class,
    classes_exist,
    nodes_are_there,
    nodes_have_the_gpus,
    new_server_waits_for_no_leaving_one,
    runtime_class_exists,
    version_is_as_declared,
)
