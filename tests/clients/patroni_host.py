"""Measures Patroni's time without a leader after the primary's host dies: its agent and its Patroni are killed at once, and
a replica on another host waits as Patroni does. Without PostgreSQL, with Patroni's default `ttl: 30` and `loop_wait: 10`,
three servers and two agents, each a separate process. Prints the seconds from the kill until the replica has the leader's
key, for several settings of Patroni and the agent.

usage: cargo run -p lockmesh-tests --bin with_dev -- tests/clients/run patroni-host
PATRONI_ROUNDS is the number of rounds per setting, by default 3."""

import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from patroni.dcs.consul import Consul
from patroni.postgresql.mpp import get_mpp

LOCKMESH = os.readlink(f"/proc/{os.environ['LOCKMESH_PID']}/exe")
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


def forward(path):
    """A port of 127.0.0.1 that forwards to a Unix socket, which Patroni cannot use itself."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve():
        while True:
            client, _ = listener.accept()
            agent = socket.socket(socket.AF_UNIX)
            agent.connect(path)
            for pair in ((client, agent), (agent, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def primary(path, checks):
    """Leads until it is killed."""
    dcs = member("primary", forward(path), checks)
    dcs.get_cluster()
    touch(dcs, "replica")
    while not dcs.attempt_to_acquire_leader():
        time.sleep(0.1)
    while True:
        assert dcs.update_leader(dcs.get_cluster(), 7) is True
        touch(dcs, "primary")
        print("leads", flush=True)
        time.sleep(LOOP_WAIT)


def start_agent(folder, window):
    """Starts n2, and waits until it serves."""
    command = [LOCKMESH, "agent", "--config", f"{folder}/n2/agent.toml"]
    command += ["--set", f"session.default_health_window={window}"]
    with open(f"{folder}/n2/log", "a") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    address = f"unix://{folder}/n2/agent.sock"
    ask = [LOCKMESH, "kv", "put", "--http-addr", address, "asked", "n2"]
    while subprocess.run(ask, capture_output=True, check=False).returncode != 0:
        time.sleep(0.1)
    return agent


def one_round(folder, port, checks, window):
    agent = start_agent(folder, window)
    replica = member("replica", port, checks)
    replica.get_cluster()
    touch(replica, "replica")
    command = [sys.executable, __file__, f"{folder}/n2/agent.sock", *checks]
    leading = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert leading.stdout.readline() == "leads\n"
    version = replica.get_cluster().leader.version
    # A random time between two turns of the primary.
    time.sleep(random.uniform(1, LOOP_WAIT - 1))
    for process in (agent, leading):
        process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    agent.wait()
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
    with tempfile.TemporaryDirectory(prefix="patroni-") as folder:
        command = [LOCKMESH, "dev", "--servers", "3", "--nodes", "2", "--http", "127.0.0.1:0", "--data-dir", folder]
        dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            port = next(int(found[1]) for line in dev.stdout if (found := re.match(r"ready http=127.0.0.1:(\d+)", line)))
            threading.Thread(target=dev.stdout.read, daemon=True).start()
            with open(f"{folder}/n2/pid") as pid:
                os.kill(int(pid.read()), signal.SIGKILL)
            for words, checks, window, most in CASES:
                took = [one_round(folder, port, checks, window) for _ in range(ROUNDS)]
                worst, middle = max(took), statistics.median(took)
                print(f"patroni, host killed, {words}: {middle:.1f} s, {worst:.1f} at worst of {ROUNDS}", flush=True)
                assert worst <= most + 5, took
        finally:
            dev.send_signal(signal.SIGINT)
            dev.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        primary(sys.argv[1], sys.argv[2:])
    else:
        main()
