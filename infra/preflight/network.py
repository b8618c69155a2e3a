"""Rules about names and about who can reach a server."""

from __future__ import annotations

from collections.abc import Iterator

from components import naming
from infra.preflight.rule import Said, ServiceSubject, StackSubject, rule

OPEN_WITHOUT_KEY = ("/metrics", "/invocations", "/tokenize", "/detokenize", "/pooling", "/score", "/rerank", "/docs")
"""Served without asking for the API key by every release (vllm#18892)."""


@rule("SEC-1", "https://github.com/vllm-project/vllm/issues/18892")
def outside_needs_named_clients(subject: ServiceSubject) -> Iterator[Said]:
    """The API key guards only some paths, so a server that is reachable from outside needs named clients."""
    exposure = subject.plan.service.exposure
    if exposure.type != "ClusterIP" and not exposure.allow_from.cidrs:
        yield Said(
            "error",
            "exposure.allowFrom.cidrs",
            f"is empty, and a Service of type {exposure.type} is reachable from outside; "
            f"open even with an API key: {', '.join(OPEN_WITHOUT_KEY)}",
            "list the clients' address ranges, or type ClusterIP behind an ingress that lets only /v1 through",
        )


@rule("NET-CNI", "https://kubernetes.io/docs/concepts/services-networking/network-policies/#prerequisites")
def policies_are_enforced(subject: StackSubject) -> Iterator[Said]:
    """A NetworkPolicy does nothing where the network plugin does not enforce it."""
    enforces = subject.config.cluster.enforces_network_policy
    if enforces is not True:
        said = "is false" if enforces is False else "is not set"
        yield Said(
            "warn" if enforces is False else "info",
            "cluster.enforcesNetworkPolicy",
            f"{said}: who may call the servers is rendered and possibly not enforced",
            "use a plugin that enforces NetworkPolicy (Calico, Cilium) and say true",
        )


@rule("ARG-1", "https://github.com/vllm-project/vllm/issues/34199")
def service_name_poisons_nobody(subject: ServiceSubject) -> Iterator[Said]:
    """A Service called `vllm` makes every other pod of the namespace see VLLM_PORT=tcp://…"""
    name = naming.service_name(subject.plan.name, subject.plan.service)
    if name == "vllm":
        yield Said(
            "warn",
            "exposure.serviceName",
            "'vllm': pods of others in the namespace get VLLM_PORT set to an address (ours are protected)",
            "any other name",
        )


@rule("NAM-1", "https://kubernetes.io/docs/concepts/services-networking/service/")
def names_are_unique(subject: StackSubject) -> Iterator[Said]:
    """Two services cannot share the name of a Service or of a claim."""
    names = {
        "exposure.serviceName": {key: naming.service_name(key, it) for key, it in subject.config.services.items()},
        "cache.claimName": {key: naming.claim_name(key, it, 0) for key, it in subject.config.services.items()},
    }
    for field, by_service in names.items():
        seen: dict[str, str] = {}
        for key, name in by_service.items():
            if name in seen:
                message = f"{name!r} is also the one of services.{seen[name]}"
                yield Said("error", f"services.{key}.{field}", message, "another name")
            seen[name] = key


STACK_RULES = (policies_are_enforced, names_are_unique)
RULES = (outside_needs_named_clients, service_name_poisons_nobody)
