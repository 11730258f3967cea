"""Tests Patroni's own Consul client against the server on LOCKMESH_PORT, without PostgreSQL: two members race to initialize
a cluster and to lead it, and keep the leadership. It changes by a release, by an operator who destroys a session, and by a
member that becomes silent. Every step asserts; the first failure ends the program."""

import json
import os
import threading
import time
import urllib.request

from patroni.dcs.consul import Consul
from patroni.postgresql.mpp import get_mpp

PORT = int(os.environ["LOCKMESH_PORT"])


def member(name, ttl=30):
    config = {"scope": "lockmesh", "namespace": "/service/", "name": name, "ttl": ttl, "retry_timeout": 10}
    config |= {"loop_wait": 1, "host": f"127.0.0.1:{PORT}", "checks": []}
    dcs = Consul(config, get_mpp({}))
    dcs.set_ttl(ttl)
    return dcs


def touch(dcs, name):
    dcs.get_cluster()
    assert dcs.touch_member({"conn_url": f"postgres://{name}/", "state": "running", "role": "replica"}) is True


def race(calls):
    """Runs all calls at once and returns their results."""
    results = [None] * len(calls)

    def run(place):
        results[place] = calls[place]()

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def say(what):
    print(f"patroni: {what}: ok", flush=True)


def main():
    one, two = member("one"), member("two")
    assert sorted(race([one.initialize, two.initialize])) == [False, True]
    touch(one, "one")
    touch(two, "two")
    assert {found.name for found in one.get_cluster().members} == {"one", "two"}
    say("two members, one of them initialises")

    won = race([one.attempt_to_acquire_leader, two.attempt_to_acquire_leader])
    assert sorted(won) == [False, True]
    (leader, leader_name), (replica, replica_name) = ((one, "one"), (two, "two")) if won[0] else ((two, "two"), (one, "one"))
    cluster = replica.get_cluster()
    assert cluster.leader.name == leader_name
    for _ in range(3):
        assert leader.update_leader(leader.get_cluster(), 7) is True
        touch(leader, leader_name)
    assert replica.get_cluster().leader.name == leader_name
    assert replica.attempt_to_acquire_leader() is False
    say("one leads and keeps on leading")

    # The replica waits on the leader's key and wakes when the leader releases it.
    version = replica.get_cluster().leader.version
    woken = []
    watcher = threading.Thread(target=lambda: woken.append(replica.watch(version, 30)))
    watcher.start()
    time.sleep(0.2)
    assert leader.delete_leader(leader.get_cluster().leader) is True
    watcher.join()
    assert woken == [True]
    assert replica.attempt_to_acquire_leader() is True
    assert leader.get_cluster().leader.name == replica_name
    say("a farewell hands over")
    leader, replica, replica_name = replica, leader, leader_name

    # An operator ends the leader's session: its ephemeral keys are deleted, and it creates a new session.
    lost = leader.get_cluster().leader.session
    operator = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/session/destroy/{lost}", method="PUT")
    assert json.load(urllib.request.urlopen(operator)) is True
    cluster = replica.get_cluster()
    assert cluster.is_unlocked(), cluster.leader
    assert len(cluster.members) == 1, "the member's key was ephemeral"
    until(replica.attempt_to_acquire_leader)
    assert leader.attempt_to_acquire_leader() is False, "with its new session it finds the place taken"
    assert leader.get_cluster().leader.name == replica_name
    say("an operator's hand hands over")

    # The session's TTL is half of Patroni's; the server waits for twice the session's.
    assert replica.set_ttl(20) is None
    silent = member("silent", ttl=20)
    assert replica.delete_leader(replica.get_cluster().leader) is True
    assert silent.attempt_to_acquire_leader() is True
    begun = time.monotonic()
    version = leader.get_cluster().leader.version
    while leader.get_cluster().leader:
        leader.watch(version, 60)
    silence = time.monotonic() - begun
    assert silence >= 19, f"a silent leader lost its place after {silence} s"
    until(leader.attempt_to_acquire_leader)
    say("a silent leader is replaced, but not too early")
    assert leader.delete_cluster() is True


def until(attempt):
    """The lock-delay of one millisecond may still be in effect."""
    for _ in range(50):
        if attempt():
            return
        time.sleep(0.05)
    raise AssertionError("never")


if __name__ == "__main__":
    main()
