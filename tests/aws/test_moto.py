"""The AWS side of the pair, built against moto by the calls that the recorded inputs become.

moto has EKS, EC2 and IAM; it has neither EKS' add-ons and access entries nor Image Builder: those calls are checked
against the service's model only (test_service_model.py). Every call is made as a user who has the shipped policy and
nothing else, while moto enforces IAM.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import set_initial_no_auth_action_count

from tests.aws.arguments import REGION, eks_cluster, node_group
from tests.aws.policy import POLICY, allowed_actions, as_list, without_conditions
from tests.aws.service_model import made
from tests.recorder import Recording, Registration

IN_MOTO = ("aws:iam/role:", "aws:iam/rolePolicyAttachment:", "aws:ec2/launchTemplate:", "aws:eks/")
NOT_IN_MOTO = ("aws:eks/addon:", "aws:eks/access")
GROUP = "aws:eks/nodeGroup:NodeGroup"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
SETTING_UP = 3
"""Calls that make the user and give it the policy, before IAM is enforced."""


@dataclass
class Deployment:
    """Calls made from recordings; ``calls`` are IAM's names of them."""

    session: boto3.Session
    calls: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One call, remembered under IAM's name of it."""
        self.calls.append(f"{service}:{operation}")
        client = self.session.client(service, region_name=REGION)
        return dict(getattr(client, xform_name(operation))(**parameters))

    def create(self, recording: Recording) -> None:
        """Everything of a recording that moto has, in the order in which it was registered."""
        for item in recording.registrations:
            if item.type.startswith(IN_MOTO) and not item.type.startswith(NOT_IN_MOTO):
                self._create(item)

    def _create(self, item: Registration) -> None:
        wanted = made(item.type, self._with_real_ids(item.inputs), item.name)
        assert not wanted.faults, f"{item.name}: {wanted.faults}"
        answer = self.call(wanted.call.service, wanted.call.operation, **wanted.parameters)
        if item.type == TEMPLATE:
            self.ids[f"{item.name}-id"] = answer["LaunchTemplate"]["LaunchTemplateId"]

    def _with_real_ids(self, inputs: dict[str, Any]) -> dict[str, Any]:
        template = inputs.get("launchTemplate")
        if template is None:
            return inputs
        return {**inputs, "launchTemplate": {**template, "id": self.ids[template["id"]], "version": "1"}}


def user_session(name: str, policy: dict[str, Any]) -> boto3.Session:
    """A session of a user who has one policy. Exactly ``SETTING_UP`` calls."""
    iam = boto3.client("iam", region_name=REGION)
    iam.create_user(UserName=name)
    document = json.dumps(without_conditions(policy))
    iam.put_user_policy(UserName=name, PolicyName="deploy", PolicyDocument=document)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)


@pytest.fixture(scope="module", autouse=True)
def aws() -> Iterator[None]:
    """moto in place of AWS: nothing of the machine is read, nothing leaves it."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX, f"a test reached out to {address}"
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch, mock_aws(config={"iam": {"load_aws_managed_policies": True}}):
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, os.devnull)
        patch.setattr(socket.socket, "connect", local_only)
        yield


@pytest.fixture(scope="module")
def deployed(aws: None) -> Deployment:  # noqa: ARG001 - moto must be there first
    """The cluster and the GPU nodes of the pair, made with the shipped policy while IAM is enforced."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    cluster, nodes = eks_cluster(), node_group()
    loop.close()

    @set_initial_no_auth_action_count(SETTING_UP)
    def run() -> Deployment:
        deployment = Deployment(user_session("deployer", POLICY))
        deployment.create(cluster)
        deployment.create(nodes)
        return deployment

    return run()


def test_the_pair_is_built_with_the_shipped_policy(deployed: Deployment) -> None:
    eks = boto3.client("eks", region_name=REGION)
    name = next(one for one in eks.list_nodegroups(clusterName="l40s-pair")["nodegroups"] if one.startswith("l40s-g"))
    group = eks.describe_nodegroup(clusterName="l40s-pair", nodegroupName=name)["nodegroup"]
    assert group["amiType"] == "AL2023_x86_64_NVIDIA", "the NVIDIA AMI"
    assert group["instanceTypes"] == ["g6e.2xlarge"], "one L40S"
    assert group["scalingConfig"] == {"desiredSize": 2, "minSize": 0, "maxSize": 2}, "a pair that can be stopped"
    assert group["labels"] == {"nvidia.com/gpu.present": "true", "pool": "l40s"}, "the pool selects by these"
    assert group["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
    ec2 = boto3.client("ec2", region_name=REGION)
    template = group["launchTemplate"]["id"]
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required", "IMDSv2 only"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True, "images and scratch space are encrypted"
    made_calls = {"eks:CreateCluster", "eks:CreateNodegroup", "ec2:CreateLaunchTemplate", "iam:CreateRole"}
    assert made_calls <= set(deployed.calls), "the run made the calls that it is about"


@pytest.mark.usefixtures("deployed")
def test_the_nodes_role_may_join_and_pull_and_nothing_else() -> None:
    iam = boto3.client("iam", region_name=REGION)
    role = next(one for one in iam.list_roles()["Roles"] if "l40s-node" in one["RoleName"])
    attached = iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]
    assert {one["PolicyName"] for one in attached} == {
        "AmazonEKSWorkerNodePolicy",
        "AmazonEC2ContainerRegistryPullOnly",
    }, "the CNI of our own cluster has a role of its own"
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "ec2.amazonaws.com"}


def test_no_call_is_outside_the_policy(deployed: Deployment) -> None:
    outside = set(deployed.calls) - allowed_actions(POLICY)
    assert not outside, f"not in docs/iam-deploy-policy.json: {outside}"


REFUSED = {
    "eks:CreateNodegroup": {"clusterName": "l40s-pair", "nodegroupName": "x", "subnets": ["s"], "nodeRole": "r"},
    "ec2:CreateLaunchTemplate": {"LaunchTemplateName": "x", "LaunchTemplateData": {"ImageId": "ami-0"}},
    "iam:CreateRole": {"RoleName": "x", "AssumeRolePolicyDocument": "{}"},
}


@pytest.mark.parametrize("action", REFUSED)
def test_an_action_that_the_policy_lacks_is_refused(action: str) -> None:
    without = [
        {**statement, "Action": [one for one in as_list(statement["Action"]) if one != action]}
        for statement in POLICY["Statement"]
    ]

    @set_initial_no_auth_action_count(SETTING_UP)
    def run() -> None:
        session = user_session(f"without-{action.replace(':', '-')}", {**POLICY, "Statement": without})
        service, operation = action.split(":")
        Deployment(session).call(service, operation, **REFUSED[action])

    with pytest.raises(ClientError, match=r"not authorized|AccessDenied|UnauthorizedOperation"):
        run()
