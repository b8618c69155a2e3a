"""Rules about names and about who can reach a server."""

from __future__ import annotations

from collections.abc import Iterator

from components import naming
from infra.preflight.rule import Said, ServiceSubject, StackSubject, rule
from planner.releases import asks_for_key

TELLING_PATHS = ("/metrics", "/invocations", "/tokenize", "/detokenize", "/pooling", "/score", "/rerank", "/docs")
"""What tells or computes something beside /v1 (vllm#18892)."""
PEER_ROLES = ("kv_producer", "kv_consumer")
PEER_CONNECTORS = ("NixlConnector", "MooncakeConnector", "P2pNcclConnector")
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST"


def _open_in_spite_of_key(subject: ServiceSubject) -> Iterator[str]:
    return (path for path in TELLING_PATHS if not asks_for_key(subject.plan.release, path))


@rule("SEC-1", "https://github.com/vllm-project/vllm/issues/18892")
def outside_needs_named_clients(subject: ServiceSubject) -> Iterator[Said]:
    """The API key guards only some paths, so a server that is reachable from outside needs named clients."""
    exposure = subject.plan.service.exposure
    if exposure.type != "ClusterIP" and not exposure.allow_from.cidrs:
        yield Said(
            "error",
            "exposure.allowFrom.cidrs",
            f"is empty, and a Service of type {exposure.type} is reachable from outside; "
            f"open even with an API key: {', '.join(_open_in_spite_of_key(subject))}",
            "list the clients' address ranges, or type ClusterIP behind an ingress that lets only /v1 through",
        )


@rule("SEC-1", "https://github.com/vllm-project/vllm/issues/18892")
def outside_is_not_everybody(subject: ServiceSubject) -> Iterator[Said]:
    """Named clients are no guard where they are the whole world, or where nothing enforces the policy."""
    exposure, cluster = subject.plan.service.exposure, subject.stack.config.cluster
    if exposure.type == "ClusterIP" or not exposure.allow_from.cidrs:
        return
    worldwide = [cidr for cidr in exposure.allow_from.cidrs if cidr.endswith("/0")]
    if worldwide:
        keyed = "apiKey" in subject.stack.secrets
        yield Said(
            "warn" if keyed else "error",
            "exposure.allowFrom.cidrs",
            f"{', '.join(worldwide)} is everybody, {'even' if keyed else 'and'} without a key "
            f"{', '.join(_open_in_spite_of_key(subject))} answer",
            "the clients' own address ranges" + ("" if keyed else ", and vllm:apiKey"),
        )
    if cluster.enforces_network_policy is False:
        yield Said(
            "error",
            "exposure.type",
            f"{exposure.type}, and cluster.enforcesNetworkPolicy is false: nobody keeps other addresses out",
            "ClusterIP behind an ingress that lets only /v1 through, or a network plugin that enforces policies",
        )


@rule("NET-3", "https://github.com/volcano-sh/kthena/pull/1781")
def key_value_transfer_stays_in_the_pod(subject: ServiceSubject) -> Iterator[Said]:
    """A producer or consumer of KV blocks needs a peer, which no other pod can reach through our policy."""
    service = subject.plan.service
    config = service.engine.kv_transfer_config or {}
    role = config.get("kv_role")
    if role in PEER_ROLES:
        message = f"kv_role {role!r} needs a peer: splitting prefill and decode is not offered yet"
        remedy = (
            "leave it out, or a connector that stays in the pod (kv_role: kv_both, for example OffloadingConnector)"
        )
        yield Said("error", "engine.kvTransferConfig", message, remedy)
    elif config.get("kv_connector") in PEER_CONNECTORS:
        message = f"{config['kv_connector']} finds no peer: only the server's own port is open between pods"
        yield Said("warn", "engine.kvTransferConfig", message, "OffloadingConnector, or leave it out")
    host = service.env.get(SIDE_CHANNEL, "")
    if host == "localhost" or host.startswith(("127.", "0.0.0.0", "::")):  # noqa: S104 - what must not be announced
        message = f"{host!r} is announced to peers, which then dial themselves"
        yield Said("error", f"env.{SIDE_CHANNEL}", message, "leave it out: prefill and decode are not split yet")


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
    services = subject.config.services.items()
    names = {
        "exposure.serviceName": [(key, naming.service_name(key, it)) for key, it in services],
        "cache.claimName": [(key, name) for key, it in services for name in naming.claim_names(key, it)],
    }
    for field, taken in names.items():
        seen: dict[str, str] = {}
        for key, name in taken:
            if name in seen:
                message = f"{name!r} is also the one of services.{seen[name]}"
                yield Said("error", f"services.{key}.{field}", message, "another name")
            seen[name] = key


STACK_RULES = (policies_are_enforced, names_are_unique)
RULES = (
    outside_needs_named_clients,
    outside_is_not_everybody,
    key_value_transfer_stays_in_the_pod,
    service_name_poisons_nobody,
)
