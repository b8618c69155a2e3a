"""Write planner/data/releases/*.json from a dump of vLLM's own command-line parsers.

    python -m scripts.make_release_data FACTS

FACTS is a folder with vllm-flags.json: for each release every argparse action of `vllm serve`, the names in
vllm/envs.py, and what its Dockerfile says. Only what the planner reads is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from scripts.data_files import write_releases

MEASURED_IMAGE_BYTES = {"0.11.0": 12_454_045_526}
"""Compressed size of vllm/vllm-openai as its pull reported it. The others are taken to be as large."""


def compact_flag(action: dict[str, Any]) -> dict[str, Any]:
    """One argparse action without what is empty, and without the text that a config object's default prints as."""
    flag: dict[str, Any] = {"kind": action["kind"]}
    default = action.get("default")
    if default is not None and "config_class" not in action:
        flag["default"] = default
    for key, name in (
        ("nargs", "nargs"),
        ("negations", "negations"),
        ("aliases", "aliases"),
        ("suggested", "suggested"),
    ):
        if action.get(key):
            flag[name] = action[key]
    if action.get("choices"):
        flag["choices"] = [str(choice) for choice in action["choices"]]
    if action.get("json_fields"):
        flag["jsonFields"] = sorted(action["json_fields"])
    notes = action.get("notes", "")
    marks = {
        "noneOk": action.get("none_ok"),
        "repeatable": action.get("repeatable"),
        "humanReadable": "human-readable" in notes,
        "autoOk": "auto allowed" in notes,
        "foldsCase": "lower-cased" in notes,
    }
    return flag | {name: True for name, holds in marks.items() if holds}


def release(facts: dict[str, Any], version: str) -> dict[str, Any]:
    """What planner/data/releases holds of one release."""
    image = facts["image_entrypoint"][version]
    actions = [action for action in facts["versions"][version]["flags"] if not action.get("positional")]
    measured = version in MEASURED_IMAGE_BYTES
    return {
        "version": version,
        "source": f"the argument parser, vllm/envs.py and docker/Dockerfile of vllm {version}",
        "entrypoint": image["entrypoint"],
        "cuda": image["cuda"],
        "torch": image["torch"],
        "imageBytes": MEASURED_IMAGE_BYTES.get(version, max(MEASURED_IMAGE_BYTES.values())),
        "imageBytesEstimated": not measured,
        "flags": {
            action["name"]: compact_flag(action) for action in sorted(actions, key=lambda each: str(each["name"]))
        },
        "environment": sorted(facts["env_vars"][version]),
    }


if __name__ == "__main__":
    write_releases(Path(sys.argv[1]) / "vllm-flags.json", "releases", "flags", release)
