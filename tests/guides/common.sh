# Shared by the guides: routes `http://localhost:8500` to the server under test, and checks steps. The guides' commands stay as
# readers type them. LOCKMESH_SOCKET or LOCKMESH_PORT is the server's address.

set -euo pipefail
command -v curl >/dev/null || { echo "curl is not installed, and these guides are about curl: install it" >&2; exit 1; }

# Replaces http://localhost:8500 by the server under test.
curl() {
  if [ -n "${LOCKMESH_SOCKET:-}" ]; then
    command curl -sS --max-time 120 --unix-socket "$LOCKMESH_SOCKET" "$@"
  else
    command curl -sS --max-time 120 --connect-to "localhost:8500:127.0.0.1:$LOCKMESH_PORT" "$@"
  fi
}

# step TEXT: announces the next step.
step() { echo "== $*"; }

# same WHAT ACTUAL EXPECTED: fails if they differ.
same() {
  [ "$2" = "$3" ] || { echo "FAILED: $1: got <$2>, expected <$3>" >&2; exit 1; }
  echo "   $1: $2"
}

# field NAME: the value of a field in the JSON on standard input; empty if it is absent. For single, flat objects.
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# index_of PATH: the index to wait on.
index_of() { curl -D - -o /dev/null "http://localhost:8500/v1/kv/$1" | tr -d '\r' | sed -n 's/^X-Consul-Index: //p'; }

# milliseconds: the current time.
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

