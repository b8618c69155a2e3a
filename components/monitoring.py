"""Monitoring: what reads a stack's servers, which rules are evaluated, and the dashboards.

It depends on the servers and nothing depends on it: whatever goes wrong here, they are deployed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from components import naming
from components.documents import yaml_text
from components.monitoring_names import dashboard_name, metrics_policy_name, rules_name, scrape_name, scraped_from
from components.standalone_monitoring import StandaloneArgs, create_standalone
from planner.alerts import Target, rule_groups
from planner.scrape import dropped_names
from planner.spec.monitoring import ActiveMonitoring, AnnotationsMonitoring, OperatorMonitoring, StandaloneMonitoring

COMPONENT = "monitoring"
SERVER = "server"
"""Component label of the Service that is scraped (components/vllm_server.py)."""
OPERATOR_API = "monitoring.coreos.com/v1"
PORT_NAME = naming.HTTP_PORT
"""Name of the Service's port. An endpoint of a ServiceMonitor takes a name, never a number
(prometheus-operator#2833)."""
METRICS_PATH = "/metrics"
SCRAPE_ANNOTATION = "prometheus.io/scrape"


@dataclass(frozen=True)
class MonitoringArgs:
    """``targets``: the services that are scraped. ``crds_present``: the cluster serves prometheus-operator's
    kinds; without them none is registered. ``after``: the servers. ``receiver_secret`` holds the receiver's
    credential in mode ``standalone``."""

    stack: str
    namespace: pulumi.Input[str]
    namespace_name: str
    spec: ActiveMonitoring
    targets: Sequence[Target]
    crds_present: bool
    after: Sequence[pulumi.Resource] = field(default_factory=tuple)
    receiver_secret: k8s.core.v1.Secret | None = None


def service_annotations(spec: ActiveMonitoring, port: int) -> dict[str, str]:
    """Annotations of the Service in mode ``annotations``. They are on the Service and not on the pod: a change
    of monitoring must not restart a server. ``port`` is the container's."""
    if not isinstance(spec, AnnotationsMonitoring):
        return {}
    return {SCRAPE_ANNOTATION: "true", "prometheus.io/port": str(port), "prometheus.io/path": METRICS_PATH}


def service_monitor_spec(target: Target, keep_histograms: Iterable[str] = ()) -> dict[str, Any]:
    """How prometheus-operator finds and reads the servers of one service."""
    return {
        "selector": {"matchLabels": naming.selector_labels(target.name, SERVER)},
        "namespaceSelector": {"matchNames": [target.namespace]},
        "endpoints": [
            {
                "port": PORT_NAME,
                "path": METRICS_PATH,
                "interval": f"{target.scrape_interval_seconds}s",
                "scrapeTimeout": scrape_timeout(target),
                "metricRelabelings": [drop_rule(target, keep_histograms, "sourceLabels")],
            }
        ],
    }


def scrape_timeout(target: Target) -> str:
    """No longer than the interval (Prometheus refuses it), and long enough for a busy API server."""
    return f"{min(10, target.scrape_interval_seconds)}s"


def drop_rule(target: Target, keep_histograms: Iterable[str], source_labels: str) -> dict[str, Any]:
    """What is not stored. ``source_labels``: the key's spelling, which differs between operator and Prometheus."""
    names = "|".join(dropped_names(target, keep_histograms))
    return {source_labels: ["__name__"], "regex": f"({names})", "action": "drop"}


def scrape_job(target: Target, keep_histograms: Iterable[str] = ()) -> dict[str, Any]:
    """The scrape job of one service, with the labels that the rules expect: namespace, service, pod."""
    meta = "__meta_kubernetes"

    def keep(label: str, value: str) -> dict[str, Any]:
        return {"source_labels": [f"{meta}_{label}"], "regex": value, "action": "keep"}

    def label(name: str, source: str) -> dict[str, Any]:
        return {"source_labels": [f"{meta}_{source}"], "target_label": name}

    return {
        "job_name": f"vllm/{target.namespace}/{target.service}",
        "scrape_interval": f"{target.scrape_interval_seconds}s",
        "scrape_timeout": scrape_timeout(target),
        "metrics_path": METRICS_PATH,
        "kubernetes_sd_configs": [{"role": "endpointslice", "namespaces": {"names": [target.namespace]}}],
        "relabel_configs": [
            keep("service_name", target.service),
            keep("endpointslice_port_name", PORT_NAME),
            label("namespace", "namespace"),
            label("service", "service_name"),
            label("pod", "pod_name"),
        ],
        "metric_relabel_configs": [drop_rule(target, keep_histograms, "source_labels")],
    }


def rule_file(target: Target) -> str:
    """The rule file of one service."""
    return yaml_text({"groups": rule_groups(target)})


def network_policy_spec(target: Target, namespace: str) -> k8s.networking.v1.NetworkPolicySpecArgs:
    """Prometheus' namespace may read the servers, in addition to whom the server's own policy admits."""
    peer = k8s.networking.v1.NetworkPolicyPeerArgs(
        namespace_selector=k8s.meta.v1.LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": namespace})
    )
    return k8s.networking.v1.NetworkPolicySpecArgs(
        pod_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=naming.selector_labels(target.name, SERVER)),
        policy_types=["Ingress"],
        ingress=[
            k8s.networking.v1.NetworkPolicyIngressRuleArgs(
                from_=[peer], ports=[k8s.networking.v1.NetworkPolicyPortArgs(port=PORT_NAME, protocol="TCP")]
            )
        ],
    )


class Monitoring(pulumi.ComponentResource):
    """Scrape, rules and dashboards of all services of a stack."""

    def __init__(self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:Monitoring", name, None, opts)
        self._name, self._args = name, args
        for target in args.targets:
            self._network_policy(target)
            match args.spec:
                case OperatorMonitoring():
                    self._operator_objects(target, args.spec)
                case AnnotationsMonitoring():
                    self._files(target)
            if args.spec.dashboard:
                self._dashboard(target)
        if isinstance(args.spec, StandaloneMonitoring):
            self._standalone(args.spec)
        self.register_outputs({"mode": args.spec.mode})

    def _options(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(self._args.after))

    def _metadata(self, name: str, service: str, more: Mapping[str, str] | None = None) -> k8s.meta.v1.ObjectMetaArgs:
        labels = {**(more or {}), **naming.component_labels(self._args.stack, service, COMPONENT)}
        return k8s.meta.v1.ObjectMetaArgs(name=name, namespace=self._args.namespace, labels=labels)

    def _network_policy(self, target: Target) -> None:
        other = scraped_from(self._args.spec, self._args.namespace_name)
        if other is not None:
            k8s.networking.v1.NetworkPolicy(
                f"{target.name}-metrics-policy",
                metadata=self._metadata(metrics_policy_name(target.name), target.name),
                spec=network_policy_spec(target, other),
                opts=self._options(),
            )

    def _operator_objects(self, target: Target, spec: OperatorMonitoring) -> None:
        if not self._args.crds_present:
            return
        bodies = {
            "ServiceMonitor": service_monitor_spec(target, spec.keep_histograms),
            "PrometheusRule": {"groups": rule_groups(target)},
        }
        for kind, body in bodies.items():
            k8s.apiextensions.CustomResource(
                f"{target.name}-{kind}",
                api_version=OPERATOR_API,
                kind=kind,
                metadata=self._metadata(target.name, target.name, spec.labels),
                spec=body,
                opts=self._options(),
            )

    def _files(self, target: Target) -> None:
        job = yaml_text({"scrape_configs": [scrape_job(target, self._args.spec.keep_histograms)]})
        files = {
            rules_name(target.name): {f"vllm-{target.name}.rules.yaml": rule_file(target)},
            scrape_name(target.name): {f"vllm-{target.name}.scrape.yaml": job},
        }
        for name, data in files.items():
            self._config_map(name, target, data)

    def _dashboard(self, target: Target) -> None:
        # The library needs Python 3.11; a stack without dashboards does not.
        from components.dashboard import dashboard_json  # noqa: PLC0415

        name = dashboard_name(target.name)
        file = f"vllm-{target.namespace}-{target.name}.json"
        self._config_map(name, target, {file: dashboard_json(target)}, self._args.spec.dashboard_labels)

    def _config_map(
        self, name: str, target: Target, data: Mapping[str, str], labels: Mapping[str, str] | None = None
    ) -> None:
        k8s.core.v1.ConfigMap(
            name, metadata=self._metadata(name, target.name, labels), data=dict(data), opts=self._options()
        )

    def _standalone(self, spec: StandaloneMonitoring) -> None:
        jobs = [scrape_job(target, spec.keep_histograms) for target in self._args.targets]
        files = {f"{target.name}.rules.yaml": rule_file(target) for target in self._args.targets}
        args = StandaloneArgs(
            stack=self._args.stack,
            namespace=self._args.namespace,
            spec=spec,
            scrape_jobs=[yaml_text({"scrape_configs": [job]}) for job in jobs],
            rule_files=files,
            receiver_secret=self._args.receiver_secret,
        )
        create_standalone(args, self._options())
