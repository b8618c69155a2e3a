"""Rules about monitoring: alerts that could never fire, and series that would never come."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

from components import naming
from components.monitoring_names import ALERTMANAGER, PROMETHEUS, targets_of
from infra.preflight.rule import LiveSubject, Said, StackSubject, rule
from planner.alerts import KV_CACHE_METRICS, TTFT, Target
from planner.metrics import CUSTOM_BUCKET_KEYS, CUSTOM_BUCKETS, UnknownMetricError, metrics_of, remedy, unknown_series
from planner.plan import ServicePlan
from planner.scrape import series_of
from planner.spec import HostPathCache
from planner.spec.monitoring import (
    ActiveMonitoring,
    NoMonitoring,
    OperatorMonitoring,
    StandaloneMonitoring,
    alerts_of,
)

if TYPE_CHECKING:
    from infra.live import LiveCluster

METRICS_DOCUMENT = "https://docs.vllm.ai/en/latest/usage/metrics/"
HISTOGRAMS = "https://prometheus.io/docs/practices/histograms/#errors-of-quantile-estimation"
OPERATOR_KINDS = ("ServiceMonitor", "PrometheusRule")
RECEIVER_SECRETS = {"webhook": "alertWebhookUrl", "slack": "alertSlackUrl", "email": "alertSmtpPassword"}
"""Which secret of the stack holds the credential of which receiver."""


def missing_kinds(live: LiveCluster) -> list[str]:
    """Which of prometheus-operator's kinds the cluster does not serve."""
    return [kind for kind in OPERATOR_KINDS if kind not in live.objects]


def watched(subject: StackSubject) -> Iterator[tuple[ActiveMonitoring, ServicePlan]]:
    """Each planned service with the monitoring that watches it."""
    spec = subject.config.monitoring
    if not isinstance(spec, NoMonitoring):
        for plan in subject.plans.values():
            yield spec, plan


def target(subject: StackSubject, spec: ActiveMonitoring, plan: ServicePlan) -> Target:
    """What the rules of one service know."""
    return targets_of({plan.name: plan}, spec, subject.config.cluster.namespace)[0]


def place(spec: ActiveMonitoring, service: str, field: str) -> str:
    """The path of an alert's field: the service's own, where it says something about that alert."""
    own = spec.services.get(service)
    alert = field.split(".", maxsplit=1)[0]
    said = own is not None and alert in own.model_dump(by_alias=True, exclude_unset=True)
    return f"monitoring.services.{service}.{field}" if said else f"monitoring.alerts.{field}"


@rule("MON-NONE", METRICS_DOCUMENT)
def somebody_is_told(subject: StackSubject) -> Iterator[Said]:
    """Without monitoring nobody learns that requests wait."""
    if isinstance(subject.config.monitoring, NoMonitoring):
        message = "is none: nothing is scraped and no alert is made"
        yield Said("info", "monitoring.mode", message, "operator, annotations or standalone")


@rule("MON-SERVICE", "stacks/schema.json")
def overrides_have_a_service(subject: StackSubject) -> Iterator[Said]:
    """What is said about a service that there is not has no effect."""
    spec = subject.config.monitoring
    if isinstance(spec, NoMonitoring):
        return
    known = list(subject.config.services)
    for name in spec.services:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            yield Said(
                "error", f"monitoring.services.{name}", "there is no such service", f"{hint}one of {', '.join(known)}"
            )


@rule("MON-OFF", METRICS_DOCUMENT)
def statistics_are_on(subject: StackSubject) -> Iterator[Said]:
    """With --disable-log-stats the server exports no series of its own."""
    for _, plan in watched(subject):
        if "--disable-log-stats" in plan.argv:
            yield Said(
                "error",
                f"services.{plan.name}.engine.extraArgs",
                "--disable-log-stats switches all vllm: series off, and monitoring is on: no alert could ever fire",
                "drop it, or monitoring mode none",
            )


@rule("MON-MULTIPROC", "https://prometheus.github.io/client_python/multiprocess/")
def counters_start_afresh(subject: StackSubject) -> Iterator[Said]:
    """A folder of counters that outlives the server gives wrong figures after a restart."""
    for _, plan in watched(subject):
        if "PROMETHEUS_MULTIPROC_DIR" in plan.service.env:
            yield Said(
                "warn",
                f"services.{plan.name}.env.PROMETHEUS_MULTIPROC_DIR",
                "must be empty at every start, or counters of the last server are added to this one's",
                "drop it: vLLM makes a temporary folder by itself when it needs one",
            )


@rule("MON-1", "https://github.com/vllm-project/vllm/pull/24245")
def own_alerts_name_exported_series(subject: StackSubject) -> Iterator[Said]:
    """An alert on a series that the release does not export is silent for ever."""
    for spec, plan in watched(subject):
        metrics = metrics_of(plan.release)
        for own in alerts_of(spec, plan.name).own:
            for sample in unknown_series(metrics, own.expr):
                yield Said(
                    "error",
                    place(spec, plan.name, "own"),
                    f"{own.alert} reads {sample}, which vLLM {plan.release.version} of {plan.name!r} does not export",
                    remedy(metrics, sample),
                )


@rule("MON-THRASH", "https://docs.vllm.ai/en/latest/design/metrics/")
def thrashing_can_be_seen(subject: StackSubject) -> Iterator[Said]:
    """The KV-thrash alert reads histograms that exist only with --kv-cache-metrics."""
    for spec, plan in watched(subject):
        if not alerts_of(spec, plan.name).kv_cache_thrashing.enabled:
            continue
        path = place(spec, plan.name, "kvCacheThrashing.enabled")
        if plan.release.certain(KV_CACHE_METRICS) is None:
            message = (
                f"is true, and vLLM {plan.release.version} of {plan.name!r} has no {KV_CACHE_METRICS}: "
                "what the alert reads does not exist there"
            )
            yield Said("error", path, message, "vLLM 0.19.1 or newer, or false; kvCacheSaturated works everywhere")
        elif plan.service.engine.kv_cache_metrics is False:
            message = f"is true, and services.{plan.name}.engine.kvCacheMetrics is false: the series would not exist"
            yield Said("error", path, message, "drop engine.kvCacheMetrics: the alert switches it on")


@rule("MON-EDGE", HISTOGRAMS)
def objective_is_a_bucket_edge(subject: StackSubject) -> Iterator[Said]:
    """Between two bucket edges nothing is known: a quantile there is an interpolation, not a measurement."""
    for spec, plan in watched(subject):
        made = target(subject, spec, plan)
        objective = made.alerts.ttft_slo_breach
        if not objective.enabled:
            continue
        histogram = made.metrics.require(TTFT)
        edge = histogram.edge_at(objective.seconds)
        path = place(spec, plan.name, "ttftSloBreach.seconds")
        if edge is None:
            message = f"{objective.seconds:g} s is beyond the last bucket of {plan.name!r}, {histogram.buckets[-1]:g} s"
            yield Said("error", path, message, f"at most {histogram.buckets[-1]:g}")
        elif edge != objective.seconds:
            below = max((each for each in histogram.buckets if each < objective.seconds), default=0.0)
            message = (
                f"{objective.seconds:g} s is no bucket edge of vLLM {plan.release.version} of {plan.name!r} "
                f"(edges {below:g} and {edge:g}): the alert counts requests above {edge:g} s"
            )
            yield Said("info", path, message, f"write {edge:g}{_own_buckets(plan)}")


def _own_buckets(plan: ServicePlan) -> str:
    if plan.release.certain(CUSTOM_BUCKETS) is None:
        return ""
    return f", or give your own edges with engine.extraArgs {CUSTOM_BUCKETS} and the key {CUSTOM_BUCKET_KEYS[TTFT]}"


@rule("MON-QUEUE", METRICS_DOCUMENT)
def queue_can_grow_that_long(subject: StackSubject) -> Iterator[Said]:
    """A queue with a limit never grows beyond it: further requests are refused instead."""
    for spec, plan in watched(subject):
        alert, most = alerts_of(spec, plan.name).queue_backlog, plan.service.engine.max_num_queued_reqs
        if alert.enabled and most is not None and alert.waiting_per_replica >= most:
            yield Said(
                "warn",
                place(spec, plan.name, "queueBacklog.waitingPerReplica"),
                f"{alert.waiting_per_replica:g}, and services.{plan.name}.engine.maxNumQueuedReqs lets {most} wait: "
                "the alert never fires, requests are refused instead",
                f"less than {most}",
            )


@rule("MON-BURN", "https://sre.google/workbook/alerting-on-slos/")
def budget_can_burn_that_fast(subject: StackSubject) -> Iterator[Said]:
    """A burn rate at which every single request would have to be late, and more, is never reached."""
    for spec, plan in watched(subject):
        alerts = alerts_of(spec, plan.name)
        budget = 1 - alerts.ttft_slo_breach.quantile
        if alerts.ttft_budget_burn.enabled and alerts.ttft_budget_burn.burn_rate * budget >= 1:
            yield Said(
                "error",
                place(spec, plan.name, "ttftBudgetBurn.burnRate"),
                f"{alerts.ttft_budget_burn.burn_rate:g} times a budget of {budget:.3g} of {plan.name!r} is more than "
                "all requests: the alert never fires",
                f"less than {1 / budget:.3g}",
            )


@rule("MON-PREFIX", "https://docs.vllm.ai/en/latest/features/automatic_prefix_caching/")
def prefix_cache_is_there(subject: StackSubject) -> Iterator[Said]:
    """Without a prefix cache its hit rate says nothing."""
    for spec, plan in watched(subject):
        off = plan.service.engine.enable_prefix_caching is False
        if off and alerts_of(spec, plan.name).prefix_cache_collapse.enabled:
            message = (
                f"has no effect for {plan.name!r}, whose engine.enablePrefixCaching is false: the alert is not made"
            )
            yield Said("info", place(spec, plan.name, "prefixCacheCollapse.enabled"), message, "nothing to do")


@rule("MON-CLAIM", "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath")
def claim_is_measured(subject: StackSubject) -> Iterator[Said]:
    """The kubelet reports no use of a node's folder."""
    for spec, plan in watched(subject):
        if alerts_of(spec, plan.name).claim_nearly_full.enabled and isinstance(plan.service.cache, HostPathCache):
            yield Said(
                "warn",
                place(spec, plan.name, "claimNearlyFull.enabled"),
                f"is true, and the cache of {plan.name!r} is a folder of a node, of which the kubelet reports no use: "
                "the alert never fires",
                "watch the node's file system instead",
            )


@rule("MON-SERIES", "https://prometheus.io/docs/practices/instrumentation/#do-not-overuse-labels")
def series_are_bounded(subject: StackSubject) -> Iterator[Said]:
    """Each series costs memory in Prometheus; what no rule and no panel reads is not stored."""
    for spec, plan in watched(subject):
        engines = plan.service.engine.data_parallel_size or 1
        try:
            made = target(subject, spec, plan)
            series = series_of(made, plan.argv, plan.memory.max_model_len, engines, spec.keep_histograms)
        except UnknownMetricError:
            continue  # another rule says which alert asks for it
        replicas = plan.service.replicas
        yield Said(
            "info",
            "monitoring.scrapeIntervalSeconds",
            f"{plan.name!r}: {series.kept * replicas} of {series.exported * replicas} vllm: series are stored, "
            f"every {spec.scrape_interval_seconds} s",
            "keepHistograms keeps the buckets of more of them",
        )


@rule("MON-HISTOGRAM", METRICS_DOCUMENT)
def kept_histograms_exist(subject: StackSubject) -> Iterator[Said]:
    """A histogram that no release of the stack has keeps nothing."""
    spec = subject.config.monitoring
    if isinstance(spec, NoMonitoring):
        return
    for name in spec.keep_histograms:
        families = [metrics_of(plan.release).families.get(name) for plan in subject.plans.values()]
        if not any(family is not None and family.kind == "histogram" for family in families):
            yield Said(
                "error", "monitoring.keepHistograms", f"{name} is no histogram of any release in this stack", "drop it"
            )


@rule("MON-RECEIVER", "https://prometheus.io/docs/alerting/latest/configuration/")
def receiver_has_its_credential(subject: StackSubject) -> Iterator[Said]:
    """A receiver without its credential tells nobody."""
    spec = subject.config.monitoring
    if isinstance(spec, StandaloneMonitoring):
        key = RECEIVER_SECRETS[spec.receiver.kind]
        if key not in subject.secrets:
            message = f"is {spec.receiver.kind}, and the stack has no vllm:{key}"
            yield Said("error", "monitoring.receiver.kind", message, f"`pulumi config set --secret vllm:{key}`")


@rule("MON-CRDS", "https://github.com/pulumi/pulumi-kubernetes/issues/1712")
def operator_kinds_are_served(subject: LiveSubject) -> Iterator[Said]:
    """Without prometheus-operator's kinds its objects cannot be made; the servers are deployed all the same."""
    missing = missing_kinds(subject.live)
    if isinstance(subject.config.monitoring, OperatorMonitoring) and missing:
        yield Said(
            "warn",
            "monitoring.mode",
            f"is operator, and the cluster does not serve {', '.join(missing)}: no monitor and no rule is made",
            "helm install prometheus oci://ghcr.io/prometheus-community/charts/kube-prometheus-stack "
            "--namespace monitoring --create-namespace, then `up` again; or mode annotations",
        )


@rule("MON-NAMESPACE", "https://kubernetes.io/docs/concepts/services-networking/network-policies/")
def prometheus_is_where_it_is_said(subject: LiveSubject) -> Iterator[Said]:
    """The servers let in the namespace that Prometheus runs in, and no other."""
    spec = subject.config.monitoring
    if isinstance(spec, (NoMonitoring, StandaloneMonitoring)):
        return
    if subject.live.get("Namespace", spec.prometheus_namespace) is None:
        message = f"{spec.prometheus_namespace!r} is not in the cluster: where Prometheus really runs it is kept out"
        yield Said("warn", "monitoring.prometheusNamespace", message, "the namespace of Prometheus' pods")


@rule("MON-NAMES", "stacks/schema.json")
def no_name_is_taken_twice(subject: StackSubject) -> Iterator[Said]:
    """Objects of standalone monitoring and of a service of the same name would be one object."""
    if isinstance(subject.config.monitoring, StandaloneMonitoring):
        reserved = {PROMETHEUS, ALERTMANAGER}
        for name, service in subject.config.services.items():
            if {name, naming.service_name(name, service)} & reserved:
                message = "has the name of a part of standalone monitoring"
                yield Said("error", f"services.{name}", message, "another name")


@rule("MON-PYTHON", "https://github.com/grafana/grafana-foundation-sdk")
def dashboards_can_be_made(subject: StackSubject) -> Iterator[Said]:
    """The library that makes dashboards needs Python 3.11, the rest of the program 3.10."""
    spec = subject.config.monitoring
    wanted = not isinstance(spec, NoMonitoring) and spec.dashboard
    if wanted and importlib.util.find_spec("grafana_foundation_sdk") is None:
        message = "is true, and the library grafana-foundation-sdk is not installed (it needs Python 3.11 or newer)"
        yield Said("error", "monitoring.dashboard", message, "run on Python 3.11 or newer, or dashboard: false")


STACK_RULES = (
    dashboards_can_be_made,
    somebody_is_told,
    overrides_have_a_service,
    statistics_are_on,
    counters_start_afresh,
    own_alerts_name_exported_series,
    thrashing_can_be_seen,
    objective_is_a_bucket_edge,
    queue_can_grow_that_long,
    budget_can_burn_that_fast,
    prefix_cache_is_there,
    claim_is_measured,
    series_are_bounded,
    kept_histograms_exist,
    receiver_has_its_credential,
    no_name_is_taken_twice,
)
LIVE_RULES = (operator_kinds_are_served, prometheus_is_where_it_is_said)
