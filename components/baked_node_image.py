"""BakedNodeImage: an AMI that has the vLLM image already, so that a new node does not pull 12 GB before it serves.

EC2 Image Builder starts the NVIDIA AMI of the cluster's version, pulls the image by digest where the kubelet looks for
it, pins it against the kubelet's image collection, and starts the result once more to test it. Names carry a hash of
everything that goes in: recipes are immutable, so another content is another recipe, and its AMI is there before the
old one goes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from components import naming
from components.aws_roles import name_prefix, service_role
from planner.instances import ami_types
from planner.spec import ImageSpec
from planner.spec.aws import BakedImageSpec

BUILDER_POLICIES = ("EC2InstanceProfileForImageBuilder", "AmazonSSMManagedInstanceCore")
"""To run as a builder. https://docs.aws.amazon.com/imagebuilder/latest/userguide/image-builder-setting-up.html"""
ECR_POLICY = "AmazonEC2ContainerRegistryPullOnly"
ROOT_DEVICE = "/dev/xvda"
PIN = "io.cri-containerd.pinned=pinned"
"""containerd reports an image with this label as pinned, and the kubelet never collects a pinned one (KEP-4022)."""
_ECR = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/")


@dataclass(frozen=True)
class BakedNodeImageArgs:
    """``images``: what the AMI holds, each pinned by digest. ``disk_gib``: root volume of the AMI. ``architecture``
    is EC2's (x86_64 or arm64)."""

    stack: str
    region: str
    kubernetes_version: str
    architecture: str
    images: Sequence[ImageSpec]
    disk_gib: int
    subnet: str
    spec: BakedImageSpec


def pinned_name(image: ImageSpec) -> str:
    """REPOSITORY@DIGEST of an image.

    Raises:
        ValueError: the image is not pinned: a tag can move after the AMI was built, and the node would pull again.
    """
    if image.digest is None:
        raise ValueError(f"{image.reference}: an AMI is baked from a digest; `vllm-infra pin` fills image.digest in")
    return f"{image.repository}@{image.digest}"


def containerd_name(pinned: str) -> str:
    """The name under which containerd's CRI plugin looks REPOSITORY@DIGEST up: it has a registry, and never a tag."""
    first, _, rest = pinned.partition("/")
    if not rest:
        return f"docker.io/library/{first}"
    return pinned if {".", ":"} & set(first) or first == "localhost" else f"docker.io/{pinned}"


def baked_names(args: BakedNodeImageArgs) -> list[str]:
    """Everything that the AMI holds, as containerd names it, in the order of pulling."""
    pinned = [*(pinned_name(image) for image in args.images), *args.spec.further_images]
    return [containerd_name(name) for name in dict.fromkeys(pinned)]


def pull_command(name: str) -> str:
    """The pull of one image. A private ECR registry is asked for a password first; it lives for this pull only."""
    login = ""
    found = _ECR.match(name)
    if found:
        login = f'--user "AWS:$(aws ecr get-login-password --region {found["region"]})" '
    return f"ctr --namespace k8s.io images pull {login}{name}"


def component_document(names: Sequence[str]) -> str:
    """The build and the test, as the component document of Image Builder (JSON, which is YAML)."""
    pulls = [command for name in names for command in (pull_command(name), _label(name))]
    checks = [
        # `check` fails on missing blobs, `-q` prints the name only when every blob is there and unpacked.
        f'ctr --namespace k8s.io images check --quiet "name=={name}" | grep -qxF "{name}"'
        for name in names
    ]
    pins = [f'ctr --namespace k8s.io images list "name=={name}" | grep -qF "{PIN}"' for name in names]
    return json.dumps(
        {
            "name": "vllm-image",
            "schemaVersion": 1.0,
            "phases": [
                _phase("build", "Pull", ["systemctl start containerd", *pulls, "systemctl stop containerd"]),
                _phase("validate", "Check", ["systemctl start containerd", *checks, *pins]),
                _phase("test", "Test", ["systemctl start containerd", *checks, *pins, "modinfo nvidia >/dev/null"]),
            ],
        },
        indent=1,
    )


def _label(name: str) -> str:
    return f"ctr --namespace k8s.io images label {name} {PIN}"


def _phase(phase: str, step: str, commands: Sequence[str]) -> dict[str, object]:
    inputs = {"commands": ["set -euo pipefail", *commands]}
    return {"name": phase, "steps": [{"name": step, "action": "ExecuteBash", "inputs": inputs}]}


def parent_image(args: BakedNodeImageArgs) -> str:
    """The AMI to start from: by id, or the parameter in which AWS keeps the id of the recommended one."""
    if args.spec.parent_image is not None:
        return args.spec.parent_image
    families = [each.family for each in ami_types().values() if each.nvidia and each.family.bootstrap == "nodeadm"]
    parameter = families[0].ssm_parameter
    if parameter is None:
        raise ValueError("the AMI family has no parameter that names its current AMI")
    return f"ssm:{parameter.format(version=args.kubernetes_version, architecture=args.architecture)}"


def content_hash(args: BakedNodeImageArgs, document: str) -> str:
    """Short hash of everything that decides what is in the AMI."""
    content = json.dumps([document, parent_image(args), args.disk_gib])
    return hashlib.sha256(content.encode()).hexdigest()[:8]


class BakedNodeImage(pulumi.ComponentResource):
    """An AMI with the vLLM image; ``image_id`` is known once it is built and tested."""

    image_id: pulumi.Output[str]

    def __init__(self, name: str, args: BakedNodeImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("vllm:index:BakedNodeImage", name, None, opts)
        document = component_document(baked_names(args))
        self._name, self._args = name, args
        self._versioned = f"{args.stack}-{name}-{content_hash(args, document)}"
        self._tags = {naming.STACK_LABEL: args.stack}
        self._child = pulumi.ResourceOptions(parent=self)
        recipe = self._recipe(document)
        infrastructure = self._infrastructure()
        distribution = self._distribution()
        image = self._image(recipe, infrastructure, distribution)
        if args.spec.rebuild_schedule is not None:
            self._pipeline(recipe, infrastructure, distribution, args.spec.rebuild_schedule)
        self.image_id = image.output_resources.apply(lambda made: _ami_in(args.region, made))
        self.register_outputs({"imageId": self.image_id})

    def _recipe(self, document: str) -> aws.imagebuilder.ImageRecipe:
        component = aws.imagebuilder.Component(
            f"{self._name}-component",
            name=self._versioned,
            platform="Linux",
            version="1.0.0",
            data=document,
            tags=self._tags,
            opts=self._child,
        )
        return aws.imagebuilder.ImageRecipe(
            f"{self._name}-recipe",
            name=self._versioned,
            version="1.0.0",
            parent_image=parent_image(self._args),
            components=[aws.imagebuilder.ImageRecipeComponentArgs(component_arn=component.arn)],
            block_device_mappings=[
                aws.imagebuilder.ImageRecipeBlockDeviceMappingArgs(
                    device_name=ROOT_DEVICE,
                    ebs=aws.imagebuilder.ImageRecipeBlockDeviceMappingEbsArgs(
                        volume_type="gp3",
                        volume_size=self._args.disk_gib,
                        encrypted="true",
                        delete_on_termination="true",
                    ),
                )
            ],
            tags=self._tags,
            opts=self._child,
        )

    def _infrastructure(self) -> aws.imagebuilder.InfrastructureConfiguration:
        private = any(_ECR.match(name) for name in baked_names(self._args))
        role = service_role(
            f"{self._name}-builder",
            "ec2.amazonaws.com",
            region=self._args.region,
            policies=[*BUILDER_POLICIES, *([ECR_POLICY] if private else [])],
            tags=self._tags,
            parent=self,
        )
        profile = aws.iam.InstanceProfile(
            f"{self._name}-builder",
            name_prefix=name_prefix(f"{self._name}-builder"),
            role=role.role.name,
            tags=self._tags,
            opts=self._child,
        )
        spec = self._args.spec
        return aws.imagebuilder.InfrastructureConfiguration(
            f"{self._name}-infrastructure",
            name=f"{self._args.stack}-{self._name}",
            instance_profile_name=profile.name,
            instance_types=[spec.instance_type],
            subnet_id=self._args.subnet,
            security_group_ids=list(spec.security_group_ids),
            instance_metadata_options=aws.imagebuilder.InfrastructureConfigurationInstanceMetadataOptionsArgs(
                http_tokens="required", http_put_response_hop_limit=1
            ),
            terminate_instance_on_failure=True,
            resource_tags=self._tags,
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=role.attachments),
        )

    def _distribution(self) -> aws.imagebuilder.DistributionConfiguration:
        return aws.imagebuilder.DistributionConfiguration(
            f"{self._name}-distribution",
            name=f"{self._args.stack}-{self._name}",
            distributions=[
                aws.imagebuilder.DistributionConfigurationDistributionArgs(
                    region=self._args.region,
                    ami_distribution_configuration=aws.imagebuilder.DistributionConfigurationDistributionAmiDistributionConfigurationArgs(
                        name=f"{self._args.stack}-{self._name}-{{{{ imagebuilder:buildDate }}}}",
                        ami_tags=self._tags,
                    ),
                )
            ],
            tags=self._tags,
            opts=self._child,
        )

    def _image(
        self,
        recipe: aws.imagebuilder.ImageRecipe,
        infrastructure: aws.imagebuilder.InfrastructureConfiguration,
        distribution: aws.imagebuilder.DistributionConfiguration,
    ) -> aws.imagebuilder.Image:
        minutes = f"{self._args.spec.timeout_minutes}m"
        return aws.imagebuilder.Image(
            f"{self._name}-image",
            image_recipe_arn=recipe.arn,
            infrastructure_configuration_arn=infrastructure.arn,
            distribution_configuration_arn=distribution.arn,
            image_tests_configuration=aws.imagebuilder.ImageImageTestsConfigurationArgs(
                image_tests_enabled=True, timeout_minutes=60
            ),
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=pulumi.CustomTimeouts(create=minutes)),
        )

    def _pipeline(
        self,
        recipe: aws.imagebuilder.ImageRecipe,
        infrastructure: aws.imagebuilder.InfrastructureConfiguration,
        distribution: aws.imagebuilder.DistributionConfiguration,
        schedule: str,
    ) -> None:
        aws.imagebuilder.ImagePipeline(
            f"{self._name}-pipeline",
            name=f"{self._args.stack}-{self._name}",
            image_recipe_arn=recipe.arn,
            infrastructure_configuration_arn=infrastructure.arn,
            distribution_configuration_arn=distribution.arn,
            schedule=aws.imagebuilder.ImagePipelineScheduleArgs(
                schedule_expression=schedule,
                pipeline_execution_start_condition="EXPRESSION_MATCH_AND_DEPENDENCY_UPDATES_AVAILABLE",
            ),
            tags=self._tags,
            opts=self._child,
        )


def _ami_in(region: str, made: Sequence[aws.imagebuilder.outputs.ImageOutputResource]) -> str:
    """The AMI of one region among what a build made."""
    return next(str(ami.image) for resource in made for ami in resource.amis or () if ami.region == region)
