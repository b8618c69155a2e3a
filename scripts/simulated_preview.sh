#!/usr/bin/env bash
# Previews STACK against the simulated cluster and keeps what the engine prints in FILE, also when the preview fails.
set -euo pipefail
cd "$(dirname "$0")/.."
stack=$1 file=$2
.venv/bin/python -m sim up
eval "$(.venv/bin/python -m sim env)"
pulumi stack select --create --stack "$stack" > /dev/null
pulumi preview --json --non-interactive --stack "$stack" > "$file" || true
