"""What may change about a claim, and what a preview refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import NewStack
from tests.engine.driver import Stack

pytestmark = pytest.mark.engine

DYNAMIC = {"kind": "storageClass", "storageClass": "local-path", "size": "20Gi", "claimName": "weights"}
STATIC = {"kind": "hostPath", "path": "/srv/cache", "size": "20Gi", "claimName": "weights"}
FIXED = "fixed-size"
"""A class that allows no growing."""

CLAIM = "weights-0"


def _claim(stack: Stack) -> dict[str, Any]:
    return stack.get("pvc", CLAIM)


@pytest.fixture(scope="module")
def static(shared_stack: NewStack) -> Stack:
    stack = shared_stack("static")
    stack.write({"services.qwen.cache": STATIC})
    stack.up()
    return stack


@pytest.fixture(scope="module")
def dynamic(shared_stack: NewStack) -> Stack:
    stack = shared_stack("dynamic")
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": FIXED},
        "provisioner": "kubernetes.io/host-path",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    stack.cluster.apply(storage_class)
    stack.write({"services.qwen.cache": DYNAMIC})
    stack.up()
    return stack


def test_a_claim_of_an_expandable_class_grows(new_stack: NewStack) -> None:
    stack = new_stack("grow")
    stack.write({"services.qwen.cache": DYNAMIC})
    stack.up()
    before = _claim(stack)
    assert before["status"]["phase"] == "Bound", "its first consumer is running"

    stack.write({"services.qwen.cache": {**DYNAMIC, "size": "30Gi"}})
    answer = stack.up()

    after = _claim(stack)
    assert after["metadata"]["uid"] == before["metadata"]["uid"], "an update: the files are where they were"
    assert after["spec"]["resources"]["requests"]["storage"] == "30Gi", "the size that the stack asks for"
    operations = {event.operation for event in answer.changes if event.type.endswith("PersistentVolumeClaim")}
    assert operations == {"update"}, "never a replacement"
    stack.preview("--expect-no-changes")


def test_a_claim_of_a_class_that_cannot_grow_stays(new_stack: NewStack, dynamic: Stack) -> None:
    stack = new_stack("fixed")
    assert dynamic.cluster is stack.cluster, "the class is there"
    fixed = {**DYNAMIC, "storageClass": FIXED}
    stack.write({"services.qwen.cache": fixed})
    stack.up()
    _refused(stack, {**fixed, "size": "30Gi"}, ("cache.size", "20Gi", "30Gi", FIXED, "allowVolumeExpansion"))
    stack.write({"services.qwen.cache": fixed})
    stack.preview("--expect-no-changes")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": "30Gi"}, ("cache.size", "20Gi", "30Gi", "cannot grow", "a folder holds as much as its disk has")),
        ({"size": "10Gi"}, ("cache.size", "10Gi", "never shrinks")),
        (DYNAMIC, ("cache.kind", "local-path", "keeps its class", "another claimName")),
        ({"path": "/srv/elsewhere"}, ("cache.path", "/srv/cache", "/srv/elsewhere", "another claimName")),
    ],
    ids=["larger", "smaller", "another class", "another folder"],
)
def test_a_static_claim_is_what_it_is(static: Stack, change: dict[str, Any], said: tuple[str, ...]) -> None:
    base = {} if "kind" in change else STATIC
    _refused(static, {**base, **change}, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"size": "10Gi"}, ("cache.size", "10Gi", "never shrinks")),
        ({"storageClass": FIXED}, ("cache.storageClass", "local-path", FIXED, "keeps its class", "another claimName")),
        ({"accessMode": "ReadWriteMany"}, ("cache.accessMode", "ReadWriteOnce", "ReadWriteMany", "another claimName")),
        (STATIC, ("cache.kind", "local-path", "keeps its class", "another claimName")),
    ],
    ids=["smaller", "another class", "another access mode", "a static volume"],
)
def test_a_dynamic_claim_only_grows(dynamic: Stack, change: dict[str, Any], said: tuple[str, ...]) -> None:
    base = {} if "kind" in change else DYNAMIC
    _refused(dynamic, {**base, **change}, said)


def _refused(stack: Stack, cache: dict[str, Any], said: tuple[str, ...]) -> None:
    before = stack.versions()
    stack.write({"services.qwen.cache": cache})
    answer = stack.preview(fails=True)
    assert answer.code == 1, "CI sees a refusal by the exit code"
    for text in said:
        assert text in answer.output, f"the refusal must name {text!r}, the field or the way out:\n{answer.output}"
    assert "1 error(s)" in answer.output, "one mistake, one message"
    assert "Traceback" not in answer.output, "a refusal is no crash"
    assert answer.changes == (), "nothing is even planned"
    assert stack.versions() == before, "a refusal touches nothing"


def test_what_is_there_passes(static: Stack, dynamic: Stack) -> None:
    for stack, cache in ((static, STATIC), (dynamic, DYNAMIC)):
        stack.write({"services.qwen.cache": cache})
        stack.preview("--expect-no-changes")


@pytest.mark.parametrize(
    "cache",
    [
        {**DYNAMIC, "size": "30Gi"},
        {**DYNAMIC, "size": "10Gi", "claimName": "second"},
        {**DYNAMIC, "storageClass": FIXED, "claimName": "second"},
        {**DYNAMIC, "accessMode": "ReadWriteMany", "claimName": "second"},
        {**STATIC, "claimName": "second"},
    ],
    ids=["larger", "smaller", "another class", "another access mode", "a static volume"],
)
def test_the_way_out_passes(dynamic: Stack, cache: dict[str, Any]) -> None:
    dynamic.write({"services.qwen.cache": cache})
    answer = dynamic.preview()
    operations = {event.name: event.operation for event in answer.changes}
    assert f"{dynamic.name}/{CLAIM}" not in operations or operations[f"{dynamic.name}/{CLAIM}"] in {
        "update",
        "delete",  # Of the state only: the object is retained.
    }, "the claim that is there is never replaced"
