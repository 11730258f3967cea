"""Hosts of `lockmesh dev --nodes`: an agent per host, as a process that a test starts again and kills. n1 stays as it is: a
test observes the others through its port."""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

LOCKMESH = os.readlink(f"/proc/{os.environ['LOCKMESH_PID']}/exe")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def get(port, path):
    """Returns the index and the body of a response."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/{path}") as response:
        return response.headers["X-Consul-Index"], json.load(response)


class Agent:
    """An agent with a TCP port of its own, which it keeps when it is started again."""

    def __init__(self, folder):
        self.folder, self.port, self.process = folder, free_port(), None

    def start(self, *settings):
        """Starts the agent, and waits until it serves."""
        command = [LOCKMESH, "agent", "--config", f"{self.folder}/agent.toml"]
        for setting in (f"http.tcp=127.0.0.1:{self.port}", *settings):
            command += ["--set", setting]
        with open(f"{self.folder}/log", "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while True:
            try:
                return get(self.port, "catalog/nodes")
            except OSError:
                assert self.process.poll() is None, open(f"{self.folder}/log").read()
                time.sleep(0.1)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Fleet:
    """Three servers and some agents. `port` is that of n1; the agents of n2 and further hosts do not run at first."""

    def __init__(self, nodes):
        self.nodes = nodes

    def __enter__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True)
        self.folder = self.temporary.name
        command = [LOCKMESH, "dev", "--servers", "3", "--nodes", str(self.nodes)]
        command += ["--http", "127.0.0.1:0", "--data-dir", self.folder]
        self.dev = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ready = (re.match(r"ready http=127.0.0.1:(\d+)", line) for line in self.dev.stdout)
        self.port = next(int(found[1]) for found in ready if found)
        threading.Thread(target=self.dev.stdout.read, daemon=True).start()
        self.agents = [Agent(f"{self.folder}/n{number}") for number in range(2, self.nodes + 1)]
        for agent in self.agents:
            with open(f"{agent.folder}/pid") as pid:
                os.kill(int(pid.read()), signal.SIGKILL)
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            if agent.process:
                agent.kill()
        self.dev.send_signal(signal.SIGINT)
        self.dev.wait()
        self.temporary.cleanup()
