#!/usr/bin/env bash
# Proofs that depend on time, again and again on a machine that is kept busy: what fails once in ten runs fails here. It says
# how often each failed, and keeps what the failed ones said in target/flaky/. Fails if one of them did, or took too long.
# usage: tests/faults/flaky.sh [FAILOVER [CHAOS]]; 20 and 10 runs unless told otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."
failover=${1:-20} chaos=${2:-10}
logs=${CARGO_TARGET_DIR:-target}/flaky
rm -rf "$logs" && mkdir -p "$logs"

# Everything is built before anything is made busy.
cargo test --quiet --workspace --locked --test upstream --no-run
cargo build --quiet --workspace --locked --bin lockmesh --bin chaos

# Twice as many loops as there are cores take every core from those who are measured, half of the time.
busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for _ in $(seq $(($(nproc) * 2))); do
  sh -c 'while :; do :; done' &
  busy+=($!)
done

# What failed of so many runs: again NAME RUNS SECONDS COMMAND…; RUN in the command is the number of the run.
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
