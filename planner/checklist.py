"""The production checklist of a service: what its objects hold, what a rule checks, what is left to a person.

Each of the 24 boxes has one of four answers:

- ``held``: the rendered objects say so; ``where`` is the field of the object.
- ``checked``: a rule looks at it; ``where`` is its id, and ``said`` is what it found, if anything.
- ``person``: nobody but a person can tell; ``where`` is what to do.
- ``not offered``: this version cannot do it; ``where`` is the reason.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal, NamedTuple

from planner import caches
from planner.capability import quantization_method
from planner.findings import Finding
from planner.plan import SHARED_MEMORY_GIB, ServicePlan
from planner.spec import gibibytes, quantity
from planner.spec.monitoring import MonitoringSpec, NoMonitoring, alerts_of

Status = Literal["held", "checked", "person", "not offered"]
Section = Literal["deployment", "configuration", "security", "observability", "capacity"]
CONTAINER = "Deployment spec.template.spec.containers[vllm]"
COMMAND = f"{CONTAINER}.command"
VOLUMES = "Deployment spec.template.spec.volumes"
CORE_ALERTS = ("queue_backlog", "ttft_slo_breach", "kv_cache_saturated", "prefix_cache_collapse")


class Question(NamedTuple):
    """One box, as it is asked."""

    id: str
    section: Section
    box: str


class Answer(NamedTuple):
    """How a box stands, and where that is to be seen."""

    status: Status
    where: str


@dataclass(frozen=True)
class Box:
    """One box with its answer. ``rule`` checks it, where one does; ``said`` is what that found about this service."""

    id: str
    section: Section
    box: str
    status: Status
    where: str
    rule: str | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Subject:
    plan: ServicePlan
    findings: tuple[Finding, ...]
    monitoring: MonitoringSpec | None

    def said(self, rule: str) -> tuple[str, ...]:
        """What a rule found about this service."""
        return tuple(f"{finding.path}: {finding.message}" for finding in self.findings if finding.rule == rule)


@cache
def questions() -> tuple[Question, ...]:
    """The boxes in their order, without answers."""
    document = json.loads((resources.files("planner") / "data" / "checklist.json").read_text(encoding="utf-8"))
    return tuple(Question(**entry) for entry in document["boxes"])


def checklists(
    plans: Mapping[str, ServicePlan], findings: Iterable[Finding], monitoring: MonitoringSpec | None = None
) -> dict[str, tuple[Box, ...]]:
    """Every box for each service. ``findings``: those of the whole stack; each service gets its own and its pool's."""
    by_place: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in findings:
        by_place[_place(finding)].append(finding)
    found = {}
    for name, plan in plans.items():
        own = (*by_place["services", name], *by_place["nodes", plan.service.pool])
        subject = _Subject(plan, own, monitoring)
        found[name] = tuple(_box(question, subject) for question in questions())
    return found


def _place(finding: Finding) -> tuple[str, ...]:
    """The section and the key in it that a finding is about: ``("services", "chat")``."""
    return tuple(finding.path.removeprefix("vllm:").split(".")[:2])


def _box(question: Question, subject: _Subject) -> Box:
    status, where = _ANSWERS[question.id](subject)
    rule = where.split(":")[0] if status == "checked" else None
    return Box(*question, status, where, rule, subject.said(rule) if rule else ())


def _image_pinned(subject: _Subject) -> Answer:
    image = subject.plan.service.image
    if subject.said("PIN-TAG"):
        return Answer("checked", "PIN-TAG")
    content = " (its content is not: PIN-IMAGE)" if image.digest is None else ""
    return Answer("held", f"{CONTAINER}.image: {image.repository}:{image.tag}{content}")


def _shared_memory(subject: _Subject) -> Answer:
    size = subject.plan.shared_memory
    if gibibytes(size) >= SHARED_MEMORY_GIB:
        return Answer("held", f"{VOLUMES}[shm].emptyDir.sizeLimit: {size}")
    return Answer("checked", f"NET-1: {size}; with one GPU no tensors are exchanged through it")


def _caches_kept(_: _Subject) -> Answer:
    return Answer("held", f"{CONTAINER}.volumeMounts: {caches.WEIGHTS} and {caches.COMPILE} on the claim")


def _cpus(subject: _Subject) -> Answer:
    plan = subject.plan
    if quantity(plan.cpu) >= 2 + plan.service.gpus:
        return Answer("held", f"{CONTAINER}.resources.requests.cpu: {plan.cpu}")
    return Answer("checked", "CPU-1")


def _start_is_waited_for(subject: _Subject) -> Answer:
    clocks = subject.plan.clocks
    window = f"{clocks.startup_failure_threshold} x {clocks.startup_period_seconds} s"
    return Answer("held", f"{CONTAINER}.startupProbe: {window}, where a fixed delay would be a guess")


def _liveness_is_patient(subject: _Subject) -> Answer:
    clocks = subject.plan.clocks
    silence = f"timeout {clocks.probe_timeout_seconds} s, {clocks.liveness_window_seconds} s of silence"
    return Answer("held", f"{CONTAINER}.livenessProbe: {silence}")


def _context_as_needed(subject: _Subject) -> Answer:
    length = subject.plan.service.engine.max_model_len
    return Answer("checked", "SET-LENGTH") if length is None else Answer("held", f"{COMMAND}: --max-model-len {length}")


def _kv_cache_reviewed(subject: _Subject) -> Answer:
    memory = subject.plan.memory
    figures = f"{memory.kv_tokens:,} tokens, {memory.full_length_requests:.1f} requests of full length at once"
    return Answer("checked", f"MEM-1: {figures}; compare with the server's log once")


def _tokens_by_target(subject: _Subject) -> Answer:
    service = subject.plan.service
    tokens = service.engine.max_num_batched_tokens
    if tokens is not None and service.workload.target is not None:
        return Answer("held", f"{COMMAND}: --max-num-batched-tokens {tokens}, for {service.workload.target}")
    if service.workload.target is not None:
        return Answer("checked", "SET-TOKENS")
    return Answer("person", "say which latency matters in workload.target, then set engine.maxNumBatchedTokens")


def _quantisation_evaluated(subject: _Subject) -> Answer:
    plan = subject.plan
    method = quantization_method(plan.model, plan.service)
    if method is None:
        return Answer("held", f"{COMMAND}: the weights of {plan.model.id} are not quantised")
    return Answer("person", f"compare {method} weights with unquantised ones on your own evaluation set")


def _rdma_between_nodes(subject: _Subject) -> Answer:
    plan = subject.plan
    what, library = ("GPU(s)", "NCCL") if plan.pool.kind == "gpu" else ("worker(s)", "Gloo")
    one = f"all {plan.service.gpus} {what} of a replica are in one node (SCH-NODE)"
    return Answer("not offered", f"a server on several nodes: {one}, so {library} crosses no network")


def _api_key(subject: _Subject) -> Answer:
    if subject.said("SEC-KEY"):
        return Answer("checked", "SEC-KEY")
    return Answer("person", "the key is set (VLLM_API_KEY from a Secret); telling tenants apart is a gateway's task")


def _admin_endpoints(_: _Subject) -> Answer:
    return Answer("checked", "SEC-DEV: refuses the settings that add them; the NetworkPolicy names who may call at all")


def _no_dev_mode(_: _Subject) -> Answer:
    return Answer("checked", "SEC-DEV")


def _cache_salt(subject: _Subject) -> Answer:
    if subject.plan.service.engine.enable_prefix_caching is False:
        return Answer("held", f"{COMMAND}: the prefix cache is off")
    return Answer("person", "with several tenants, let the gateway add `cache_salt` to each request")


def _input_limit(subject: _Subject) -> Answer:
    most = subject.plan.memory.max_model_len
    return Answer("person", f"limit prompts at the gateway; the server itself refuses only above {most:,} tokens")


def _scraped(subject: _Subject) -> Answer:
    monitoring = subject.monitoring
    if monitoring is None or isinstance(monitoring, NoMonitoring):
        return Answer("person", "set vllm:monitoring, or let your own Prometheus read port http, path /metrics")
    scraped = {"operator": "ServiceMonitor", "annotations": "Service metadata.annotations", "standalone": "ConfigMap"}
    where = scraped[monitoring.mode]
    if not monitoring.dashboard:
        return Answer("person", f"{where} is made; vllm:monitoring.dashboard is false, so the dashboard is yours")
    return Answer("held", f"{where}, and a ConfigMap with the dashboard")


def _core_alerts(subject: _Subject) -> Answer:
    monitoring = subject.monitoring
    if monitoring is None or isinstance(monitoring, NoMonitoring):
        return Answer("person", "set vllm:monitoring: it makes all four")
    chosen = alerts_of(monitoring, subject.plan.name)
    off = [name for name in CORE_ALERTS if not getattr(chosen, name).enabled]
    if off:
        return Answer("person", f"switched off: {', '.join(off)}; somebody must see such a fault in another way")
    return Answer("held", "PrometheusRule spec.groups" if monitoring.mode == "operator" else "ConfigMap with the rules")


def _request_trace(subject: _Subject) -> Answer:
    endpoint = subject.plan.service.engine.otlp_traces_endpoint
    if endpoint is not None:
        return Answer("held", f"{COMMAND}: --otlp-traces-endpoint {endpoint}")
    return Answer("person", "run an OpenTelemetry collector and name it in engine.otlpTracesEndpoint")


def _saturation_measured(subject: _Subject) -> Answer:
    measured = subject.plan.service.workload.requests_per_second
    if measured is not None:
        return Answer("person", f"workload.requestsPerSecond says {measured:g}; measure again when traffic changes")
    return Answer("person", "raise the rate of real requests until the objective breaks; workload.requestsPerSecond")


def _scaled_by_queue(_: _Subject) -> Answer:
    return Answer("not offered", "autoscaling: the number of replicas is the stack's")


def _scaling_time_known(subject: _Subject) -> Answer:
    seconds = subject.plan.cold.seconds
    return Answer("person", f"a further replica answers after {seconds:.0f} s; keep headroom for what comes meanwhile")


def _queue_limit(subject: _Subject) -> Answer:
    plan = subject.plan
    limit = plan.service.engine.max_num_queued_reqs
    if limit is not None:
        return Answer("held", f"{COMMAND}: --max-num-queued-reqs {limit}")
    if subject.said("SET-QUEUE"):
        return Answer("checked", "SET-QUEUE")
    return Answer("person", f"vLLM {plan.release.version} has no limit of its own: set one at the gateway")


def _canary(_: _Subject) -> Answer:
    return Answer("person", "a second service beside this one, a gateway that splits; the way back is the old commit")


_ANSWERS: Mapping[str, Callable[[_Subject], Answer]] = MappingProxyType(
    {
        "image-pinned": _image_pinned,
        "shared-memory": _shared_memory,
        "caches-kept": _caches_kept,
        "cpus": _cpus,
        "start-is-waited-for": _start_is_waited_for,
        "liveness-is-patient": _liveness_is_patient,
        "context-as-needed": _context_as_needed,
        "kv-cache-reviewed": _kv_cache_reviewed,
        "tokens-by-target": _tokens_by_target,
        "quantisation-evaluated": _quantisation_evaluated,
        "rdma-between-nodes": _rdma_between_nodes,
        "api-key": _api_key,
        "admin-endpoints": _admin_endpoints,
        "no-dev-mode": _no_dev_mode,
        "cache-salt": _cache_salt,
        "input-limit": _input_limit,
        "scraped": _scraped,
        "core-alerts": _core_alerts,
        "request-trace": _request_trace,
        "saturation-measured": _saturation_measured,
        "scaled-by-queue": _scaled_by_queue,
        "scaling-time-known": _scaling_time_known,
        "queue-limit": _queue_limit,
        "canary": _canary,
    }
)
