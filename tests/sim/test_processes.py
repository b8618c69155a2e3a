"""Only processes of the cluster's own folder are seen and stopped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sim import processes

Start = Callable[[Path, str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a copy of sleep under another name, as a component is."""
    children: list[subprocess.Popen[bytes]] = []

    def starter(folder: Path, name: str) -> subprocess.Popen[bytes]:
        folder.mkdir(exist_ok=True)
        sleep = shutil.which("sleep")
        assert sleep is not None, "the test needs the command sleep"
        (folder / name).symlink_to(sleep)
        children.append(subprocess.Popen([str(folder / name), "600"], executable=sleep))
        return children[-1]

    yield starter
    for child in children:
        child.kill()
        child.wait()


def test_what_runs_from_the_folder_is_found_by_name(tmp_path: Path, start: Start) -> None:
    ours = start(tmp_path / "bin", "etcd")
    start(tmp_path / "other", "etcd")
    assert processes.running(tmp_path / "bin") == {"etcd": ours.pid}, "another folder is another cluster"


def test_stop_ends_ours_and_nobody_elses(tmp_path: Path, start: Start) -> None:
    ours = start(tmp_path / "bin", "etcd")
    other = start(tmp_path / "other", "etcd")
    processes.stop(tmp_path / "bin")
    assert ours.wait() != 0, "it was ended by a signal"
    assert other.poll() is None, "the other cluster runs on"


def test_stop_of_nothing_is_no_error(tmp_path: Path) -> None:
    processes.stop(tmp_path / "bin")


def test_a_process_id_that_somebody_else_has_now_is_forgotten(tmp_path: Path, start: Start) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    ours = start(tmp_path / "bin", "etcd")
    stranger = start(tmp_path / "other", "sleep")
    (pids / "etcd.pid").write_text(str(ours.pid))
    (pids / "kube-apiserver.pid").write_text(str(stranger.pid))
    (pids / "kwok-controller.pid").write_text("")
    processes.forget_dead(pids, tmp_path / "bin")
    assert [file.name for file in pids.iterdir()] == ["etcd.pid"], "kwokctl would kill whoever a file names"
