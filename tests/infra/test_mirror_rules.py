"""A mirror of the hub: what is said about it, each beside a neighbour that passes."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config import ConfigError
from tests.infra.test_preflight import findings, said
from tests.stack_files import config

TOKEN = frozenset({"hfToken"})


def mirror(endpoint: str, **seed: Any) -> dict[str, Any]:
    return {"services.qwen.cache.seed": {"endpoint": endpoint, **seed}}


def test_a_token_in_the_clear_is_said() -> None:
    (warning,) = said(findings(mirror("http://hub.example.com"), TOKEN), "HF-MIRROR")
    assert (warning.level, warning.path) == ("warn", "vllm:services.qwen.cache.seed.endpoint")
    assert "in the clear" in warning.message, "the token is a secret"
    assert not said(findings(mirror("https://hub.example.com"), TOKEN), "HF-MIRROR"), "the neighbour: encrypted"
    assert not said(findings(mirror("http://hub.example.com")), "HF-MIRROR"), "the neighbour: no token is sent"


def test_a_mirror_that_nobody_asks_is_said() -> None:
    idle = mirror("https://hub.example.com", enabled=False)
    (warning,) = said(findings(idle), "HF-MIRROR")
    assert "no effect" in warning.message, "no Job, and an offline server"
    online = {**idle, "services.qwen.offline": False}
    assert not said(findings(online), "HF-MIRROR"), "the neighbour: the server itself downloads"


@pytest.mark.parametrize("endpoint", ["hub.example.com", "ftp://hub.example.com", "https://me:secret@hub.example.com"])
def test_a_mirror_is_an_address_without_a_password(endpoint: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config(changes=mirror(endpoint))
    assert "cache.seed.endpoint" in str(refusal.value), "the path is what a person looks for"
