"""Measures Patroni's time without a leader after the primary's host dies: its agent and its Patroni are killed at once, and
a replica on another host waits as Patroni does. Without PostgreSQL, with Patroni's default `ttl: 30` and `loop_wait: 10`,
three servers and two agents, each a separate process. Prints the seconds from the kill until the replica has the leader's
key, for several settings of Patroni and the agent.

usage: cargo run -p lockmesh-tests --bin with_dev -- tests/clients/run patroni-host
PATRONI_ROUNDS is the number of rounds per setting, by default 3."""

import os
import random
import statistics
import subprocess
import sys
import time

from fleet import Fleet
from patroni.dcs.consul import Consul
from patroni.postgresql.mpp import get_mpp

ROUNDS = int(os.environ.get("PATRONI_ROUNDS", "3"))
TTL, LOOP_WAIT = 30, 10

# The measured settings: Patroni's `checks`, the agent's `session.default_health_window`, and the maximum time.
CASES = [
    ("as it comes: no checks, TTL alone", [], "default", 2 * TTL),
    ("checks: [serfHealth]", ["serfHealth"], "default", TTL),
    ("checks: [serfHealth], the agent's default_health_window = fast", ["serfHealth"], "fast", TTL),
]


def member(name, port, checks):
    config = {"scope": "hosts", "namespace": "/service/", "name": name, "ttl": TTL, "retry_timeout": 10}
    config |= {"loop_wait": LOOP_WAIT, "host": f"127.0.0.1:{port}", "checks": checks}
    dcs = Consul(config, get_mpp({}))
    dcs.set_ttl(TTL)
    return dcs


def touch(dcs, role):
    assert dcs.touch_member({"conn_url": "postgres://host/", "state": "running", "role": role}) is True


def primary(port, checks):
    """Leads until it is killed."""
    dcs = member("primary", port, checks)
    dcs.get_cluster()
    touch(dcs, "replica")
    while not dcs.attempt_to_acquire_leader():
        time.sleep(0.1)
    while True:
        assert dcs.update_leader(dcs.get_cluster(), 7) is True
        touch(dcs, "primary")
        print("leads", flush=True)
        time.sleep(LOOP_WAIT)


def one_round(fleet, checks, window):
    (agent,) = fleet.agents
    agent.start(f"session.default_health_window={window}")
    replica = member("replica", fleet.port, checks)
    replica.get_cluster()
    touch(replica, "replica")
    command = [sys.executable, __file__, str(agent.port), *checks]
    leading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert leading.stdout.readline() == "leads\n"
    version = replica.get_cluster().leader.version
    # A random time between two turns of the primary.
    time.sleep(random.uniform(1, LOOP_WAIT - 1))
    for process in (agent.process, leading):
        process.kill()
    killed = time.monotonic()
    agent.process.wait()
    leading.wait()
    while True:
        replica.watch(version, LOOP_WAIT)
        cluster = replica.get_cluster()
        if cluster.is_unlocked() and replica.attempt_to_acquire_leader():
            break
    took = time.monotonic() - killed
    assert replica.delete_leader(replica.get_cluster().leader) is True
    assert replica.delete_cluster() is True
    return took


def main():
    with Fleet(2) as fleet:
        for words, checks, window, most in CASES:
            took = [one_round(fleet, checks, window) for _ in range(ROUNDS)]
            worst, middle = max(took), statistics.median(took)
            print(f"patroni, host killed, {words}: {middle:.1f} s, {worst:.1f} at worst of {ROUNDS}", flush=True)
            assert worst <= most + 5, took


if __name__ == "__main__":
    if len(sys.argv) > 1:
        primary(int(sys.argv[1]), sys.argv[2:])
    else:
        main()
