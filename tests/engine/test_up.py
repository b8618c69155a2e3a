"""`up` from nothing, and `up` when nothing changed."""

from __future__ import annotations

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import ROLES, Stack

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def stack(shared_stack: NewStack) -> Stack:
    made = shared_stack("first")
    made.up()
    return made


def test_everything_is_there(stack: Stack) -> None:
    for kind, count in ROLES.items():
        names = [one["metadata"]["name"] for one in stack.find(kind, f"pulumi-vllm/stack={stack.name}")]
        assert len(names) == count, f"{kind}: found {names}"
    assert stack.get("namespace", stack.name)["metadata"]["labels"]["pulumi-vllm/stack"] == stack.name, (
        "the next preview knows the namespace by this label"
    )


def test_the_server_is_ready_on_its_node(stack: Stack) -> None:
    pod = stack.server_pod()
    assert pod["spec"]["nodeName"] == stack.node, "the pool's selector names this node only"
    ready = {one["type"]: one["status"] for one in pod["status"]["conditions"]}["Ready"]
    assert ready == "True", "`up` ends when the server is ready, not before"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1", "it holds the card"


def test_the_claim_is_bound_to_the_static_volume(stack: Stack) -> None:
    claim = stack.get("pvc", "vllm-model-0")
    volume = stack.get("pv", f"{stack.name}-vllm-model-0")
    assert claim["status"]["phase"] == "Bound", "the server's pod runs on it"
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"], "bound by name, never to somebody else's"
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain", "the files outlive the claim"


def test_the_address_leads_to_the_server(stack: Stack) -> None:
    slices = stack.find("endpointslice", "kubernetes.io/service-name=vllm-service")
    addresses = [address for one in slices for end in one["endpoints"] for address in end["addresses"]]
    assert addresses == [stack.server_pod()["status"]["podIP"]], "the Service selects the server and nothing else"


def test_a_preview_is_empty_and_a_second_up_changes_nothing(stack: Stack) -> None:
    stack.preview("--expect-no-changes")
    before = stack.versions()
    answer = stack.up()
    assert answer.changes == (), "the program says the same, so nothing is written"
    assert stack.versions() == before, "no object was touched"
