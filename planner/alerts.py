"""The rules of one service: alerts and recording rules, in the metric names of its own release.

Rules are plain mappings as Prometheus reads them. Every quantity is aggregated to one value for each service, so that
one fault is one page; ``service`` is the Kubernetes Service, a label that the scrape adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from planner.metrics import Metrics, UnknownMetricError, metrics_of, unknown, unknown_series, with_custom_buckets
from planner.plan import ServicePlan
from planner.releases import UnknownReleaseError, release_of
from planner.spec import ServiceSpec
from planner.spec.monitoring import ActiveMonitoring, AlertsSpec, alerts_of
from planner.startup import CacheState, plan_startup

Rule = dict[str, Any]
OF_SERVER = 'container="vllm"'
"""Matcher of the server's container in its pod."""
GIVEN_UP_WINDOW = "30m"
"""Over which requests that were given up are counted: long against the time of one request."""
AFTER_START_SECONDS = 120
"""How long after the planned start-up window a server that does not answer is down."""
GROUPED = ("namespace", "service", "model_name")
TTFT = "vllm:time_to_first_token_seconds"
ITL = "vllm:inter_token_latency_seconds"
QUEUE_TIME = "vllm:request_queue_time_seconds"
PREFILL_TIME = "vllm:request_prefill_time_seconds"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV_USAGE = "vllm:kv_cache_usage_perc"
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
GENERATED, PROMPTED = "vllm:generation_tokens_total", "vllm:prompt_tokens_total"
FINISHED = "vllm:request_success_total"
PROMPT_LENGTH = "vllm:request_prompt_tokens"
PREEMPTIONS = "vllm:num_preemptions_total"
REUSE_GAP, IDLE_BEFORE_EVICT = "vllm:kv_block_reuse_gap_seconds", "vllm:kv_block_idle_before_evict_seconds"
KV_CACHE_METRICS = "--kv-cache-metrics"


class Fault(NamedTuple):
    """What an alert looks for, and what it says when it finds it."""

    expression: str
    summary: str
    description: str


@dataclass(frozen=True)
class Target:
    """What the rules of one service must know of it.

    ``name`` is its key in the stack file, ``service`` its Kubernetes Service, ``servers`` the names of its Deployments
    and ``claims`` of its claims. ``kv_tokens`` is the planned KV cache of one engine, ``price_per_hour`` the price of
    one replica, $. The starts are planned seconds from the container's start to Ready: with everything cached, and
    with an empty compile cache.
    """

    name: str
    namespace: str
    service: str
    servers: tuple[str, ...]
    claims: tuple[str, ...]
    metrics: Metrics
    alerts: AlertsSpec
    prefix_caching: bool
    kv_tokens: int
    startup_window_seconds: int
    warm_start_seconds: float
    compiling_start_seconds: float
    price_per_hour: float | None
    scrape_interval_seconds: int
    runbook_url: str

    def selector(self, *matchers: str) -> str:
        """The label matchers of this service's own series, with ``matchers`` added."""
        return "{" + ",".join([f'namespace="{self.namespace}"', f'service="{self.service}"', *matchers]) + "}"

    def pods(self, *matchers: str) -> str:
        """The label matchers of series about this service's pods, as kube-state-metrics labels them."""
        names = "|".join(self.servers)
        return "{" + ",".join([f'namespace="{self.namespace}"', f'pod=~"({names})-.+"', *matchers]) + "}"

    def series(self, sample: str, *matchers: str) -> str:
        """A selector of one exported series.

        Raises:
            UnknownMetricError: this release does not export it.
        """
        if self.metrics.family_of(sample) is None:
            raise UnknownMetricError(unknown(self.metrics, sample))
        return f"{sample}{self.selector(*matchers)}"

    def rate(self, sample: str, *matchers: str, window: str = "5m") -> str:
        """Increase per second, over all replicas."""
        return by_service("sum", f"rate({self.series(sample, *matchers)}[{window}])")

    def within(self, histogram: str, seconds: float, window: str = "5m") -> str:
        """Share of observations at or below a bucket edge: exact, unlike a quantile that falls between edges."""
        inside = self.rate(f"{histogram}_bucket", f'le="{seconds}"', window=window)
        return f"{inside} / {self.rate(f'{histogram}_count', window=window)}"

    def mean(self, histogram: str) -> str:
        """Mean of the last five minutes, from sum and count; absent without observations."""
        return f"{self.rate(f'{histogram}_sum')} / ({self.rate(f'{histogram}_count')} > 0)"

    def quantile(self, quantile: float, histogram: str, window: str = "10m") -> str:
        """A quantile over all replicas, interpolated between bucket edges."""
        rates = by_service("sum", f"rate({self.series(f'{histogram}_bucket')}[{window}])", "le")
        return f"histogram_quantile({quantile}, {rates})"

    def edge(self, histogram: str, seconds: float) -> float:
        """The bucket edge that an objective is evaluated at.

        Raises:
            UnknownMetricError: no edge is that high, so nothing could be said.
        """
        edge = self.metrics.require(histogram).edge_at(seconds)
        if edge is None:
            raise UnknownMetricError(f"{histogram} of vLLM {self.metrics.version} ends below {seconds:g} s")
        return edge


def by_service(aggregation: str, expression: str, *more: str) -> str:
    """An aggregation to one value for each service, or for each service and the labels ``more``."""
    return f"{aggregation} by ({', '.join((*GROUPED, *more))}) ({expression})"


def target_of(
    plan: ServicePlan,
    monitoring: ActiveMonitoring,
    *,
    namespace: str,
    service: str,
    servers: tuple[str, ...],
    claims: tuple[str, ...],
) -> Target:
    """What the rules of a planned service must know. ``service``, ``servers``, ``claims``: names of its objects."""
    uncompiled = CacheState(image=True, weights=True, page_cache=True, compile_cache=False)
    compiling = plan_startup(plan.gpu, plan.model, plan.release, plan.service, plan.pool, uncompiled)
    price = plan.pool.price_per_hour
    return Target(
        name=plan.name,
        namespace=namespace,
        service=service,
        servers=servers,
        claims=claims,
        metrics=with_custom_buckets(metrics_of(plan.release), plan.argv),
        alerts=alerts_of(monitoring, plan.name),
        prefix_caching=plan.service.engine.enable_prefix_caching is not False,
        kv_tokens=plan.memory.kv_tokens,
        startup_window_seconds=plan.clocks.startup_window_seconds,
        warm_start_seconds=plan.warm.in_container_seconds,
        compiling_start_seconds=compiling.in_container_seconds,
        price_per_hour=None if price is None else price * plan.service.gpus / plan.pool.gpus_per_node,
        scrape_interval_seconds=monitoring.scrape_interval_seconds,
        runbook_url=monitoring.runbook_url,
    )


def with_settings_for_alerts(service: ServiceSpec, alerts: AlertsSpec) -> ServiceSpec:
    """The service with the engine settings that its alerts need: the KV-thrash alert reads histograms that vLLM
    exports only with --kv-cache-metrics. Where the release lacks it, or the stack says no, nothing is changed: the
    preflight then refuses the alert."""
    if not alerts.kv_cache_thrashing.enabled or service.engine.kv_cache_metrics is not None:
        return service
    try:
        release = release_of(service.image)
    except UnknownReleaseError:
        return service
    if release.certain(KV_CACHE_METRICS) is None:
        return service
    return service.model_copy(update={"engine": service.engine.model_copy(update={"kv_cache_metrics": True})})


def rule_groups(target: Target) -> list[dict[str, Any]]:
    """Everything that Prometheus evaluates for one service: ``groups`` of a rule file.

    Raises:
        UnknownMetricError: an alert is switched on that this release has no metric for.
    """
    interval = f"{target.scrape_interval_seconds}s"
    return [
        {"name": f"vllm-{target.name}-records", "interval": interval, "rules": list(records(target))},
        {"name": f"vllm-{target.name}-alerts", "interval": interval, "rules": list(alerts(target))},
    ]


def records(target: Target) -> Iterator[Rule]:
    """The recording rules. Times are means from sums and counts: quantiles cannot be added up."""
    expressions = {
        "service:vllm_time_to_first_token_seconds:mean5m": target.mean(TTFT),
        "service:vllm_request_queue_time_seconds:mean5m": target.mean(QUEUE_TIME),
        "service:vllm_request_prefill_time_seconds:mean5m": target.mean(PREFILL_TIME),
        # API server, tokenising, waiting for the event loop: 5 % of TTFT for one request, 44 % for sixteen.
        "service:vllm_time_to_first_token_rest_seconds:mean5m": (
            f"{target.mean(TTFT)} - {target.mean(QUEUE_TIME)} - {target.mean(PREFILL_TIME)}"
        ),
        "service:vllm_inter_token_latency_seconds:mean5m": target.mean(ITL),
        "service:vllm_prefix_cache_hits:ratio10m": (
            f"{target.rate(HITS, window='10m')} / ({target.rate(QUERIES, window='10m')} > 0)"
        ),
        "service:vllm_prompt_tokens:rate5m": target.rate(PROMPTED),
        "service:vllm_generation_tokens:rate5m": target.rate(GENERATED),
        "service:vllm_request_success:rate5m": by_service(
            "sum", f"rate({target.series(FINISHED)}[5m])", "finished_reason"
        ),
        "service:vllm_kv_cache_tokens:used": by_service("sum", f"{target.series(KV_USAGE)} * {target.kv_tokens}"),
    }
    if target.price_per_hour is not None:
        replicas = by_service("count", by_service("sum", target.series(RUNNING), "pod"))
        tokens = f"({target.rate(PROMPTED)} + {target.rate(GENERATED)} > 0)"
        dollars = f"{target.price_per_hour:g} / 3600"
        expressions["service:vllm_cost_dollars_per_million_tokens:mean5m"] = (
            f"{replicas} * {dollars} / {tokens} * 1000000"
        )
    for name, expression in expressions.items():
        yield {"record": name, "expr": expression}


def alerts(target: Target) -> Iterator[Rule]:
    """The alerts that the stack file has switched on, its own included."""
    for field, (name, build) in _BUILDERS.items():
        spec = getattr(target.alerts, field)
        if spec.enabled and not (field == "prefix_cache_collapse" and not target.prefix_caching):
            hold = spec.hold or f"{target.startup_window_seconds + AFTER_START_SECONDS}s"
            labels = {"severity": spec.severity, "namespace": target.namespace, "service": target.service}
            yield _alert(name, hold, labels, f"{target.runbook_url}#{name.lower()}", build(target))
    for own in target.alerts.own:
        for sample in unknown_series(target.metrics, own.expr):
            raise UnknownMetricError(unknown(target.metrics, sample))
        labels = {"severity": own.severity, "namespace": target.namespace, "service": target.service}
        fault = Fault(own.expr, own.summary, "Now: {{ $value }}.")
        yield _alert(own.alert, own.hold, labels, own.runbook_url, fault)


def _alert(name: str, hold: str, labels: dict[str, str], runbook: str, fault: Fault) -> Rule:
    """An alert. Its labels name the service even where the series are another exporter's and do not."""
    summary = f"{labels['namespace']}/{labels['service']}: {fault.summary}"
    return {
        "alert": name,
        "expr": fault.expression,
        "for": hold,
        "labels": labels,
        "annotations": {"summary": summary, "description": fault.description, "runbook_url": runbook},
    }


def _queue_backlog(target: Target) -> Fault:
    spec = target.alerts.queue_backlog
    fullest = by_service("max", by_service("sum", target.series(WAITING), "pod"))
    expression = f"{fullest} > {spec.waiting_per_replica:g}"
    limit = f"more than {spec.waiting_per_replica:g} at one replica"
    if spec.waiting_per_service is not None:
        expression = f"{by_service('sum', target.series(WAITING))} > {spec.waiting_per_service:g} or {expression}"
        limit += f" or {spec.waiting_per_service:g} at all together"
    description = (
        f"{{{{ $value | humanize }}}} requests wait ({limit}) for {spec.hold}. {_split(target)} "
        "Look first whether the wait is the queue or the prefill: the cures are opposite. Queue: replicas up, "
        f"{_field(target, 'engine.maxModelLen')} down, maxNumSeqs up."
    )
    return Fault(expression, "requests wait", description)


def _ttft_slo_breach(target: Target) -> Fault:
    spec = target.alerts.ttft_slo_breach
    edge = target.edge(TTFT, spec.seconds)
    enough = by_service("sum", f"increase({target.series(f'{TTFT}_count')}[5m])")
    expression = f"{target.within(TTFT, edge)} < {spec.quantile:g} and {enough} >= {spec.minimum_requests}"
    description = (
        f"Only {{{{ $value | humanizePercentage }}}} of the requests had their first token within {edge:g} s; the "
        f"objective is {spec.quantile:.4g} within {spec.seconds:g} s. {_split(target)} Queue: replicas up, "
        f"{_field(target, 'engine.maxModelLen')} down, maxNumSeqs up. Prefill: maxNumBatchedTokens up, or find out why "
        "the prefix hit rate fell."
    )
    return Fault(expression, "the first token comes too late", description)


def _split(target: Target) -> str:
    """Queue and prefill of the moment, filled in when the alert fires."""
    parts = []
    for label, name in (("queue", "request_queue_time"), ("prefill", "request_prefill_time")):
        series = f"service:vllm_{name}_seconds:mean5m{target.selector()}".replace('"', "'")
        value = "{{ . | first | value | humanizeDuration }}"
        parts.append(f'{label} {{{{ with query "{series}" }}}}{value}{{{{ else }}}}not known{{{{ end }}}}')
    return f"Mean of the last five minutes: {', '.join(parts)}."


def _field(target: Target, field: str) -> str:
    return f"services.{target.name}.{field}"


def _kv_cache_saturated(target: Target) -> Fault:
    spec = target.alerts.kv_cache_saturated
    expression = f"{by_service('max', target.series(KV_USAGE))} > {spec.usage:g}"
    description = (
        f"{{{{ $value | humanizePercentage }}}} of the KV cache of the fullest engine is in use; at 100 % running "
        f"requests are pre-empted and computed again. The planned cache holds {target.kv_tokens:,} tokens. Fewer "
        f"sequences at once ({_field(target, 'engine.maxNumSeqs')} down), shorter contexts (maxModelLen), "
        "kvCacheDtype fp8, or replicas up."
    )
    return Fault(expression, "the KV cache is full", description)


def _prefix_cache_collapse(target: Target) -> Fault:
    spec = target.alerts.prefix_cache_collapse
    queried = target.rate(QUERIES, window="10m")
    length = (
        f"{target.rate(f'{PROMPT_LENGTH}_sum', window='10m')} / {target.rate(f'{PROMPT_LENGTH}_count', window='10m')}"
    )
    expression = (
        f"{target.rate(HITS, window='10m')} / {queried} < {spec.hit_rate:g}"
        f" and {queried} > {spec.minimum_tokens_per_second:g} and {length} >= {spec.minimum_prompt_tokens}"
    )
    description = (
        "{{ $value | humanizePercentage }} of the prompt tokens came from the prefix cache. Usually somebody changed "
        "the prompt template, so that prompts no longer begin alike: nothing breaks, and every answer costs two to "
        "three times as much. Only full blocks are reused; for short or unrelated prompts switch this off with "
        f"monitoring.services.{target.name}.prefixCacheCollapse.enabled: false."
    )
    return Fault(expression, "prompts no longer hit the prefix cache", description)


def _server_down(target: Target) -> Fault:
    up = f"up{target.selector()}"
    # absent() is 1 with the labels of its selector: nought replicas when nothing is scraped at all.
    answering = f"(sum by (namespace, service) ({up}) or absent({up}) - 1)"
    description = f"{{{{ $value }}}} of {len(target.servers)} replicas answer on /metrics, longer than a start takes."
    return Fault(f"{answering} < {len(target.servers)}", "fewer replicas answer than the stack has", description)


def _metrics_missing(target: Target) -> Fault:
    up = f"(sum by (namespace, service) (up{target.selector()}) > 0)"
    needed = (WAITING, f"{TTFT}_count", KV_USAGE, QUERIES)
    expression = " or ".join(f"{up} unless on (namespace, service) {target.series(sample)}" for sample in needed)
    description = (
        f"{{{{ $value }}}} replicas answer, and of {', '.join(needed)} at least one is missing: the alerts that read "
        "it cannot fire. The image is another release than the stack file says, or --disable-log-stats is set."
    )
    return Fault(expression, "series that alerts read are missing", description)


def _stalled(target: Target) -> Fault:
    running = by_service("sum", target.series(RUNNING), "pod")
    tokens = by_service("sum", f"rate({target.series(GENERATED)}[5m])", "pod")
    description = (
        "{{ $value }} requests run at one replica and no token has come for five minutes. /health may still answer: "
        "the engine hangs in a collective or a kernel."
    )
    return Fault(
        by_service("max", f"({running} > 0) and ({tokens} == 0)"), "requests run and no token comes", description
    )


def _restarting(target: Target) -> Fault:
    spec = target.alerts.restarting
    restarts = f"kube_pod_container_status_restarts_total{target.pods(OF_SERVER)}"
    expression = f"sum by (namespace) (increase({restarts}[1h])) > {spec.restarts_per_hour:g}"
    description = "{{ $value | humanize }} restarts of the container in the last hour."
    return Fault(expression, "the server is restarted again and again", description)


def _out_of_memory(target: Target) -> Fault:
    restarts = f"increase(kube_pod_container_status_restarts_total{target.pods(OF_SERVER)}[10m]) > 0"
    reason = target.pods(OF_SERVER, 'reason="OOMKilled"')
    killed = f"kube_pod_container_status_last_terminated_reason{reason} == 1"
    description = (
        "{{ $value }} replicas were ended by the kernel in the last ten minutes for using more RAM than "
        f"{_field(target, 'resources.memoryLimit')}. That is the node's RAM with /dev/shm, not the GPU's memory."
    )
    joined = f"({restarts}) and on (namespace, pod, container) ({killed})"
    return Fault(f"count by (namespace) ({joined}) > 0", "the server ran out of RAM", description)


def _kv_cache_thrashing(target: Target) -> Fault:
    gap, idle = target.quantile(0.9, REUSE_GAP), target.quantile(0.5, IDLE_BEFORE_EVICT)
    description = (
        "Blocks are wanted again after {{ $value | humanizeDuration }} (p90), and half of them are thrown out sooner: "
        "the KV cache is too small for its traffic, whatever its use says. "
        f"{_field(target, 'engine.gpuMemoryUtilization')} up, kvCacheDtype fp8, or replicas up."
    )
    return Fault(f"{gap} > {idle}", "KV blocks are thrown out before they are used again", description)


def _preemptions(target: Target) -> Fault:
    spec = target.alerts.preemptions
    description = (
        "{{ $value | humanize }} running requests per minute are stopped for lack of KV blocks and computed again. "
        f"{_field(target, 'engine.maxNumSeqs')} down, or a larger KV cache."
    )
    return Fault(
        f"{target.rate(PREEMPTIONS)} * 60 > {spec.per_minute:g}", "running requests are pre-empted", description
    )


def _inter_token_latency(target: Target) -> Fault:
    spec = target.alerts.inter_token_latency
    edge = target.edge(ITL, spec.seconds)
    description = (
        f"Only {{{{ $value | humanizePercentage }}}} of the tokens came within {edge:g} s of the one before; the "
        f"objective is {spec.quantile:.4g} within {spec.seconds:g} s. "
        f"{_field(target, 'engine.maxNumBatchedTokens')} down, maxNumSeqs down, or replicas up."
    )
    return Fault(f"{target.within(ITL, edge)} < {spec.quantile:g}", "tokens follow each other too slowly", description)


def _requests_failing(target: Target) -> Fault:
    spec = target.alerts.requests_failing
    known = target.metrics.require(FINISHED).label_values["finished_reason"]
    reasons = "|".join(reason for reason in ("abort", "error") if reason in known)
    failed = target.rate(FINISHED, f'finished_reason=~"{reasons}"')
    enough = by_service("sum", f"increase({target.series(FINISHED)}[5m])")
    ended = f"{failed} / {target.rate(FINISHED)} > {spec.share:g} and {enough} >= {spec.minimum_requests}"
    description = (
        f"{{{{ $value | humanizePercentage }}}} of the requests ended as {reasons.replace('|', ' or ')}, or at least "
        "so many had a first token and no end: the client went away, usually because it waited too long."
    )
    return Fault(f"{ended} or {_given_up(target)}", "requests end without an answer", description)


def _given_up(target: Target) -> str:
    """The share of requests that clients gave up, at the least.

    vLLM forgets a request whose client goes away: it is in no `finished_reason` (abort_requests of
    vllm/v1/engine/output_processor.py, 0.11.0 and 0.32.0; seen on a server). Of what had a first token the rest has
    ended or runs. What runs may have begun before, so this is a lower bound; half an hour makes it a near one.
    """
    spec = target.alerts.requests_failing
    begun = by_service("sum", f"increase({target.series(f'{TTFT}_count')}[{GIVEN_UP_WINDOW}])")
    ended = by_service("sum", f"increase({target.series(FINISHED)}[{GIVEN_UP_WINDOW}])")
    running = by_service("sum", target.series(RUNNING))
    # Still going on: what was given up half an hour ago is nobody's page any more.
    now = by_service("sum", f"increase({target.series(f'{TTFT}_count')}[5m])")
    # increase() extrapolates, in a window that is hardly filled by so much that what runs looks given up (seen).
    filled = by_service("sum", f"{target.series(f'{TTFT}_count')} offset {GIVEN_UP_WINDOW}")
    share = f"({begun} - {ended} - {running}) / {begun} > {spec.share:g}"
    return f"{share} and {now} >= {spec.minimum_requests} and {filled} >= 0"


def _compile_cache_missed(target: Target) -> Fault:
    spec = target.alerts.compile_cache_missed
    limit = spec.seconds or (target.warm_start_seconds + target.compiling_start_seconds) / 2
    ready = f"kube_pod_status_ready_time{target.pods()}"
    started = f"kube_pod_container_state_started{target.pods(OF_SERVER)}"
    took = f"{ready} - on (namespace, pod) {started}"
    description = (
        f"The last start took {{{{ $value | humanizeDuration }}}} in the container; with a warm compile cache "
        f"{target.warm_start_seconds:.0f} s are planned, with an empty one {target.compiling_start_seconds:.0f} s."
    )
    # For an hour after Ready: what a start took stays in the series as long as the pod lives.
    expression = f"max by (namespace) (({took} > {limit:.0f}) and on (namespace, pod) (time() - {ready} < 3600))"
    return Fault(expression, "a start compiled again", description)


def _claim_nearly_full(target: Target) -> Fault:
    spec = target.alerts.claim_nearly_full
    claims = f'{{namespace="{target.namespace}",persistentvolumeclaim=~"{"|".join(target.claims)}"}}'
    share = f"kubelet_volume_stats_used_bytes{claims} / kubelet_volume_stats_capacity_bytes{claims}"
    description = (
        "{{ $value | humanizePercentage }} of the fullest claim is used. "
        f"{_field(target, 'cache.size')} up where the storage class can expand; old compile caches can go."
    )
    return Fault(f"max by (namespace) ({share}) > {spec.usage:g}", "the claim is nearly full", description)


def _ttft_budget_burn(target: Target) -> Fault:
    spec, objective = target.alerts.ttft_budget_burn, target.alerts.ttft_slo_breach
    edge = target.edge(TTFT, objective.seconds)
    limit = f"{1 - spec.burn_rate * (1 - objective.quantile):.6g}"
    windows = (spec.long_window, spec.short_window)
    expression = " and ".join(f"{target.within(TTFT, edge, window)} < {limit}" for window in windows)
    description = (
        f"Only {{{{ $value | humanizePercentage }}}} of the requests of the last {spec.long_window} had their first "
        f"token within {edge:g} s: the error budget is used up more than {spec.burn_rate:g} times too fast."
    )
    return Fault(expression, "the error budget of the first token burns", description)


_BUILDERS: Mapping[str, tuple[str, Callable[[Target], Fault]]] = MappingProxyType(
    {
        "queue_backlog": ("VLLMQueueBacklog", _queue_backlog),
        "ttft_slo_breach": ("VLLMTTFTSLOBreach", _ttft_slo_breach),
        "kv_cache_saturated": ("VLLMKVCacheSaturated", _kv_cache_saturated),
        "prefix_cache_collapse": ("VLLMPrefixCacheCollapse", _prefix_cache_collapse),
        "server_down": ("VLLMServerDown", _server_down),
        "metrics_missing": ("VLLMMetricsMissing", _metrics_missing),
        "stalled": ("VLLMStalled", _stalled),
        "restarting": ("VLLMRestarting", _restarting),
        "out_of_memory": ("VLLMOutOfMemory", _out_of_memory),
        "kv_cache_thrashing": ("VLLMKVCacheThrashing", _kv_cache_thrashing),
        "preemptions": ("VLLMPreemptions", _preemptions),
        "inter_token_latency": ("VLLMInterTokenLatency", _inter_token_latency),
        "requests_failing": ("VLLMRequestsFailing", _requests_failing),
        "compile_cache_missed": ("VLLMCompileCacheMissed", _compile_cache_missed),
        "claim_nearly_full": ("VLLMClaimNearlyFull", _claim_nearly_full),
        "ttft_budget_burn": ("VLLMTTFTBudgetBurn", _ttft_budget_burn),
    }
)
ALERTS: Mapping[str, str] = MappingProxyType({field: name for field, (name, _) in _BUILDERS.items()})
"""Name of each alert by its field in the stack file."""
