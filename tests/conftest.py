"""What all tests share: each has its own event loop, and Ctrl-C ends the run."""

from __future__ import annotations

import asyncio
import signal
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


@pytest.fixture(autouse=True)
def own_interrupt() -> Iterator[None]:
    """The program of a stack takes the signal for itself (infra/report.py); pytest must get it back."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)
