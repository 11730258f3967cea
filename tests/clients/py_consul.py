"""Tests py-consul against the server on LOCKMESH_PORT: keys, sessions, a lock passed between threads, a semaphore by
prefix, transactions and a TTL check. Every step asserts; the first failure ends the program."""

import base64
import json
import os
import threading
import time

import consul
from consul.exceptions import BadRequest, ClientError, ConsulException, NotFound

PORT = int(os.environ["LOCKMESH_PORT"])


def connect():
    return consul.Consul(host="127.0.0.1", port=PORT)


def keys(c):
    index, absent = c.kv.get("py/absent")
    assert absent is None and int(index) >= 1, "an absent key carries an index"
    assert c.kv.put("py/key", "value", flags=18446744073709551615) is True
    _, entry = c.kv.get("py/key")
    assert entry["Value"] == b"value" and entry["Flags"] == 18446744073709551615
    assert c.kv.put("py/key", "other", cas=0) is False
    assert c.kv.put("py/key", "other", cas=entry["ModifyIndex"]) is True
    assert c.kv.put("py/bytes", bytes(range(256))) is True
    assert c.kv.get("py/bytes")[1]["Value"] == bytes(range(256))
    assert c.kv.put("py/empty", None) is True
    assert c.kv.get("py/empty")[1]["Value"] is None
    assert c.kv.get("py/", keys=True)[1] == ["py/bytes", "py/empty", "py/key"]
    assert len(c.kv.get("py/", recurse=True)[1]) == 3
    assert c.kv.delete("py/key", cas=1) is False
    assert c.kv.delete("py/", recurse=True) is True
    assert c.kv.get("py/", recurse=True)[1] is None


def sessions(c):
    plain = c.session.create()
    _, info = c.session.info(plain)
    assert info["LockDelay"] == 15_000_000_000 and info["Behavior"] == "release"
    ours = c.session.create(name="py", lock_delay=0, behavior="delete", ttl=10, checks=[])
    _, info = c.session.info(ours)
    assert info["Name"] == "py" and info["TTL"] == "10s" and info["Behavior"] == "delete"
    assert info["LockDelay"] == 0 and info["NodeChecks"] == []
    assert c.session.renew(ours)["ID"] == ours
    assert {plain, ours} <= {session["ID"] for session in c.session.list()[1]}
    assert ours in {session["ID"] for session in c.session.node(info["Node"])[1]}
    for session in (plain, ours):
        assert c.session.destroy(session) is True
        assert c.session.info(session)[1] is None
    try:
        c.session.renew(ours)
        raise AssertionError("a dead session was renewed")
    except NotFound:
        pass
    try:
        c.kv.put("py/lock", "x", acquire=ours)
        raise AssertionError("a dead session took a lock")
    except ConsulException as error:
        assert "invalid session" in str(error)


def lock(_):
    """Each of three threads acquires the lock three times and waits for it by blocking queries."""
    inside, most, order = [0], [0], []
    guard = threading.Lock()

    def contend(name):
        c = connect()
        session = c.session.create(name=name, lock_delay=0, ttl=60)
        for _ in range(3):
            index = None
            while not c.kv.put("py/lock", name, acquire=session):
                index, entry = c.kv.get("py/lock", index=index, wait="10s")
                if entry is None or "Session" not in entry:
                    index = None
            with guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                order.append(name)
            assert c.kv.get("py/lock", consistency="consistent")[1]["Session"] == session
            time.sleep(0.02)
            with guard:
                inside[0] -= 1
            assert c.kv.put("py/lock", "", release=session) is True
        assert c.session.destroy(session) is True

    run_all(contend, ["one", "two", "three"])
    assert most[0] == 1, f"{most[0]} held the lock at once"
    assert sorted(order) == sorted(["one", "two", "three"] * 3), order
    assert connect().kv.get("py/lock")[1]["LockIndex"] == 9


def hand_over_at_the_end_of_a_session(c):
    holder = c.session.create(lock_delay=0, checks=[])
    heir = c.session.create(lock_delay=0, checks=[])
    assert c.kv.put("py/handover", "1", acquire=holder) is True
    assert c.kv.put("py/handover", "2", acquire=heir) is False
    index, _ = c.kv.get("py/handover")
    seen = []

    def watch(_):
        seen.append(connect().kv.get("py/handover", index=index, wait="30s")[1])

    watcher = threading.Thread(target=watch, args=("",))
    watcher.start()
    c.session.destroy(holder)
    watcher.join()
    assert "Session" not in seen[0], seen
    assert c.kv.put("py/handover", "2", acquire=heir) is True


def semaphore(_):
    """Five contenders for two slots, as in the semaphore guide."""
    prefix, limit = "py/semaphore", 2
    inside, most, done = [0], [0], []
    guard = threading.Lock()

    def contend(name):
        c = connect()
        session = c.session.create(name=name, behavior="delete", lock_delay=0, ttl=60)
        assert c.kv.put(f"{prefix}/{session}", name, acquire=session) is True
        index = None
        while True:
            index, entries = c.kv.get(prefix, recurse=True, index=index, wait="10s")
            alive = {entry["Session"] for entry in entries if entry.get("Session")}
            state = next((entry for entry in entries if entry["Key"] == f"{prefix}/.lock"), None)
            holders = json.loads(state["Value"])["Holders"] if state else []
            holders = [holder for holder in holders if holder in alive]
            if len(holders) < limit:
                body = json.dumps({"Limit": limit, "Holders": holders + [session]})
                if c.kv.put(f"{prefix}/.lock", body, cas=state["ModifyIndex"] if state else 0):
                    break
                index = None
        with guard:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        with guard:
            inside[0] -= 1
            done.append(name)
        # Half of them release the slot by dying: the contender key is deleted with the session.
        assert c.session.destroy(session) is True

    run_all(contend, [f"contender {n}" for n in range(5)])
    assert most[0] <= limit, f"{most[0]} held a slot at once"
    assert len(done) == 5


def transactions(c):
    encode = lambda text: base64.b64encode(text.encode()).decode()
    answer = c.txn.put(
        [
            {"KV": {"Verb": "set", "Key": "py/txn/a", "Value": encode("one")}},
            {"KV": {"Verb": "cas", "Key": "py/txn/b", "Value": encode("two"), "Index": 0}},
            {"KV": {"Verb": "get", "Key": "py/txn/a"}},
        ]
    )
    assert answer["Errors"] is None and answer["Results"][2]["KV"]["Value"] == encode("one"), answer
    try:
        c.txn.put(
            [
                {"KV": {"Verb": "set", "Key": "py/txn/c", "Value": encode("x")}},
                {"KV": {"Verb": "check-not-exists", "Key": "py/txn/a"}},
            ]
        )
        raise AssertionError("a transaction that must fail did not")
    except ClientError as error:
        assert "409" in str(error) and "exists" in str(error), error
    assert c.kv.get("py/txn/c")[1] is None


def ttl_check(c):
    assert c.agent.check.register("py check", consul.Check.ttl("1h"), check_id="py-check") is True
    assert c.agent.checks()["py-check"]["Status"] == "critical"
    assert c.agent.check.ttl_pass("py-check", "well") is True
    node = c.agent.self()["Config"]["NodeName"]
    index, status = None, None
    while status != "passing":
        index, checks = c.health.node(node, index=index, wait="10s")
        status = next((check["Status"] for check in checks if check["CheckID"] == "py-check"), None)
    session = c.session.create(checks=["py-check"], lock_delay=0)
    assert c.kv.put("py/check", "held", acquire=session) is True
    index, _ = c.kv.get("py/check")
    assert c.agent.check.ttl_fail("py-check", "ill") is True
    _, entry = c.kv.get("py/check", index=index, wait="30s")
    assert "Session" not in entry, entry
    assert c.agent.check.deregister("py-check") is True
    try:
        c.agent.check.register("py broken", {"ttl": "soon"})
        raise AssertionError("a broken check was taken")
    except BadRequest:
        pass


def run_all(work, names):
    faults = []

    def guarded(name):
        try:
            work(name)
        except BaseException as fault:  # noqa: BLE001 — a failure in a thread must fail the program
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


if __name__ == "__main__":
    for part in (keys, sessions, lock, hand_over_at_the_end_of_a_session, semaphore, transactions, ttl_check):
        part(connect())
        print(f"py-consul: {part.__name__}: ok", flush=True)
