"""Moves keys from a real Consul with `lockmesh migrate consul` while writers use Consul, and compares both sides by itself.

usage: migrate.py CONSUL-BINARY, through with_dev. MIGRATE_KEYS is the number of keys, 50000 by default.
"""

import base64
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection

CONSUL = sys.argv[1]
TARGET = int(os.environ["LOCKMESH_PORT"])
LOCKMESH = os.readlink(f"/proc/{os.environ['LOCKMESH_PID']}/exe")
KEYS = int(os.environ.get("MIGRATE_KEYS", "50000"))
MAX_MEMORY_KIB = 96 << 10


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Api:
    """One connection to an agent."""

    def __init__(self, port):
        self.connection = HTTPConnection("127.0.0.1", port, timeout=120)

    def call(self, verb, path, body=None):
        self.connection.request(verb, path, body)
        reply = self.connection.getresponse()
        return reply.status, reply.read()

    def all(self, prefix):
        """Values and flags by key."""
        status, body = self.call("GET", f"/v1/kv/{prefix}?recurse&consistent")
        assert status in (200, 404), (status, body)
        return {entry["Key"]: (entry["Value"], entry["Flags"]) for entry in json.loads(body or "[]")}


def start_consul(folder):
    """Starts Consul with free ports; returns the process and its HTTP port."""
    http, server, lan, wan = (free_port() for _ in range(4))
    options = {"http-port": http, "server-port": server, "serf-lan-port": lan, "serf-wan-port": wan}
    command = [CONSUL, "agent", "-dev", "-bind=127.0.0.1", "-data-dir", folder, "-dns-port=-1", "-grpc-port=-1"]
    process = subprocess.Popen(
        command + [f"-{name}={port}" for name, port in options.items()],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "Consul has ended"
        try:
            if Api(http).call("GET", "/v1/status/leader")[1] not in (b'""', b""):
                return process, http
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError("Consul has no leader after 60 s")


def fill(api):
    """Writes the keys with flags in transactions of 64."""
    for first in range(0, KEYS, 64):
        operations = []
        for number in range(first, min(first + 64, KEYS)):
            value = random.randbytes(random.choice((0, 20, 60, 200)))
            key = f"move/{number % 97}/{number}"
            text = base64.b64encode(value).decode()
            operations.append({"KV": {"Verb": "set", "Key": key, "Value": text, "Flags": number * 7}})
        status, body = api.call("PUT", "/v1/txn", json.dumps(operations))
        assert status == 200, body


def write(port, stop, counts, seed):
    """Changes, deletes and creates keys until told to stop."""
    api, choose = Api(port), random.Random(seed)
    while not stop.is_set():
        number = choose.randrange(KEYS)
        kind = choose.choice(("change", "delete", "create"))
        key = f"move/{number % 97}/{number}"
        if kind == "delete":
            status, _ = api.call("DELETE", f"/v1/kv/{key}")
        else:
            key = f"{key}/new{seed}" if kind == "create" else key
            status, _ = api.call("PUT", f"/v1/kv/{key}?flags={choose.randrange(1 << 60)}", choose.randbytes(40))
        assert status == 200, (kind, status)
        counts[kind] = counts.get(kind, 0) + 1
        time.sleep(0.005)


def migrate(from_port, state, *options):
    command = [LOCKMESH, "migrate", "consul", "--from", f"http://127.0.0.1:{from_port}", "--prefix", "move/",
               "--http-addr", f"127.0.0.1:{TARGET}", "--state", state, "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process):
    """The report of a migration, which must succeed."""
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, (process.returncode, out[-2000:], errors[-2000:])
    return json.loads(out)


def main():
    with tempfile.TemporaryDirectory() as folder:
        state = os.path.join(folder, "state")
        consul, port = start_consul(os.path.join(folder, "consul"))
        try:
            source, target = Api(port), Api(TARGET)
            began = time.monotonic()
            fill(source)
            print(f"filled {KEYS} keys in {time.monotonic() - began:.1f} s", flush=True)
            stop, counts = threading.Event(), [{}, {}]
            writers = [threading.Thread(target=write, args=(port, stop, counts[seed], seed)) for seed in (0, 1)]
            for writer in writers:
                writer.start()
            began = time.monotonic()
            process = migrate(port, state, "--follow")
            # Its first pass is done when it follows.
            first = process.stderr.readline()
            while "following" not in first:
                assert first, "the migration has ended: " + process.stdout.read()
                first = process.stderr.readline()
            copied = time.monotonic() - began
            print(f"copied in {copied:.1f} s, {KEYS / copied:.0f} keys/s, with the comparison before: {first.strip()}")
            for _ in range(3):
                while "following" not in process.stderr.readline():
                    assert process.poll() is None, "the migration has ended"
            stop.set()
            for writer in writers:
                writer.join()
            process.send_signal(signal.SIGINT)
            report = finished(process)
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            numbers = {name: value for name, value in report.items() if not isinstance(value, dict)}
            print(f"writers: {counts}; report: {numbers}; peak memory {memory / 1024:.1f} MiB", flush=True)
            ours, theirs = target.all("move/"), source.all("move/")
            differing = [key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)]
            assert not differing, (len(differing), differing[:10])
            assert report["equal"] == len(theirs), (report["equal"], len(theirs))
            assert memory < MAX_MEMORY_KIB, memory
            began = time.monotonic()
            again = finished(migrate(port, state))
            assert again["copied"] == again["updated"] == again["deleted"] == 0, again
            print(f"a second run wrote nothing in {time.monotonic() - began:.1f} s; {len(theirs)} keys are equal")
        finally:
            consul.terminate()
            consul.wait()


main()
