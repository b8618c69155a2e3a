"""What a machine must have for the real node, and what the node must leave alone there."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from sim.real_node import NodeError, fixed_places, kernel, requirements, settings

SERVICES = "10.231.78.0/24"


@pytest.mark.parametrize(
    ("platform", "user_id", "message"),
    [
        ("darwin", 0, "needs Linux, as root"),
        ("linux", 1000, "needs Linux, as root"),
        ("linux", 0, None),
    ],
)
def test_it_needs_root_on_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, user_id: int, message: str | None
) -> None:
    for command in requirements.COMMANDS:
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = requirements.problem(platform, user_id)
    if message is None:
        assert problem is None, "everything is there"
    else:
        assert message in str(problem), "one message says what is needed, and what to do elsewhere"


def test_it_names_the_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in ("ip", "umount", "setsid", "unshare"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    assert "apt-get install nftables" in str(requirements.problem("linux", 0)), "kube-proxy calls nft"


def test_a_machine_that_refuses_namespaces_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in requirements.COMMANDS:
        (tmp_path / command).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    assert "SYS_ADMIN" in str(requirements.problem("linux", 0)), "an unprivileged container cannot run containers"


@pytest.mark.parametrize(
    ("route", "refused"),
    [
        ({"dst": "default", "dev": "eth0"}, False),
        ({"dst": "192.168.1.0/24", "dev": "eth0"}, False),
        ({"dst": "10.0.0.0/8", "dev": "tun0"}, False),
        ({"dst": "10.231.77.0/24", "dev": settings.BRIDGE}, False),
        ({"dst": "10.231.77.0/24", "dev": "eth0"}, True),
        ({"dst": "10.231.78.9", "dev": "eth0"}, True),
        ({"dst": "10.231.0.0/16", "dev": "eth0"}, True),
    ],
)
def test_a_network_that_the_machine_is_in_stays_reachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: dict[str, str], refused: bool
) -> None:
    command = tmp_path / "ip"
    command.write_text(f"#!/bin/sh\necho '{json.dumps([route])}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if refused:
        with pytest.raises(NodeError, match=f"route to {route['dst']}.* \\({route['dev']}\\)"):
            kernel.require_free_addresses(SERVICES)
    else:
        kernel.require_free_addresses(SERVICES)


def test_another_kubelet_is_found_by_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_places, "_DEVICE_PLUGINS", tmp_path)
    monkeypatch.setattr(settings, "RUNTIME", tmp_path / "none")
    assert fixed_places.foreign_kubelet() is False, "there is none"
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        # Relative, as pytest's folders may be too long for a socket.
        server.bind("kubelet.sock")
        monkeypatch.setattr(fixed_places, "_DEVICE_PLUGINS", Path())
        assert fixed_places.foreign_kubelet() is False, "a socket that nobody listens to is a dead one's"
        server.listen()
        assert fixed_places.foreign_kubelet() is True, "ours would remove its sockets"
        monkeypatch.setattr(settings, "RUNTIME", tmp_path)
        assert fixed_places.foreign_kubelet() is False, "with our folder there, it is ours"


def test_files_of_others_at_the_same_places_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"_DEVICE_PLUGINS": "kubelet/device-plugins", "_LOG_LINKS": "containers", "_NETWORK_RESULTS": "cni/results"}
    for variable, name in names.items():
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.setattr(fixed_places, variable, tmp_path / name)
    ours, others = tmp_path / "node" / "pods", tmp_path / "var" / "log" / "pods"
    (tmp_path / "containers" / "ours.log").symlink_to(ours / "pod" / "0.log")
    (tmp_path / "containers" / "theirs.log").symlink_to(others / "pod" / "0.log")
    (tmp_path / "cni" / "results" / "ours").write_text(json.dumps({"netns": str(settings.RUNTIME / "netns" / "1")}))
    (tmp_path / "cni" / "results" / "theirs").write_text(json.dumps({"netns": "/run/netns/1"}))
    (tmp_path / "kubelet" / "device-plugins" / "DEPRECATION").write_text("")
    fixed_places.remove(ours)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir())
    assert left == ["cni/results/theirs", "containers/theirs.log"], "what is ours is gone, and nothing else"
    assert not (tmp_path / "kubelet").exists(), "an empty folder is of no use to anybody"
