#!/usr/bin/env bash
# Runs a command with the path of a folder as its last argument. The folder contains N small disks, named 1 to N: each a tmpfs
# of 64 MiB, in a mount namespace that ends with the command. Needs root, or a kernel with user namespaces.
# usage: tests/faults/small_disks.sh N COMMAND…
set -euo pipefail
[ $# -gt 1 ] || { echo "usage: $0 N COMMAND…" >&2; exit 2; }
mode=--mount
[ "$(id -u)" = 0 ] || mode='--mount --map-root-user'
# shellcheck disable=SC2086 # the mode is one or two words
exec unshare $mode bash -euc '
  count=$1
  shift
  folder=$(mktemp -d)
  for number in $(seq "$count"); do
    mkdir "$folder/$number"
    mount -t tmpfs -o size=64m lockmesh-small-disk "$folder/$number"
  done
  result=0
  "$@" "$folder" || result=$?
  for number in $(seq "$count"); do
    umount "$folder/$number" || umount --lazy "$folder/$number"
    rmdir "$folder/$number"
  done
  rmdir "$folder"
  exit "$result"
' small_disks "$@"
