"""The service of this tier: that of the stack for a real node, every alert switched on, as the program renders it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from components.monitoring import rule_file, scrape_job
from components.monitoring_names import targets_of
from planner.alerts import ALERTS, Rule, Target, rule_groups
from planner.arguments import server_environment
from planner.plan import ServicePlan, plan_services
from planner.spec.monitoring import NoMonitoring
from tests.stack_files import config, values

STACK = "demo-cpu"
(KEY,) = values(STACK)["services"]
(POOL,) = values(STACK)["nodes"]
MAX_NUM_SEQS, MAX_MODEL_LEN = 4, 4096
SCRAPE_SECONDS = 5
"""The shortest that a stack file allows."""
HOLD = "10s"
"""The `for` of every alert: it must hold at more than one evaluation."""
NEEDS_ANOTHER_EXPORTER = {
    "VLLMRestarting": "kube-state-metrics",
    "VLLMOutOfMemory": "kube-state-metrics",
    "VLLMCompileCacheMissed": "kube-state-metrics",
    "VLLMClaimNearlyFull": "the kubelet",
}
"""Alerts that read no series of the server, so that there is nothing for them here."""
_COMPARISON = re.compile(r" (>=|<=|==|!=|>|<) ")


def changes() -> dict[str, Any]:
    """What differs from the shipped stack."""
    alerts: dict[str, Any] = {_camel(field): {"enabled": True, "for": HOLD} for field in ALERTS}
    # Until the first reading of a Prometheus that was started a moment ago, nothing is scraped.
    alerts["serverDown"]["for"] = "30s"
    # A processor that other work shares may take longer for a token than any GPU; whether tokens are late is not
    # what this tier asks.
    alerts["interTokenLatency"]["seconds"] = 10
    return {
        "monitoring": {
            "mode": "operator",
            "labels": {"release": "prometheus"},
            "scrapeIntervalSeconds": SCRAPE_SECONDS,
            "alerts": alerts,
        },
        f"nodes.{POOL}.pricePerHour": 0.36,
        f"services.{KEY}.engine.maxNumSeqs": MAX_NUM_SEQS,
        f"services.{KEY}.engine.maxModelLen": MAX_MODEL_LEN,
        # Every KV block is sampled: a hundredth of a few would be none.
        f"services.{KEY}.engine.extraArgs": ["--kv-cache-metrics-sample", "1"],
    }


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(word.title() for word in rest)


@cache
def plan() -> ServicePlan:
    """The plan of the service, with the settings that its alerts need."""
    stack = config(STACK, changes())
    plans, findings = plan_services(stack.nodes, {KEY: stack.watched_services[KEY]})
    assert KEY in plans, findings
    return plans[KEY]


@cache
def target() -> Target:
    """What the rules know of the service."""
    stack = config(STACK, changes())
    assert not isinstance(stack.monitoring, NoMonitoring)
    (made,) = targets_of({KEY: plan()}, stack.monitoring, stack.cluster.namespace)
    return made


def model_name() -> str:
    """What clients call the model."""
    return plan().service.model.public_name


def arguments() -> tuple[str, ...]:
    """The rendered arguments after `vllm serve`, without address and port, which a test chooses itself."""
    rendered = list(plan().argv[2:])
    for flag in ("--host", "--port"):
        if flag in rendered:
            place = rendered.index(flag)
            del rendered[place : place + 2]
    return tuple(rendered)


def variables() -> dict[str, str]:
    """The rendered variables but for those that name folders of the container."""
    rendered = server_environment(plan().service, "cpu")
    return {name: value for name, value in rendered.items() if not value.startswith("/")}


def discovered() -> dict[str, str]:
    """The labels that service discovery gives to the series of the replica."""
    made = target()
    return {"namespace": made.namespace, "service": made.service, "pod": f"{made.servers[0]}-5d8f7c9b4-x2x7l"}


def scrape() -> dict[str, Any]:
    """The rendered scrape job without its service discovery: what is dropped is dropped here too."""
    rendered = scrape_job(target())
    return {key: rendered[key] for key in rendered if not key.startswith(("kubernetes_sd", "relabel"))}


def rules() -> dict[str, str]:
    """The rendered rule file by its name."""
    return {f"vllm-{KEY}.rules.yaml": rule_file(target())}


def alert_rules() -> dict[str, Rule]:
    """Every alert by its name."""
    return {rule["alert"]: rule for group in rule_groups(target()) for rule in group["rules"] if "alert" in rule}


def recorded() -> list[str]:
    """The names of the recorded series."""
    return [rule["record"] for group in rule_groups(target()) for rule in group["rules"] if "record" in rule]


def without_thresholds(expression: str) -> str:
    """The same query with each comparison answering 0 or 1, and with what must be missing as what must be there.

    It has data where everything that the alert reads has data, whether or not the alert fires.
    """
    return _COMPARISON.sub(r" \1 bool ", expression).replace(" unless on ", " and on ")
