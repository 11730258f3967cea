#!/usr/bin/env bash
# Downloads Consul 1.8.7 for `hosts --beside-consul`: the package of Debian 11, unpacked and not installed.
# usage: tests/src/hosts/fetch_consul.sh [DIR]; the default of DIR is target/consul. It may be deleted at any time.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$(realpath -m "${1:-target/consul}")
tests/clients/debian.sh bullseye "$folder" consul
cat "$folder/packages"
echo "ready: cargo run -p lockmesh-tests --bin hosts -- --beside-consul $folder/usr/bin/consul"
