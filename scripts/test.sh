#!/usr/bin/env bash
# Everything, in the order in which it can start: the tools build while lint and unit tests run.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
.venv/bin/python -m sim tools >"$log" 2>&1 &
tools=$!

failed=0
summary=()
tier() { # NAME COMMAND… : run one tier and remember how it ended and how long it took
  local name=$1 begin=$SECONDS status=passed
  shift
  "$@" || { status=FAILED; failed=1; }
  summary+=("$(printf '%-8s %-7s %4d s' "$name" "$status" $((SECONDS - begin)))")
}

tier lint scripts/lint.sh
tier unit .venv/bin/pytest -m "not engine" -n 2 --quiet
begin=$SECONDS
if wait "$tools"; then
  cat "$log"
  summary+=("$(printf '%-8s %-7s %4d s more' tools passed $((SECONDS - begin)))")
  tier engine .venv/bin/pytest -m engine -n 2 --dist loadgroup --quiet
else
  cat "$log"
  summary+=("tools    FAILED" "engine   did not run: its tools are not there")
  failed=1
fi
printf '%s\n' "" "summary" "${summary[@]}"
exit "$failed"
