"""Claims of whole GPUs by dynamic resource allocation, in the API version that the cluster serves.

The request moved: in v1beta1 its fields stand in the request itself, from v1beta2 on below `exactly`
(https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.resource import v1, v1beta1, v1beta2

from components import naming

TEMPLATES: dict[str, Any] = {
    "v1beta1": v1beta1.ResourceClaimTemplate,
    "v1beta2": v1beta2.ResourceClaimTemplate,
    "v1": v1.ResourceClaimTemplate,
}


@dataclass(frozen=True)
class DeviceClaim:
    """Exactly ``count`` devices of one class; ``request`` is the name of the only request."""

    request: str
    device_class: str
    count: int


def template_spec(claim: DeviceClaim, version: str) -> dict[str, Any]:
    """The spec of the template in the shape of an API version."""
    devices = {"device_class_name": claim.device_class, "allocation_mode": "ExactCount", "count": claim.count}
    shaped = devices if version == "v1beta1" else {"exactly": devices}
    return {"spec": {"devices": {"requests": [{"name": claim.request, **shaped}]}}}


def claim_template(
    name: str,
    claim: DeviceClaim,
    kubernetes_minor: int,
    metadata: k8s.meta.v1.ObjectMetaArgs,
    parent: pulumi.Resource,
) -> pulumi.Output[str]:
    """A ResourceClaimTemplate; returns its name, which is generated.

    A template's spec cannot be changed: another one is another template, made before the old one
    goes, and the pods that refer to it by name are rolled. The preflight has refused clusters that
    are too old.
    """
    version = naming.dra_version(kubernetes_minor) or "v1"
    options = pulumi.ResourceOptions(parent=parent, replace_on_changes=["spec"])
    template = TEMPLATES[version](name, metadata=metadata, spec=template_spec(claim, version), opts=options)
    generated: pulumi.Output[str] = template.metadata.name
    return generated
