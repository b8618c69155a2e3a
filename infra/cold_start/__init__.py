"""How long a start took, phase by phase, beside the plan: `vllm-infra cold-start`.

:func:`gather` reads a start from the cluster, :func:`load` from a folder; :func:`reports_of` measures and compares it.
"""

from infra.cold_start.cache_keys import CacheKey, keys_of, listed
from infra.cold_start.comparison import Report, reports_of
from infra.cold_start.evidence import Evidence, EvidenceError, gather, load, save
from infra.cold_start.measurement_file import MeasurementError, rates, write
from infra.cold_start.start import Start, starts_of
from infra.cold_start.tables import as_data, block

__all__ = [
    "CacheKey",
    "Evidence",
    "EvidenceError",
    "MeasurementError",
    "Report",
    "Start",
    "as_data",
    "block",
    "gather",
    "keys_of",
    "listed",
    "load",
    "rates",
    "reports_of",
    "save",
    "starts_of",
    "write",
]
