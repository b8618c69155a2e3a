#!/usr/bin/env bash
# Writes the comment about a preview: STACK, what `pulumi preview --json` printed, where the comment goes.
# LABELS is a JSON list; a label "allow KIND/NAME" of the pull request allows what it names to be lost.
# The base is the first parent of the commit that is checked out.
set -euo pipefail
cd "$(dirname "$0")/.."
stack=$1 preview=$2 comment=$3
names='import json, os; print("".join(f"{label[6:]}\n" for label in json.loads(os.environ["LABELS"]) if label.startswith("allow ")), end="")'
allowed=()
while IFS= read -r name; do
  allowed+=(--allow "$name")
done < <(LABELS=${LABELS:-[]} .venv/bin/python -c "$names")
.venv/bin/vllm-infra preview-report "$preview" --stack "$stack" --base-ref HEAD^1 "${allowed[@]}" > "$comment"
