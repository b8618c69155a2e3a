"""The Stage that a test adds to decide the fate of pods it does not write itself."""

from __future__ import annotations

import pytest

from sim.stages import CRASH, READY_AFTER, annotate_pods


def test_the_annotations_are_put_on_new_pods_of_one_namespace() -> None:
    stage = annotate_pods("slow", "ai-infra", {READY_AFTER: "5s"}, labels={"app": "vllm"})
    selector = stage["spec"]["selector"]
    assert {"key": ".metadata.namespace", "operator": "In", "values": ["ai-infra"]} in selector["matchExpressions"], (
        "other tests run in other namespaces of the same cluster"
    )
    assert selector["matchLabels"] == {"app": "vllm"}, "a test can mean one replica only"
    patch = stage["spec"]["steps"][0]["patch"]
    assert (patch["root"], patch["template"]) == ("metadata", f"annotations:\n  {READY_AFTER}: {{{{ `5s` | Quote }}}}")


def test_it_wins_over_the_stages_that_are_always_there() -> None:
    assert annotate_pods("slow", "a", {READY_AFTER: "5s"})["spec"]["weight"] > 0, (
        "kwok chooses by weight, and those of objects/stages.yaml have none"
    )


def test_a_message_keeps_its_quotes_and_braces() -> None:
    template = annotate_pods("crash", "a", {CRASH: 'KeyError: "{{x}}"'})["spec"]["steps"][0]["patch"]["template"]
    assert '`KeyError: "{{x}}"` | Quote' in template, "the message must not be read as a template"


def test_a_backquote_is_refused() -> None:
    with pytest.raises(ValueError, match="backquote"):
        annotate_pods("crash", "a", {CRASH: "`"})
