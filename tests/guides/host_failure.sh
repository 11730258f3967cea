#!/usr/bin/env bash
# The failure of a host, seen from another host. An agent is killed; its node's health becomes critical, its sessions end, its
# keys are released or deleted by their sessions' behavior, and closed by the lock-delay of sessions that had one. A session
# without checks survives. Then another host leaves gracefully. FLEET is the data folder of `lockmesh dev --nodes 5`;
# http://localhost:8500 is the agent of n1.
source "$(dirname "$0")/common.sh"

delay=10

# on NODE CURL-ARGUMENT…: sends a request to the agent of another host, as an application there does.
on() { local node=$1; shift; command curl -sS --max-time 120 --unix-socket "$FLEET/$node/agent.sock" "$@"; }
# session_on NODE BODY: a session created by an application on that host.
session_on() { on "$1" -X PUT -d "$2" http://localhost:8500/v1/session/create | field ID; }
# sessions_on NODE: the number of live sessions of a host.
sessions_on() { curl "http://localhost:8500/v1/session/node/$1" | { grep -o '"ID"' || true; } | wc -l | tr -d ' '; }
# status PATH: the status of a response.
status() { curl -o /dev/null -w '%{http_code}' "http://localhost:8500$1"; }
# acquire KEY [WAIT]: for our own session.
acquire() { curl -X PUT -d 'mine' "http://localhost:8500/v1/kv/$1?acquire=$ours${2:+&wait=$2}"; }
# headers KEY: the headers of the response to an acquire.
headers() { curl -D - -o /dev/null -X PUT -d 'mine' "http://localhost:8500/v1/kv/$1?acquire=$ours" | tr -d '\r'; }

step "An application on n4 holds locks of every kind"
for behavior in release delete; do
  for lock_delay in 0 $delay; do
    session=$(session_on n4 "{\"Behavior\": \"$behavior\", \"LockDelay\": \"${lock_delay}s\"}")
    key="$behavior/$lock_delay"
    same "$key" "$(on n4 -X PUT -d 'theirs' "http://localhost:8500/v1/kv/$key?acquire=$session")" true
  done
done
session=$(session_on n4 '{"NodeChecks": []}')
same "without checks" "$(on n4 -X PUT -d 'theirs' "http://localhost:8500/v1/kv/unchecked?acquire=$session")" true
ours=$(curl -X PUT -d '{"Name": "neighbour"}' http://localhost:8500/v1/session/create | field ID)
same "a neighbour cannot have them" "$(acquire release/0)" false
same "sessions of n4" "$(sessions_on n4)" 5

step "Its agent is killed"
index=$(curl -D - -o /dev/null "http://localhost:8500/v1/health/node/n4" | tr -d '\r' | sed -n 's/^X-Consul-Index: //p')
kill -9 "$(cat "$FLEET/n4/pid")"
health=$(curl "http://localhost:8500/v1/health/node/n4?index=$index&wait=60s")
ended=$(milliseconds)
same "serfHealth" "$(grep -o '"Status": *"[a-z]*"' <<<"$health" | field Status)" critical
same "the node is still in the catalog" "$(curl http://localhost:8500/v1/catalog/node/n4 | grep -c '"Node": *"n4"\|"Node": *{')" 1
member=$(curl http://localhost:8500/v1/agent/members | grep -o '"Name": *"n4".*' | sed 's/"DelegateCur".*//')
same "the member" "$(field Status <<<"$member")" 4

step "Sessions that depend on its health are gone, the one without checks is not"
same "sessions of n4" "$(sessions_on n4)" 1
same "who holds without checks" "$(curl http://localhost:8500/v1/kv/unchecked | field Session)" "$session"

step "Its keys do what the behavior says"
for lock_delay in 0 $delay; do
  released=$(curl "http://localhost:8500/v1/kv/release/$lock_delay")
  same "release/$lock_delay is held by" "$(field Session <<<"$released")" ""
  same "release/$lock_delay keeps its value" "$(field Value <<<"$released" | base64 -d)" theirs
  same "delete/$lock_delay" "$(status "/v1/kv/delete/$lock_delay")" 404
done

step "A lock-delay closes them, where there is one"
for behavior in release delete; do
  same "$behavior/$delay at once" "$(acquire "$behavior/$delay")" false
  same "the answer says so" "$(headers "$behavior/$delay" | grep -c '^X-Lockmesh-Lock-Delay: ')" 1
  same "$behavior/0 at once" "$(acquire "$behavior/0")" true
done
for behavior in release delete; do
  same "$behavior/$delay, waited for" "$(acquire "$behavior/$delay" 60s)" true
done
took=$(($(milliseconds) - ended))
# The failure was observed shortly after it happened.
echo "   closed for $took ms after the end was seen"
[ "$took" -ge $((delay * 1000 - 1000)) ] || { echo "FAILED: the lock-delay lasted only $took ms" >&2; exit 1; }

step "Another host leaves in good order: its node goes, and its sessions at once"
session=$(session_on n5 '{"LockDelay": "0s"}')
same "n5 holds a lock" "$(on n5 -X PUT -d 'theirs' "http://localhost:8500/v1/kv/left?acquire=$session")" true
same "it leaves" "$(on n5 -X PUT -w '%{http_code}' http://localhost:8500/v1/agent/leave)" 200
same "its node" "$(curl http://localhost:8500/v1/catalog/node/n5)" null
same "its session" "$(curl "http://localhost:8500/v1/session/info/$session")" "[]"
same "its lock" "$(acquire left)" true
member=$(curl http://localhost:8500/v1/agent/members | grep -o '"Name": *"n5".*' | sed 's/"DelegateCur".*//')
same "the member" "$(field Status <<<"$member")" 3
same "its address" "$(field Addr <<<"$member")" 127.0.0.1
