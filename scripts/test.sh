#!/usr/bin/env bash
# Everything, in the order in which it can start: the tools build while lint and unit tests run.
# TEST_MINUTES: how long all of it may take; what would take longer than that is left out, and named.
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
tier unit .venv/bin/pytest -m "not engine and not metrics and not e2e" -n 2 --quiet
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
fits() { # MINUTES PART: whether so much is left; if not, the summary says so
  local left=$((${TEST_MINUTES:-600} - SECONDS / 60))
  [ "$left" -ge "$1" ] || { summary+=("$2 did not run: it takes $1 minutes, $left are left"); false; }
}
# After the others: a real vLLM needs the processors for itself.
if fits 20 metrics; then
  if reason=$(.venv/bin/python -m tests.metrics.server); then
    tier metrics .venv/bin/pytest -m metrics --quiet
  else
    summary+=("metrics  did not run: $reason")
  fi
fi
# Of the tests on a real node only those of the node itself; `make e2e` runs them all.
if fits 15 "e2e"; then
  if reason=$(.venv/bin/python -m tests.e2e.machine stand-in); then
    tier e2e .venv/bin/pytest -m e2e tests/sim/test_real_node.py --quiet
  else
    summary+=("e2e      did not run: $reason")
  fi
fi
printf '%s\n' "" "summary" "${summary[@]}"
exit "$failed"
