"""Records what a program registers with a mocked engine: inputs, and the options of each registration.

Mocks know nothing of options, and a secret anywhere in an input wraps the whole top-level input, so
the recorder keeps the raw request beside the unwrapped inputs. Absence can be asserted only after
every registration has come in: use `record`, which returns then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pulumi
from google.protobuf import json_format
from pulumi.runtime import mocks

SECRET_MARK = "4dabf18193072939515e22adb298388d"


@dataclass(frozen=True)
class Registration:
    """One registered resource; ``request`` is the raw RegisterResource request."""

    type: str
    name: str
    inputs: dict[str, Any]
    request: Any

    @property
    def raw_inputs(self) -> dict[str, Any]:
        """The inputs as they go over the wire: secrets are marked at the exact nested value."""
        return json_format.MessageToDict(self.request.object)


@dataclass
class Recording:
    """Everything that a program registered."""

    registrations: list[Registration] = field(default_factory=list)
    component_outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    exports: dict[str, Any] = field(default_factory=dict)

    def one(self, type_: str, name: str | None = None) -> Registration:
        """The only registration of a type (and logical name)."""
        found = self.all(type_, name)
        there = [(item.type, item.name) for item in self.registrations]
        assert len(found) == 1, f"expected one {type_} {name or ''}, found {len(found)} among {there}"
        return found[0]

    def all(self, type_: str, name: str | None = None) -> list[Registration]:
        """All registrations of a type (and logical name)."""
        return [item for item in self.registrations if item.type == type_ and name in {None, item.name}]

    def dependencies(self, registration: Registration) -> set[str]:
        """Logical names (with types) of what the registration depends on."""
        return {
            f"{urn.split('::')[2].split('$')[-1]}::{urn.split('::')[3]}" for urn in registration.request.dependencies
        }


ACCOUNT, REGION = "123456789012", "us-east-1"
CLUSTER = {
    "endpoint": "https://0123456789ABCDEF.gr7.us-east-1.eks.amazonaws.com",
    "certificateAuthorities": [{"data": "Y2VydGlmaWNhdGU="}],
    "kubernetesNetworkConfigs": [{"serviceIpv4Cidr": "172.20.0.0/16"}],
}
BAKED_AMI = "ami-0baked000000000001"


def aws_answer(token: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What AWS answers to a look-up."""
    return {**CLUSTER, **arguments} if token == "aws:eks/getCluster:getCluster" else {}


def aws_outputs(type_: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What AWS adds to a resource: names, ARNs in the form of their service, numbers of versions."""
    service, kind = type_.removeprefix("aws:").partition("/")[0], type_.rpartition(":")[2]
    # The provider names what has no name; Image Builder's ARNs are in lower case.
    given = inputs.get("name") or f"{inputs.get('namePrefix', f'{name}-')}generated"
    if service == "iam":
        return {"name": given, "arn": f"arn:aws:iam::{ACCOUNT}:{kind.lower()}/{given}"}
    if service == "imagebuilder":
        path = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
        version = f"/{inputs['version']}" if "version" in inputs else ""
        arn = f"arn:aws:imagebuilder:{REGION}:{ACCOUNT}:{path}/{given.lower()}{version}"
        made = [{"amis": [{"region": REGION, "image": BAKED_AMI}]}]
        return {"arn": f"{arn}/1" if kind == "Component" else arn, "outputResources": made}
    if kind == "NodeGroup":
        return {"nodeGroupName": inputs.get("nodeGroupName", given)}
    return {"name": given, "latestVersion": 3, **CLUSTER} if service in {"ec2", "eks"} else {}


class _Mocks(mocks.Mocks):
    def call(self, args: mocks.MockCallArgs) -> dict[str, Any]:
        return aws_answer(args.token, args.args)

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        state = dict(_unwrap(args.inputs))
        if args.typ.startswith("kubernetes:"):
            metadata = dict(state.get("metadata") or {})
            # The provider names what has no name; without it a reference to the name silently vanishes.
            metadata.setdefault("name", f"{args.name}-generated")
            state["metadata"] = metadata
        if args.typ.startswith("aws:"):
            state |= aws_outputs(args.typ, args.name, state)
        return f"{args.name}-id", state


class _Monitor(mocks.MockMonitor):
    def __init__(self, recording: Recording) -> None:
        super().__init__(_Mocks())
        self._recording = recording

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the engine's name
        response = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            inputs = _unwrap(pulumi.runtime.rpc.deserialize_properties(request.object))
            self._recording.registrations.append(Registration(request.type, request.name, inputs, request))
        return response

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802 - the engine's name
        outputs = json_format.MessageToDict(request.outputs)
        name = _short(request.urn)
        assert name not in self._recording.component_outputs, f"{name} registers its outputs twice"
        self._recording.component_outputs[name] = outputs
        return super().RegisterResourceOutputs(request)


def _short(urn: str) -> str:
    """``type::name`` of a URN, without the types of its parents."""
    _, _, types, name = urn.removeprefix("urn:pulumi:").split("::", maxsplit=3)
    return f"{types.split('$')[-1]}::{name}"


def _unwrap(value: Any) -> Any:
    if isinstance(value, dict):
        if SECRET_MARK in value:
            return _unwrap(value["value"])
        return {key: _unwrap(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_unwrap(inner) for inner in value]
    return value


def record(
    program: Callable[[], Any], *, config: dict[str, str] | None = None, secrets: list[str] | None = None
) -> Recording:
    """Run ``program`` with a mocked engine and return what it registered, once all of it came in."""
    recording = Recording()
    pulumi.runtime.settings.set_root_resource(None)
    pulumi.runtime.set_all_config(config or {}, secrets or [])
    pulumi.runtime.set_mocks(_Mocks(), project="vllm", stack="test", preview=False, monitor=_Monitor(recording))

    @pulumi.runtime.test
    def run() -> pulumi.Output[None]:
        program()
        return pulumi.Output.from_input(pulumi.runtime.get_root_resource().outputs).apply(recording.exports.update)

    run()
    return recording
