"""Every line of a check, in the order in which a person would look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from components import naming
from infra.check.closer import Closer, Right, Unknown
from infra.check.nodes import PoolLook
from infra.check.report import Findings, told
from infra.config import StackConfig
from infra.lines import Line
from infra.live import LiveCluster
from infra.preflight import check_live
from infra.preflight.live import wanted
from planner.spec import ExistingClaimCache, HostPathCache
from planner.spec.monitoring import NoMonitoring

CACHES = ("LIVE-CLAIM", "LIVE-VOLUME", "LIVE-CLASS", "LIVE-MODE")


def check_lines(config: StackConfig, stack: str, address: str, cluster: LiveCluster, closer: Closer) -> Iterator[Line]:
    """The cluster at ``address`` beside the stack. A line of status `fail` is something that `up` would fail at."""
    findings = Findings(check_live(config, stack, cluster))
    check = Check(config, stack, cluster, findings)
    yield from check.cluster(address)
    yield rights(closer)
    yield from check.namespace()
    for name in config.nodes:
        yield from PoolLook(config, stack, name, cluster, closer, findings).lines()
    for name in config.services:
        yield from check.caches(name)
    yield from check.objects()
    yield from check.monitoring()
    yield from told("stack", "", findings.rest()) if findings.rest() else ()


@dataclass(frozen=True)
class Check:
    """A stack beside its cluster, pools aside."""

    config: StackConfig
    stack: str
    live: LiveCluster
    findings: Findings

    def cluster(self, address: str) -> Iterator[Line]:
        """It answers, and is of the declared version."""
        declared = self.config.cluster.kubernetes_version
        fact = f"context {self.config.cluster.context}: {address} answers, Kubernetes {self.live.version}"
        yield from told("cluster", fact, self.findings.take(("LIVE-VERSION",), "cluster.kubernetesVersion"), declared)

    def namespace(self) -> Iterator[Line]:
        """It is there or can be made, and is nobody else's."""
        name = self.config.cluster.namespace
        found = self.live.get("Namespace", name)
        taken = self.findings.take(("LIVE-NAMESPACE", "LIVE-FOREIGN", "LIVE-SWAP"), "cluster.namespace")
        yield from told("namespace", f"{name} {self._state(found)}", taken)

    def caches(self, service_name: str) -> Iterator[Line]:
        """The claims of a service and what is bound to them."""
        service = self.config.services[service_name]
        question, place = f"{service_name} cache", f"services.{service_name}.cache"
        facts = [self._claim(claim) for claim in naming.claim_names(service_name, service)]
        if isinstance(service.cache, HostPathCache):
            facts.append(f"free part of the disk under {service.cache.path} not known")
        yield from told(question, "; ".join(facts), self.findings.take(CACHES, place))
        lost = [claim for claim in naming.claim_names(service_name, service) if self._phase(claim) == "Lost"]
        for claim in lost:
            remedy = "its volume was deleted: restore it, or another claimName for an empty cache"
            yield Line("fail", question, f"claim {claim} is Lost", remedy=remedy)
        if isinstance(service.cache, ExistingClaimCache) and self._phase(service.cache.claim_name) == "Pending":
            yield Line(
                "warn", question, f"claim {service.cache.claim_name} is Pending", "Bound", "kubectl describe pvc"
            )

    def objects(self) -> Iterator[Line]:
        """What the stack makes and is there already is its own."""
        names = [(kind, name) for kind, name, _ in wanted(self.config)]
        there = [one for one in names if self.live.get(*one) is not None]
        taken = [
            *self.findings.take(("LIVE-FOREIGN",), "services"),
            *self.findings.take(("LIVE-FOREIGN",), "monitoring"),
        ]
        yield from told("objects", f"{len(there)} of {len(names)} are there", taken)

    def monitoring(self) -> Iterator[Line]:
        """The kinds and the namespace that the mode needs."""
        spec = self.config.monitoring
        taken = self.findings.take(("MON-CRDS", "MON-NAMESPACE", "LIVE-SAMPLES"), "monitoring")
        if not isinstance(spec, NoMonitoring):
            yield from told("monitoring", f"mode {spec.mode}", taken)

    def _claim(self, name: str) -> str:
        claim = self.live.get("PersistentVolumeClaim", name)
        if claim is None:
            return f"claim {name} not there yet"
        volume = claim["spec"].get("volumeName")
        return f"claim {name} {self._phase(name)}{f' to {volume}' if volume else ''}"

    def _phase(self, name: str) -> str:
        claim = self.live.get("PersistentVolumeClaim", name) or {}
        return str((claim.get("status") or {}).get("phase", ""))

    def _state(self, namespace: dict[str, object] | None) -> str:
        if namespace is None:
            return "is not there yet: `up` makes it"
        metadata = namespace["metadata"]
        ours = isinstance(metadata, dict) and naming.is_of_stack(metadata.get("labels"), self.stack)
        return "is there and of this stack" if ours else "is there, made by somebody else"


def rights(closer: Closer) -> Line:
    """What this identity may do. The question is a SelfSubjectAccessReview, which stores nothing."""
    found = closer.rights
    if found is None or isinstance(found, Unknown):
        return Line("warn", "rights", f"not known: {found.why if found else 'not asked'}")
    missing = [right for right, allowed in found.items() if not allowed]
    if not missing:
        return Line("ok", "rights", f"this identity may do all {len(found)} things that `up` does")
    # Nothing is deleted unless something leaves the stack, and events only say why something waits.
    harmless = all(right.verb == "delete" or right.resource == "events" for right in missing)
    return Line(
        "warn" if harmless else "fail",
        "rights",
        f"this identity may not {_grouped(missing)}",
        f"all {len(found)} things that `up` does",
        "an identity that may, or a Role with these verbs",
        {"missing": [str(right) for right in missing]},
    )


def _grouped(missing: Sequence[Right]) -> str:
    """Verbs by resource: create, patch deployments.apps; …"""
    verbs: dict[str, list[str]] = {}
    for right in missing:
        verbs.setdefault(str(right).partition(" ")[2], []).append(right.verb)
    return "; ".join(f"{', '.join(each)} {resource}" for resource, each in verbs.items())
