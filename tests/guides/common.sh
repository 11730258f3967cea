# Shared by the guides: how `http://localhost:8500` reaches the server that is tested, and how a step is checked.
# The guides' commands stay as their readers type them. LOCKMESH_SOCKET or LOCKMESH_PORT says where the server is.

set -euo pipefail
command -v curl >/dev/null || { echo "curl is not installed, and these guides are about curl: install it" >&2; exit 1; }

# Talks to the server under test whenever a guide says http://localhost:8500.
curl() {
  if [ -n "${LOCKMESH_SOCKET:-}" ]; then
    command curl -sS --max-time 120 --unix-socket "$LOCKMESH_SOCKET" "$@"
  else
    command curl -sS --max-time 120 --connect-to "localhost:8500:127.0.0.1:$LOCKMESH_PORT" "$@"
  fi
}

# step TEXT: says what comes next.
step() { echo "== $*"; }

# same WHAT ACTUAL EXPECTED: fails where they differ.
same() {
  [ "$2" = "$3" ] || { echo "FAILED: $1: got <$2>, expected <$3>" >&2; exit 1; }
  echo "   $1: $2"
}

# field NAME: the value of a field in the JSON on standard input; nothing where it is absent. For flat, single answers.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# index_of PATH: the index to wait on.
index_of() { curl -D - -o /dev/null "http://localhost:8500/v1/kv/$1" | tr -d '\r' | sed -n 's/^X-Consul-Index: //p'; }

# milliseconds: a clock.
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

