"""The AMI that has the image: exact content, pinned, tested, and another one whenever the content is another."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from components.baked_node_image import component_document, containerd_name, pinned_name, pull_command
from planner.spec import ImageSpec
from tests.aws.arguments import DIGEST, OTHER_DIGEST, baked_image
from tests.recorder import BAKED_AMI, Recording

COMPONENT = "aws:imagebuilder/component:Component"
RECIPE = "aws:imagebuilder/imageRecipe:ImageRecipe"
IMAGE = "aws:imagebuilder/image:Image"
PIPELINE = "aws:imagebuilder/imagePipeline:ImagePipeline"
NAME = f"docker.io/vllm/vllm-openai@{DIGEST}"


def commands(recording: Recording) -> dict[str, list[str]]:
    document = json.loads(recording.one(COMPONENT).inputs["data"])
    return {phase["name"]: phase["steps"][0]["inputs"]["commands"] for phase in document["phases"]}


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
        ("python", "docker.io/library/python"),
        ("quay.io/org/vllm", "quay.io/org/vllm"),
        ("localhost/vllm", "localhost/vllm"),
        ("registry:5000/vllm", "registry:5000/vllm"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/vllm", "123456789012.dkr.ecr.us-east-1.amazonaws.com/vllm"),
    ],
)
def test_an_image_has_the_name_by_which_the_kubelet_looks_it_up(repository: str, name: str) -> None:
    assert containerd_name(f"{repository}@{DIGEST}") == f"{name}@{DIGEST}", "under another name the node pulls again"


def test_an_image_without_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="digest"):
        pinned_name(ImageSpec(tag="v0.11.0"))
    assert pinned_name(ImageSpec(tag="v0.11.0", digest=DIGEST)) == f"vllm/vllm-openai@{DIGEST}"


def test_it_is_pulled_where_the_kubelet_looks_and_pinned_against_collection() -> None:
    build = commands(baked_image())["build"]
    assert f"ctr --namespace k8s.io images pull {NAME}" in build, "the kubelet's namespace, the exact content"
    assert f"ctr --namespace k8s.io images label {NAME} io.cri-containerd.pinned=pinned" in build, (
        "an image that no pod uses is collected first when the disk fills up"
    )
    assert build[0] == "set -euo pipefail", "a failed pull must fail the build"
    assert build[-1] == "systemctl stop containerd", "the snapshot is taken of a store at rest"


def test_the_result_is_started_and_tested() -> None:
    recording = baked_image()
    test = commands(recording)["test"]
    assert any("images check" in command and NAME in command for command in test), "every blob is there and unpacked"
    assert any("io.cri-containerd.pinned=pinned" in command for command in test), "and pinned"
    assert any("modinfo nvidia" in command for command in test), "and the driver is still in it"
    assert recording.one(IMAGE).inputs["imageTestsConfiguration"]["imageTestsEnabled"] is True


@pytest.mark.parametrize("phase", ["build", "validate", "test"])
def test_the_commands_are_bash(phase: str) -> None:
    script = "\n".join(
        commands(baked_image(image={"repository": "123456789012.dkr.ecr.us-east-1.amazonaws.com/v"}))[phase]
    )
    parsed = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert parsed.returncode == 0, parsed.stderr


def test_a_private_registry_is_asked_for_a_password() -> None:
    private = f"123456789012.dkr.ecr.eu-central-1.amazonaws.com/vllm@{DIGEST}"
    assert "get-login-password --region eu-central-1" in pull_command(private), "the registry's own region"
    assert "--user" not in pull_command(NAME), "a public one takes no password"
    roles = baked_image(image={"repository": private.partition("@")[0]})
    attached = [item.inputs["policyArn"] for item in roles.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")]
    assert any(arn.endswith("AmazonEC2ContainerRegistryPullOnly") for arn in attached), "and the builder may ask"
    public = baked_image().all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert not [item for item in public if "ContainerRegistry" in item.inputs["policyArn"]], "else it may not"


def test_the_image_that_is_being_replaced_can_be_in_it_too() -> None:
    further = f"vllm/vllm-openai@{OTHER_DIGEST}"
    build = commands(baked_image({"eks.bakedImage.furtherImages": [further, f"vllm/vllm-openai@{DIGEST}"]}))["build"]
    pulls = [command for command in build if "images pull" in command]
    assert [command.split("@")[1] for command in pulls] == [DIGEST, OTHER_DIGEST], "each once, the stack's own first"


def test_the_parent_is_the_ami_of_the_clusters_version() -> None:
    parent = baked_image().one(RECIPE).inputs["parentImage"]
    assert parent == "ssm:/aws/service/eks/optimized-ami/1.34/amazon-linux-2023/x86_64/nvidia/recommended/image_id"
    pinned = {"eks.bakedImage.parentImage": "ami-0123456789abcdef0"}
    assert baked_image(pinned).one(RECIPE).inputs["parentImage"] == "ami-0123456789abcdef0"


CONTENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another digest": ({}, {"digest": OTHER_DIGEST}),
    "another parent": ({"eks.bakedImage.parentImage": "ami-0123456789abcdef0"}, {}),
    "another disk": ({"eks.disk": {"sizeGib": 300}}, {}),
}


@pytest.mark.parametrize(("changes", "image"), CONTENTS.values(), ids=CONTENTS.keys())
def test_another_content_is_another_recipe(changes: dict[str, Any], image: dict[str, Any]) -> None:
    names = {baked_image(*given).one(RECIPE).inputs["name"] for given in (({}, {}), (changes, image))}
    assert len(names) == 2, "recipes are immutable: the old name would be refused"


def test_the_same_content_is_the_same_recipe() -> None:
    names = {baked_image(image={"tag": tag}).one(RECIPE).inputs["name"] for tag in ("v0.11.0", "v0.31.0")}
    assert len(names) == 1, "a tag is no content: nothing is built again"


def test_pulumi_waits_as_long_as_a_build_takes() -> None:
    assert baked_image().one(IMAGE).request.customTimeouts.create == "120m"
    longer = baked_image({"eks.bakedImage.timeoutMinutes": 180}).one(IMAGE)
    assert longer.request.customTimeouts.create == "180m"


def test_a_pipeline_is_made_only_when_it_is_asked_for() -> None:
    assert not baked_image().all(PIPELINE)
    schedule = baked_image({"eks.bakedImage.rebuildSchedule": "cron(0 3 ? * sun *)"}).one(PIPELINE).inputs["schedule"]
    assert schedule["scheduleExpression"] == "cron(0 3 ? * sun *)"


def test_the_ami_of_the_region_is_the_output() -> None:
    outputs = baked_image().component_outputs
    assert outputs["vllm:index:BakedNodeImage::l40s"] == {"imageId": BAKED_AMI}


def test_the_builder_can_be_reached_by_nobody_through_its_metadata() -> None:
    infrastructure = (
        baked_image().one("aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration").inputs
    )
    assert infrastructure["instanceMetadataOptions"] == {"httpTokens": "required", "httpPutResponseHopLimit": 1}
    assert infrastructure["terminateInstanceOnFailure"] is True, "a failed build must not cost for ever"
    assert infrastructure["instanceTypes"] == ["m6i.xlarge"], "no GPU, hence no GPU quota"


def test_the_document_stays_below_what_aws_takes() -> None:
    many = [f"docker.io/vllm/vllm-openai@sha256:{number:064x}" for number in range(5)]
    assert len(component_document(many)) < 16000, "Image Builder takes 16,000 characters"
