"""A stack file is read strictly: what is right passes, every fault is named with its place and its cure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from infra.config import ConfigError, read, stack_config
from infra.config.schema import SCHEMA, rendered, schema
from tests.stack_files import SHIPPED, STACK_FILES, STACKS, values

VALID = {
    "the shipped lab": {},
    "a storage class": {
        "services.qwen.cache": {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi"},
    },
    "a class of our own": {
        "services.qwen.cache": {"kind": "ownStorageClass", "provisioner": "ebs.csi.aws.com", "size": "80Gi"},
    },
    "an existing claim": {"services.qwen.cache": {"kind": "existingClaim", "claimName": "models"}},
    "a whole number where a fraction may stand": {"services.qwen.engine.gpuMemoryUtilization": 1},
    "quantities of both kinds": {"nodes.lab.memory": "32G", "nodes.lab.disk": "1.5Ti"},
    "a taint without a value": {"nodes.lab.taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "a pinned image": {"services.qwen.image.digest": "sha256:" + "0" * 64},
    "arguments of one's own": {"services.qwen.engine.extraArgs": ["--max-log-len", "100"]},
    "a proxy": {"services.qwen.cache.seed": {"proxy": {"http": "http://10.0.0.5:3128"}, "hostNetwork": True}},
    "a pre-pull that is not waited for": {"nodes.lab.prePull": {"await": False}},
    "objects to take over": {"cluster.adopt": ["Namespace/ai-infra", "Service/vllm-service"]},
}

# changes → (path, words of message or remedy)
INVALID = {
    "a misspelt section": ({"serivces": {}}, "vllm:serivces", "did you mean 'vllm:services'"),
    "a misspelt key": ({"services.qwen.engine.maxModelLne": 1}, "vllm:services.qwen.engine.maxModelLne", "maxModelLen"),
    "a misspelt key inside a kind of cache": (
        {"services.qwen.cache.pth": "/x"},
        "vllm:services.qwen.cache.pth",
        "path",
    ),
    "a missing key": ({"services.qwen.pool": None}, "vllm:services.qwen.pool", "is missing"),
    "a unit that is none": ({"services.qwen.cache.size": "20GB"}, "vllm:services.qwen.cache.size", "write 20Gi"),
    "a decimal comma": (
        {"services.qwen.engine.gpuMemoryUtilization": "0,9"},
        "vllm:services.qwen.engine.gpuMemoryUtilization",
        "write 0.9",
    ),
    "a share above one": (
        {"services.qwen.engine.gpuMemoryUtilization": 80},
        "vllm:services.qwen.engine.gpuMemoryUtilization",
        "less than or equal to 1",
    ),
    "a number for a text": ({"cluster.kubernetesVersion": 1.37}, "vllm:cluster.kubernetesVersion", 'quotes: "1.37"'),
    "a text for a number": ({"nodes.lab.cpus": "12"}, "vllm:nodes.lab.cpus", "valid integer"),
    "a fraction for a number": ({"nodes.lab.cpus": 1.5}, "vllm:nodes.lab.cpus", "integer"),
    "an unknown kind of cache": ({"services.qwen.cache.kind": "nfs"}, "vllm:services.qwen.cache", "hostPath"),
    "no kind of cache": ({"services.qwen.cache.kind": None}, "vllm:services.qwen.cache", "kind"),
    "an unknown pool": ({"services.qwen.pool": "labs"}, "vllm:services.qwen.pool", "one of lab"),
    "a name that Kubernetes refuses": (
        {"services.qwen.exposure.serviceName": "vLLM_1"},
        "vllm:services.qwen.exposure.serviceName",
        "must match",
    ),
    "a service key that Kubernetes refuses": (
        {"services.Qwen_2": {}},
        "vllm:services.Qwen_2",
        "must match",
    ),
    "a relative folder": ({"services.qwen.cache.path": "models"}, "vllm:services.qwen.cache.path", "must match"),
    "a password in a proxy": (
        {"services.qwen.cache.seed": {"proxy": {"http": "http://me:secret@proxy:3128"}}},
        "vllm:services.qwen.cache.seed.proxy.http",
        "must match",
    ),
    "zero replicas": ({"services.qwen.replicas": 0}, "vllm:services.qwen.replicas", "greater than 0"),
    "a short digest": ({"services.qwen.image.digest": "sha256:1"}, "vllm:services.qwen.image.digest", "must match"),
    "nothing to adopt of that kind": ({"cluster.adopt": ["Secret/x"]}, "vllm:cluster.adopt[0]", "must match"),
    "no service at all": ({"services": {}}, "vllm:services", "at least 1"),
}


@pytest.mark.parametrize("changes", VALID.values(), ids=VALID.keys())
def test_a_right_stack_file_passes(changes: dict[str, object]) -> None:
    assert stack_config(values(changes=changes)).services, "a valid stack file was refused"


@pytest.mark.parametrize(("changes", "path", "words"), INVALID.values(), ids=INVALID.keys())
def test_a_fault_is_named_with_its_place_and_its_cure(changes: dict[str, object], path: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        stack_config(values(changes=changes))
    found = {finding.path: f"{finding.message} {finding.remedy}" for finding in refused.value.findings}
    assert path in found, f"the fault should be at {path}; reported were {sorted(found)}"
    assert words in found[path], f"{found[path]!r} does not tell {words!r}"


def test_all_faults_are_reported_at_once() -> None:
    changes = {
        "serivces": {},
        "nodes.lab.memory": "32GB",
        "services.qwen.engine.maxModelLne": 1,
        "cluster.kubernetesVersion": 1.37,
    }
    with pytest.raises(ConfigError) as refused:
        stack_config(values(changes=changes))
    paths = {finding.path for finding in refused.value.findings}
    wanted = {
        "vllm:serivces",
        "vllm:nodes.lab.memory",
        "vllm:services.qwen.engine.maxModelLne",
        "vllm:cluster.kubernetesVersion",
    }
    assert paths == wanted, "four faults were made; each must be reported, and nothing else"


BROKEN_FILES = {
    "no YAML": ("config:\n  vllm:cluster: {a: [1\n", "is no YAML (line"),
    "a key twice": ("config:\n  vllm:cluster: {}\n  vllm:cluster: {}\n", "stands twice"),
    "no config": ("services: {}\n", "has no `config:`"),
    "empty": ("", "has no `config:`"),
}


@pytest.mark.parametrize(("text", "words"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_a_file_that_cannot_be_read_is_one_clear_fault(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "Pulumi.broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read(path)
    (finding,) = refused.value.findings
    assert words in finding.message, f"{finding.message!r} does not say what is wrong with the file"


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_shipped_stack_is_valid(stack: str) -> None:
    config, secrets = read(STACKS / f"Pulumi.{stack}.yaml")
    assert config.services, f"{stack} has no service"
    assert not secrets, f"{stack} ships a secret"


def test_the_secrets_of_a_file_are_known_by_name_only(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.lab.yaml"
    text = (STACKS / "Pulumi.lab-3060.yaml").read_text("utf-8")
    path.write_text(f"{text}\n  vllm:apiKey:\n    secure: v1:abc\n", encoding="utf-8")
    _, secrets = read(path)
    assert secrets == {"apiKey"}, "the file sets the API key and no other secret"


def test_the_schema_is_the_one_that_the_models_generate() -> None:
    assert SCHEMA.read_text("utf-8") == rendered(), "run `make schema` after changing a model"


def file_content(*stacks: str, **more: object) -> dict[str, dict[str, object]]:
    """A stack file with the sections of ``stacks``."""
    sections = {key: value for stack in stacks for key, value in values(stack).items()}
    return {"config": {f"vllm:{key}": value for key, value in {**sections, **more}.items()}}


@pytest.mark.parametrize("stack", STACK_FILES)
def test_an_editor_accepts_a_shipped_stack(stack: str) -> None:
    jsonschema.validate(file_content(stack), schema())


@pytest.mark.parametrize(
    "content",
    [
        file_content("l40s-pair-eks", "l40s-pair-eks-cluster"),
        file_content("l40s-pair-eks-cluster", services={}),
        file_content("l40s-pair-eks-cluster", hfToken={"secure": "v1:abc"}),
        file_content(),
        file_content(serivces={}),
        {"config": {"vllm:cluster": values()["cluster"]}},
    ],
    ids=["both kinds", "a section of the other", "a secret of the other", "neither", "misspelt", "half of one"],
)
def test_an_editor_marks_what_is_no_stack(content: dict[str, dict[str, object]]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema())


def test_an_editor_accepts_secrets_and_what_belongs_to_others() -> None:
    content = file_content("lab-3060", hfToken={"secure": "v1:abc"})
    jsonschema.validate({**content, "encryptionsalt": "v1:abc"}, schema())
    cluster = file_content("l40s-pair-eks-cluster")
    cluster["config"]["aws:region"] = "us-east-1"
    jsonschema.validate(cluster, schema())


def test_every_field_has_a_description() -> None:
    def undescribed(node: object, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        own = [
            f"{path}.{name}"
            for name, field in node.get("properties", {}).items()
            if "description" not in field and "$ref" not in field
        ]
        return own + [item for key, value in node.items() for item in undescribed(value, f"{path}.{key}")]

    missing = undescribed(json.loads(rendered()), "")
    assert not missing, f"an editor shows nothing for {missing}"


def test_reading_and_planning_a_stack_needs_no_pulumi() -> None:
    program = (
        "import sys, pathlib, infra.cli\n"
        "from infra.config import read\n"
        "from infra.config.schema import rendered\n"
        "from infra.preflight import check_plan\n"
        "from planner.plan import plan_services\n"
        f"config, secrets = read(pathlib.Path({str(STACKS / 'Pulumi.lab-3060.yaml')!r}))\n"
        "plans, _ = plan_services(config.nodes, config.services)\n"
        "check_plan(config, secrets, plans); rendered()\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('pulumi', 'pulumi_kubernetes')))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]", f"a plan must not load the engine's SDK: {answer.stdout}"
