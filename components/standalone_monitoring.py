"""A Prometheus and an Alertmanager of the stack's own, for a cluster that has neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from components import naming, pod
from components.documents import yaml_text
from components.model_cache import KEPT_ANNOTATIONS
from components.monitoring_names import ALERTMANAGER, PROMETHEUS, SILENCES_SIZE
from planner.spec import quantity
from planner.spec.monitoring import EmailReceiver, Receiver, SlackReceiver, StandaloneMonitoring, WebhookReceiver

NOBODY = 65534
"""The user of both images (Dockerfile of prometheus and of alertmanager)."""
CREDENTIAL_FOLDER = "/etc/credential"
CREDENTIAL_KEY = "credential"
"""Key of the receiver's credential in its Secret, and the name of its file."""
RETAINED_SHARE = 0.8
"""Share of the claim that samples may fill: the write-ahead log and compaction need the rest
(https://prometheus.io/docs/prometheus/latest/storage/#right-sizing-retention-size)."""


@dataclass(frozen=True)
class Server:
    """One of the two: what it is started with and what it keeps."""

    name: str
    image: str
    port: int
    arguments: Sequence[str]
    size: str
    memory: str
    files: Mapping[str, str]
    config_folder: str
    data_folder: str
    talks_to_api: bool


@dataclass(frozen=True)
class StandaloneArgs:
    """``scrape_jobs``: documents with ``scrape_configs``. ``rule_files``: text by file name."""

    stack: str
    namespace: pulumi.Input[str]
    spec: StandaloneMonitoring
    scrape_jobs: Sequence[str]
    rule_files: Mapping[str, str]
    receiver_secret: k8s.core.v1.Secret | None


def prometheus_config(rule_files: Mapping[str, str], scrape_files: Sequence[str]) -> dict[str, Any]:
    """Prometheus' own configuration: its files, and whom it tells."""
    return {
        "global": {"scrape_interval": "30s", "evaluation_interval": "30s"},
        "rule_files": [f"/etc/prometheus/{name}" for name in sorted(rule_files)],
        "scrape_config_files": [f"/etc/prometheus/{name}" for name in scrape_files],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"{ALERTMANAGER}:9093"]}]}]},
    }


def alertmanager_config(receiver: Receiver) -> dict[str, Any]:
    """One route to one receiver, grouped so that a service is one message. Credentials are files, never text."""
    credential = f"{CREDENTIAL_FOLDER}/{CREDENTIAL_KEY}"
    match receiver:
        case WebhookReceiver():
            body: dict[str, Any] = {"webhook_configs": [{"url_file": credential}]}
        case SlackReceiver():
            body = {"slack_configs": [{"api_url_file": credential, "channel": receiver.channel, "send_resolved": True}]}
        case EmailReceiver():
            account = {
                "to": receiver.to,
                "from": receiver.sender,
                "smarthost": receiver.smarthost,
                "auth_username": receiver.username,
                "auth_password_file": credential,
                "send_resolved": True,
            }
            body = {"email_configs": [account]}
    route = {"receiver": "team", "group_by": ["namespace", "service"], "group_wait": "30s", "repeat_interval": "4h"}
    return {"route": route, "receivers": [{"name": "team", **body}]}


def prometheus_server(args: StandaloneArgs) -> Server:
    """Prometheus with its rules, its scrape jobs and a bound on what it keeps."""
    scrapes = {f"scrape-{number}.yaml": job for number, job in enumerate(args.scrape_jobs)}
    kept = int(float(quantity(args.spec.size)) * RETAINED_SHARE / 1e6)
    return Server(
        name=PROMETHEUS,
        image=args.spec.prometheus_image,
        port=9090,
        arguments=(
            "--config.file=/etc/prometheus/prometheus.yaml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={args.spec.retention}",
            f"--storage.tsdb.retention.size={kept}MB",
        ),
        size=args.spec.size,
        memory="1Gi",
        files={
            "prometheus.yaml": yaml_text(prometheus_config(args.rule_files, sorted(scrapes))),
            **args.rule_files,
            **scrapes,
        },
        config_folder="/etc/prometheus",
        data_folder="/prometheus",
        talks_to_api=True,
    )


def alertmanager_server(args: StandaloneArgs) -> Server:
    """Alertmanager with its one receiver."""
    return Server(
        name=ALERTMANAGER,
        image=args.spec.alertmanager_image,
        port=9093,
        arguments=(
            "--config.file=/etc/alertmanager/alertmanager.yaml",
            "--storage.path=/alertmanager",
            "--cluster.listen-address=",
        ),
        size=SILENCES_SIZE,
        memory="128Mi",
        files={"alertmanager.yaml": yaml_text(alertmanager_config(args.spec.receiver))},
        config_folder="/etc/alertmanager",
        data_folder="/alertmanager",
        talks_to_api=False,
    )


def pod_spec(
    server: Server, config_map: pulumi.Input[str], account: pulumi.Input[str], secret: pulumi.Input[str] | None
) -> k8s.core.v1.PodSpecArgs:
    """A pod that holds the `restricted` Pod Security level."""
    mounts = [
        k8s.core.v1.VolumeMountArgs(name="config", mount_path=server.config_folder),
        k8s.core.v1.VolumeMountArgs(name="data", mount_path=server.data_folder),
    ]
    source = k8s.core.v1.PersistentVolumeClaimVolumeSourceArgs(claim_name=server.name)
    volumes = [
        k8s.core.v1.VolumeArgs(name="config", config_map=k8s.core.v1.ConfigMapVolumeSourceArgs(name=config_map)),
        k8s.core.v1.VolumeArgs(name="data", persistent_volume_claim=source),
    ]
    if secret is not None:
        mounts.append(k8s.core.v1.VolumeMountArgs(name="credential", mount_path=CREDENTIAL_FOLDER, read_only=True))
        volumes.append(
            k8s.core.v1.VolumeArgs(name="credential", secret=k8s.core.v1.SecretVolumeSourceArgs(secret_name=secret))
        )
    return k8s.core.v1.PodSpecArgs(
        service_account_name=account,
        automount_service_account_token=server.talks_to_api,
        enable_service_links=False,
        security_context=k8s.core.v1.PodSecurityContextArgs(
            run_as_user=NOBODY,
            run_as_group=NOBODY,
            run_as_non_root=True,
            fs_group=NOBODY,
            fs_group_change_policy="OnRootMismatch",
            seccomp_profile=k8s.core.v1.SeccompProfileArgs(type="RuntimeDefault"),
        ),
        containers=[_container(server, mounts)],
        volumes=volumes,
    )


def _container(server: Server, mounts: list[k8s.core.v1.VolumeMountArgs]) -> k8s.core.v1.ContainerArgs:
    def probe(path: str) -> k8s.core.v1.ProbeArgs:
        check = k8s.core.v1.HTTPGetActionArgs(path=path, port="web")
        return k8s.core.v1.ProbeArgs(http_get=check, timeout_seconds=5)

    return k8s.core.v1.ContainerArgs(
        name=server.name,
        image=server.image,
        image_pull_policy="IfNotPresent",
        args=list(server.arguments),
        ports=[k8s.core.v1.ContainerPortArgs(name="web", container_port=server.port)],
        readiness_probe=probe("/-/ready"),
        liveness_probe=probe("/-/healthy"),
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "100m", "memory": server.memory}, limits={"memory": server.memory}
        ),
        security_context=pod.container_security(),
        volume_mounts=mounts,
    )


def role_rules() -> list[k8s.rbac.v1.PolicyRuleArgs]:
    """What service discovery reads, in this namespace only."""
    verbs = ["get", "list", "watch"]
    return [
        k8s.rbac.v1.PolicyRuleArgs(api_groups=[""], resources=["services", "pods"], verbs=verbs),
        k8s.rbac.v1.PolicyRuleArgs(api_groups=["discovery.k8s.io"], resources=["endpointslices"], verbs=verbs),
    ]


def create_standalone(args: StandaloneArgs, opts: pulumi.ResourceOptions) -> None:
    """Create both servers with what they need."""
    for server in (prometheus_server(args), alertmanager_server(args)):
        labels = naming.component_labels(args.stack, server.name, "monitoring")
        metadata = k8s.meta.v1.ObjectMetaArgs(name=server.name, namespace=args.namespace, labels=labels)
        account = k8s.core.v1.ServiceAccount(
            f"{server.name}-service-account", metadata=metadata, automount_service_account_token=False, opts=opts
        )
        if server.talks_to_api:
            _allow_discovery(server, metadata, opts)
        claim = _claim(server, args, labels, opts)
        config = k8s.core.v1.ConfigMap(
            # No fixed name: another content is another ConfigMap, and the pod that names it is rolled.
            f"{server.name}-config",
            metadata=k8s.meta.v1.ObjectMetaArgs(namespace=args.namespace, labels=labels),
            immutable=True,
            data=dict(server.files),
            opts=opts,
        )
        secret = None if server.talks_to_api or args.receiver_secret is None else args.receiver_secret.metadata.name
        _workload(
            server,
            metadata,
            pod_spec(server, config.metadata.name, account.metadata.name, secret),
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[claim])),
        )


def _claim(
    server: Server, args: StandaloneArgs, labels: Mapping[str, str], opts: pulumi.ResourceOptions
) -> k8s.core.v1.PersistentVolumeClaim:
    return k8s.core.v1.PersistentVolumeClaim(
        f"{server.name}-claim",
        metadata=k8s.meta.v1.ObjectMetaArgs(
            name=server.name, namespace=args.namespace, labels=dict(labels), annotations=KEPT_ANNOTATIONS
        ),
        spec=k8s.core.v1.PersistentVolumeClaimSpecArgs(
            access_modes=["ReadWriteOnce"],
            storage_class_name=args.spec.storage_class,
            resources=k8s.core.v1.VolumeResourceRequirementsArgs(requests={"storage": server.size}),
        ),
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(retain_on_delete=True)),
    )


def _allow_discovery(server: Server, metadata: k8s.meta.v1.ObjectMetaArgs, opts: pulumi.ResourceOptions) -> None:
    k8s.rbac.v1.Role(f"{server.name}-role", metadata=metadata, rules=role_rules(), opts=opts)
    k8s.rbac.v1.RoleBinding(
        f"{server.name}-role-binding",
        metadata=metadata,
        role_ref=k8s.rbac.v1.RoleRefArgs(api_group="rbac.authorization.k8s.io", kind="Role", name=server.name),
        subjects=[k8s.rbac.v1.SubjectArgs(kind="ServiceAccount", name=server.name)],
        opts=opts,
    )


def _workload(
    server: Server,
    metadata: k8s.meta.v1.ObjectMetaArgs,
    template: k8s.core.v1.PodSpecArgs,
    opts: pulumi.ResourceOptions,
) -> None:
    selector = naming.selector_labels(server.name, "monitoring")
    k8s.apps.v1.Deployment(
        f"{server.name}-deployment",
        metadata=metadata,
        spec=k8s.apps.v1.DeploymentSpecArgs(
            replicas=1,
            strategy=k8s.apps.v1.DeploymentStrategyArgs(type="Recreate"),
            selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
            template=k8s.core.v1.PodTemplateSpecArgs(
                metadata=k8s.meta.v1.ObjectMetaArgs(labels=metadata.labels), spec=template
            ),
        ),
        opts=opts,
    )
    k8s.core.v1.Service(
        f"{server.name}-service",
        metadata=metadata,
        spec=k8s.core.v1.ServiceSpecArgs(
            selector=selector, ports=[k8s.core.v1.ServicePortArgs(name="web", port=server.port, target_port="web")]
        ),
        opts=opts,
    )
    k8s.networking.v1.NetworkPolicy(
        f"{server.name}-network-policy",
        metadata=metadata,
        spec=k8s.networking.v1.NetworkPolicySpecArgs(
            pod_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=selector),
            policy_types=["Ingress"],
            ingress=[
                k8s.networking.v1.NetworkPolicyIngressRuleArgs(
                    from_=[k8s.networking.v1.NetworkPolicyPeerArgs(pod_selector=k8s.meta.v1.LabelSelectorArgs())],
                    ports=[k8s.networking.v1.NetworkPolicyPortArgs(port="web", protocol="TCP")],
                )
            ],
        ),
        opts=opts,
    )
