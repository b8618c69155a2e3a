"""The server starts inside its budget, stops in order, and may do no more than it must."""

from __future__ import annotations

from typing import Any

import pytest

from components.secrets import credential
from components.vllm_server import VllmServer
from tests.components.arguments import plan, server_args
from tests.recorder import SECRET_MARK, Recording, record

DEPLOYMENT = "kubernetes:apps/v1:Deployment"
SERVICE = "kubernetes:core/v1:Service"
POLICY = "kubernetes:networking.k8s.io/v1:NetworkPolicy"
SECRET = "kubernetes:core/v1:Secret"


def recorded(changes: dict[str, Any] | None = None, **more: Any) -> Recording:
    return record(lambda: VllmServer("qwen", server_args(changes, **more)))


def deployment(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return recorded(changes, **more).one(DEPLOYMENT).inputs["spec"]


def pod(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return deployment(changes, **more)["template"]["spec"]


def server(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    (container,) = pod(changes, **more)["containers"]
    return container


def variables(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in server(changes, **more)["env"]}


def test_the_lab_is_the_lab_of_its_seed() -> None:
    container = server()
    assert container["image"] == "vllm/vllm-openai:v0.31.0"
    command = container["command"]
    assert command[:3] == ["vllm", "serve", "Qwen/Qwen2.5-7B-Instruct-AWQ"]
    pairs = {
        "--served-model-name": "qwen2.5-7b-awq",
        "--host": "0.0.0.0",  # noqa: S104 - inside the pod
        "--port": "8000",
        "--dtype": "half",
        "--gpu-memory-utilization": "0.8",
        "--max-model-len": "2048",
        "--max-num-seqs": "4",
    }
    for flag, value in pairs.items():
        assert command[command.index(flag) + 1] == value, f"{flag} is {value} in the lab"
    assert "--enforce-eager" in command
    resources = container["resources"]
    assert resources["requests"] == {"cpu": "3", "memory": "4Gi", "ephemeral-storage": "1Gi"}, "2 and one for the GPU"
    assert resources["limits"]["memory"] == "10Gi"
    assert resources["limits"]["cpu"] == "4"
    assert resources["limits"]["nvidia.com/gpu"] == "1"


def test_one_replica_is_stopped_before_its_successor_starts() -> None:
    spec = deployment()
    assert spec["strategy"] == {"type": "Recreate"}, "both would need the same card (LLMKube#192)"
    assert spec["replicas"] == 1


def test_only_the_startup_probe_waits_for_the_start() -> None:
    container = server()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]
        assert "initialDelaySeconds" not in probe, f"{name}: a delay is a guess, the startup probe is the wait"
        assert probe["httpGet"] == {"path": "/health", "port": "http"}, f"{name}: /v1 asks for the API key"
        assert probe["timeoutSeconds"] >= 5, f"{name}: a busy event loop answers late"

    def window(name: str) -> int:
        return container[name]["periodSeconds"] * container[name]["failureThreshold"]

    assert window("startupProbe") >= plan().clocks.worst_start_seconds, "a slow start must not be killed"
    assert window("livenessProbe") > window("readinessProbe"), "first no traffic, only then a restart"


def test_each_clock_outlasts_the_one_it_waits_for() -> None:
    recording = recorded()
    registration, service = recording.one(DEPLOYMENT), recording.one(SERVICE)
    spec = registration.inputs["spec"]
    probe = spec["template"]["spec"]["containers"][0]["startupProbe"]
    window = probe["periodSeconds"] * probe["failureThreshold"]
    create = int(registration.request.customTimeouts.create.removesuffix("s"))
    update = int(registration.request.customTimeouts.update.removesuffix("s"))
    assert window < spec["progressDeadlineSeconds"] < min(create, update), "the inner clock must speak first"
    assert int(service.request.customTimeouts.create.removesuffix("s")) > create


def test_stopping_fits_into_the_grace_period() -> None:
    spec = pod({"services.qwen.stop": {"preStopSeconds": 15, "drainSeconds": 45}})
    container = spec["containers"][0]
    assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 15}}
    command = container["command"]
    assert command[command.index("--shutdown-timeout") + 1] == "45"
    assert spec["terminationGracePeriodSeconds"] > 60, "wait and drain, and the engine's own teardown"


def test_an_older_cluster_sleeps_by_a_command() -> None:
    assert server(kubernetes_minor=29)["lifecycle"]["preStop"] == {"exec": {"command": ["sleep", "5"]}}


def test_offline_is_for_the_server() -> None:
    values = variables()
    assert values["HF_HUB_OFFLINE"] == values["TRANSFORMERS_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in variables({"services.qwen.offline": False}), "neighbour: an online server"


def test_every_cache_is_on_the_claim_and_every_other_write_on_scratch_space() -> None:
    container = server()
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/models/hf"]["subPath"] == "hf"
    assert mounts["/models/compile"]["subPath"] == "compile/v0.31.0-rtx-3060-12gb-0"
    writable = tuple(mounts)
    values = variables()
    for name in (
        "HF_HOME",
        "VLLM_CACHE_ROOT",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "FLASHINFER_WORKSPACE_BASE",
        "CUDA_CACHE_PATH",
        "HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "VLLM_CONFIG_ROOT",
    ):
        assert str(values[name]).startswith(writable), f"{name} points to a place that cannot be written"
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"services.qwen.image.tag": "v0.33.0"}, False),
        ({"services.qwen.image.digest": "sha256:" + "a" * 64}, False),
        ({"services.qwen.engine.maxModelLen": 1024}, True),
        ({"services.qwen.resources.memoryLimit": "12Gi"}, True),
    ],
    ids=["another tag", "another build", "another setting", "other resources"],
)
def test_the_compile_cache_changes_with_the_build_and_with_nothing_else(changes: dict[str, Any], same: bool) -> None:
    def sub_path(container: dict[str, Any]) -> str:
        return next(mount["subPath"] for mount in container["volumeMounts"] if mount["mountPath"] == "/models/compile")

    assert (sub_path(server(changes)) == sub_path(server())) is same, (
        "an upgrade must not load another build's artifacts, and vLLM keys settings itself"
    )


def test_shared_memory_has_a_size_and_counts_inside_the_limit() -> None:
    (volume,) = (volume for volume in pod()["volumes"] if volume["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}, "the lab's seed has 1Gi"
    roomy = {"services.qwen.resources": {"memoryLimit": "64Gi"}}
    (volume,) = (volume for volume in pod(roomy)["volumes"] if volume["name"] == "shm")
    assert volume["emptyDir"]["sizeLimit"] == "8Gi", "8Gi where the limit has room for it"


def test_every_empty_dir_has_a_limit() -> None:
    unlimited = [v["name"] for v in pod()["volumes"] if "emptyDir" in v and "sizeLimit" not in v["emptyDir"]]
    assert not unlimited, f"{unlimited} could fill the node (LLMKube#1452)"


def test_it_may_do_no_more_than_it_must() -> None:
    spec = pod()
    assert spec["enableServiceLinks"] is False, "a Service called vllm would poison VLLM_PORT (vllm#34199)"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["containers"], *spec["initContainers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, container["name"]
        assert security["capabilities"] == {"drop": ["ALL"]}, container["name"]


@pytest.mark.parametrize(("flavour", "runtime_class"), [("kubeadm", None), ("k3s", "nvidia"), ("microk8s", "nvidia")])
def test_the_gpu_is_visible_on_every_flavour(flavour: str, runtime_class: str | None) -> None:
    assert pod(flavour=flavour).get("runtimeClassName") == runtime_class, "k3s has `nvidia` as a class of its own"


def test_a_start_on_half_a_model_is_stopped() -> None:
    (check,) = pod()["initContainers"]
    assert "seeded/Qwen--Qwen2.5-7B-Instruct-AWQ@default.json" in check["command"][-1]
    assert "cache.seed.enabled" in check["command"][-1], "the message names the field"
    assert not pod({"services.qwen.cache.seed": {"enabled": False}}).get("initContainers"), (
        "a claim that was filled by hand has no marker"
    )


def test_the_service_selects_the_instance_and_no_version() -> None:
    recording = recorded()
    service = recording.one(SERVICE).inputs
    template = recording.one(DEPLOYMENT).inputs["spec"]["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == "vllm-service"
    assert service["spec"]["type"] == "ClusterIP"
    assert service["spec"]["selector"].items() <= template.items(), "the Service would find no pod"
    assert service["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    other = recorded({"services.qwen.image.tag": "v0.33.0"}).one(SERVICE).inputs
    assert other["spec"] == service["spec"], "a new image must not touch the address"


def test_names_and_selectors_carry_the_replicas_number() -> None:
    inputs = recorded().one(DEPLOYMENT).inputs
    assert inputs["metadata"]["name"] == "qwen-0"
    assert inputs["spec"]["selector"]["matchLabels"]["pulumi-vllm/replica"] == "0", "a second replica can join later"


def test_only_named_clients_may_call_and_an_offline_server_calls_nobody() -> None:
    changes = {"services.qwen.exposure.allowFrom": {"namespaces": ["apps"], "cidrs": ["10.1.0.0/16"]}}
    spec = recorded(changes).one(POLICY).inputs["spec"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [
        {"podSelector": {}},
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "apps"}}},
        {"ipBlock": {"cidr": "10.1.0.0/16"}},
    ], "the own namespace and whom the stack lists"
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec.get("egress", []) == [], "an offline server has nobody to call"
    online = recorded({"services.qwen.offline": False}).one(POLICY).inputs["spec"]
    assert online["egress"] == [{}], "neighbour: an online server reaches the hub"


def with_api_key() -> Recording:
    def program() -> None:
        key = credential("api-key", "ai-infra", {}, {"key": "sk-hidden"}, None)
        VllmServer("qwen", server_args(api_key=key))

    return record(program)


def test_a_secret_is_referred_to_and_never_written() -> None:
    recording = with_api_key()
    container = recording.one(DEPLOYMENT).inputs["spec"]["template"]["spec"]["containers"][0]
    (variable,) = (item for item in container["env"] if item["name"] == "VLLM_API_KEY")
    reference = variable["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "api-key-generated", "key": "key"}, "by reference, and not optional"
    assert "sk-hidden" not in str(recording.one(DEPLOYMENT).raw_inputs), "the value must be nowhere in the pod"


def test_the_secrets_value_is_marked_on_the_wire_and_its_name_is_generated() -> None:
    secret = with_api_key().one(SECRET)
    assert SECRET_MARK in secret.raw_inputs["stringData"], "the state would hold it in the clear"
    assert "name" not in secret.raw_inputs["metadata"], "another content must be another name, which rolls the pod"
    assert secret.inputs["immutable"] is True
    assert not secret.request.deleteBeforeReplace, "the old one must be there while the old pod is"


def test_without_an_api_key_nothing_refers_to_one() -> None:
    assert "VLLM_API_KEY" not in variables(), "neighbour: a stack without vllm:apiKey"


def test_it_reports_its_address_once() -> None:
    outputs = recorded().component_outputs
    assert outputs["vllm:index:VllmServer::qwen"] == {"address": "http://vllm-service.ai-infra.svc:8000/v1"}
