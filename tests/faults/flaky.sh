#!/usr/bin/env bash
# Repeats time-dependent tests on a busy machine, to find tests that fail once in ten runs. Prints the number of failures and
# keeps the output of failed runs in target/flaky/. Fails if a run failed or took too long.
# usage: tests/faults/flaky.sh [FAILOVER [CHAOS]]; by default 20 and 10 runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
failover=${1:-20} chaos=${2:-10}
logs=${CARGO_TARGET_DIR:-target}/flaky
rm -rf "$logs" && mkdir -p "$logs"

# The build precedes the load.
cargo test --quiet --workspace --locked --test upstream --no-run
cargo build --quiet --workspace --locked --bin lockmesh --bin chaos

# Twice as many loops as cores take roughly half of the processor time from the tests.
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for _ in $(seq $(($(nproc) * 2))); do
  sh -c 'while :; do :; done' &
  busy+=($!)
done

# Repeats a command and counts failures: again NAME RUNS SECONDS COMMAND…; RUN in the command becomes the run's number.
failed=0
again() {
  local name=$1 runs=$2 seconds=$3 bad=0 run
  shift 3
  for run in $(seq "$runs"); do
    if timeout --kill-after=10 "$seconds" "${@//RUN/$run}" >"$logs/$name-$run.log" 2>&1; then
      rm "$logs/$name-$run.log"
    else
      bad=$((bad + 1))
      echo "$name: run $run failed (or took longer than $seconds s): see $logs/$name-$run.log"
    fi
  done
  echo "$name: $bad of $runs failed"
  failed=$((failed + bad))
}

again failover "$failover" 300 cargo test --quiet --workspace --locked --test upstream failover::
again chaos "$chaos" 600 "${CARGO_TARGET_DIR:-target}/debug/chaos" --seconds 1 --seed RUN
[ "$failed" -eq 0 ]
