"""The section ``vllm:monitoring``: how a stack is scraped, and which alerts fire at which values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.spec.base import DnsLabel, Fraction, PositiveFloat, PositiveInt, Quantity, Spec

Duration = Annotated[str, Field(pattern=r"^[1-9]\d*(s|m|h)$")]
"""A duration as Prometheus writes it: 90s, 5m, 1h."""
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?$", max_length=63)]
Labels = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][-\w./]*$")], LabelValue]
Severity = Literal["critical", "warning", "info"]
Ratio = Annotated[float, Field(gt=0, lt=1)]


class _Core(Spec):
    enabled: bool = True
    """Whether the alert is made."""


class _Extra(Spec):
    enabled: bool = False
    """Whether the alert is made. Off unless you ask: too many alerts numb people."""


class QueueBacklogSpec(_Core):
    """VLLMQueueBacklog: requests wait."""

    waiting_per_replica: PositiveFloat = 10
    """Fires when more requests than this wait at one replica."""

    waiting_per_service: PositiveFloat | None = None
    """Fires also when more than this wait at all replicas together. Unset: only the single replica counts."""

    hold: Annotated[Duration, Field(alias="for")] = "2m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class TtftSloBreachSpec(_Core):
    """VLLMTTFTSLOBreach: the first token comes too late."""

    seconds: PositiveFloat = 2
    """The objective for the time to first token. It is evaluated at the next bucket edge of the
    release's histogram, because between two edges nothing is known; the preview says which."""

    quantile: Ratio = 0.95
    """Share of requests that must keep the objective."""

    minimum_requests: PositiveInt = 5
    """Fewer first tokens than this in five minutes say nothing about a quantile and fire nothing."""

    hold: Annotated[Duration, Field(alias="for")] = "5m"
    """How long it must hold before the alert fires."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class KvCacheSaturatedSpec(_Core):
    """VLLMKVCacheSaturated: the KV cache is full, pre-emption is next."""

    usage: Fraction = 0.95
    """Fires above this share of the KV cache in use."""

    hold: Annotated[Duration, Field(alias="for")] = "5m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class PrefixCacheCollapseSpec(_Core):
    """VLLMPrefixCacheCollapse: prompts no longer begin alike. Switch it off for services whose prompts are
    short or unrelated: only full blocks of tokens are reused, never the last one."""

    hit_rate: Fraction = 0.2
    """Fires below this share of prompt tokens that come from the prefix cache."""

    minimum_tokens_per_second: PositiveFloat = 10
    """Below this many prompt tokens per second there is no traffic to judge by."""

    minimum_prompt_tokens: PositiveInt = 64
    """Below this mean prompt length nearly nothing can be reused, and nothing fires."""

    hold: Annotated[Duration, Field(alias="for")] = "15m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class ServerDownSpec(_Extra):
    """VLLMServerDown: fewer replicas answer than the stack has."""

    hold: Annotated[Duration | None, Field(alias="for")] = None
    """How long it must hold. Unset: the planned start-up window and two minutes, so that an update is no outage."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class MetricsMissingSpec(_Extra):
    """VLLMMetricsMissing: the server answers, and the series that the other alerts read are not there."""

    hold: Annotated[Duration, Field(alias="for")] = "10m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class StalledSpec(_Extra):
    """VLLMStalled: requests run and no token comes."""

    hold: Annotated[Duration, Field(alias="for")] = "5m"
    """How long it must hold, after five minutes without a token."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class RestartingSpec(_Extra):
    """VLLMRestarting: the server's container is restarted. Needs kube-state-metrics."""

    restarts_per_hour: PositiveFloat = 2
    """Fires above this many restarts in an hour."""

    hold: Annotated[Duration, Field(alias="for")] = "1m"
    """How long it must hold before the alert fires."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class OutOfMemorySpec(_Extra):
    """VLLMOutOfMemory: the kernel ended the server for its RAM (not: GPU memory). Needs kube-state-metrics."""

    hold: Annotated[Duration, Field(alias="for")] = "1m"
    """How long it must hold before the alert fires."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class KvCacheThrashingSpec(_Extra):
    """VLLMKVCacheThrashing: KV blocks are thrown out before they are used again. Switches on
    engine.kvCacheMetrics, which vLLM has since 0.19.1."""

    hold: Annotated[Duration, Field(alias="for")] = "15m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class PreemptionsSpec(_Extra):
    """VLLMPreemptions: running requests are stopped for lack of KV blocks and computed again."""

    per_minute: PositiveFloat = 6
    """Fires above this many pre-emptions per minute."""

    hold: Annotated[Duration, Field(alias="for")] = "10m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class InterTokenLatencySpec(_Extra):
    """VLLMInterTokenLatency: tokens follow each other too slowly."""

    seconds: PositiveFloat = 0.1
    """The objective for the time between two tokens, evaluated at the next bucket edge."""

    quantile: Ratio = 0.95
    """Share of tokens that must keep the objective."""

    hold: Annotated[Duration, Field(alias="for")] = "10m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class RequestsFailingSpec(_Extra):
    """VLLMRequestsFailing: requests end in an error, or clients give them up."""

    share: Ratio = 0.05
    """Fires above this share of the requests."""

    minimum_requests: PositiveInt = 5
    """Fewer requests than this in five minutes fire nothing."""

    hold: Annotated[Duration, Field(alias="for")] = "5m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class CompileCacheMissedSpec(_Extra):
    """VLLMCompileCacheMissed: a start took longer than a start with a warm compile cache does. Needs
    kube-state-metrics."""

    seconds: PositiveFloat | None = None
    """Fires when container start to Ready took longer. Unset: half way between the planned warm start and
    the planned start that compiles."""

    severity: Severity = "info"
    """Label `severity` of the alert."""

    hold: Annotated[Duration, Field(alias="for")] = "1m"
    """How long it must hold before the alert fires."""


class ClaimNearlyFullSpec(_Extra):
    """VLLMClaimNearlyFull: the claim of weights and compile caches fills up. Needs the kubelet's metrics."""

    usage: Ratio = 0.85
    """Fires above this share of the volume."""

    hold: Annotated[Duration, Field(alias="for")] = "15m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""


class TtftBudgetBurnSpec(_Extra):
    """VLLMTTFTBudgetBurn: late first tokens use up the error budget too fast, in a long and a short window.
    Objective and quantile are those of ttftSloBreach."""

    burn_rate: PositiveFloat = 14.4
    """Fires above this multiple of the rate that uses the budget up exactly; 14.4 is 2 % of a month's in an hour."""

    long_window: Duration = "1h"
    """The window that shows that it matters."""

    short_window: Duration = "5m"
    """The window that shows that it is still going on."""

    hold: Annotated[Duration, Field(alias="for")] = "2m"
    """How long it must hold before the alert fires."""

    severity: Severity = "critical"
    """Label `severity` of the alert."""


class OwnAlertSpec(Spec):
    """An alert of your own, made with the others and checked against the release's metrics."""

    alert: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")]
    """Its name."""

    expr: Annotated[str, Field(min_length=1)]
    """PromQL. Every `vllm:` series in it must be one that the release exports."""

    hold: Annotated[Duration, Field(alias="for")] = "5m"
    """How long it must hold before the alert fires."""

    severity: Severity = "warning"
    """Label `severity` of the alert."""

    summary: Annotated[str, Field(min_length=1)]
    """One line that says what is wrong."""

    runbook_url: Annotated[str, Field(min_length=1)]
    """Where it says what to do."""


class AlertsSpec(Spec):
    """The alerts: four that are on, and more that are off until you ask for them."""

    queue_backlog: QueueBacklogSpec = QueueBacklogSpec()
    """VLLMQueueBacklog: requests wait."""

    ttft_slo_breach: TtftSloBreachSpec = TtftSloBreachSpec()
    """VLLMTTFTSLOBreach: the first token comes too late."""

    kv_cache_saturated: KvCacheSaturatedSpec = KvCacheSaturatedSpec()
    """VLLMKVCacheSaturated: the KV cache is full."""

    prefix_cache_collapse: PrefixCacheCollapseSpec = PrefixCacheCollapseSpec()
    """VLLMPrefixCacheCollapse: prompts no longer begin alike."""

    server_down: ServerDownSpec = ServerDownSpec()
    """VLLMServerDown: fewer replicas answer than the stack has."""

    metrics_missing: MetricsMissingSpec = MetricsMissingSpec()
    """VLLMMetricsMissing: the server answers without the series that alerts read."""

    stalled: StalledSpec = StalledSpec()
    """VLLMStalled: requests run and no token comes."""

    restarting: RestartingSpec = RestartingSpec()
    """VLLMRestarting: the server's container is restarted."""

    out_of_memory: OutOfMemorySpec = OutOfMemorySpec()
    """VLLMOutOfMemory: the kernel ended the server for its RAM."""

    kv_cache_thrashing: KvCacheThrashingSpec = KvCacheThrashingSpec()
    """VLLMKVCacheThrashing: KV blocks are thrown out before they are used again."""

    preemptions: PreemptionsSpec = PreemptionsSpec()
    """VLLMPreemptions: running requests are stopped and computed again."""

    inter_token_latency: InterTokenLatencySpec = InterTokenLatencySpec()
    """VLLMInterTokenLatency: tokens follow each other too slowly."""

    requests_failing: RequestsFailingSpec = RequestsFailingSpec()
    """VLLMRequestsFailing: requests end in an error, or clients give them up."""

    compile_cache_missed: CompileCacheMissedSpec = CompileCacheMissedSpec()
    """VLLMCompileCacheMissed: a restart compiled again."""

    claim_nearly_full: ClaimNearlyFullSpec = ClaimNearlyFullSpec()
    """VLLMClaimNearlyFull: the claim fills up."""

    ttft_budget_burn: TtftBudgetBurnSpec = TtftBudgetBurnSpec()
    """VLLMTTFTBudgetBurn: the error budget is used up too fast."""

    own: tuple[OwnAlertSpec, ...] = ()
    """Alerts of your own."""


class _Scraped(Spec):
    scrape_interval_seconds: Annotated[int, Field(ge=5, le=60)] = 30
    """Seconds between two readings. Rates are over five minutes, so each has several readings to go by."""

    keep_histograms: tuple[Annotated[str, Field(pattern=r"^vllm:\w+$")], ...] = ()
    """Histograms whose buckets are kept though no alert and no panel of ours reads them. Their sums and
    counts are always kept."""

    alerts: AlertsSpec = AlertsSpec()
    """Alerts of every service."""

    services: dict[DnsLabel, AlertsSpec] = {}
    """What differs for single services, by their key in `vllm:services`: only what is written here."""

    runbook_url: Annotated[str, Field(min_length=1)] = "docs/runbook.md"
    """Where your team reads docs/runbook.md; each alert links to its own heading there."""

    dashboard: bool = True
    """Make a Grafana dashboard of each service, as a ConfigMap for Grafana's sidecar."""

    dashboard_labels: Annotated[Labels, Field(min_length=1)] = {"grafana_dashboard": "1"}
    """Labels by which Grafana's sidecar finds dashboards."""


class _FromOutside(_Scraped):
    prometheus_namespace: DnsLabel = "monitoring"
    """Namespace that Prometheus runs in; its pods may read /metrics of the servers."""


class OperatorMonitoring(_FromOutside):
    """ServiceMonitor and PrometheusRule for a Prometheus that prometheus-operator runs."""

    mode: Literal["operator"]
    """prometheus-operator is in the cluster."""

    labels: Annotated[Labels, Field(min_length=1)]
    """Labels that the Prometheus object selects monitors and rules by: serviceMonitorSelector and ruleSelector
    of `kubectl get prometheus -A -o yaml`; kube-prometheus-stack wants release: NAME-OF-ITS-RELEASE."""


class AnnotationsMonitoring(_FromOutside):
    """Annotations on the Service, and ConfigMaps with rules and scrape job for a Prometheus run by hand."""

    mode: Literal["annotations"]
    """A Prometheus without an operator."""


class WebhookReceiver(Spec):
    """Alerts are posted as JSON to the URL in the secret `vllm:alertWebhookUrl`."""

    kind: Literal["webhook"]
    """A web hook."""


class SlackReceiver(Spec):
    """Alerts go to Slack through the incoming web hook in the secret `vllm:alertSlackUrl`."""

    kind: Literal["slack"]
    """A Slack channel."""

    channel: Annotated[str, Field(min_length=1)]
    """The channel, for example #inference."""


class EmailReceiver(Spec):
    """Alerts are mailed; the password of the account is the secret `vllm:alertSmtpPassword`."""

    kind: Literal["email"]
    """Mail."""

    to: Annotated[str, Field(pattern=r"^\S+@\S+$")]
    """Who gets the mail."""

    sender: Annotated[str, Field(pattern=r"^\S+@\S+$")]
    """Who it is from."""

    smarthost: Annotated[str, Field(pattern=r"^[\w.-]+:\d+$")]
    """The mail server, HOST:PORT."""

    username: Annotated[str, Field(min_length=1)]
    """The account at the mail server."""


Receiver = Annotated[WebhookReceiver | SlackReceiver | EmailReceiver, Field(discriminator="kind")]


class StandaloneMonitoring(_Scraped):
    """A Prometheus and an Alertmanager of the stack's own, in its namespace."""

    mode: Literal["standalone"]
    """There is no Prometheus yet."""

    prometheus_image: Annotated[str, Field(pattern=r"^[\w./:-]+:v[\w.-]+(@sha256:[0-9a-f]{64})?$")]
    """Image of Prometheus with its tag."""

    alertmanager_image: Annotated[str, Field(pattern=r"^[\w./:-]+:v[\w.-]+(@sha256:[0-9a-f]{64})?$")]
    """Image of Alertmanager with its tag."""

    storage_class: str | None = None
    """Storage class of both claims. Unset: the cluster's default class."""

    size: Quantity = "10Gi"
    """Size of Prometheus' claim. It stops keeping samples at four fifths of it."""

    retention: Annotated[str, Field(pattern=r"^[1-9]\d*d$")] = "15d"
    """How long samples are kept."""

    receiver: Receiver
    """Who is told."""


class NoMonitoring(Spec):
    """No monitoring at all."""

    mode: Literal["none"]
    """Nothing is scraped."""


ActiveMonitoring = OperatorMonitoring | AnnotationsMonitoring | StandaloneMonitoring
MonitoringSpec = Annotated[ActiveMonitoring | NoMonitoring, Field(discriminator="mode")]


def alerts_of(monitoring: ActiveMonitoring, service: str) -> AlertsSpec:
    """The alerts of one service: those of all, with what the stack says about this one on top.

    Raises:
        pydantic.ValidationError: never for specs that were read from a stack file: both halves are valid by themselves.
    """
    own = monitoring.services.get(service)
    if own is None:
        return monitoring.alerts
    merged = monitoring.alerts.model_dump(by_alias=True, exclude_unset=True)
    for name, values in own.model_dump(by_alias=True, exclude_unset=True).items():
        merged[name] = {**merged.get(name, {}), **values} if isinstance(values, dict) else values
    return AlertsSpec.model_validate(merged)
