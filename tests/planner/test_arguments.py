"""Engine settings become arguments that the release's own parser reads back; what it would refuse is found before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.arguments import ArgumentsError, check, parse, render
from planner.arguments.names import OWNED, SUPERSEDED, TYPED
from planner.arguments.together import BACK_DOOR_FLAGS
from planner.findings import Finding
from planner.parallel import tensor_parallel_size
from planner.releases import Flag, Release, known_releases, release_at
from planner.spec import EngineSpec, ServiceSpec

BETWEEN = ("0.11.2", "0.13.0", "0.19.0", "0.26.0", "0.32.0", "0.33.2")
RELEASES = (*known_releases(), *BETWEEN)
PROPERTIES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def service(engine: Mapping[str, Any] | None = None, **others: Any) -> ServiceSpec:
    return ServiceSpec.model_validate_json(
        json.dumps(
            {
                "pool": "lab",
                "model": {"id": "Qwen/Qwen2.5-7B-Instruct"},
                "image": {"tag": "v0.31.0"},
                "engine": dict(engine or {}),
                "cache": {"kind": "storageClass", "storageClass": "local-path", "size": "80Gi"},
                "resources": {"memoryLimit": "32Gi"},
            }
            | others
        )
    )


def found(version: str, engine: Mapping[str, Any] | None = None, **others: Any) -> tuple[Finding, ...]:
    return check(service(engine, **others), release_at(version))


def extra(*words: str) -> dict[str, Any]:
    return {"extraArgs": list(words)}


def errors(findings: tuple[Finding, ...]) -> list[Finding]:
    return [each for each in findings if each.level == "error"]


# Rendering


def test_a_plain_service_renders_only_what_the_stack_says() -> None:
    assert render(service(), release_at("0.31.0")) == (
        *("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct"),
        *("--served-model-name", "qwen2.5-7b-instruct"),
        *("--host", "0.0.0.0", "--port", "8000"),  # noqa: S104
        *("--shutdown-timeout", "30"),
    ), "a flag whose value is the release's default is left to the release"


@pytest.mark.parametrize(
    ("version", "engine", "words"),
    [
        ("0.31.0", {"maxModelLen": 2048}, ("--max-model-len", "2048")),
        ("0.31.0", {"gpuMemoryUtilization": 0.8}, ("--gpu-memory-utilization", "0.8")),
        ("0.31.0", {"enforceEager": True}, ("--enforce-eager",)),
        ("0.31.0", {"enablePrefixCaching": False}, ("--no-enable-prefix-caching",)),
        ("0.33.0", {"enablePrefixCaching": False}, ("--no-enable-prefix-caching",)),
        ("0.11.0", {"cudagraphCaptureSizes": [1, 2, 4]}, ("--cuda-graph-sizes", "1", "2", "4")),
        ("0.19.1", {"cudagraphCaptureSizes": [1, 2, 4]}, ("--cudagraph-capture-sizes", "1", "2", "4")),
        ("0.31.0", {"cudagraphCaptureSizes": [1, 2, 4]}, ("--cudagraph-capture-sizes", "1", "2", "4")),
        ("0.11.2", {"cudagraphCaptureSizes": [1, 2]}, ("--compilation-config", '{"cudagraph_capture_sizes":[1,2]}')),
        (
            "0.31.0",
            {"speculativeConfig": {"num_speculative_tokens": 4, "method": "ngram"}},
            ("--speculative-config", '{"method":"ngram","num_speculative_tokens":4}'),
        ),
        ("0.31.0", {"seed": -1}, ("--seed", "-1")),
        ("0.31.0", {"chatTemplate": "--odd"}, ("--chat-template=--odd",)),
    ],
)
def test_a_setting_is_rendered_for_its_release(version: str, engine: dict[str, Any], words: tuple[str, ...]) -> None:
    argv = render(service(engine), release_at(version))
    assert any(argv[start : start + len(words)] == words for start in range(len(argv))), f"{words} in {argv}"


def test_the_order_of_keys_in_the_stack_file_changes_nothing() -> None:
    one = render(service({"hfOverrides": {"a": 1, "b": 2}}), release_at("0.31.0"))
    other = render(service({"hfOverrides": {"b": 2, "a": 1}}), release_at("0.31.0"))
    assert one == other, "a pod must not roll because a mapping was sorted"


@pytest.mark.parametrize(
    ("gpus", "engine", "size"),
    [
        (1, {}, 1),
        (4, {}, 4),
        (4, {"tensorParallelSize": 2}, 2),
        (4, {"pipelineParallelSize": 2}, 2),
        (8, {"dataParallelSize": 8}, 1),
    ],
)
def test_tensor_parallelism_takes_the_gpus_that_are_left(gpus: int, engine: dict[str, int], size: int) -> None:
    spec = service(engine, gpus=gpus)
    assert tensor_parallel_size(spec) == size, "a replica's GPUs are all used"
    read = parse(render(spec, release_at("0.31.0")), release_at("0.31.0"))
    assert read.get("--tensor-parallel-size", 1) == size, "and the engine is told so"


def test_a_release_without_a_drain_gets_no_flag_for_it() -> None:
    assert "--shutdown-timeout" not in render(service(), release_at("0.11.0")), "0.11.0 would exit with code 2"
    assert "--shutdown-timeout" in render(service(), release_at("0.19.1")), "from 0.19.1 on requests can finish"


def test_the_revision_is_rendered_when_it_is_pinned() -> None:
    pinned = service(model={"id": "org/name", "revision": "a" * 40})
    assert parse(render(pinned, release_at("0.31.0")), release_at("0.31.0"))["--revision"] == "a" * 40, "pinned"
    assert "--revision" not in render(service(), release_at("0.31.0")), "unset is not rendered"


# Refusals, each with a neighbour that passes

REFUSED: list[tuple[str, dict[str, Any], str, str, str]] = [
    # release, engine, path, rule, words of message or remedy
    ("0.31.0", extra("--cuda-graph-sizes", "256"), "engine.extraArgs[0]", "NAM-2|ARG-3", "--cudagraph-capture-sizes"),
    ("0.13.0", extra("--cuda-graph-sizes", "256"), "engine.extraArgs[0]", "ARG-3", "--cudagraph-capture-sizes"),
    ("0.19.0", extra("--disable-log-requests"), "engine.extraArgs[0]", "ARG-3", "--no-enable-log-requests"),
    ("0.11.0", extra("--enable-metrics"), "engine.extraArgs[0]", "ARG-3", "has no --enable-metrics"),
    ("0.33.0", extra("--enable-metrics"), "engine.extraArgs[0]", "ARG-3", "has no --enable-metrics"),
    ("0.31.0", extra("--swap-space", "4"), "engine.extraArgs[0]", "ARG-3", "no longer has"),
    ("0.31.0", extra("--max-logpr", "4"), "engine.extraArgs[0]", "ARG-3", "write --max-logprobs"),
    ("0.11.0", {"maxNumQueuedReqs": 50}, "engine.maxNumQueuedReqs", "ARG-3", "0.31.0"),
    ("0.19.1", {"maxNumQueuedReqs": 50}, "engine.maxNumQueuedReqs", "ARG-3", "0.31.0"),
    ("0.11.0", {"kvCacheMetrics": True}, "engine.kvCacheMetrics", "ARG-3", "0.19.1"),
    ("0.11.0", {"kvCacheDtype": "nvfp4"}, "engine.kvCacheDtype", "ARG-3", "is not one of"),
    ("0.11.0", {"blockSize": 17}, "engine.blockSize", "ARG-3", "is not one of"),
    ("0.31.0", {"quantization": "None"}, "engine.quantization", "ARG-3", "no value at all"),
    ("0.31.0", extra("--max-model-len 4096"), "engine.extraArgs[0]", "ARG-4", "--max-model-len, 4096"),
    ("0.31.0", extra("--max-logprobs", "5", "--tokenizer "), "engine.extraArgs[2]", "ARG-4", "write --tokenizer"),
    ("0.31.0", extra("--max-logprobs", " 5"), "engine.extraArgs[1]", "ARG-4", "write 5"),
    ("0.31.0", extra("--numa-bind-nodes", "0,1"), "engine.extraArgs[1]", "ARG-4", "--numa-bind-nodes, 0, 1"),
    ("0.31.0", extra("5"), "engine.extraArgs[0]", "ARG-4", "follows no option"),
    ("0.31.0", extra("--max-logprobs"), "engine.extraArgs[0]", "ARG-4", "lacks its value"),
    ("0.31.0", extra("--max-logprobs", "5", "6"), "engine.extraArgs[2]", "ARG-4", "2 follow"),
    ("0.31.0", extra("--enable-lora", "true"), "engine.extraArgs[1]", "ARG-4", "takes no value"),
    ("0.31.0", extra("--max-logprobs", "many"), "engine.extraArgs[1]", "ARG-3", "no whole number"),
    ("0.31.0", extra("--max-lora-rank", "20"), "engine.extraArgs[1]", "ARG-3", "is not one of"),
    ("0.31.0", extra("--attention-config", "'{\"a\":1}'"), "engine.extraArgs[1]", "ARG-5", "no JSON"),
    ("0.31.0", extra("--attention-config", "[1]"), "engine.extraArgs[1]", "ARG-5", "takes a JSON object"),
    ("0.31.0", extra("--attention-config", '{"bakend":1}'), "engine.extraArgs[1]", "ARG-5", "bakend"),
    ("0.31.0", extra("--attention-config.bakend", "X"), "engine.extraArgs[0]", "ARG-5", "bakend"),
    ("0.31.0", extra("--max-logprobs.a", "5"), "engine.extraArgs[0]", "ARG-5", "no parts"),
    ("0.31.0", {"compilationConfig": {"level": 3}}, "engine.compilationConfig", "ARG-5", "ends the process"),
    ("0.31.0", {"kvTransferConfig": {"engine_id": "$ID"}}, "engine.kvTransferConfig", "ARG-5", "$(ID)"),
    ("0.31.0", {"kvTransferConfig": {"engine_id": "${ID}"}}, "engine.kvTransferConfig", "ARG-5", "$(ID)"),
    ("0.31.0", {"kvTransferConfig": {"engine_id": "$(ID)"}}, "engine.kvTransferConfig", "ARG-5", "no variable ID"),
    ("0.31.0", extra("--port", "9000"), "engine.extraArgs[0]", "NAM-2", "exposure.port"),
    ("0.31.0", extra("--host=127.0.0.1"), "engine.extraArgs[0]", "NAM-2", "exposure"),
    ("0.31.0", extra("--model", "x/y"), "engine.extraArgs[0]", "NAM-2", "model.id"),
    ("0.31.0", extra("--served-model-name", "x"), "engine.extraArgs[0]", "NAM-2", "model.servedName"),
    ("0.31.0", extra("--api-key", "k"), "engine.extraArgs[0]", "NAM-2", "vllm:apiKey"),
    ("0.31.0", extra("-tp", "2"), "engine.extraArgs[0]", "NAM-2", "engine.tensorParallelSize"),
    ("0.31.0", extra("--max_model_len", "2"), "engine.extraArgs[0]", "NAM-2", "engine.maxModelLen"),
    ("0.31.0", extra("--device-memory-utilization", "0.5"), "engine.extraArgs[0]", "NAM-2", "gpuMemoryUtilization"),
    ("0.31.0", extra("-cc.cudagraph_mode", "NONE"), "engine.extraArgs[0]", "NAM-2", "engine.compilationConfig"),
    ("0.11.0", extra("-O3"), "engine.extraArgs[0]", "NAM-2", "engine.compilationConfig"),
    (
        "0.31.0",
        extra("--max-logprobs", "5", "--max_logprobs=6"),
        "engine.extraArgs[2]",
        "NAM-2",
        "first in engine.extraArgs[0]",
    ),
    ("0.31.0", {"enableAutoToolChoice": True}, "engine.enableAutoToolChoice", "ARG-3", "toolCallParser"),
    ("0.31.0", extra("--enable-log-outputs"), "engine.extraArgs[0]", "ARG-3", "--enable-log-requests"),
    ("0.31.0", {"maxNumBatchedTokens": 64, "maxNumSeqs": 128}, "engine.maxNumBatchedTokens", "ARG-3", "128"),
    (
        "0.31.0",
        {"maxNumBatchedTokens": 1024, "maxModelLen": 4096, "enableChunkedPrefill": False},
        "engine.maxNumBatchedTokens",
        "ARG-3",
        "4096",
    ),
    ("0.31.0", {"maxNumSeqs": 4} | extra("--max-num-active-seqs", "8"), "engine.extraArgs[0]", "ARG-3", "lower it"),
    ("0.31.0", extra("--headless"), "engine.extraArgs[0]", "NAM-2", "no HTTP server"),
    ("0.31.0", extra("--profiler-config", '{"profiler":"torch"}'), "engine.extraArgs[0]", "SEC-DEV", "/start_profile"),
    (
        "0.31.0",
        {"cudagraphCaptureSizes": [1, 2]} | extra("--max-cudagraph-capture-size", "8"),
        "engine.extraArgs[0]",
        "ARG-3",
        "not the largest",
    ),
    (
        "0.31.0",
        {"cudagraphCaptureSizes": [1], "compilationConfig": {"cudagraph_capture_sizes": [2]}},
        "engine.compilationConfig",
        "NAM-2",
        "cudagraphCaptureSizes",
    ),
]


@pytest.mark.parametrize(("version", "engine", "path", "rule", "words"), REFUSED)
def test_what_the_release_would_refuse_is_an_error_with_its_path(
    version: str, engine: dict[str, Any], path: str, rule: str, words: str
) -> None:
    refusals = errors(found(version, engine))
    assert path in [each.path for each in refusals], f"the place is named: {refusals}"
    (refusal, *_) = [each for each in refusals if each.path == path]
    assert refusal.rule in rule.split("|"), "the kind of failure is named"
    assert words in f"{refusal.message} {refusal.remedy}", "the message or remedy says what to write"
    assert refusal.remedy, "every refusal has a way out"


@pytest.mark.parametrize(
    ("version", "engine"),
    [
        ("0.31.0", {}),
        ("0.31.0", extra("--max-cudagraph-capture-size", "256")),
        ("0.19.0", extra("--no-enable-log-requests")),
        ("0.11.0", extra("--disable-log-requests")),
        ("0.33.0", extra("--disable-log-requests")),
        ("0.11.0", extra("--swap-space", "4")),
        ("0.31.0", extra("--max-logprobs", "4")),
        ("0.31.0", extra("--max_logprobs=4")),
        ("0.31.0", {"maxNumQueuedReqs": 50}),
        ("0.33.0", {"maxNumQueuedReqs": 50}),
        ("0.19.1", {"kvCacheMetrics": True}),
        ("0.31.0", {"kvCacheDtype": "nvfp4"}),
        ("0.19.1", {"blockSize": 17}),
        ("0.13.0", {"blockSize": 16}),
        ("0.13.0", extra("--tokenizer-mode", "auto")),
        ("0.31.0", {"quantization": "awq"}),
        ("0.31.0", extra("--numa-bind-nodes", "0", "1")),
        ("0.31.0", extra("--enable-lora", "--max-lora-rank", "32")),
        ("0.31.0", extra("--no-enable-lora")),
        ("0.11.0", extra("--max-lora-rank", "24")),
        ("0.31.0", extra("--attention-config", '{"backend":"FLASH_ATTN"}')),
        ("0.31.0", extra("--attention-config.backend", "FLASH_ATTN", "--attention-config.use_non_causal=true")),
        ("0.31.0", extra("--middleware", "a.b", "--middleware", "c.d")),
        ("0.31.0", extra("-O2")),
        ("0.11.0", {"compilationConfig": {"level": 3}}),
        ("0.31.0", {"kvTransferConfig": {"engine_id": "$(HF_HOME)"}}),
        ("0.31.0", {"enableAutoToolChoice": True, "toolCallParser": "hermes"}),
        ("0.31.0", extra("--enable-log-outputs", "--enable-log-requests")),
        ("0.31.0", {"maxNumBatchedTokens": 128, "maxNumSeqs": 128}),
        ("0.31.0", {"maxNumBatchedTokens": 1024, "maxModelLen": 4096}),
        ("0.31.0", {"maxNumSeqs": 8} | extra("--max-num-active-seqs", "8")),
        ("0.31.0", {"cudagraphCaptureSizes": [1, 2, 8]} | extra("--max-cudagraph-capture-size", "8")),
        ("0.31.0", {"cudagraphCaptureSizes": [1], "compilationConfig": {"cudagraph_mode": "FULL"}}),
        ("0.31.0", extra("--profiler-config", "{}")),
        ("0.31.0", extra("--no-enable-tokenizer-info-endpoint")),
        ("0.11.0", {"cudagraphCaptureSizes": [1, 2, 4]}),
    ],
)
def test_what_the_release_takes_passes_without_a_word(version: str, engine: dict[str, Any]) -> None:
    spec = service(engine)
    assert check(spec, release_at(version)) == (), "a rule never refuses what runs"
    parse(render(spec, release_at(version)), release_at(version))


@pytest.mark.parametrize(
    ("version", "engine", "path"),
    [
        ("0.26.0", {"maxNumQueuedReqs": 50}, "engine.maxNumQueuedReqs"),
        ("0.12.0", {"kvCacheMetrics": True}, "engine.kvCacheMetrics"),
        ("0.26.0", extra("--max-num-active-seqs", "8"), "engine.extraArgs[0]"),
        ("0.12.0", extra("--swap-space", "4"), "engine.extraArgs[0]"),
        ("0.12.0", extra("-O3"), "engine.extraArgs[0]"),
        ("0.26.0", {"kvCacheDtype": "nvfp4"}, "engine.kvCacheDtype"),
        ("0.13.0", {"blockSize": 17}, "engine.blockSize"),
        ("0.26.0", {"compilationConfig": {"ir_enable_torch_wrap": True}}, "engine.compilationConfig"),
        ("0.11.0", {"compilationConfig": {"mode": 3}}, "engine.compilationConfig"),
        ("0.31.0", {"toolCallParser": "my-own"}, "engine.toolCallParser"),
        ("0.31.0", extra("--allowed-media-domains", "a.org,b.org"), "engine.extraArgs[1]"),
    ],
)
def test_what_is_not_known_is_a_warning(version: str, engine: dict[str, Any], path: str) -> None:
    findings = found(version, engine)
    assert [(each.level, each.path) for each in findings] == [("warn", path)], "neither silent nor a false error"
    assert findings[0].remedy, "a warning says what to do"


def test_all_faults_are_reported_at_once() -> None:
    engine = {"maxNumQueuedReqs": 5, "enableAutoToolChoice": True} | extra("--port", "1", "--enable-metrics")
    paths = {each.path for each in errors(found("0.11.0", engine))}
    assert paths == {
        *("engine.maxNumQueuedReqs", "engine.enableAutoToolChoice", "engine.extraArgs[0]", "engine.extraArgs[2]")
    }, "a person mends them in one go"


def test_a_yaml_value_that_json_cannot_say_is_refused() -> None:
    spec = service({"hfOverrides": {"a": 1}})
    engine = spec.engine.model_copy(update={"hf_overrides": {"a": {1: "x"}}})
    refusals = errors(check(spec.model_copy(update={"engine": engine}), release_at("0.31.0")))
    assert [each.path for each in refusals] == ["engine.hfOverrides"], "the key would arrive as text"


@pytest.mark.parametrize("flag", sorted(set(OWNED) - set(SUPERSEDED)))
def test_every_owned_flag_names_its_owner(flag: str) -> None:
    holding = next(each for each in reversed(known_releases()) if release_at(each).certain(flag))
    refusals = [each for each in errors(found(holding, extra(f"{flag}=1"))) if each.rule == "NAM-2"]
    assert refusals, f"{flag} would override a typed field without a word"
    assert OWNED[flag] in refusals[0].remedy, "the field that says it is named"


def test_an_old_name_of_a_flag_is_accepted_where_it_exists_and_the_plan_says_that_it_is_blind() -> None:
    old = extra("--cuda-graph-sizes", "1", "2")
    (remark,) = found("0.11.0", old)
    assert (remark.level, remark.path) == ("warn", "engine.extraArgs[0]"), "0.11.0 has that flag"
    assert "engine.cudagraphCaptureSizes" in remark.remedy, "the field that the plan sees is named"
    (refusal,) = errors(found("0.11.0", {"cudagraphCaptureSizes": [1, 2]} | old))
    assert refusal.rule == "NAM-2", "said twice, the last one would win without a word"


def test_a_back_door_is_open_only_by_name_and_to_named_clients() -> None:
    env = {"VLLM_SERVER_DEV_MODE": "1"}
    named = {"exposure": {"allowFrom": {"namespaces": ["rl-training"]}}}
    accepted = {"security": {"acceptedBackDoors": ["VLLM_SERVER_DEV_MODE"]}}
    other = {"security": {"acceptedBackDoors": ["VLLM_TORCH_PROFILER_DIR"]}}
    outside = {"exposure": {"type": "NodePort", "allowFrom": {"cidrs": ["10.0.0.0/8"]}}}
    for given_settings in (named, accepted, {**named, **other}, {**accepted, **outside}):
        assert errors(found("0.31.0", env=env, **given_settings)), (
            f"{given_settings} leaves the door open to more than was said"
        )
    assert not errors(found("0.31.0", env=env, **accepted, **named)), "the neighbour that passes"


@pytest.mark.parametrize("flag", sorted(BACK_DOOR_FLAGS))
def test_a_flag_that_opens_a_back_door_exists(flag: str) -> None:
    assert release_at("0.31.0").certain(flag), "else the rule would guard nothing"


# Environment variables


@pytest.mark.parametrize(
    ("version", "env", "rule", "words"),
    [
        ("0.31.0", {"VLLM_SERVER_DEV_MODE": "1"}, "SEC-DEV", "any method"),
        ("0.11.0", {"VLLM_TORCH_PROFILER_DIR": "/tmp/p"}, "SEC-DEV", "/start_profile"),  # noqa: S108
        ("0.31.0", {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}, "SEC-DEV", "adapter"),
        ("0.31.0", {"HF_TOKEN": "abc"}, "SEC-ENV", "vllm:hfToken"),
        ("0.31.0", {"VLLM_API_KEY": "abc"}, "SEC-ENV", "vllm:apiKey"),
        ("0.31.0", {"S3_SECRET_ACCESS_KEY": "abc"}, "SEC-ENV", "in the clear"),
        ("0.31.0", {"NOTE": "hf_" + "a" * 30}, "SEC-ENV", "looks like a secret"),
        ("0.31.0", {"HTTPS_PROXY": "http://me:pass@proxy:3128"}, "SEC-ENV", "looks like a secret"),
    ],
)
def test_variables_that_must_not_be_there_are_errors(version: str, env: dict[str, str], rule: str, words: str) -> None:
    (refusal,) = errors(found(version, env=env))
    (name, value) = next(iter(env.items()))
    assert (refusal.path, refusal.rule) == (f"env.{name}", rule), "the variable is named"
    assert words in f"{refusal.message} {refusal.remedy}", "with what it does or where it belongs"
    assert len(value) < 3 or value not in f"{refusal.message} {refusal.remedy}", "a secret is never repeated"


@pytest.mark.parametrize(
    "env",
    [
        {"VLLM_SERVER_DEV_MODE": "0"},
        {"VLLM_LOGGING_LEVEL": "DEBUG"},
        {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"},
        {"VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD": "1024"},
        {"TOKENIZERS_PARALLELISM": "false"},
        {"HTTPS_PROXY": "http://proxy:3128"},
        {"NCCL_DEBUG": "INFO"},
    ],
)
def test_harmless_variables_pass(env: dict[str, str]) -> None:
    assert found("0.31.0", env=env) == (), "a rule never refuses what runs"


@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        ("0.31.0", "VLLM_LOGING_LEVEL", "VLLM_LOGGING_LEVEL"),
        ("0.31.0", "VLLM_ATTENTION_BACKEND", "--attention-backend"),
        ("0.12.0", "VLLM_ATTENTION_BACKEND", "is not known"),
        ("0.31.0", "VLLM_TORCH_PROFILER_DIR", "--profiler-config"),
    ],
)
def test_a_vllm_variable_that_the_release_may_not_read_is_a_warning(version: str, name: str, words: str) -> None:
    (finding,) = found(version, env={name: "x"})
    assert (finding.level, finding.path) == ("warn", f"env.{name}"), "vLLM itself only warns"
    assert words in f"{finding.message} {finding.remedy}", "with what to write instead"


def test_an_unknown_variable_ends_the_start_where_the_stack_asks_for_it() -> None:
    engine = extra("--fail-on-environ-validation")
    (refusal,) = errors(found("0.31.0", engine, env={"VLLM_LOGING_LEVEL": "x"}))
    assert refusal.path == "env.VLLM_LOGING_LEVEL", "vLLM raises ValueError then"
    assert not found("0.31.0", engine, env={"VLLM_LOGGING_LEVEL": "x"}), "a known one passes"


def test_runtime_adapters_and_several_api_servers_exclude_each_other() -> None:
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    paths = {each.path for each in errors(found("0.31.0", {"apiServerCount": 2}, env=env))}
    assert "engine.apiServerCount" in paths, "vLLM refuses the pair"
    assert not found("0.31.0", {"apiServerCount": 2}), "several API servers alone pass"


# Properties

WORD = st.from_regex(re.compile(r"[a-z][a-z0-9_./-]{0,12}", re.ASCII), fullmatch=True)
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False) | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(WORD, JSON_VALUE, max_size=3)
POSITIVE = st.integers(1, 10**6)
ENGINE: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from(["auto", "half", "bfloat16"]),
    "gpuMemoryUtilization": st.floats(0.01, 1),
    "kvCacheDtype": st.sampled_from(["auto", "fp8", "nvfp4"]),
    "cudagraphCaptureSizes": st.lists(POSITIVE, min_size=1, max_size=5),
    "compilationConfig": st.fixed_dictionaries({}, optional={"cudagraph_mode": WORD, "level": st.integers(0, 3)}),
    "structuredOutputsConfig": st.fixed_dictionaries({}, optional={"backend": WORD, "no_such_key": WORD}),
    "kvTransferConfig": st.fixed_dictionaries({"kv_connector": WORD}, optional={"kv_role": WORD, "engine_id": WORD}),
    "seed": st.integers(-100, 100),
    "chatTemplate": st.text(min_size=1, max_size=12).filter(lambda text: "\x00" not in text),
} | dict.fromkeys(("speculativeConfig", "hfOverrides"), OBJECT)


def _strategy(field: str) -> st.SearchStrategy[Any]:
    info = EngineSpec.model_fields[field]
    if info.alias in ENGINE:
        return ENGINE[info.alias]
    kinds = {"bool": st.booleans(), "int": POSITIVE, "str": WORD}
    return next(strategy for kind, strategy in kinds.items() if kind in str(info.annotation))


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    """Up to six settings: the more there are, the rarer is a config that a release accepts."""
    fields = draw(st.lists(st.sampled_from(sorted(TYPED)), max_size=6, unique=True))
    return {str(EngineSpec.model_fields[field].alias): draw(_strategy(field)) for field in fields}


def _resolves(spec: ServiceSpec, path: str) -> bool:
    here: Any = spec.model_dump(by_alias=True)
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(here, tuple):
            here = dict(enumerate(map(str, here))).get(int(part))
        else:
            here = here.get(part) if isinstance(here, dict) else None
    return here is not None


def _expected(spec: ServiceSpec, release: Release) -> dict[str, Any]:
    """What the parser must read, from the settings themselves."""
    values: dict[str, Any] = {}
    for field, names in TYPED.items():
        value = getattr(spec.engine, field)
        name = next((each for each in names if release.certain(each)), names[0] if len(names) == 1 else None)
        if value is not None and name is not None:
            values[name] = list(value) if isinstance(value, tuple) else value
    sizes = spec.engine.cudagraph_capture_sizes
    if sizes is not None and not any(map(release.certain, TYPED["cudagraph_capture_sizes"])):
        values.setdefault("--compilation-config", {})
        values["--compilation-config"] = values["--compilation-config"] | {"cudagraph_capture_sizes": list(sizes)}
    return values


@PROPERTIES
@given(version=st.sampled_from(RELEASES), engine=engines())
def test_any_accepted_config_is_read_back_and_any_refused_one_names_its_path(
    version: str, engine: dict[str, Any]
) -> None:
    spec, release = service(engine), release_at(version)
    findings = check(spec, release)
    for finding in findings:
        assert _resolves(spec, finding.path), f"{finding.path} is a place in the stack file"
    assume(not errors(findings))
    read = parse(render(spec, release), release)
    expected = _expected(spec, release)
    assert {name: read.get(name) for name in expected} == expected, "the engine gets what the stack says"
    assert read["model"] == spec.model.id, "the model is the first argument"
    others = {"model", "--served-model-name", "--host", "--port", "--shutdown-timeout"}
    assert read.keys() - expected.keys() <= others, "and nothing that the stack does not say"


def _value(flag: Flag) -> st.SearchStrategy[str]:
    certain = flag.choices if flag.certain_choices is None else sorted(flag.certain_choices)
    if certain is not None:  # where one neighbour has a closed list and the other suggestions: what is in both
        return st.sampled_from([each for each in certain if flag.choices or each in (flag.suggested or certain)])
    if flag.kind in ("json", "json-or-str"):
        keys = sorted((flag.json_fields or {"a"}) - flag.uncertain_json_fields)
        return st.dictionaries(st.sampled_from(keys), st.integers(), max_size=2).map(json.dumps)
    numbers = {"int": st.integers(0, 99).map(str), "float": st.floats(0, 1).map(str)}
    return numbers.get(flag.kind, st.sampled_from(flag.suggested) if flag.suggested else WORD)


UNTOUCHED = {*OWNED, *BACK_DOOR_FLAGS, "--headless", "--enable-log-outputs", "--disable-log-stats"}


@st.composite
def extra_arguments(draw: st.DrawFn) -> tuple[str, list[str], dict[str, Any]]:
    """A release, words for extraArgs that it takes, and the flags that they set."""
    version = draw(st.sampled_from(RELEASES))
    free = [flag for name, flag in sorted(release_at(version).flags.items()) if name not in UNTOUCHED]
    words: list[str] = []
    expected: dict[str, Any] = {}
    for flag in draw(st.lists(st.sampled_from(free), max_size=4, unique_by=lambda flag: flag.name)):
        spelling = draw(st.sampled_from([flag.name, *flag.aliases]))
        if flag.kind == "flag":
            words.append(spelling)
            expected[flag.name] = True
            continue
        values = draw(st.lists(_value(flag), min_size=1, max_size=3 if flag.nargs == "+" else 1))
        assume(not (flag.none_ok and "None" in values))
        words += [spelling, *values]
        expected[flag.name] = values
    return version, words, expected


@PROPERTIES
@given(drawn=extra_arguments())
def test_extra_arguments_that_the_release_takes_are_never_refused(
    drawn: tuple[str, list[str], dict[str, Any]],
) -> None:
    version, words, expected = drawn
    spec, release = service(extra(*words)), release_at(version)
    assert check(spec, release) == (), "each of these starts"
    read = parse(render(spec, release), release)
    assert expected.keys() <= read.keys(), "and the parser finds each of them"


@PROPERTIES
@given(version=st.sampled_from(RELEASES), words=st.lists(st.text(max_size=12) | st.sampled_from(["--seed", "-x", "-"])))
def test_whatever_the_parser_does_not_take_is_an_error(version: str, words: list[str]) -> None:
    spec, release = service(extra(*words)), release_at(version)
    try:
        parse(render(spec, release), release)
        refusal = ""
    except ArgumentsError as error:
        refusal = str(error)
    assert not refusal or errors(check(spec, release)), f"the pod would exit with code 2: {refusal}"


@pytest.mark.parametrize("argv", [(), ("python", "-m", "vllm"), ("vllm", "serve"), ("vllm", "serve", "m", "--nope")])
def test_a_command_that_is_not_for_this_parser_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentsError):
        parse(argv, release_at("0.31.0"))


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (("--max-model-len", "32k"), "--max-model-len", 32_000),
        (("--max-model-len", "32K"), "--max-model-len", 32_768),
        (("--max-model-len", "auto"), "--max-model-len", -1),
        (("--no-enable-prefix-caching",), "--enable-prefix-caching", False),
        (("-tp", "2"), "--tensor-parallel-size", 2),
        (("--tensor_parallel_size=2",), "--tensor-parallel-size", 2),
        (("-O1",), "--optimization-level", "1"),
        (("--attention-config.backend", "X"), "--attention-config", {"backend": "X"}),
        (
            ("--attention-config.a.b=1", "--attention-config.c+", "x,y"),
            "--attention-config",
            {"a": {"b": 1}, "c": ["x", "y"]},
        ),
        (("--quantization", "None"), "--quantization", None),
    ],
)
def test_the_parser_reads_as_vllm_does(words: tuple[str, ...], name: str, value: Any) -> None:
    assert parse(("vllm", "serve", "m", *words), release_at("0.31.0"))[name] == value, "as its own parser"
