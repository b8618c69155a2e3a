"""Names and labels of everything a stack creates. They are part of the contract: none may ever change.

A name is a function of what a person wrote, so that a renamed YAML key cannot become
create-then-delete of one object, and a claim is found again after its service was away.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from planner.spec import ExistingClaimCache, ServiceSpec

STACK_LABEL = "pulumi-vllm/stack"
REPLICA_LABEL = "pulumi-vllm/replica"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
HTTP_PORT = "http"
"""Name of the port on which a server answers, of its container and its Service."""


def server_name(service: str, replica: int) -> str:
    """Name of the Deployment of one replica."""
    return f"{service}-{replica}"


def service_name(name: str, service: ServiceSpec) -> str:
    """Name of the Service in front of all replicas."""
    return service.exposure.service_name or name


def claim_name(name: str, service: ServiceSpec, replica: int) -> str:
    """Name of the claim of one replica; an existing claim is used under the name it has."""
    if isinstance(service.cache, ExistingClaimCache):
        return service.cache.claim_name
    return f"{service.cache.claim_name or f'{name}-cache'}-{replica}"


def claim_names(name: str, service: ServiceSpec) -> tuple[str, ...]:
    """Names of the claims of all replicas; one where they share an existing claim."""
    return tuple(dict.fromkeys(claim_name(name, service, replica) for replica in range(service.replicas)))


def volume_name(namespace: str, claim: str) -> str:
    """Name of the static volume of a claim; volumes have no namespace, so the name carries it."""
    return f"{namespace}-{claim}"


def storage_class_name(namespace: str, service: str) -> str:
    """Name of a storage class of our own; classes have no namespace, so the name carries it."""
    return f"{namespace}-{service}-cache"


def pre_pull_name(service: str) -> str:
    """Name of the pre-pull DaemonSet; it has no version, so a new image is an update in place."""
    return f"{service}-pre-pull"


def seed_name(name: str, service: ServiceSpec, replica: int) -> str:
    """Name of the seed Job: another revision, image or setting of the download is another Job.

    A Job's template cannot change, and to delete one and create its successor under the same name is a race: while the
    old one is still going away, the provider takes it for the new one (upsertExistingObjects).
    """
    revision = service.model.revision or "default"
    readable = re.sub(r"[^a-z0-9-]+", "-", revision.lower())[:12].strip("-")
    parts = (service.cache.seed.model_dump_json(), service.security.model_dump_json())
    decisive = "\n".join((f"{service.model.id}@{revision}", service.image.reference, *parts))
    return f"{name}-seed-{replica}-{readable}-{hashlib.sha256(decisive.encode()).hexdigest()[:6]}"


def dra_version(kubernetes_minor: int) -> str | None:
    """The version of resource.k8s.io that a minor of Kubernetes serves; ``None`` below 1.32.

    1.32 has v1beta1, 1.33 adds v1beta2, 1.34 makes v1 the stable one (kai-scheduler/KAI-Scheduler#1214).
    """
    if kubernetes_minor < 32:
        return None
    return {32: "v1beta1", 33: "v1beta2"}.get(kubernetes_minor, "v1")


def stack_labels(stack: str) -> dict[str, str]:
    """Labels of everything that belongs to a stack."""
    return {"app.kubernetes.io/managed-by": "pulumi", "app.kubernetes.io/part-of": "vllm", STACK_LABEL: stack}


def component_labels(stack: str, instance: str, component: str) -> dict[str, str]:
    """Labels of one component of one service; the Service selects by instance and component."""
    return {**stack_labels(stack), **selector_labels(instance, component)}


def selector_labels(instance: str, component: str, replica: int | None = None) -> dict[str, str]:
    """What a selector matches. No version is among it: selectors cannot be changed."""
    labels = {"app.kubernetes.io/name": "vllm", INSTANCE_LABEL: instance, COMPONENT_LABEL: component}
    return labels if replica is None else {**labels, REPLICA_LABEL: str(replica)}


def is_of_stack(labels: Mapping[str, str] | None, stack: str) -> bool:
    """Whether an object that exists carries our label of this stack."""
    return (labels or {}).get(STACK_LABEL) == stack
