"""The arguments that the server logs beside the command that was rendered."""

from __future__ import annotations

from typing import Any

import pytest

from infra.cold_start.arguments import cache_config, differences, kv_tokens_of, read_arguments
from planner.plan import ServicePlan
from planner.releases import release_at
from tests.infra.cold_start import starts as made

NO_DRAIN = {"services.qwen.stop.drainSeconds": 0}


def found(logged: str, changes: dict[str, Any] | None = None) -> dict[str, tuple[str | None, str | None]]:
    plan: ServicePlan = made.plan(changes)
    return {one.name: (one.rendered, one.logged) for one in differences(plan.argv, plan.release, logged)}


def test_what_was_rendered_is_what_the_server_has() -> None:
    assert found(made.ARGUMENTS) == {}, "the model named twice is no difference"


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        (made.ARGUMENTS.replace("0.9}", "0.5}"), {"gpu_memory_utilization": ("0.9", "0.5")}),
        (made.ARGUMENTS.replace(", 'gpu_memory_utilization': 0.9", ""), {}),
        (made.ARGUMENTS.replace("}", ", 'max_model_len': 20480}"), {"max_model_len": (None, "20480")}),
        (
            made.ARGUMENTS.replace("'qwen2.5", "'qwen3"),
            {"served_model_name": ("['qwen2.5-7b-instruct']", "['qwen3-7b-instruct']")},
        ),
        (made.ARGUMENTS.replace("}", ", 'api_key': ['__REDACTED__']}"), {}),
        (made.ARGUMENTS.replace("}", ", 'api_key': ***}"), {}),
        (
            made.ARGUMENTS.replace("}", ", 'compilation_config': CompilationConfig(mode=<Mode.X: 3>)}"),
            {"compilation_config": (None, "'CompilationConfig(mode=<Mode.X: 3>)'")},
        ),
    ],
    ids=["another value", "a default is not logged", "not rendered", "in a list", "redacted", "masked", "an object"],
)
def test_a_difference_is_named(logged: str, expected: dict[str, Any]) -> None:
    assert found(logged) == expected


def test_json_is_compared_key_by_key() -> None:
    changes = {"services.qwen.engine.compilationConfig": {"mode": 3}}
    ours = {"compilation_config": ("{'mode': 3}", "{'mode': 0}")}
    more = made.ARGUMENTS.replace("}", ", 'compilation_config': {'mode': 3, 'backend': 'inductor'}}")
    assert found(more, changes) == {}, "vLLM fills in the other keys"
    assert found(more.replace("3, 'backend': 'inductor'", "0"), changes) == ours
    other = made.ARGUMENTS.replace("}", ", 'compilation_config': CompilationConfig(mode=3)}")
    assert found(other, changes) == {}, "an object in another form says nothing"


def test_a_switch_that_was_turned_off_is_compared() -> None:
    changes = {"services.qwen.engine.enablePrefixCaching": False, "services.qwen.image.tag": "v0.31.0", **NO_DRAIN}
    assert found(made.ARGUMENTS.replace("}", ", 'enable_prefix_caching': False}"), changes) == {}
    assert set(found(made.ARGUMENTS.replace("}", ", 'enable_prefix_caching': True}"), changes)) == {
        "enable_prefix_caching"
    }


@pytest.mark.parametrize("release", made.RELEASES)
def test_the_parser_of_every_release_is_asked(release: str) -> None:
    plan = made.plan({"services.qwen.image.tag": f"v{release}", **NO_DRAIN})
    assert differences(plan.argv, release_at(release), made.ARGUMENTS) == (), "the same command in each"


def test_values_are_read_as_python_prints_them() -> None:
    text = (
        "{'a': {'b': [1, 2], 'c': '}, \\'d\\': 1'}, 'e': <X.Y: 1>, 'f': \"it's\", 'g': None, 'h': Config(i={'j': 1})}"
    )
    assert read_arguments(text) == {
        "a": {"b": [1, 2], "c": "}, 'd': 1"},
        "e": "<X.Y: 1>",
        "f": "it's",
        "g": None,
        "h": "Config(i={'j': 1})",
    }, "brackets and quotes do not end a value"


@pytest.mark.parametrize(
    ("page", "tokens"),
    [
        ('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="29414"} 1.0', 470_624),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0', None),
        ("# HELP vllm:cache_config_info Information", None),
        ("", None),
    ],
)
def test_tokens_of_the_metrics_page(page: str, tokens: int | None) -> None:
    assert kv_tokens_of(cache_config(page)) == tokens
