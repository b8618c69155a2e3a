"""promtool and amtool for the files that monitoring renders."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import tools


@pytest.fixture(scope="session")
def promtool() -> Path:
    """The real promtool; it is built when it is not there yet."""
    return tools.ensure(["promtool"], report=False)["promtool"]


@pytest.fixture(scope="session")
def amtool() -> Path:
    """Alertmanager's own; it is built when it is not there yet."""
    return tools.ensure(["amtool"], report=False)["amtool"]
