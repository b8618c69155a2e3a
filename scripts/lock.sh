#!/usr/bin/env bash
# Writes requirements.lock; without --upgrade it keeps what is pinned. With --check it only compares.
set -euo pipefail
cd "$(dirname "$0")/.."
arguments=(--quiet --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header --group dev pyproject.toml)
if [ "${1:-}" = --check ]; then
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  cp requirements.lock "$copy/requirements.lock"
  .venv/bin/uv pip compile "${arguments[@]}" --output-file "$copy/requirements.lock"
  diff -u requirements.lock "$copy/requirements.lock" || { echo "requirements.lock is not what pyproject.toml asks for: make lock"; exit 1; }
else
  .venv/bin/uv pip compile "${arguments[@]}" "$@" --output-file requirements.lock
fi
