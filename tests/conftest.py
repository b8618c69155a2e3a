"""What all tests share: each has its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_event_loop() -> Iterator[None]:
    """Pulumi keeps state on the loop; a shared one would carry it from test to test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
