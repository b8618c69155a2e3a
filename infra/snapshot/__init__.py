"""What a server did between two readings of `/metrics`, where its requests spent their time, and which field to change.

:mod:`reading` fetches and parses, :mod:`difference` subtracts, :mod:`verdict` thinks, :mod:`text` says it.
"""

from infra.snapshot.difference import Difference, Percentile, difference
from infra.snapshot.reading import Exposition, SnapshotError, from_file, from_pods, from_url, gpu_utilisation, parse
from infra.snapshot.text import document, render
from infra.snapshot.verdict import Verdict, verdicts

__all__ = [
    "Difference",
    "Exposition",
    "Percentile",
    "SnapshotError",
    "Verdict",
    "difference",
    "document",
    "from_file",
    "from_pods",
    "from_url",
    "gpu_utilisation",
    "parse",
    "render",
    "verdicts",
]
