#!/usr/bin/env bash
# Application leader election with sessions, as in the guide: two contenders for one key, a watcher that blocks,
# a voluntary release, an operator who destroys the leader's session, and the lock-delay that follows.
source "$(dirname "$0")/common.sh"

step "Create a session (each contender its own)"
first=$(curl  -X PUT -d '{"Name": "mysql-session"}' http://localhost:8500/v1/session/create | field ID)
second=$(curl  -X PUT -d '{"Name": "mysql-session"}' http://localhost:8500/v1/session/create | field ID)
same "length of an id" "${#first}" 36
[ "$first" != "$second" ] || { echo "FAILED: two sessions have one id" >&2; exit 1; }

step "Acquire the key: one contender leads"
same "the first contender" "$(curl -X PUT -d 'body' "http://localhost:8500/v1/kv/service/mysql/leader?acquire=$first")" true
same "the second contender" "$(curl -X PUT -d 'other' "http://localhost:8500/v1/kv/service/mysql/leader?acquire=$second")" false

step "Discover the leader"
leader=$(curl -X GET http://localhost:8500/v1/kv/service/mysql/leader)
same "Session" "$(field Session <<<"$leader")" "$first"
same "Value" "$(field Value <<<"$leader")" "Ym9keQ=="
same "Key" "$(field Key <<<"$leader")" "service/mysql/leader"
same "LockIndex" "$(field LockIndex <<<"$leader")" 1
same "Flags" "$(field Flags <<<"$leader")" 0

step "Retrieve session information"
info=$(curl -X GET "http://localhost:8500/v1/session/info/$first")
same "Name" "$(field Name <<<"$info")" "mysql-session"
same "LockDelay" "$(field LockDelay <<<"$info")" 15000000000
same "the check" "$(grep -o serfHealth <<<"$info")" serfHealth

step "Watch the key while the leader releases it"
index=$(index_of service/mysql/leader)
curl "http://localhost:8500/v1/kv/service/mysql/leader?index=$index&wait=60s" >"$WORK/watched" &
watcher=$!
same "released" "$(curl -X PUT "http://localhost:8500/v1/kv/service/mysql/leader?release=$first")" true
wait "$watcher"
same "the watcher sees no leader" "$(field Session <"$WORK/watched")" ""
same "the second contender at once" "$(curl -X PUT -d 'other' "http://localhost:8500/v1/kv/service/mysql/leader?acquire=$second")" true

step "An operator ends the leader's session; the watcher sees that, too"
index=$(index_of service/mysql/leader)
curl "http://localhost:8500/v1/kv/service/mysql/leader?index=$index&wait=60s" >"$WORK/watched" &
watcher=$!
ended=$(milliseconds)
same "destroyed" "$(curl -X PUT "http://localhost:8500/v1/session/destroy/$second")" true
wait "$watcher"
same "the watcher sees no leader" "$(field Session <"$WORK/watched")" ""
same "the dead session" "$(curl "http://localhost:8500/v1/session/info/$second")" "[]"

step "Retry with a timed wait: a lock-delay is enforced"
refusals=0
until [ "$(curl -X PUT -d 'body' "http://localhost:8500/v1/kv/service/mysql/leader?acquire=$first")" = true ]; do
  refusals=$((refusals + 1))
  sleep 1
done
took=$(($(milliseconds) - ended))
echo "   refused $refusals times, acquired after $took ms"
[ "$refusals" -ge 1 ] || { echo "FAILED: there was no lock-delay" >&2; exit 1; }
[ "$took" -ge 15000 ] || { echo "FAILED: the lock-delay lasted only $took ms" >&2; exit 1; }
leader=$(curl -X GET http://localhost:8500/v1/kv/service/mysql/leader)
same "Session" "$(field Session <<<"$leader")" "$first"
same "LockIndex" "$(field LockIndex <<<"$leader")" 3
