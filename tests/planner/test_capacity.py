"""The capacity plan against the worked example and the measured latencies."""

from __future__ import annotations

import pytest

from planner.capacity import dollars_per_million_tokens, plan_capacity, scale_seconds
from planner.startup import Phase, StartupPlan


def test_worked_example_of_the_production_guide() -> None:
    plan = plan_capacity(100, 18, gpus_per_replica=2, dollars_per_gpu_hour=4)
    assert plan.safe_requests_per_second == pytest.approx(12.6), "18 x 0.7"
    assert plan.replicas == 8, "100 / 12.6 rounded up"
    assert plan.dollars_per_hour == 64, "8 replicas x 2 GPUs x $4"
    assert plan.dollars_per_month == pytest.approx(46_000, rel=0.02), "about $46k"


@pytest.mark.parametrize(("peak", "replicas"), [(12.6, 1), (12.61, 2), (25.2, 2), (0.1, 1)])
def test_replicas_are_rounded_up_but_not_by_floating_point(peak: float, replicas: int) -> None:
    assert plan_capacity(peak, 18).replicas == replicas, "whole replicas of 12.6 requests per second"


def test_no_price_no_cost() -> None:
    plan = plan_capacity(100, 18)
    assert (plan.dollars_per_hour, plan.dollars_per_month) == (None, None), "cost is not invented"


@pytest.mark.parametrize(("peak", "measured"), [(0, 18), (100, 0), (-1, 18)])
def test_rates_must_be_positive(peak: float, measured: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        plan_capacity(peak, measured)


def test_cost_of_a_million_tokens() -> None:
    assert dollars_per_million_tokens(3.6, 1000) == pytest.approx(1.0), "$3.60 buy 3.6 million tokens"
    with pytest.raises(ValueError, match="must be above 0"):
        dollars_per_million_tokens(3.6, 0)


def test_scaling_takes_as_long_as_a_start() -> None:
    start = StartupPlan((Phase("read", 120, "weights"), Phase("compile", 30, "cache found")))
    assert scale_seconds(start) == 2.5 * 60, "2 minutes of loading and 30 s of compile cache are 2.5 minutes"
