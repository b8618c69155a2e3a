"""Images and containers in containerd's database, which outlives the node."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from sim import images
from sim.real_node import settings
from sim.real_node.requirements import NodeError

_RECORDS = ("io.containerd.grpc.v1.cri", "io.containerd.sandbox.controller.v1.shim")
"""Where containerd, below its root, keeps what it knows of containers beside its database."""


class Content:
    """What containerd holds; it must run."""

    def __init__(self, folders: settings.Folders) -> None:
        self._folders = folders

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client in the namespace that kubelet uses, and return what it prints.

        Raises:
            NodeError: it failed, or containerd does not run.
        """
        client = self._folders.bin / "ctr"
        if not client.exists():
            raise NodeError("there is no real node: `up` makes one")
        command = [str(client), f"--address={settings.CONTAINERD_SOCKET}", "--namespace=k8s.io"]
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise NodeError(f"ctr {' '.join(arguments[:3])}: {answer.stderr.strip()}")
        return answer.stdout

    def answers(self) -> bool:
        """Whether containerd is ready to be used."""
        try:
            self.ctr("version")
        except NodeError:
            return False
        return True

    def import_image(self, archive: Path, reference: str) -> bool:
        """Make the image in ``archive`` known as ``reference``; whether there was anything to do."""
        image = images.read_name(archive)
        known = {name: digest for name, _, digest, *_ in map(str.split, self.ctr("images", "list").splitlines()[1:])}
        if known.get(reference) == image.digest:
            return False
        if known.get(image.reference) != image.digest:
            self.ctr("images", "import", str(archive))
        if reference != image.reference:
            self.ctr("images", "tag", "--force", image.reference, reference)
        return True

    def import_pause(self, pause: Path) -> None:
        """Make the executable ``pause`` the image of all sandboxes."""
        archive = self._folders.state / "pause.tar"
        content = [images.File(pause, "/pause", 0o755)]
        images.write_archive(archive, settings.PAUSE_IMAGE, [content], {"Entrypoint": ["/pause"]})
        self.import_image(archive, settings.PAUSE_IMAGE)

    def remove_containers(self, patience: float = 20.0) -> bool:
        """Take all containers out of the database, and with them what they have written.

        containerd itself removes those that ended, so one may be gone meanwhile; what is still there after
        ``patience`` seconds is left for the next start.

        Returns:
            Whether there were any.
        """
        deadline = time.monotonic() + patience
        found = left = self.ctr("containers", "list", "--quiet").split()
        while left and time.monotonic() < deadline:
            for container in left:
                with suppress(NodeError):
                    self.ctr("tasks", "delete", "--force", container)
                with suppress(NodeError):
                    self.ctr("containers", "delete", container)
            left = self.ctr("containers", "list", "--quiet").split()
        return bool(found)

    def remove_records(self) -> None:
        """Forget the rest of removed containers; containerd must not run."""
        for folder in _RECORDS:
            shutil.rmtree(self._folders.content / folder, ignore_errors=True)
