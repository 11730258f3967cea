#!/usr/bin/env bash
# The semaphore, as in the guide: three contenders for two slots, a slot that is freed because an operator destroyed its
# holder's session, optimistic updates that race, a watcher on the prefix, and a slot that is released.
source "$(dirname "$0")/common.sh"

prefix=service/db
lock=$prefix/.lock

# holders SESSION…: the body of the lock.
holders() { local list; list=$(printf '"%s",' "$@"); echo "{\"Limit\": 2,\"Holders\":[${list%,}]}"; }
# modified: the lock's ModifyIndex.
modified() { curl "http://localhost:8500/v1/kv/$lock" | field ModifyIndex; }
# body: the value of the lock.
body() { curl "http://localhost:8500/v1/kv/$lock" | field Value | base64 -d; }
# take_slot INDEX SESSION…: tries to make these sessions the holders, unless another contender was faster.
take_slot() { local index=$1; shift; curl -X PUT -d "$(holders "$@")" "http://localhost:8500/v1/kv/$lock?cas=$index"; }

step "Create sessions"
declare -a session
for n in 1 2 3; do
  session[n]=$(curl  -X PUT -d '{"Name": "db-semaphore"}' \
    http://localhost:8500/v1/session/create | field ID)
done

step "Create the contender keys"
for n in 1 2 3; do
  s=${session[n]}
  same "contender $n" "$(curl -X PUT -d "node-$n" "http://localhost:8500/v1/kv/$prefix/$s?acquire=$s")" true
done

step "Create the lock: once"
same "the creator" "$(take_slot 0 "${session[1]}")" true
same "a second creator" "$(take_slot 0 "${session[2]}")" false

step "Read the state"
state=$(curl "http://localhost:8500/v1/kv/$prefix?recurse")
same "entries" "$(grep -o '"Key"' <<<"$state" | wc -l | tr -d ' ')" 4
same "the lock's body" "$(body)" "$(holders "${session[1]}")"

step "Take the second slot; a racer with an old index loses"
old=$(modified)
same "contender 2" "$(take_slot "$old" "${session[1]}" "${session[2]}")" true
same "contender 3, too late" "$(take_slot "$old" "${session[1]}" "${session[3]}")" false
same "the lock's body" "$(body)" "$(holders "${session[1]}" "${session[2]}")"

step "All slots are taken: contender 3 watches the prefix while an operator ends the session of contender 2"
index=$(index_of "$prefix?recurse")
curl "http://localhost:8500/v1/kv/$prefix?recurse&index=$index&wait=60s" >"$WORK/state" &
watcher=$!
same "destroyed" "$(curl -X PUT "http://localhost:8500/v1/session/destroy/${session[2]}")" true
wait "$watcher"
same "live contenders" "$(grep -o '"Session"' <"$WORK/state" | wc -l | tr -d ' ')" 2
same "contender 2 among them" "$(grep -c "\"Session\": *\"${session[2]}\"" <"$WORK/state" || true)" 0

step "Contender 3 prunes the dead holder and takes its slot"
same "contender 3" "$(take_slot "$(modified)" "${session[1]}" "${session[3]}")" true
same "the lock's body" "$(body)" "$(holders "${session[1]}" "${session[3]}")"

step "Contender 1 gives its slot back: lock, contender key, session"
same "lock" "$(take_slot "$(modified)" "${session[3]}")" true
same "contender key" "$(curl -X DELETE "http://localhost:8500/v1/kv/$prefix/${session[1]}")" true
same "session" "$(curl -X PUT "http://localhost:8500/v1/session/destroy/${session[1]}")" true
same "the lock's body" "$(body)" "$(holders "${session[3]}")"
same "its LockIndex: nobody ever held it as a lock" "$(curl "http://localhost:8500/v1/kv/$lock" | field LockIndex)" 0
