"""Documents that a ConfigMap holds."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as YAML, in the order of its keys; long expressions stay on one line."""
    stream = io.StringIO()
    writer = YAML()
    writer.width = 10_000
    writer.dump(dict(document), stream)
    return stream.getvalue()
