#!/usr/bin/env bash
# The program on a real node of this machine. e2e.sh all|stand-in [--report]
# stand-in: only what needs no real vLLM. --report: what was shown becomes docs/end-to-end.md.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1
unset E2E_CLUSTER
if ! reason=$(.venv/bin/python -m tests.e2e.machine "$part"); then
  echo "the tests on a real node cannot run here: $reason" >&2
  exit 1
fi
export E2E_LEDGER
E2E_LEDGER=$(mktemp)
trap 'rm -f "$E2E_LEDGER"' EXIT
select=e2e
[ "$part" = all ] || select="e2e and not real_vllm"
# Apart: the node's own tests make nodes of their own, and a machine has one at a time.
.venv/bin/pytest -m e2e tests/sim --quiet
.venv/bin/pytest -m "$select" tests/e2e --quiet
if [ "${2:-}" = --report ]; then
  .venv/bin/python -m scripts.make_e2e_report "$E2E_LEDGER"
fi
echo "executed on a real node in $((SECONDS / 60)) min $((SECONDS % 60)) s"
