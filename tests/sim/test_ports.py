"""No cluster is given the ports of another, running or stopped."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sim import ports


@pytest.fixture
def register(tmp_path: Path) -> Path:
    return tmp_path / "cluster-ports.json"


def _state(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


def test_every_component_gets_a_port_of_its_own(register: Path, tmp_path: Path) -> None:
    chosen = ports.reserve(register, _state(tmp_path, "one"))
    assert tuple(chosen) == ports.OPTIONS, "kwokctl would choose for whatever is left out"
    assert len(set(chosen.values())) == len(ports.OPTIONS), "no port twice"
    assert max(chosen.values()) < 30000, "a NodePort of the cluster, or a client's port, cannot be in the way"


def test_a_cluster_that_does_not_run_keeps_its_ports(register: Path, tmp_path: Path) -> None:
    first = ports.reserve(register, _state(tmp_path, "first"))
    second = ports.reserve(register, _state(tmp_path, "second"))
    assert not set(first.values()) & set(second.values()), "nobody listens on the first one's, and they are not given"


def test_a_port_on_which_somebody_listens_is_not_chosen(
    register: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = _state(tmp_path, "one")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(ports, "RANGE", (port, *ports.RANGE))
        assert port not in ports.reserve(register, state).values(), "whoever listens was there first"
    assert port in ports.reserve(register, state).values(), "nobody listens any more, and it is the first to be tried"


def test_a_cluster_that_is_gone_gives_its_ports_back(register: Path, tmp_path: Path) -> None:
    gone, other = _state(tmp_path, "gone"), _state(tmp_path, "other")
    ports.reserve(register, gone)
    gone.rmdir()
    ports.reserve(register, other)
    assert list(json.loads(register.read_text())) == [str(other)], "the register does not grow for ever"


def test_taken_ports_are_named_and_free_ones_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        used, free = listener.getsockname()[1], other.getsockname()[1]
        other.close()
        assert ports.taken([used, free], patience=0) == [used], "somebody listens on this one only"
