"""Tests py-consul against the server on LOCKMESH_PORT: keys, sessions, a lock passed between threads, a semaphore by
prefix, transactions, checks and services with every argument. Every step asserts; the first failure ends the program."""

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


def services(c):
    """Registers services and checks with every argument that the package has, and reads them from the agent."""
    target = consul.Check.tcp("127.0.0.1", PORT, "1s", timeout="1s", deregister="10m")
    full = dict(
        service_id="py#1", address="10.0.0.1", port=80, tags=["a", "b"], meta={"k": "v"},
        weights={"Passing": 3, "Warning": 2}, enable_tag_override=True, check=consul.Check.ttl("1h"),
        tagged_addresses={"lan": {"Address": "10.0.0.2", "Port": 81}}, connect={"sidecar_service": {}},
        socket_path="/run/py", locality={"Region": "eu", "Zone": "eu-1"},
    )
    assert c.agent.service.register("py-web", extra_checks=[target], **full) is True
    shown = c.agent.services()["py#1"]
    assert (shown["Service"], shown["Port"], shown["Tags"], shown["Meta"]) == ("py-web", 80, ["a", "b"], {"k": "v"})
    assert shown["Weights"] == {"Passing": 3, "Warning": 2} and shown["EnableTagOverride"] is True
    assert shown["TaggedAddresses"]["lan"] == {"Address": "10.0.0.2", "Port": 81}
    assert shown["SocketPath"] == "/run/py" and shown["Locality"] == {"Region": "eu", "Zone": "eu-1"}
    assert {"service:py#1:1", "service:py#1:2"} <= set(c.agent.checks())
    sidecar = c.agent.service_definition("py#1-sidecar-proxy")
    assert sidecar["Kind"] == "connect-proxy" and sidecar["Proxy"]["DestinationServiceName"] == "py-web"
    assert 21000 <= sidecar["Port"] <= 21255 and len(sidecar["ContentHash"]) > 8
    # The only check is called `service:py#1` now, so both others are dropped.
    assert c.agent.service.register("py-web", replace_existing_checks=True, **full) is True
    assert {check["CheckID"] for check in c.agent.checks().values() if check["ServiceID"] == "py#1"} == {"service:py#1"}

    proxy = {"DestinationServiceName": "py-web", "LocalServicePort": 80}
    assert c.agent.service.register("py-envoy", kind="connect-proxy", proxy=proxy, port=9000) is True
    assert c.agent.service.register("py-old", ttl="1h") is True
    assert c.agent.check.register("py slow", http=f"http://127.0.0.1:{PORT}/", interval="1s", timeout="1s",
                                  service_id="py-old", notes="why") is True
    assert c.agent.checks()["py slow"]["Notes"] == "why"
    grpc = consul.Check.grpc(f"127.0.0.1:{PORT}", 10, use_tls=False, tls_skip_verify=True, timeout="1s")
    http = consul.Check.http("http://127.0.0.1:1/", "10s", timeout="1s", header={"x-a": ["1"]}, deregister="1h")
    for kind, check in {"grpc": grpc, "http": http, "ttl": consul.Check.ttl("100ms")}.items():
        assert c.agent.check.register(f"py {kind}", check, check_id=f"py-{kind}", service_id="py-old") is True
        assert c.agent.checks()[f"py-{kind}"]["Type"] == kind
        assert c.agent.check.deregister(f"py-{kind}") is True
    for status, report in (("warning", c.agent.check.ttl_warn), ("passing", c.agent.check.ttl_pass)):
        assert report("service:py-old", notes=status) is True
        assert c.agent.checks()["service:py-old"]["Output"] == status
    assert c.agent.service.maintenance("py-old", True, "disk") is True
    assert c.agent.checks()["_service_maintenance:py-old"]["Notes"] == "disk"
    assert c.agent.service.maintenance("py-old", False) is True
    docker = consul.Check.docker("id", "sh", "true", "10s")
    for refused in (
        lambda: c.agent.service.register("py-bad", check=docker),
        lambda: c.agent.check.register("py bad", consul.Check.script(["true"], "10s")),
        lambda: c.agent.check.register("py bad", consul.Check.ttl("1s"), service_id="py-nowhere"),
    ):
        try:
            refused()
            raise AssertionError("a wrong definition was taken")
        except ConsulException:
            pass
    assert c.agent.service.deregister("py-nowhere") is True
    # The package returns a 404 as `False`.
    assert c.agent.service.maintenance("py-nowhere", True) is False


def reads(c):
    """Reads the services of `services` from the catalog and the health endpoints, with every parameter."""
    assert c.agent.check.ttl_pass("service:py#1") is True
    node = c.agent.self()["Config"]["NodeName"]
    every = dict(near="_agent", node_meta=None, merge_central_config=True, dc="dc1")
    index, found = c.health.service("py-web", tag=["A", "b"], **every)
    assert found[0]["Service"]["ID"] == "py#1" and int(index) > 0
    # The port of the sidecar is closed, but the service's own checks pass.
    assert len(c.health.service("py-web", passing=True, **every)[1]) == 1
    assert c.health.service("py-web", index=index, wait="1s")[1] == found
    assert c.health.service("py-web", peer="nobody")[1] == [] == c.health.service("py-web", tag="c")[1]
    proxies = {entry["Service"]["Service"] for entry in c.health.connect("py-web", near=node)[1]}
    assert proxies == {"py-web-sidecar-proxy", "py-envoy"}, proxies
    assert c.health.ingress("py-web", near=node)[1] == []
    assert [check["CheckID"] for check in c.health.checks("py-web", near=node)[1]] == ["service:py#1"]
    assert any(check["CheckID"] == "py slow" for check in c.health.state("any", near=node)[1])
    assert {"serfHealth", "service:py-old"} <= {check["CheckID"] for check in c.health.node(node, dc="dc1")[1]}

    service = {"Service": "py-far", "ID": "py-far-1", "Port": 7, "Tags": ["x"]}
    check = {"CheckID": "py-far", "Name": "far", "Status": "warning", "ServiceID": "py-far-1"}
    assert c.catalog.register("py-node", "10.9.9.9", service, check, dc="dc1", tagged_addresses={"wan": "1.1.1.1"}) is True
    assert c.catalog.register("py-node", "10.9.9.8", skip_node_update=True) is True
    nodes = {entry["Node"]: entry for entry in c.catalog.nodes(consistency="stale", near=node)[1]}
    assert nodes["py-node"]["Address"] == "10.9.9.9" and nodes["py-node"]["TaggedAddresses"] == {"wan": "1.1.1.1"}
    assert c.catalog.nodes(node_meta={"none": "x"})[1] == []
    assert c.catalog.services(consistency="consistent")[1]["py-far"] == ["x"]
    assert c.catalog.node("py-node")[1]["Services"]["py-far-1"]["Port"] == 7
    assert c.catalog.node("py-nowhere")[1] is None
    row = c.catalog.service("py-far", tag="X", near=node, merge_central_config=True)[1][0]
    assert (row["Node"], row["ServiceID"], row["ServiceTags"], row["ServiceMeta"]) == ("py-node", "py-far-1", ["x"], {})
    assert c.catalog.service("py-far", peer="nobody")[1] == []
    assert len(c.catalog.connect("py-web")[1]) == 2 and c.catalog.gateway_services("py-gateway") == []
    assert c.catalog.datacenters() == ["dc1"]
    assert c.health.state("warning")[1][0]["CheckID"] == "py-far"
    assert c.catalog.deregister("py-node", check_id="py-far") is True
    assert c.catalog.deregister("py-node", service_id="py-far-1") is True
    assert c.catalog.deregister("py-node", dc="dc1") is True
    for service_id in ("py#1", "py-envoy", "py-old"):
        assert c.agent.service.deregister(service_id) is True
    assert not any(service_id.startswith("py") for service_id in c.agent.services())


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
    for part in (keys, sessions, lock, hand_over_at_the_end_of_a_session, semaphore, transactions, ttl_check, services, reads):
        part(connect())
        print(f"py-consul: {part.__name__}: ok", flush=True)
