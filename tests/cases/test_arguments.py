"""ARG and NAM: flags of another release, squeezed or quoted arguments, values that two places own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.case import Case, errors
from tests.cases.rendered import one, pods, render, server

EXTRA = "services.qwen.engine.extraArgs"
TAG = "services.qwen.image.tag"
NO_EAGER = {"services.qwen.engine.enforceEager": None}

CASES = [
    Case(
        "ARG-1",
        "a Service called vllm",
        {"services.qwen.exposure.serviceName": "vllm"},
        "warn",
        "ARG-1",
        ".exposure.serviceName",
        "VLLM_PORT",
        {"services.qwen.exposure.serviceName": "vllm-chat"},
    ),
    Case(
        "ARG-3",
        "a flag that went",
        {TAG: "v0.19.0", EXTRA: ["--disable-log-requests"]},
        "error",
        "ARG-3",
        ".engine.extraArgs[0]",
        "--no-enable-log-requests",
        {TAG: "v0.19.0", EXTRA: ["--no-enable-log-requests"]},
    ),
    Case(
        "ARG-3",
        "a flag under its old name",
        {TAG: "v0.13.0", EXTRA: ["--cuda-graph-sizes", "256"]},
        "error",
        "ARG-3",
        ".engine.extraArgs[0]",
        "--cudagraph-capture-sizes",
        {TAG: "v0.13.0", "services.qwen.engine.cudagraphCaptureSizes": [256], **NO_EAGER},
    ),
    *(
        Case(
            "ARG-3",
            f"a flag that never was, {tag}",
            {TAG: tag, EXTRA: ["--enable-metrics"]},
            "error",
            "ARG-3",
            ".engine.extraArgs[0]",
            "has no --enable-metrics",
            {TAG: tag},
        )
        for tag in ("v0.11.0", "v0.19.1", "v0.31.0", "v0.33.0")
    ),
    Case(
        "ARG-3",
        "only the tag changed",
        {TAG: "v0.31.0", EXTRA: ["--cuda-graph-sizes", "8"]},
        "error",
        "ARG-3",
        ".engine.extraArgs[0]",
        "--cudagraph-capture-sizes",
        {TAG: "v0.11.0", EXTRA: ["--cuda-graph-sizes", "8"]},
    ),
    Case(
        "ARG-3",
        "a setting that the release lacks",
        {TAG: "v0.19.1", "services.qwen.engine.maxNumQueuedReqs": 64},
        "error",
        "ARG-3",
        ".engine.maxNumQueuedReqs",
        "has no --max-num-queued-reqs",
        {"services.qwen.engine.maxNumQueuedReqs": 64},
    ),
    Case(
        "ARG-4",
        "flag and value in one element",
        {EXTRA: ["--max-log-len 100"]},
        "error",
        "ARG-4",
        ".engine.extraArgs[0]",
        "--max-log-len, 100",
        {EXTRA: ["--max-log-len", "100"]},
    ),
    Case(
        "ARG-4",
        "a blank at the end",
        {EXTRA: ["--max-log-len ", "100"]},
        "error",
        "ARG-4",
        ".engine.extraArgs[0]",
        "blank",
        {EXTRA: ["--max-log-len=100"]},
    ),
    Case(
        "ARG-4",
        "a list as one value",
        {EXTRA: ["--numa-bind-nodes", "0,1"]},
        "error",
        "ARG-4",
        ".engine.extraArgs[1]",
        "--numa-bind-nodes, 0, 1",
        {EXTRA: ["--numa-bind-nodes", "0", "1"]},
    ),
    Case(
        "ARG-5",
        "JSON in shell quotes",
        {EXTRA: ["--override-generation-config", "'{\"temperature\":1}'"]},
        "error",
        "ARG-5",
        ".engine.extraArgs[1]",
        "without quotes",
        {EXTRA: ["--override-generation-config", '{"temperature":1}']},
    ),
    Case(
        "ARG-5",
        "a text for a mapping",
        {"services.qwen.engine.speculativeConfig": '\'{"method":"ngram"}\''},
        "error",
        "CFG-VALUE",
        ".engine.speculativeConfig",
        "an object",
        {"services.qwen.engine.speculativeConfig": {"method": "ngram", "num_speculative_tokens": 4}},
    ),
    Case(
        "ARG-5",
        "a variable that no shell expands",
        {"services.qwen.engine.kvTransferConfig": {"kv_connector": "OffloadingConnector", "engine_id": "$ID"}},
        "error",
        "ARG-5",
        ".engine.kvTransferConfig",
        "$(ID)",
        {
            "services.qwen.engine.kvTransferConfig": {"kv_connector": "OffloadingConnector", "engine_id": "$(ID)"},
            "services.qwen.env": {"ID": "a"},
        },
    ),
    *(
        Case(
            "NAM-2",
            f"{words[0]} behind the tool's back",
            {EXTRA: words},
            "error",
            "NAM-2",
            ".engine.extraArgs[0]",
            owner,
            {EXTRA: ["--max-log-len", "100"]},
        )
        for words, owner in (
            (["--port", "9000"], "exposure.port"),
            (["--host", "127.0.0.1"], "exposure"),
            (["--served-model-name", "x"], "model.servedName"),
            (["--model", "x/y"], "model.id"),
            (["--api-key", "x"], "vllm:apiKey"),
            (["--tensor-parallel-size", "1"], "engine.tensorParallelSize"),
            (["--max-model-len", "4096"], "engine.maxModelLen"),
        )
    ),
    Case(
        "NAM-2",
        "a flag twice",
        {EXTRA: ["--max-log-len", "1", "--max-log-len", "2"]},
        "error",
        "NAM-2",
        ".engine.extraArgs[2]",
        "twice",
        {EXTRA: ["--max-log-len", "2"]},
    ),
    Case(
        "NAM-2",
        "a variable that moves a cache",
        {"services.qwen.env": {"HF_HOME": "/root/.cache/huggingface"}},
        "error",
        "NAM-2",
        ".env.HF_HOME",
        "/models/hf",
        {"services.qwen.env": {"HF_HUB_ETAG_TIMEOUT": "30"}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_spoken_about_and_its_neighbour_passes(case: Case) -> None:
    case.check()


def test_arg_1_no_pod_of_ours_is_told_about_services(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dict(pods(render(monkeypatch, {"services.qwen.exposure.serviceName": "vllm"})))
    assert set(made) == {"Deployment", "DaemonSet", "Job"}, "server, pre-pull and seed each make pods"
    for kind, spec in made.items():
        assert spec["enableServiceLinks"] is False, f"{kind}: VLLM_PORT=tcp://… would be set (vllm#34199)"


def test_arg_3_the_release_alone_decides_over_an_untouched_stack() -> None:
    changes = {EXTRA: ["--disable-log-requests"]}
    assert not errors({**changes, TAG: "v0.11.0"}), "the neighbour: 0.11.0 takes it"
    assert errors({**changes, TAG: "v0.19.1"}), "a version bump alone must run the check again"


def after(command: list[str], flag: str, count: int = 1) -> list[str]:
    start = command.index(flag) + 1
    return command[start : start + count]


def test_arg_4_a_list_is_one_element_for_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"services.qwen.engine.cudagraphCaptureSizes": [1, 2, 4], **NO_EAGER}
    command = server(render(monkeypatch, changes))["command"]
    assert after(command, "--cudagraph-capture-sizes", 3) == ["1", "2", "4"], "nothing splits at blanks or commas"
    assert not [word for word in command if word != word.strip()], "the neighbours carry no blank either"


def test_arg_5_a_mapping_is_one_compact_json_element(monkeypatch: pytest.MonkeyPatch) -> None:
    value: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
    command = server(render(monkeypatch, {"services.qwen.engine.speculativeConfig": value}))["command"]
    (element,) = after(command, "--speculative-config")
    assert json.loads(element) == value, "what was written must arrive"
    assert "'" not in element, "no shell would remove the quotes"
    assert " " not in element, "compact, as its neighbours are"


def test_nam_2_port_and_name_have_one_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"services.qwen.exposure.port": 9000, "services.qwen.model.servedName": "chat"}
    recording = render(monkeypatch, changes)
    container = server(recording)
    (port,) = container["ports"]
    (address,) = one(recording, "Service")["spec"]["ports"]
    assert after(container["command"], "--port") == ["9000"], "the server listens where the stack says"
    assert port["containerPort"] == address["port"] == 9000
    probes = [container[name]["httpGet"]["port"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {address["targetPort"], *probes} == {port["name"]}, "probes and Service must look where the server listens"
    assert after(container["command"], "--served-model-name") == ["chat"], "the public name is not the hub's"
    neighbour = server(render(monkeypatch))["command"]
    assert after(neighbour, "--port") == ["8000"], "the neighbour: the default port, said once as well"
