"""The GPU nodes of a pool: what a template and a group say, and what they leave out."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from components.node_user_data import Connection
from tests.aws.arguments import BAKED, BLOCK, BOTTLEROCKET, OWN_AMI, RESERVATION, SUBNETS, node_group
from tests.aws.service_model import decoded_user_data, node_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
GROUP = "aws:eks/nodeGroup:NodeGroup"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"


def template(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return node_group(changes, **more).one(TEMPLATE).inputs


def group(changes: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return node_group(changes, **more).one(GROUP).inputs


def test_instance_metadata_is_for_the_node_only() -> None:
    options = template()["metadataOptions"]
    assert options["httpTokens"] == "required", "IMDSv1 answers whoever can make the node send a request"
    assert options["httpPutResponseHopLimit"] == 1, "with 1 a pod cannot take the node's role"
    assert template({"eks.metadataHopLimit": 2})["metadataOptions"]["httpPutResponseHopLimit"] == 2


def test_the_disk_is_encrypted_and_as_fast_as_the_stack_says() -> None:
    disk = {"sizeGib": 300, "throughput": 600, "iops": 4000, "initializationRate": 200}
    (mapping,) = template({"eks.disk": disk})["blockDeviceMappings"]
    ebs = mapping["ebs"]
    assert mapping["deviceName"] == "/dev/xvda", "AL2023 has one volume"
    assert ebs["encrypted"] == ebs["deleteOnTermination"] == "true", "strings: the provider's own type"
    assert (ebs["volumeType"], ebs["volumeSize"], ebs["throughput"], ebs["iops"]) == ("gp3", 300, 600, 4000)
    assert ebs["volumeInitializationRate"] == 200, "blocks of a baked image are otherwise fetched when first read"
    assert "volumeInitializationRate" not in template()["blockDeviceMappings"][0]["ebs"], (
        "unset is not zero: it is billed"
    )


def test_bottlerocket_has_a_second_volume_that_may_hold_the_image_already() -> None:
    snapshot = "snap-0123456789abcdef0"
    changes = {**BOTTLEROCKET, "imageDelivery": "snapshot", "eks.dataVolumeSnapshot": snapshot}
    system, data = template(changes)["blockDeviceMappings"]
    assert (system["deviceName"], data["deviceName"]) == ("/dev/xvda", "/dev/xvdb"), "OS and images are apart"
    assert data["ebs"]["snapshotId"] == snapshot, "images are on the data volume"
    assert "snapshotId" not in system["ebs"], "the OS volume is the AMI's own"
    assert system["ebs"]["encrypted"] == "true", "both are encrypted"
    assert data["ebs"]["volumeSize"] == 200, "the size is for images"


def test_images_are_pulled_in_parallel_with_a_limit() -> None:
    config = node_config(decoded_user_data(template()))["spec"]["kubelet"]["config"]
    assert config == {"serializeImagePulls": False, "maxParallelImagePulls": 3}, (
        "one at a time, the device plugin waits behind 12 GB"
    )
    settings = tomllib.loads(decoded_user_data(template({**BOTTLEROCKET, "eks.maxParallelImagePulls": 5})))
    assert settings["settings"]["kubernetes"] == {"max-parallel-image-pulls": 5}, "Bottlerocket has its own settings"


def test_eks_adds_the_cluster_to_an_ami_type_and_nothing_to_an_ami_by_id() -> None:
    assert "cluster" not in node_config(decoded_user_data(template()))["spec"], "EKS merges its own part in"
    spec = node_config(decoded_user_data(template(OWN_AMI)))["spec"]
    assert spec["cluster"] == {
        "name": "l40s-pair",
        "apiServerEndpoint": "https://eks.example",
        "certificateAuthority": "Y2VydGlmaWNhdGU=",
        "cidr": "172.20.0.0/16",
    }, "without it the node starts and never joins"
    assert spec["kubelet"]["flags"] == [
        "--node-labels=nvidia.com/gpu.present=true,pool=l40s",
        "--register-with-taints=nvidia.com/gpu=true:NoSchedule",
    ], "labels and taints of the group reach only AMI types"


def test_bottlerocket_by_id_joins_with_settings() -> None:
    settings = tomllib.loads(decoded_user_data(template({**OWN_AMI, "eks.bootstrap": "bottlerocket"})))["settings"]
    kubernetes = settings["kubernetes"]
    assert (kubernetes["cluster-name"], kubernetes["api-server"]) == ("l40s-pair", "https://eks.example")
    assert kubernetes["cluster-dns-ip"] == "172.20.0.10", "the tenth address of the service range is the DNS"
    assert kubernetes["node-labels"]["pool"] == "l40s", "the pool selects by it"
    assert kubernetes["node-taints"] == {"nvidia.com/gpu": ["true:NoSchedule"]}, "a list for each key"


@pytest.mark.parametrize(
    ("cidr", "address"), [("10.100.0.0/16", "10.100.0.10"), ("172.20.0.0/20", "172.20.0.10"), ("fd00::/108", "fd00::a")]
)
def test_the_dns_is_the_tenth_address(cidr: str, address: str) -> None:
    assert Connection("c", "https://e", "", cidr).dns_address == address


def test_an_ami_by_id_goes_into_the_template_and_its_type_is_not_named() -> None:
    recording = node_group(OWN_AMI)
    assert recording.one(TEMPLATE).inputs["imageId"] == OWN_AMI["eks.amiId"]
    assert "amiType" not in recording.one(GROUP).inputs, "EKS refuses both"
    assert "imageId" not in template(), "with an AMI type EKS chooses the image"
    assert group()["amiType"] == "AL2023_x86_64_NVIDIA"


def test_a_baked_ami_wins_over_the_type() -> None:
    recording = node_group(BAKED, image_id="ami-0baked")
    assert recording.one(TEMPLATE).inputs["imageId"] == "ami-0baked", "nodes start from what this stack built"
    assert "amiType" not in recording.one(GROUP).inputs, "EKS refuses both"
    assert "cluster" in node_config(decoded_user_data(recording.one(TEMPLATE).inputs))["spec"], (
        "and must join by itself"
    )


def test_the_default_ami_follows_the_instance() -> None:
    assert group({"eks.amiType": None})["amiType"] == "AL2023_x86_64_NVIDIA"
    arm = {"eks.amiType": None, "eks.instanceType": "g5g.xlarge", "architecture": "arm64"}
    assert group(arm)["amiType"] == "AL2023_ARM_64_NVIDIA", "an x86 image does not boot on Graviton"


def test_the_group_names_a_concrete_version_of_the_template() -> None:
    version = group()["launchTemplate"]["version"]
    assert version == "3", "$Latest would be a change in every preview"


def test_the_number_of_nodes_is_set_once() -> None:
    item = node_group().one(GROUP)
    assert item.inputs["scalingConfig"] == {"desiredSize": 2, "minSize": 0, "maxSize": 2}
    assert list(item.request.ignoreChanges) == ["scalingConfig.desiredSize"], "an autoscaler or a person owns it"
    assert group({"eks.maxNodes": 4})["scalingConfig"]["maxSize"] == 4
    assert group({"eks.maxNodes": 1})["scalingConfig"]["maxSize"] == 2, "fewer than the pool declares is refused by EKS"


def test_a_node_goes_before_its_successor_comes_one_at_a_time() -> None:
    assert group()["updateConfig"] == {"maxUnavailable": 1, "updateStrategy": "MINIMAL"}, "no spare card is needed"
    default = group({"eks.update": {"strategy": "DEFAULT", "maxUnavailable": 2}})["updateConfig"]
    assert default == {"maxUnavailable": 2, "updateStrategy": "DEFAULT"}


def test_labels_and_taints_are_spelled_as_eks_spells_them() -> None:
    inputs = group()
    assert inputs["labels"] == {"nvidia.com/gpu.present": "true", "pool": "l40s"}, "the charts look for the first"
    assert inputs["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
    bare = group({"taints": [{"key": "gpu", "effect": "NoExecute"}]})["taints"]
    assert bare == [{"key": "gpu", "effect": "NO_EXECUTE"}], "a value that is empty is left out"
    assert "taints" not in group({"taints": []}), "an empty block would be a change in every preview"


def test_spot_is_said_by_the_group() -> None:
    recording = node_group({"eks.capacity": {"kind": "spot"}})
    assert recording.one(GROUP).inputs["capacityType"] == "SPOT"
    assert "instanceMarketOptions" not in recording.one(TEMPLATE).inputs, "EKS refuses it in the template"


def test_a_reservation_is_named_in_the_template() -> None:
    recording = node_group({"eks.capacity": RESERVATION})
    target = recording.one(TEMPLATE).inputs["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": RESERVATION["id"]}
    assert recording.one(GROUP).inputs["capacityType"] == "ON_DEMAND", "a reservation is on-demand capacity"
    assert "capacityReservationSpecification" not in template(), "an empty block would be a change in every preview"


def test_a_capacity_block_has_a_market_and_its_type_in_the_template() -> None:
    recording = node_group({"eks.capacity": BLOCK})
    inputs = recording.one(TEMPLATE).inputs
    assert inputs["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert inputs["instanceType"] == "g6e.2xlarge"
    assert recording.one(GROUP).inputs["capacityType"] == "CAPACITY_BLOCK"
    assert "instanceTypes" not in recording.one(GROUP).inputs, "in both places is refused"


def test_nodes_start_in_the_zone_of_their_caches() -> None:
    assert group({"eks.subnets": SUBNETS})["subnetIds"] == [SUBNETS[0]["id"]], "zone: us-east-1a"
    both = group({"eks.subnets": SUBNETS, "eks.zone": None})["subnetIds"]
    assert both == [subnet["id"] for subnet in SUBNETS], "without a zone all subnets are used"


def test_the_node_role_may_join_and_pull() -> None:
    def policies(changes: dict[str, Any] | None = None) -> set[str]:
        return {item.inputs["policyArn"].rpartition("/")[2] for item in node_group(changes).all(ATTACHMENT)}

    needed = {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"}
    assert policies() == needed, "nothing that a node does not need"
    assert policies({"eks.cniPolicy": True}) == {*needed, "AmazonEKS_CNI_Policy"}, (
        "where the CNI has no role of its own"
    )
    existing = "arn:aws:iam::123456789012:role/nodes"
    recording = node_group({"eks.nodeRoleArn": existing})
    assert not recording.all("aws:iam/role:Role"), "a role that is given is used and not changed"
    assert recording.one(GROUP).inputs["nodeRoleArn"] == existing


def test_nodes_wait_for_the_rights_of_their_role() -> None:
    recording = node_group()
    waits = recording.dependencies(recording.one(GROUP))
    for item in recording.all(ATTACHMENT):
        assert f"{ATTACHMENT}::{item.name}" in waits, "a node without rights cannot join, and on the way out it leaks"


def test_an_update_has_the_time_to_roll_every_node() -> None:
    timeouts = node_group().one(GROUP).request.customTimeouts
    assert timeouts.update == "90m", "two nodes of 30 minutes, and one for what EKS waits"
    assert node_group({"nodes": 4}).one(GROUP).request.customTimeouts.update == "150m", "more nodes take longer"
