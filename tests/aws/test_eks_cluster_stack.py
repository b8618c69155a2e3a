"""A stack that is a cluster: its section, what is refused in it, and what it builds."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config import ConfigError
from infra.eks_cluster import build_cluster, check_cluster, cluster_of, is_cluster_stack
from tests.aws.arguments import REGION, SUBNETS, cluster_spec
from tests.recorder import record

VALUES: dict[str, Any] = {
    "name": "l40s-pair",
    "region": REGION,
    "kubernetesVersion": "1.34",
    "subnets": SUBNETS,
    "publicAccessCidrs": ["203.0.113.0/24"],
    "administrators": ["arn:aws:iam::123456789012:role/deployer"],
}


def test_the_section_is_recognised() -> None:
    assert is_cluster_stack({"eksCluster": VALUES})
    assert not is_cluster_stack({"cluster": {}, "nodes": {}, "services": {}}), "a stack of servers is none"
    assert cluster_of({"eksCluster": VALUES}).name == "l40s-pair"


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "servers in the same stack": ({"eksCluster": VALUES, "services": {}}, "services"),
    "a misspelt key": ({"eksCluster": {**VALUES, "subnet": SUBNETS}}, "subnet"),
    "one subnet": ({"eksCluster": {**VALUES, "subnets": SUBNETS[:1]}}, "subnets"),
    "nobody who may enter": ({"eksCluster": {**VALUES, "administrators": []}}, "administrators"),
    "a version that is a number": ({"eksCluster": {**VALUES, "kubernetesVersion": 1.34}}, "kubernetesVersion"),
}


@pytest.mark.parametrize(("values", "path"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_of_the_section_is_named(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cluster_of(values)
    assert any(path in finding.path for finding in refused.value.findings), f"{refused.value.findings}"


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
