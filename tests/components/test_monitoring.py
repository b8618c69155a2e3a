"""Monitoring in each mode: selectors that select, kinds that the API server takes, and no secret in sight."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pulumi
import pulumi_kubernetes as k8s
import pytest
from pydantic import TypeAdapter, ValidationError
from ruamel.yaml import YAML

from components import naming
from components.dashboard import dashboard_json, panels_now, panels_over_time
from components.monitoring import (
    METRICS_PATH,
    Monitoring,
    MonitoringArgs,
    scrape_job,
    service_annotations,
    service_monitor_spec,
)
from components.monitoring_names import objects, targets_of
from components.secrets import credential
from components.standalone_monitoring import CREDENTIAL_KEY
from planner.alerts import Target
from planner.metrics import series_in
from planner.releases import asks_for_key, known_releases, release_at
from planner.scrape import dropped_names, series_of
from planner.spec.monitoring import ActiveMonitoring, MonitoringSpec
from sim.crds import monitoring_crds
from tests.monitoring.targets import NAMESPACE, plan
from tests.recorder import Recording, Registration, record

OPERATOR = {"mode": "operator", "labels": {"release": "prometheus"}}
ANNOTATIONS = {"mode": "annotations"}
STANDALONE = {
    "mode": "standalone",
    "prometheusImage": "registry.example/prometheus:v3.16.0",
    "alertmanagerImage": "registry.example/alertmanager:v0.35.0",
    "receiver": {"kind": "webhook"},
}
MODES = {"operator": OPERATOR, "annotations": ANNOTATIONS, "standalone": STANDALONE}
CUSTOM = "kubernetes:monitoring.coreos.com/v1:"
CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
SECRET_URL = "https://hooks.example.com/hidden"


def spec_of(values: Mapping[str, Any]) -> ActiveMonitoring:
    return TypeAdapter(MonitoringSpec).validate_json(json.dumps(values))


def targets(spec: ActiveMonitoring, version: str = "0.33.0") -> list[Target]:
    return targets_of({"qwen": plan(version, spec)}, spec, NAMESPACE)


def run(values: Mapping[str, Any], crds_present: bool = True, namespace: str = NAMESPACE) -> Recording:
    spec = spec_of(values)

    def program() -> None:
        server = k8s.core.v1.Service("server")
        secret = credential("receiver", namespace, {}, {CREDENTIAL_KEY: SECRET_URL}, pulumi.ResourceOptions())
        args = MonitoringArgs(
            stack="test",
            namespace=namespace,
            namespace_name=namespace,
            spec=spec,
            targets=targets(spec),
            crds_present=crds_present,
            after=[server],
            receiver_secret=secret if values["mode"] == "standalone" else None,
        )
        Monitoring("monitoring", args)

    return record(program)


def kinds(recording: Recording) -> set[tuple[str, str]]:
    """Kind and fixed name of each object of the component."""
    return {
        (item.type.rsplit(":", maxsplit=1)[-1], item.inputs["metadata"]["name"])
        for item in ours(recording)
        if "name" in item.inputs["metadata"]
    }


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_built_in_kinds_are_valid_to_the_letter(values: dict[str, Any]) -> None:
    built_in = [item for item in ours(run(values)) if not item.type.startswith(CUSTOM)]
    assert built_in, "each mode makes something"
    for item in built_in:
        kubernetes_validate.validate({k: v for k, v in item.inputs.items() if k != "__provider"}, "1.37", strict=True)


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_the_live_look_up_knows_every_object(values: dict[str, Any]) -> None:
    looked_at = set(objects(spec_of(values), ["qwen"], NAMESPACE, crds_present=True))
    assert kinds(run(values)) == {tuple(each) for each in looked_at}, "an object that is not looked at could be foreign"


def ours(recording: Recording) -> list[Registration]:
    """The objects of the component."""
    strangers = {"receiver", "server"}
    return [
        item for item in recording.registrations if item.type.startswith("kubernetes:") and item.name not in strangers
    ]


def schema_of(kind: str) -> dict[str, Any]:
    file = monitoring_crds() / f"monitoring.coreos.com_{kind.lower()}s.yaml"
    document = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    version = next(each for each in document["spec"]["versions"] if each["name"] == "v1")
    return dict(version["schema"]["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    """The schema as the API server prunes by it: a field that is not listed is an error."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(result.get("pattern"), str):
        # Go takes a flag in the middle of an expression, Python only at its beginning.
        result["pattern"] = result["pattern"].replace("^(?i)", "(?i)^")
    if isinstance(result.get("properties"), dict) and "additionalProperties" not in result:
        result["additionalProperties"] = False
    return result


def spec_schema(kind: str) -> dict[str, Any]:
    return dict(closed(schema_of(kind)["properties"]["spec"]))


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule"])
def test_custom_kinds_fit_their_definition(kind: str) -> None:
    item = run(OPERATOR).one(f"{CUSTOM}{kind}")
    jsonschema.validate(item.inputs["spec"], spec_schema(kind))
    misspelt = {**item.inputs["spec"], "endpionts": []}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(misspelt, spec_schema(kind))


def test_the_operators_labels_are_on_what_it_selects() -> None:
    recording = run(OPERATOR)
    for kind in ("ServiceMonitor", "PrometheusRule"):
        labels = recording.one(f"{CUSTOM}{kind}").inputs["metadata"]["labels"]
        assert labels["release"] == "prometheus", f"{kind}: Prometheus selects by it"
        assert labels[naming.STACK_LABEL] == "test", f"{kind}: ours"


def test_a_monitor_selects_the_service_and_its_port() -> None:
    monitor = run(OPERATOR).one(f"{CUSTOM}ServiceMonitor").inputs["spec"]
    service_labels = naming.component_labels("test", "qwen", "server")
    assert monitor["selector"]["matchLabels"].items() <= service_labels.items(), "the Service carries what is selected"
    endpoint = monitor["endpoints"][0]
    assert endpoint["port"] == "http", "the name of the Service's port, never its number"
    assert monitor["namespaceSelector"] == {"matchNames": [NAMESPACE]}, "the monitor's own namespace is not assumed"
    assert endpoint["scrapeTimeout"] == "10s", "not longer than the interval"


@pytest.mark.parametrize("labels", [{}, None])
def test_operator_mode_without_labels_is_refused(labels: dict[str, str] | None) -> None:
    values = {"mode": "operator", **({} if labels is None else {"labels": labels})}
    with pytest.raises(ValidationError, match="labels"):
        spec_of(values)
    assert spec_of(OPERATOR), "with the label that Prometheus selects by it passes"


def test_without_the_operators_kinds_none_is_registered() -> None:
    recording = run(OPERATOR, crds_present=False)
    assert not [item for item in recording.registrations if item.type.startswith(CUSTOM)], "they would fail the preview"
    assert recording.all(CONFIG_MAP), "the dashboard needs none of them"


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_monitoring_waits_for_the_servers(values: dict[str, Any]) -> None:
    """A failed object of monitoring then stops nothing: the servers are there already."""
    recording = run(values)
    for item in ours(recording):
        assert "kubernetes:core/v1:Service::server" in recording.dependencies(item), f"{item.name} must not come first"


def test_prometheus_is_let_in_from_its_namespace() -> None:
    policy = run({**OPERATOR, "prometheusNamespace": "observability"}).one(POLICY).inputs["spec"]
    (rule,) = policy["ingress"]
    namespaces = rule["from"][0]["namespaceSelector"]["matchLabels"]
    assert namespaces == {"kubernetes.io/metadata.name": "observability"}
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}], "to the server's port only"
    assert policy["podSelector"]["matchLabels"].items() <= naming.component_labels("test", "qwen", "server").items()
    assert not run({**OPERATOR, "prometheusNamespace": NAMESPACE}).all(POLICY), "the own namespace is admitted anyway"


def test_annotations_name_the_containers_port() -> None:
    spec = spec_of(ANNOTATIONS)
    port = plan("0.33.0", spec).service.exposure.port
    assert service_annotations(spec, port)["prometheus.io/port"] == str(port), "as text, and the container's"
    assert service_annotations(spec_of(OPERATOR), port) == {}, "both at once would scrape twice"


@pytest.mark.parametrize("version", known_releases())
def test_a_scrape_needs_no_credentials(version: str) -> None:
    release = release_at(version)
    assert asks_for_key(release, "/v1/models"), "a key guards the API itself"
    assert not asks_for_key(release, METRICS_PATH), f"vLLM {version} would refuse a scrape that carries no key"
    (made,) = targets(spec_of(OPERATOR), version)
    (endpoint,) = service_monitor_spec(made)["endpoints"]
    assert not endpoint.keys() & {"authorization", "basicAuth", "bearerTokenSecret"}, "so none is sent"
    assert "authorization" not in scrape_job(made), "nor by a Prometheus without operator"


@pytest.mark.parametrize("version", known_releases())
def test_a_hand_run_prometheus_gets_rules_and_scrape_job(promtool: Path, tmp_path: Path, version: str) -> None:
    spec = spec_of(ANNOTATIONS)
    recording = record(
        lambda: Monitoring(
            "monitoring",
            MonitoringArgs(
                stack="test",
                namespace=NAMESPACE,
                namespace_name=NAMESPACE,
                spec=spec,
                targets=targets(spec, version),
                crds_present=False,
            ),
        )
    )
    for name in ("qwen-rules", "qwen-scrape"):
        for file, text in recording.one(CONFIG_MAP, name).inputs["data"].items():
            (tmp_path / file).write_text(text, encoding="utf-8")
    whole = {"rule_files": ["vllm-qwen.rules.yaml"], "scrape_config_files": ["vllm-qwen.scrape.yaml"]}
    (tmp_path / "prometheus.yaml").write_text(json.dumps(whole), encoding="utf-8")
    command = [promtool, "check", "config", "prometheus.yaml"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}"


def test_the_scrape_job_adds_the_labels_that_rules_read() -> None:
    (made,) = targets(spec_of(ANNOTATIONS))
    relabelled = {each["target_label"] for each in scrape_job(made)["relabel_configs"] if "target_label" in each}
    assert relabelled == {"namespace", "service", "pod"}


@pytest.mark.parametrize("version", known_releases())
def test_what_is_read_is_stored_and_little_else(version: str) -> None:
    spec = spec_of({**OPERATOR, "alerts": {"kvCacheThrashing": {"enabled": version != "0.11.0"}}})
    planned = plan(version, spec)
    (made,) = targets_of({"qwen": planned}, spec, NAMESPACE)
    dropped = "|".join(dropped_names(made))
    shown = {query for panel in (*panels_now(made), *panels_over_time(made)) for _, query in panel.queries}
    read = {name for query in shown for name in series_in(query)}
    assert not [name for name in read if re.fullmatch(dropped, name)], "a panel reads it"
    series = series_of(made, planned.argv, planned.memory.max_model_len)
    assert series.kept < series.exported / 2, f"{series}: the buckets of most histograms are not stored"
    doubled = series_of(made, planned.argv, planned.memory.max_model_len, engines=2)
    assert doubled.kept == 2 * series.kept, "each engine exports its own"
    kept = series_of(made, planned.argv, planned.memory.max_model_len, keep=["vllm:e2e_request_latency_seconds"])
    assert kept.kept == series.kept + 22, "the buckets of a histogram that you keep"


def test_a_dashboard_is_one_document_and_is_found_by_the_sidecar() -> None:
    recording = run(OPERATOR)
    (text,) = recording.one(CONFIG_MAP, "qwen-dashboard").inputs["data"].values()
    labels = recording.one(CONFIG_MAP, "qwen-dashboard").inputs["metadata"]["labels"]
    assert labels["grafana_dashboard"] == "1", "what Grafana's sidecar looks for"
    assert text == dashboard_json(targets(spec_of(OPERATOR))[0]), "the same as in the file to import"
    assert not run({**OPERATOR, "dashboard": False}).all(CONFIG_MAP), "it can be switched off"


@pytest.mark.parametrize("values", MODES.values(), ids=MODES.keys())
def test_no_secret_is_in_a_manifest(values: dict[str, Any]) -> None:
    texts = [str(item.raw_inputs) for item in run(values).registrations if not item.type.endswith(":Secret")]
    assert not [text for text in texts if "hidden" in text], "credentials are in the Secret and nowhere else"


RECEIVERS = {
    "webhook": ({"kind": "webhook"}, "url_file"),
    "slack": ({"kind": "slack", "channel": "#inference"}, "api_url_file"),
    "email": (
        {
            "kind": "email",
            "to": "team@example.com",
            "sender": "vllm@example.com",
            "smarthost": "mail.example.com:587",
            "username": "vllm",
        },
        "auth_password_file",
    ),
}


@pytest.mark.parametrize(("receiver", "field"), RECEIVERS.values(), ids=RECEIVERS.keys())
def test_a_receivers_credential_is_a_file(receiver: dict[str, str], field: str) -> None:
    recording = run({**STANDALONE, "receiver": receiver})
    text = recording.one(CONFIG_MAP, "vllm-alertmanager-config").inputs["data"]["alertmanager.yaml"]
    document = YAML(typ="safe").load(text)
    (block,) = [value for key, value in document["receivers"][0].items() if key.endswith("_configs")]
    deployment = recording.one("kubernetes:apps/v1:Deployment", "vllm-alertmanager-deployment")
    pod = deployment.inputs["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert block[0][field] == f"{mounts['credential']}/{CREDENTIAL_KEY}", "where the Secret is mounted"
    assert document["route"]["group_by"] == ["namespace", "service"], "one message for each service"


@pytest.mark.parametrize("receiver", [receiver for receiver, _ in RECEIVERS.values()], ids=RECEIVERS.keys())
def test_alertmanager_accepts_its_configuration(amtool: Path, tmp_path: Path, receiver: dict[str, str]) -> None:
    recording = run({**STANDALONE, "receiver": receiver})
    text = recording.one(CONFIG_MAP, "vllm-alertmanager-config").inputs["data"]["alertmanager.yaml"]
    file = tmp_path / "alertmanager.yaml"
    file.write_text(text, encoding="utf-8")
    answer = subprocess.run([amtool, "check-config", file], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}"
    assert "1 receivers" in answer.stdout, f"the one of the stack: {answer.stdout}"
    file.write_text(text.replace("_file: ", "_fil: "), encoding="utf-8")
    answer = subprocess.run([amtool, "check-config", file], capture_output=True, text=True, check=False)
    assert answer.returncode != 0, "a key that Alertmanager does not know keeps it from starting"


def test_standalone_keeps_its_data_and_stays_in_bounds() -> None:
    recording = run({**STANDALONE, "size": "20Gi", "retention": "30d"})
    for claim in recording.all("kubernetes:core/v1:PersistentVolumeClaim"):
        assert claim.request.retainOnDelete, f"{claim.name}: a destroy does not lose what was measured"
    deployment = recording.one("kubernetes:apps/v1:Deployment", "vllm-prometheus-deployment").inputs["spec"]
    arguments = deployment["template"]["spec"]["containers"][0]["args"]
    assert "--storage.tsdb.retention.time=30d" in arguments
    assert "--storage.tsdb.retention.size=17179MB" in arguments, "four fifths of the claim"
    assert deployment["strategy"] == {"type": "Recreate"}, "two Prometheus cannot share one claim"
    rules = recording.one("kubernetes:rbac.authorization.k8s.io/v1:Role").inputs["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}, "it only looks"


def test_standalone_evaluates_the_rules_and_tells_its_alertmanager(promtool: Path, tmp_path: Path) -> None:
    data = run(STANDALONE).one(CONFIG_MAP, "vllm-prometheus-config").inputs["data"]
    for file, text in data.items():
        (tmp_path / file).write_text(text.replace("/etc/prometheus/", ""), encoding="utf-8")
    command = [promtool, "check", "config", "prometheus.yaml"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{answer.stdout}{answer.stderr}"
    whole = YAML(typ="safe").load(data["prometheus.yaml"])
    (group,) = whole["alerting"]["alertmanagers"][0]["static_configs"]
    assert group["targets"] == ["vllm-alertmanager:9093"], "the Service beside it"
    assert "qwen.rules.yaml" in data, "the rules of each service"
