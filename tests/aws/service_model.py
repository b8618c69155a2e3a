"""What a resource's inputs become in AWS' API, and whether botocore's own model of the service takes that call.

The provider turns one resource into one call of creation. ``CALLS`` says which, and the few members that are called
differently there; every other input must be a member under its own name, so a misspelt or unknown input is a fault.
botocore checks types, required members, lengths and ranges; enums and patterns it leaves to the service, so they are
checked here against the same model.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import botocore.session
from botocore.model import ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator

Rename = Mapping[str, "str | Callable[[Any], dict[str, Any]]"]


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as EC2 and IAM take them."""
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


@dataclass(frozen=True)
class Call:
    """``wrap``: the member that holds all others. ``rename``: input → member, or a function that makes members of its
    value. ``generated``: names that the provider makes. ``ignored``: inputs of other calls."""

    service: str
    operation: str
    rename: Rename = field(default_factory=dict)
    wrap: str | None = None
    generated: tuple[str, ...] = ()
    ignored: frozenset[str] = frozenset()


CALLS: dict[str, Call] = {
    "aws:ec2/launchTemplate:LaunchTemplate": Call(
        "ec2",
        "CreateLaunchTemplate",
        wrap="LaunchTemplateData",
        generated=("LaunchTemplateName",),
        rename={
            "tags": lambda tags: {"TagSpecifications": [{"ResourceType": "launch-template", "Tags": tag_list(tags)}]}
        },
    ),
    "aws:eks/nodeGroup:NodeGroup": Call(
        "eks",
        "CreateNodegroup",
        rename={"nodeRoleArn": "nodeRole", "subnetIds": "subnets"},
        generated=("nodegroupName",),
    ),
    "aws:eks/cluster:Cluster": Call(
        "eks",
        "CreateCluster",
        rename={
            "vpcConfig": "resourcesVpcConfig",
            "enabledClusterLogTypes": lambda types: {
                "logging": {"clusterLogging": [{"types": types, "enabled": True}]}
            },
        },
    ),
    "aws:eks/addon:Addon": Call(
        "eks",
        "CreateAddon",
        rename={"resolveConflictsOnCreate": "resolveConflicts"},
        ignored=frozenset({"resolveConflictsOnUpdate"}),
    ),
    "aws:eks/accessEntry:AccessEntry": Call("eks", "CreateAccessEntry"),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": Call("eks", "AssociateAccessPolicy"),
    "aws:iam/role:Role": Call(
        "iam",
        "CreateRole",
        rename={"assumeRolePolicy": "assumeRolePolicyDocument", "tags": lambda tags: {"Tags": tag_list(tags)}},
        generated=("RoleName",),
        ignored=frozenset({"namePrefix"}),
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": Call("iam", "AttachRolePolicy", rename={"role": "roleName"}),
    "aws:iam/instanceProfile:InstanceProfile": Call(
        "iam",
        "CreateInstanceProfile",
        rename={"tags": lambda tags: {"Tags": tag_list(tags)}},
        generated=("InstanceProfileName",),
        ignored=frozenset({"namePrefix", "role"}),  # the role: AddRoleToInstanceProfile, a call of its own
    ),
    "aws:imagebuilder/component:Component": Call(
        "imagebuilder", "CreateComponent", rename={"version": "semanticVersion"}
    ),
    "aws:imagebuilder/imageRecipe:ImageRecipe": Call(
        "imagebuilder", "CreateImageRecipe", rename={"version": "semanticVersion"}
    ),
    "aws:imagebuilder/infrastructureConfiguration:InfrastructureConfiguration": Call(
        "imagebuilder", "CreateInfrastructureConfiguration"
    ),
    "aws:imagebuilder/distributionConfiguration:DistributionConfiguration": Call(
        "imagebuilder", "CreateDistributionConfiguration"
    ),
    "aws:imagebuilder/image:Image": Call("imagebuilder", "CreateImage"),
    "aws:imagebuilder/imagePipeline:ImagePipeline": Call("imagebuilder", "CreateImagePipeline"),
}
EVERYWHERE_IGNORED = frozenset({"region", "__provider"})
"""The region is where the call goes, not part of it."""


@cache
def service(name: str) -> ServiceModel:
    """botocore's model of a service."""
    return botocore.session.get_session().get_service_model(name)


@dataclass(frozen=True)
class Made:
    """A call as it would go out, with everything that does not fit the model."""

    call: Call
    parameters: dict[str, Any]
    faults: list[str]


def made(type_: str, inputs: Mapping[str, Any], name: str = "name") -> Made:
    """The call that a resource's inputs become; ``name`` is its logical name, which generated names begin with."""
    call = CALLS[type_]
    shape = service(call.service).operation_model(call.operation).input_shape
    assert isinstance(shape, StructureShape), f"{call.operation} takes no parameters"
    target = shape.members[call.wrap] if call.wrap else shape
    plain: dict[str, Any] = {}
    generated = f"{inputs.get('namePrefix', f'{name}-')}generated"
    outside: dict[str, Any] = dict.fromkeys(call.generated, generated)
    for key, value in inputs.items():
        if key in EVERYWHERE_IGNORED | call.ignored:
            continue
        renamed = call.rename.get(key, key)
        if callable(renamed):
            outside |= renamed(value)
        else:
            plain[renamed] = value
    faults: list[str] = []
    converted = _converted(plain, target, call.operation, faults)
    parameters = {**outside, call.wrap: converted} if call.wrap else {**converted, **outside}
    parameters = {**parameters, **_tokens(shape)}
    faults += _model_faults(parameters, shape)
    return Made(call, parameters, faults)


def _tokens(shape: StructureShape) -> dict[str, str]:
    """Tokens against doing it twice: botocore and the provider fill them in."""
    return {name: "token" for name, member in shape.members.items() if member.metadata.get("idempotencyToken")}


def _model_faults(parameters: Any, shape: Shape) -> list[str]:
    report = ParamValidator().validate(parameters, shape).generate_report()
    return [*(report.splitlines()), *_value_faults(parameters, shape, shape.name)]


def _value_faults(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if shape.type_name == "structure" and isinstance(value, dict):
        for key, inner in value.items():
            if key in shape.members:
                yield from _value_faults(inner, shape.members[key], f"{path}.{key}")
    elif shape.type_name == "list" and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _value_faults(inner, shape.member, f"{path}.{index}")
    elif shape.type_name == "map" and isinstance(value, dict):
        for key, inner in value.items():
            yield from _value_faults(key, shape.key, f"{path}.{key}")
            yield from _value_faults(inner, shape.value, f"{path}.{key}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _string_faults(value, shape, path)


def _string_faults(value: str, shape: Shape, path: str) -> Iterator[str]:
    enum, pattern = shape.metadata.get("enum"), shape.metadata.get("pattern")
    if enum and value not in enum:
        yield f"{path}: {value!r} is none of {', '.join(enum)}"
    if pattern and not re.search(_python_pattern(pattern), value):
        yield f"{path}: {value!r} does not match {pattern}"


def _python_pattern(pattern: str) -> str:
    """The pattern without Unicode classes, which Python's `re` does not know; ASCII only, hence stricter."""
    for java, plain in ((r"\p{L}", "A-Za-z"), (r"\p{N}", "0-9"), (r"\p{Z}", " ")):
        pattern = pattern.replace(java, plain)
    return pattern


def _converted(value: Any, shape: Shape, path: str, faults: list[str]) -> Any:
    """Inputs under the members' own spelling, numbers and booleans as the model wants them."""
    if shape.type_name == "structure" and isinstance(value, dict):
        return dict(_members(value, shape, path, faults))
    if shape.type_name == "list" and isinstance(value, list):
        return [_converted(inner, shape.member, f"{path}.{index}", faults) for index, inner in enumerate(value)]
    if shape.type_name == "list" and isinstance(value, dict):
        return tag_list(value) if shape.name.startswith("Tag") else [_converted(value, shape.member, path, faults)]
    if shape.type_name in {"integer", "long"} and isinstance(value, float) and value.is_integer():
        return int(value)  # mocks return every number as a float
    if shape.type_name == "boolean" and value in {"true", "false"}:
        return value == "true"  # the provider has strings where "not set" must differ from false
    return value


def _members(value: dict[str, Any], shape: Shape, path: str, faults: list[str]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        names = {spelled(name): name for name in shape.members}
        name = names.get(spelled(key))
        if name is None:
            faults.append(f"{path}: {shape.name} has no member {key}")
        elif inner is not None:
            yield name, _converted(inner, shape.members[name], f"{path}.{name}", faults)


def spelled(name: str) -> str:
    """A name without case: userDataBase64 and UserData64 differ, httpTokens and HttpTokens do not."""
    return name.replace("_", "").lower()


def decoded_user_data(inputs: Mapping[str, Any]) -> str:
    """User data as the instance reads it."""
    return base64.b64decode(inputs["userData"], validate=True).decode()


def node_config(user_data: str) -> dict[str, Any]:
    """The NodeConfig in a MIME message."""
    parts = user_data.split("--//")
    assert "Content-Type: application/node.eks.aws" in parts[1], "nodeadm reads only parts of this type"
    return dict(json.loads(parts[1].partition("\n\n")[2]))
