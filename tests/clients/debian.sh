#!/usr/bin/env bash
# Downloads packages of a release of Debian, which apt verifies with Debian's keys. They are unpacked into a folder and not installed:
# the machine's package lists and services stay unchanged. usage: debian.sh RELEASE FOLDER PACKAGE…
# Replaces the folder, if this script made it. It may be deleted at any time.
set -euo pipefail
release=$1 folder=$(realpath -m "$2")
shift 2
keys=/usr/share/keyrings/debian-archive-keyring.gpg

command -v apt-get >/dev/null || { echo "this needs Debian's apt-get: the packages are Debian's" >&2; exit 1; }
[ -e "$keys" ] || { echo "this needs $keys: install debian-archive-keyring" >&2; exit 1; }
if [ -e "$folder" ] && [ ! -e "$folder/packages" ]; then
  echo "$folder is there, and was not made by this script" >&2
  exit 1
fi
fresh=$folder.new
rm -rf "$fresh"
mkdir -p "$fresh/apt/lists/partial" "$fresh/apt/cache/archives/partial"
echo "deb [signed-by=$keys] http://deb.debian.org/debian $release main" >"$fresh/apt/sources.list"
options=(
  -o "Dir::Etc::SourceList=$fresh/apt/sources.list" -o Dir::Etc::SourceParts=-
  -o "Dir::State::Lists=$fresh/apt/lists" -o "Dir::Cache=$fresh/apt/cache"
  -o APT::Sandbox::User=root -o Acquire::Languages=none
)
apt-get "${options[@]}" update -q
(cd "$fresh/apt" && apt-get "${options[@]}" download -q "$@")
for package in "$fresh"/apt/*.deb; do
  dpkg-deb --extract "$package" "$fresh"
  dpkg-deb --showformat '${Package} ${Version}\n' --show "$package" >>"$fresh/packages"
done
rm -rf "$fresh/apt" "$folder"
mv "$fresh" "$folder"
