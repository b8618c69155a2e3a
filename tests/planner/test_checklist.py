"""The production checklist: 24 boxes, each answered, and answered by what is really rendered."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from pydantic import TypeAdapter

from infra.answers import answers
from infra.preflight import SERVICE_RULES, STACK_RULES, check_plan
from infra.tables import checklist_table
from planner.checklist import Box, checklists, questions
from planner.plan import plan_services
from planner.spec.monitoring import MonitoringSpec
from tests.components.test_vllm_server import deployment
from tests.stack_files import SHIPPED, config

PLANNER_RULES = {"SEC-DEV"}
"""Rules of `planner/arguments`, which carry their ids in the findings."""


def boxes(
    changes: dict[str, Any] | None = None,
    secrets: frozenset[str] = frozenset(),
    monitoring: dict[str, Any] | None = None,
    stack: str = "lab-3060",
) -> dict[str, Box]:
    stack_config = config(stack, changes)
    plans, _ = plan_services(stack_config.nodes, stack_config.services)
    found = check_plan(stack_config, secrets, plans)
    spec = None if monitoring is None else TypeAdapter(MonitoringSpec).validate_json(json.dumps(monitoring))
    return {box.id: box for box in checklists(plans, found, spec)["qwen"]}


def test_there_are_24_boxes_in_five_sections() -> None:
    sections = Counter(question.section for question in questions())
    assert sections == {"deployment": 6, "configuration": 5, "security": 5, "observability": 3, "capacity": 5}
    assert len({question.id for question in questions()}) == 24, "each box once"


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_box_of_a_shipped_stack_is_answered(stack: str) -> None:
    for box in boxes(stack=stack).values():
        assert box.status in {"held", "checked", "person", "not offered"}
        assert box.where, f"{box.id} says neither where it is held nor what to do"
        assert (box.rule is not None) == (box.status == "checked"), f"{box.id}: a rule checks it, or none does"


def test_a_box_that_is_checked_names_a_rule_that_there_is() -> None:
    known = {rule.id for rule in (*STACK_RULES, *SERVICE_RULES)} | PLANNER_RULES
    named = {box.rule for box in boxes().values() if box.rule}
    assert named, "some boxes of the lab are a rule's"
    assert named <= known, f"{named - known} check nothing"


# box, changes, secrets, monitoring → status, words of `where`
ANSWERS: dict[str, tuple[str, dict[str, Any], frozenset[str], dict[str, Any] | None, str, str]] = {
    "a tag": ("image-pinned", {}, frozenset(), None, "held", "its content is not"),
    "a digest": (
        "image-pinned",
        {"services.qwen.image.digest": "sha256:" + "a" * 64},
        frozenset(),
        None,
        "held",
        "vllm/vllm-openai:v0.31.0",
    ),
    "a moving tag": (
        "image-pinned",
        {"services.qwen.image": {"tag": "latest", "release": "0.31.0"}},
        frozenset(),
        None,
        "checked",
        "PIN-TAG",
    ),
    "1Gi for one GPU": ("shared-memory", {}, frozenset(), None, "checked", "NET-1"),
    "8Gi": (
        "shared-memory",
        {"services.qwen.resources": {"memoryLimit": "24Gi", "sharedMemory": "8Gi"}},
        frozenset(),
        None,
        "held",
        "8Gi",
    ),
    "three CPUs": ("cpus", {}, frozenset(), None, "held", "requests.cpu: 3"),
    "two CPUs": ("cpus", {"services.qwen.resources.cpu": "2"}, frozenset(), None, "checked", "CPU-1"),
    "a length": ("context-as-needed", {}, frozenset(), None, "held", "--max-model-len 2048"),
    "no length": (
        "context-as-needed",
        {"services.qwen.engine.maxModelLen": None},
        frozenset(),
        None,
        "checked",
        "SET-LENGTH",
    ),
    "no target": ("tokens-by-target", {}, frozenset(), None, "person", "workload.target"),
    "a target without tokens": (
        "tokens-by-target",
        {"services.qwen.workload": {"target": "timeToFirstToken"}},
        frozenset(),
        None,
        "checked",
        "SET-TOKENS",
    ),
    "a target with tokens": (
        "tokens-by-target",
        {"services.qwen.workload": {"target": "timeToFirstToken"}, "services.qwen.engine.maxNumBatchedTokens": 8192},
        frozenset(),
        None,
        "held",
        "8192",
    ),
    "quantised weights": ("quantisation-evaluated", {}, frozenset(), None, "person", "awq"),
    "whole weights": (
        "quantisation-evaluated",
        {"services.qwen.model": {"id": "Qwen/Qwen2.5-0.5B-Instruct"}},
        frozenset(),
        None,
        "held",
        "not quantised",
    ),
    "no key": ("api-key", {}, frozenset(), None, "checked", "SEC-KEY"),
    "a key": ("api-key", {}, frozenset({"apiKey"}), None, "person", "gateway"),
    "no monitoring": ("core-alerts", {}, frozenset(), None, "person", "vllm:monitoring"),
    "monitoring": (
        "core-alerts",
        {},
        frozenset(),
        {"mode": "operator", "labels": {"release": "p"}},
        "held",
        "PrometheusRule",
    ),
    "an alert that is off": (
        "core-alerts",
        {},
        frozenset(),
        {"mode": "operator", "labels": {"release": "p"}, "alerts": {"queueBacklog": {"enabled": False}}},
        "person",
        "queue_backlog",
    ),
    "a scrape": ("scraped", {}, frozenset(), {"mode": "annotations"}, "held", "annotations"),
    "a scrape without dashboard": (
        "scraped",
        {},
        frozenset(),
        {"mode": "annotations", "dashboard": False},
        "person",
        "dashboard",
    ),
    "no trace": ("request-trace", {}, frozenset(), None, "person", "otlpTracesEndpoint"),
    "a trace": (
        "request-trace",
        {"services.qwen.engine.otlpTracesEndpoint": "http://collector:4317"},
        frozenset(),
        None,
        "held",
        "http://collector:4317",
    ),
    "no queue limit": ("queue-limit", {}, frozenset(), None, "checked", "SET-QUEUE"),
    "a queue limit": (
        "queue-limit",
        {"services.qwen.engine.maxNumQueuedReqs": 64},
        frozenset(),
        None,
        "held",
        "--max-num-queued-reqs 64",
    ),
    "a release without one": (
        "queue-limit",
        {"services.qwen.image.tag": "v0.19.1"},
        frozenset(),
        None,
        "person",
        "gateway",
    ),
    "autoscaling": ("scaled-by-queue", {}, frozenset(), None, "not offered", "autoscaling"),
    "several nodes": ("rdma-between-nodes", {}, frozenset(), None, "not offered", "SCH-NODE"),
    "no prefix cache": (
        "cache-salt",
        {"services.qwen.engine.enablePrefixCaching": False},
        frozenset(),
        None,
        "held",
        "off",
    ),
}


@pytest.mark.parametrize(
    ("box", "changes", "secrets", "monitoring", "status", "words"), ANSWERS.values(), ids=ANSWERS.keys()
)
def test_a_box_follows_the_stack(
    box: str,
    changes: dict[str, Any],
    secrets: frozenset[str],
    monitoring: dict[str, Any] | None,
    status: str,
    words: str,
) -> None:
    answered = boxes(changes, secrets, monitoring)[box]
    assert (answered.status, words in answered.where) == (status, True), answered


def test_what_a_rule_found_stands_in_its_box_and_in_no_other_services() -> None:
    lab = config().services["qwen"].model_dump(by_alias=True, mode="json", exclude_none=True)
    twin = {**lab, "exposure": {"serviceName": "twin"}, "engine": {"maxModelLen": 1024}}
    twin["cache"] = {**lab["cache"], "claimName": "twin", "path": "/srv/twin"}
    changes = {"services.qwen.engine.maxModelLen": None, "services.twin": twin, "nodes.lab.nodes": 2}
    changes |= {"services.qwen.cache.node": "lab-1", "services.twin.cache.node": "lab-2"}
    said = boxes(changes)["context-as-needed"].said
    assert [text.split(":")[1] for text in said] == ["services.qwen.engine.maxModelLen"], f"its own finding: {said}"


def test_held_boxes_name_fields_that_are_rendered() -> None:
    spec = deployment()["template"]["spec"]
    (container,) = spec["containers"]
    for box in boxes().values():
        if box.status != "held":
            continue
        field = box.where.split(":")[0]
        owner, _, key = field.partition("containers[vllm].")
        assert owner.startswith("Deployment spec.template.spec."), f"{box.id}: {field} is no field of the server"
        place: Any = container
        for part in key.split("."):
            assert part in place, f"{box.id}: the container has no {key}"
            place = place[part]


def test_the_plan_carries_it_as_data_and_as_a_table() -> None:
    stack = config()
    plans, _ = plan_services(stack.nodes, stack.services)
    found = check_plan(stack, frozenset(), plans)
    carried = json.loads(json.dumps(answers(plans, found)))["checklist"]["qwen"]
    assert [box["id"] for box in carried] == [question.id for question in questions()], "in the order of the boxes"
    assert checklist_table(plans, found).row_count == 24 + 5, "24 boxes below five headings"
