"""Tests the service that Patroni registers for its members (`register_service`), with Patroni and PostgreSQL on two hosts,
and three servers. The roles of the members are tags of the service. They follow a failover, first after Patroni and PostgreSQL
of the primary were killed, then after its agent was killed with them. Two members are never passing primaries meanwhile; and
while nothing happens, the service does not change.

usage: cargo run -p lockmesh-tests --bin with_dev -- tests/clients/run patroni-service
PATRONI_QUIET is the number of seconds without an event, by default 60."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from fleet import Fleet, free_port, get

QUIET = int(os.environ.get("PATRONI_QUIET", "60"))
BINARIES = "/usr/lib/postgresql/15/bin"
SERVICE = "shop"
# The maximum time for a failover, of which Consul's TTL takes 20 s, and for the start of a member.
MOST = 60

# PostgreSQL refuses to run as root. In a user namespace, root is another user, with the same files.
AS_USER = ["unshare", "--user", "--map-user=nobody", "--map-group=nogroup"] if os.getuid() == 0 else []


class Member:
    """Patroni and PostgreSQL of one host, which use the agent of that host."""

    def __init__(self, agent):
        self.agent, self.name = agent, os.path.basename(agent.folder)
        self.data = f"{agent.folder}/postgresql"
        password = {"username": "postgres", "password": "secret"}
        rest, postgresql = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.config = {
            "scope": SERVICE,
            "name": self.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "consul": {
                "host": f"127.0.0.1:{agent.port}",
                "checks": ["serfHealth"],
                "register_service": True,
                "service_check_interval": "1s",
            },
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 2, "retry_timeout": 5, "postgresql": {"use_pg_rewind": True}},
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}],
            },
            "postgresql": {
                "listen": postgresql,
                "connect_address": postgresql,
                "data_dir": self.data,
                "bin_dir": BINARIES,
                "pgpass": f"{agent.folder}/pgpass",
                "authentication": {"superuser": password, "replication": password},
                "parameters": {"unix_socket_directories": agent.folder, "fsync": "off", "wal_log_hints": "on"},
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
            },
        }

    def start(self):
        # JSON is YAML, too.
        with open(f"{self.agent.folder}/patroni.yml", "w") as file:
            json.dump(self.config, file)
        with open(f"{self.agent.folder}/patroni.log", "a") as log:
            command = [*AS_USER, sys.executable, "-m", "patroni", f"{self.agent.folder}/patroni.yml"]
            self.patroni = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, *others):
        """Kills Patroni and PostgreSQL, and these processes too."""
        with open(f"{self.data}/postmaster.pid") as file:
            postmaster = int(file.readline())
        for process in (self.patroni.pid, postmaster, *others):
            os.kill(process, signal.SIGKILL)
        self.patroni.wait()


class Watch(threading.Thread):
    """Follows the service with blocking queries, and keeps every state with its time."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.states, self.is_over = port, [], False
        self.changed = threading.Condition()

    def run(self):
        index = "0"
        while True:
            try:
                index, entries = get(self.port, f"health/service/{SERVICE}?index={index}&wait=10s")
            except OSError:
                assert self.is_over
                return
            state = {
                entry["Service"]["ID"]: (
                    tuple(sorted(entry["Service"]["Tags"])),
                    all(check["Status"] == "passing" for check in entry["Checks"]),
                )
                for entry in entries
            }
            with self.changed:
                self.states.append((time.monotonic(), state))
                self.changed.notify_all()

    def until(self, what, wanted):
        """Waits until these are the roles of the passing members, and returns the time."""
        end = time.monotonic() + MOST
        with self.changed:
            while not self.states or roles(self.states[-1][1]) != wanted:
                assert self.changed.wait(end - time.monotonic()), f"{what}: {wanted} is not reached: {self.states[-1:]}"
            return self.states[-1][0]

    def with_two_primaries(self):
        """Returns how many seconds there were two passing primaries."""
        ends = [at for at, _ in self.states[1:]] + [time.monotonic()]
        spans = zip(self.states, ends)
        return sum(end - at for (at, state), end in spans if list(roles(state).values()).count("primary") > 1)


def roles(state):
    """Returns the role of each passing member."""
    names = {("replica",): "replica", ("master", "primary"): "primary"}
    return {member.partition("/")[2]: names[tags] for member, (tags, passes) in state.items() if passes}


def say(what):
    print(f"patroni, service: {what}: ok", flush=True)


def main(fleet):
    members = [Member(agent) for agent in fleet.agents]
    one, two = members
    watch = Watch(fleet.port)
    watch.start()
    try:
        one.agent.start()
        two.agent.start()
        one.start()
        watch.until("bootstrap", {one.name: "primary"})
        two.start()
        watch.until("replica", {one.name: "primary", two.name: "replica"})
        say("the tags are the roles of both members")

        # A blocking query returns when the service changes, or one of its checks.
        index, before = get(fleet.port, f"health/service/{SERVICE}")
        began = time.monotonic()
        now, after = get(fleet.port, f"health/service/{SERVICE}?index={index}&wait={QUIET}s")
        took = time.monotonic() - began
        assert (now, after) == (index, before) and took >= QUIET, f"the service changed after {took:.1f} s: {before}, {after}"
        say(f"no change within {took:.0f} s, index {index}")

        killed = time.monotonic()
        one.kill()
        took = watch.until("failover", {two.name: "primary"}) - killed
        say(f"the tags follow a failover after {took:.1f} s, Patroni and PostgreSQL killed")
        one.start()
        watch.until("rejoin", {one.name: "replica", two.name: "primary"})

        killed = time.monotonic()
        two.kill(two.agent.process.pid)
        took = watch.until("failover of a host", {one.name: "primary"}) - killed
        say(f"the tags follow a failover after {took:.1f} s, the agent killed with them")
        assert watch.with_two_primaries() == 0, watch.states

        # The agent is back before Patroni: the check passed when the agent was killed, until it runs again.
        two.agent.kill()
        two.agent.start()
        two.start()
        watch.until("rejoin of a host", {one.name: "primary", two.name: "replica"})
        took = watch.with_two_primaries()
        say(f"a host that returns is a passing primary for {took:.2f} s at most")
        assert took < 2, watch.states
    finally:
        watch.is_over = True
        for member in members:
            try:
                member.kill()
            except (OSError, AttributeError):
                pass


if __name__ == "__main__":
    with Fleet(3) as started:
        main(started)
