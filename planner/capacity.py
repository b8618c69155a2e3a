"""How many replicas a load needs, how fast more of them can answer, and what they cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.startup import StartupPlan, figures


@dataclass(frozen=True)
class CapacityPlan:
    """``safe_requests_per_second`` is what one replica may be given; ``replicas`` carry the peak with it."""

    safe_requests_per_second: float
    replicas: int
    dollars_per_hour: float | None
    dollars_per_month: float | None


def _figure(name: str) -> float:
    return float(figures("capacity")[name]["value"])


def plan_capacity(
    peak_requests_per_second: float,
    measured_requests_per_second: float,
    *,
    gpus_per_replica: int = 1,
    dollars_per_gpu_hour: float | None = None,
) -> CapacityPlan:
    """Replicas for a peak.

    ``measured_requests_per_second`` is the most that one replica was measured to serve with its latencies inside the
    objective: it cannot be computed, only measured under the real mix of prompts.

    Raises:
        ValueError: a rate is not positive.
    """
    if peak_requests_per_second <= 0 or measured_requests_per_second <= 0:
        raise ValueError(
            f"requests per second must be above 0: peak {peak_requests_per_second:g}, "
            f"measured {measured_requests_per_second:g}"
        )
    safe = measured_requests_per_second * (1 - _figure("headroom"))
    # 12.6 x 8 is 100.8: a quotient that is a whole number but for rounding must not cost a replica.
    replicas = math.ceil(round(peak_requests_per_second / safe, 9))
    hour = None if dollars_per_gpu_hour is None else replicas * gpus_per_replica * dollars_per_gpu_hour
    month = None if hour is None else dollars_per_month(hour)
    return CapacityPlan(safe, replicas, hour, month)


def dollars_per_month(dollars_per_hour: float) -> float:
    """Cost of a month of 730 hours."""
    return dollars_per_hour * _figure("hoursPerMonth")


def dollars_per_million_tokens(dollars_per_hour: float, tokens_per_second: float) -> float:
    """Cost of a million generated tokens at a steady throughput of all replicas together.

    Raises:
        ValueError: the throughput is not positive.
    """
    if tokens_per_second <= 0:
        raise ValueError(f"tokens per second must be above 0, not {tokens_per_second:g}")
    return dollars_per_hour / (tokens_per_second * 3600) * 1e6


def scale_seconds(start: StartupPlan) -> float:
    """How long a further replica takes until it serves; load that grows faster needs more headroom."""
    return start.seconds
