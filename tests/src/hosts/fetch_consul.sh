#!/usr/bin/env bash
# Downloads Consul 1.8.7 for `hosts --beside-consul`: the package of Debian 11, verified by apt with Debian's keys. It is
# unpacked into a folder and not installed: the machine's package lists and services stay unchanged.
# usage: tests/src/hosts/fetch_consul.sh [DIR]; the default of DIR is target/consul. It may be deleted at any time.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$(realpath -m "${1:-target/consul}")
keys=/usr/share/keyrings/debian-archive-keyring.gpg

command -v apt-get >/dev/null || { echo "this needs Debian's apt-get: the package is Debian's" >&2; exit 1; }
[ -e "$keys" ] || { echo "this needs $keys: install debian-archive-keyring" >&2; exit 1; }
if [ -e "$folder" ] && [ ! -e "$folder/version" ]; then
  echo "$folder is there, and was not made by this script" >&2
  exit 1
fi
fresh=$folder.new
rm -rf "$fresh"
mkdir -p "$fresh/apt/lists/partial" "$fresh/apt/cache/archives/partial" "$fresh/root"
echo "deb [signed-by=$keys] http://deb.debian.org/debian bullseye main" >"$fresh/apt/sources.list"
options=(
  -o "Dir::Etc::SourceList=$fresh/apt/sources.list" -o Dir::Etc::SourceParts=-
  -o "Dir::State::Lists=$fresh/apt/lists" -o "Dir::Cache=$fresh/apt/cache"
  -o APT::Sandbox::User=root -o Acquire::Languages=none
)
apt-get "${options[@]}" update -q
(cd "$fresh/apt" && apt-get "${options[@]}" download -q consul)
dpkg-deb --extract "$fresh"/apt/consul_*.deb "$fresh/root"
dpkg-deb --showformat '${Package} ${Version}\n' --show "$fresh"/apt/consul_*.deb >"$fresh/version"
rm -rf "$fresh/apt" "$folder"
mv "$fresh" "$folder"
cat "$folder/version"
echo "ready: cargo run -p lockmesh-tests --bin hosts -- --beside-consul $folder/root/usr/bin/consul"
