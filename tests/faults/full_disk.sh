#!/usr/bin/env bash
# Runs a command with the path of a small disk as its last argument: a tmpfs of 64 MiB in a mount namespace that ends
# with the command. Needs root, or a kernel with user namespaces.
# usage: tests/faults/full_disk.sh COMMAND…
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 COMMAND…" >&2; exit 2; }
mode=--mount
[ "$(id -u)" = 0 ] || mode='--mount --map-root-user'
# shellcheck disable=SC2086 # the mode is one or two words
exec unshare $mode bash -euc '
  folder=$(mktemp -d)
  mount -t tmpfs -o size=64m lockmesh-full-disk "$folder"
  result=0
  "$@" "$folder" || result=$?
  umount "$folder"
  rmdir "$folder"
  exit "$result"
' full_disk "$@"
