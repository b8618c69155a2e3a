"""A stack that is a cluster: its section, what is refused in it, what it builds, and what is answered about it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest
from typer.testing import CliRunner, Result

from infra.cli import app
from infra.config import ConfigError, EksClusterStackConfig, any_stack_config, stack_config
from infra.eks_cluster import build_cluster
from infra.preflight import check_cluster
from planner.spec.aws import EKS_ADDONS
from tests.aws.arguments import REGION, SUBNETS, cluster_spec
from tests.aws.service_model import made
from tests.aws.test_service_model import aws_resources
from tests.infra.test_program import PROGRAM, run
from tests.recorder import Recording, record
from tests.stack_files import CLUSTER_STACKS, SHIPPED, STACK_FILES, config, pulumi_config, values

VALUES: dict[str, Any] = {
    "name": "l40s-pair",
    "region": REGION,
    "kubernetesVersion": "1.34",
    "subnets": SUBNETS,
    "publicAccessCidrs": ["203.0.113.0/24"],
    "administrators": ["arn:aws:iam::123456789012:role/deployer"],
}


ENVIRONMENT = values()


def test_the_section_is_recognised() -> None:
    cluster = any_stack_config({"eksCluster": VALUES})
    assert isinstance(cluster, EksClusterStackConfig), "the section makes the stack a cluster"
    assert cluster.eks_cluster.name == "l40s-pair"
    assert not isinstance(any_stack_config(ENVIRONMENT), EksClusterStackConfig), "a stack of servers is none"


# sections → the paths of all faults, words of message or remedy
FAULTS: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "servers in the same stack": (
        {"eksCluster": VALUES, **ENVIRONMENT},
        {"vllm:eksCluster"},
        "beside vllm:cluster, vllm:nodes, vllm:services",
    ),
    "one section of an environment": ({"eksCluster": VALUES, "services": {}}, {"vllm:eksCluster"}, "vllm:services"),
    "a secret that nothing would use": ({"eksCluster": VALUES, "hfToken": None}, {"vllm:eksCluster"}, "vllm:hfToken"),
    "nothing": ({}, {"config"}, "vllm:eksCluster as in"),
    "a secret alone": ({"hfToken": None}, {"config"}, "neither"),
    "a misspelt section": ({"eksClutser": VALUES}, {"vllm:eksClutser"}, "did you mean 'vllm:eksCluster'"),
    "a misspelt section of an environment alone": ({"serivces": {}}, {"vllm:serivces"}, "did you mean 'vllm:services'"),
    "a misspelt section beside it": (
        {"eksCluster": VALUES, "serivces": {}},
        {"vllm:eksCluster", "vllm:serivces"},
        "did you mean 'vllm:services'",
    ),
    "a section like none": ({"eksCluster": VALUES, "zebra": {}}, {"vllm:zebra"}, "allowed: "),
    "a misspelt key": ({"eksCluster": {**VALUES, "subnet": SUBNETS}}, {"vllm:eksCluster.subnet"}, "'subnets'"),
    "a misspelt add-on": (
        {"eksCluster": {**VALUES, "addonVersions": {"vpc-cnni": "v1.20.4-eksbuild.1"}}},
        {"vllm:eksCluster.addonVersions.vpc-cnni"},
        "vpc-cni",
    ),
    "one subnet": ({"eksCluster": {**VALUES, "subnets": SUBNETS[:1]}}, {"vllm:eksCluster.subnets"}, "at least 2"),
    "nobody who may enter": (
        {"eksCluster": {**VALUES, "administrators": []}},
        {"vllm:eksCluster.administrators"},
        "at least 1",
    ),
    "a version that is a number": (
        {"eksCluster": {**VALUES, "kubernetesVersion": 1.34}},
        {"vllm:eksCluster.kubernetesVersion"},
        'quotes: "1.34"',
    ),
}


@pytest.mark.parametrize(("sections", "paths", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_with_its_place_and_its_cure(sections: dict[str, Any], paths: set[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        any_stack_config(sections)
    found = {finding.path: f"{finding.message} {finding.remedy}" for finding in refused.value.findings}
    assert found.keys() == paths, "what was done wrong, and nothing else"
    assert any(words in said for said in found.values()), f"{found} do not tell {words!r}"


def test_who_wants_services_is_told_that_there_are_none() -> None:
    with pytest.raises(ConfigError, match="no services"):
        stack_config({"eksCluster": VALUES})


SAID: dict[str, tuple[dict[str, Any], str, str]] = {
    "two subnets in one zone": ({"subnets": [SUBNETS[0], SUBNETS[0]]}, "error", "one zone"),
    "subnets of another region": ({"region": "eu-central-1"}, "error", "not in eu-central-1"),
    "nobody outside the VPC": ({"publicAccessCidrs": []}, "warn", "inside the VPC"),
    "the whole internet": ({"publicAccessCidrs": ["0.0.0.0/0"]}, "warn", "whole internet"),
}


@pytest.mark.parametrize(("changes", "level", "words"), SAID.values(), ids=SAID.keys())
def test_a_rule_speaks(changes: dict[str, Any], level: str, words: str) -> None:
    found = list(check_cluster(cluster_spec({**VALUES, **changes})))
    assert any(one.level == level and words in one.message for one in found), f"{found}"


def test_a_cluster_as_it_should_be_passes() -> None:
    assert not list(check_cluster(cluster_spec(VALUES))), "two zones of the region, and who reaches it is named"


def test_it_is_built_in_its_region() -> None:
    recording = record(lambda: build_cluster("test", cluster_spec(VALUES)))
    assert recording.one("pulumi:providers:aws").inputs["region"] == REGION
    assert recording.one("aws:eks/cluster:Cluster").inputs["name"] == "l40s-pair"


# --- the shipped stacks, each of them


def program(stack: str) -> Recording:
    return record(lambda: runpy.run_path(str(PROGRAM), run_name="__main__"), config=pulumi_config(stack))


def test_every_stack_file_is_tested_as_what_it_is() -> None:
    assert CLUSTER_STACKS == ["l40s-pair-eks-cluster"], "no other stack file has the section"
    assert sorted([*SHIPPED, *CLUSTER_STACKS]) == sorted(STACK_FILES), "as an environment, or as a cluster"


@pytest.mark.parametrize("stack", CLUSTER_STACKS)
def test_a_shipped_cluster_says_nothing_bad(stack: str) -> None:
    shipped = any_stack_config(values(stack))
    assert isinstance(shipped, EksClusterStackConfig)
    assert not check_cluster(shipped.eks_cluster), "it would be refused or warned about"


@pytest.mark.parametrize("stack", STACK_FILES)
def test_aws_would_take_every_call_of_a_shipped_stack(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    resources = aws_resources(run(monkeypatch, stack) if stack in SHIPPED else program(stack))
    on_aws = stack in CLUSTER_STACKS or config(stack).cluster.kind == "eks"
    assert bool(resources) == on_aws, "AWS is asked where the stack is on it"
    for item in resources:
        faults = made(item.type, item.inputs).faults
        assert not faults, f"{item.type} {item.name}: AWS would refuse this: {faults}"


@pytest.mark.parametrize("stack", CLUSTER_STACKS)
def test_a_shipped_cluster_is_built_whole_and_nothing_else(stack: str) -> None:
    recording = program(stack)
    assert not [item for item in recording.registrations if "kubernetes" in item.type], "its cluster is not there yet"
    addons = {item.inputs["addonName"] for item in recording.all("aws:eks/addon:Addon")}
    assert addons == set(EKS_ADDONS), "what the plan lists is what is built"
    outputs = recording.exports["eksCluster"]
    assert set(outputs) == {"name", "endpoint", "kubernetesVersion"}, "a change of an export is a line of every diff"
    assert outputs["name"] == values(stack)["eksCluster"]["name"], "environments name the cluster by it"


def test_the_pairs_environment_runs_on_the_pairs_cluster() -> None:
    cluster, shipped = values("l40s-pair-eks-cluster")["eksCluster"], config("l40s-pair-eks")
    reference, nodes = shipped.cluster.eks, shipped.nodes["l40s"].eks
    assert reference is not None
    assert nodes is not None
    assert (reference.name, reference.region) == (cluster["name"], cluster["region"]), "one names the other"
    assert shipped.cluster.kubernetes_version == cluster["kubernetesVersion"]
    subnets = {(subnet["id"], subnet["zone"], subnet["zoneId"]) for subnet in cluster["subnets"]}
    assert {(subnet.id, subnet.zone, subnet.zone_id) for subnet in nodes.subnets} <= subnets
    assert not nodes.cni_policy, "the cluster gives the CNI a role of its own"


def test_a_refused_cluster_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "error", said.append)

    def refused() -> None:
        with pytest.raises(SystemExit):
            runpy.run_path(str(PROGRAM), run_name="__main__")

    one_zone = {"eksCluster.subnets": [SUBNETS[0], SUBNETS[0]]}
    recording = record(refused, config=pulumi_config("l40s-pair-eks-cluster", one_zone))
    assert not recording.registrations, "nothing before the check is over"
    assert "one zone" in said[-1]


def test_a_secret_in_a_cluster_stack_is_refused_by_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "error", said.append)

    def refused() -> None:
        with pytest.raises(SystemExit):
            runpy.run_path(str(PROGRAM), run_name="__main__")

    sections = pulumi_config("l40s-pair-eks-cluster")
    recording = record(refused, config={**sections, "vllm:apiKey": "hidden"}, secrets=["vllm:apiKey"])
    assert not recording.registrations
    assert "beside vllm:apiKey" in said[-1], "it would do nothing"
    assert "hidden" not in said[-1]


# --- the answers


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def mine(tmp_path: Path, right: str, wrong: str) -> Path:
    text = STACK_FILES["l40s-pair-eks-cluster"].read_text("utf-8")
    assert right in text, f"the shipped stack no longer has {right!r}"
    path = tmp_path / "Pulumi.mine.yaml"
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    return path


def test_the_plan_says_what_is_built() -> None:
    result = command("plan", "--stack", "l40s-pair-eks-cluster")
    assert result.exit_code == 0, result.output
    for words in ("Kubernetes 1.34", "us-east-1a, us-east-1b", "203.0.113.0/24", "role/deployer", "2 x t3.medium"):
        assert words in result.output, f"a person looks for {words!r}"
    for addon in EKS_ADDONS:
        assert addon in result.output, f"{addon} is built as well"


def test_a_pinned_addon_is_planned_with_its_version(tmp_path: Path) -> None:
    pinned = "addonVersions: {vpc-cni: v1.20.4-eksbuild.1}\n    deletionProtection: false"
    path = mine(tmp_path, "deletionProtection: true", pinned)
    assert "vpc-cni v1.20.4-eksbuild.1" in command("plan", str(path)).output
    versions = json.loads(command("plan", str(path), "--json").output)["eksCluster"]["addonVersions"]
    assert versions == {addon: "v1.20.4-eksbuild.1" if addon == "vpc-cni" else None for addon in EKS_ADDONS}


@pytest.mark.parametrize(
    ("right", "wrong", "code", "rules"),
    [
        ("us-east-1b", "us-east-1b", 0, []),
        ("us-east-1b", "us-east-1a", 1, ["EKS-SUBNETS"]),
        ("203.0.113.0/24", "0.0.0.0/0", 0, ["EKS-ACCESS"]),
        ("vllm:eksCluster", "vllm:eksClster", 1, ["CFG-KEY"]),
    ],
    ids=["as shipped", "an error", "a warning", "a fault of the file"],
)
def test_a_program_reads_the_same_answer(tmp_path: Path, right: str, wrong: str, code: int, rules: list[str]) -> None:
    result = command("plan", str(mine(tmp_path, right, wrong)), "--json")
    answer = json.loads(result.output)
    assert (result.exit_code, [finding["rule"] for finding in answer["findings"]]) == (code, rules), result.output
    assert answer["services"] == {}, "a report of a preview goes through the services"


def test_a_check_says_that_there_is_nothing_to_look_at_yet() -> None:
    result = command("check", "--stack", "l40s-pair-eks-cluster")
    assert (result.exit_code, "AWS was not asked" in result.output) == (0, True), result.output


@pytest.mark.parametrize(
    "arguments",
    [("diagnose",), ("pin",), ("capacity", "--requests-per-second", "1")],
    ids=["diagnose", "pin", "capacity"],
)
def test_what_is_about_services_is_refused_in_a_sentence(arguments: tuple[str, ...]) -> None:
    result = command(*arguments, "--stack", "l40s-pair-eks-cluster")
    assert result.exit_code == 1
    assert "no services" in " ".join(result.output.split()), result.output
    assert isinstance(result.exception, SystemExit), "a wrong stack is no crash"


def test_a_preview_of_a_cluster_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mine(tmp_path, "203.0.113.0/24", "0.0.0.0/0").read_text("utf-8")
    monkeypatch.setattr("infra.cli.pull_requests._git", lambda *_: base)
    step = {
        "op": "update",
        "urn": "urn:pulumi:c::vllm::aws:eks/cluster:Cluster::l40s-pair-cluster",
        "oldState": {"type": "aws:eks/cluster:Cluster", "inputs": {}},
        "newState": {"type": "aws:eks/cluster:Cluster", "inputs": {}},
    }
    file = tmp_path / "preview.json"
    file.write_text(json.dumps({"steps": [step], "diagnostics": [], "changeSummary": {}}))
    result = command("preview-report", str(file), "--stack", "l40s-pair-eks-cluster", "--base-ref", "main")
    assert result.exit_code == 0, result.output
    assert "`l40s-pair-cluster`" in result.output, "the table of changes"
    assert "- gone: `vllm:eksCluster.publicAccessCidrs`" in result.output, "the findings of both sides are compared"
