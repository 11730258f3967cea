#!/usr/bin/env python3
"""Runs the tests of Consul's Go client (package `consul/api`, 1.8.7) for services, checks, health, the catalog, queries,
coordinates, locks, semaphores, sessions, keys and transactions, each against its own `lockmesh dev`. The argument is a
folder with Go and the sources, unpacked from the packages of Debian 11.

The tests start a program `consul`. It is a link to this file, which starts `lockmesh dev` with the same name, port and
folder."""

import json
import os
import re
import subprocess
import sys
import tempfile

TESTS = "Agent|Catalog|Client|Coordinate|Event|Health|KV|Lock|NodeMaintenance|PreparedQuery|Semaphore|ServiceMaintenance"
TESTS += "|Session|Status|UnixSocket"
PATTERN = f"^(TestAPI_({TESTS})|TestAgentService)"

ACL = "not supported: ACLs"
CONNECT = "not supported: the service mesh with its certificates and proxies"
ENTRIES = "not supported: configuration entries, which gateways need"
NEWER = "newer than Consul 1.8.7:"

# The tests that fail, and the reasons.
EXPECTED = {
    "TestAPI_AgentUpdateToken": ACL,
    "TestAPI_AgentConnectAuthorize": CONNECT,
    "TestAPI_AgentConnectCALeaf": CONNECT,
    "TestAPI_AgentConnectCARoots_list": CONNECT,
    "TestAPI_CatalogGatewayServices_Ingress": ENTRIES,
    "TestAPI_CatalogGatewayServices_Terminating": ENTRIES,
    "TestAPI_HealthIngress": ENTRIES,
    "TestAPI_AgentChecks_Docker": "not supported: checks in a container of Docker",
    "TestAPI_AgentMembersOpts": "not supported: a second datacenter",
    "TestAPI_CatalogServiceCached": "the agent has no cache: each response is fresh, so a MISS",
    "TestAPI_AgentScriptCheck": "scripts are permitted over the Unix socket only",
    "TestAPI_AgentLeave": "joins two clusters of one server each, which both have data",
    "TestAPI_AgentReload": "the configuration is another file, in TOML",
    "TestAPI_AgentService": "compares the hash of a service, which is another function",
    "TestAPI_CatalogNodes": f"{NEWER} `consul-version` in the metadata of a node",
    "TestAPI_ClientTxn": f"{NEWER} `consul-version` in the metadata of a node",
    "TestAPI_ClientTLSOptions": "the certificates of the package have expired; fails against Consul too",
}


def consul(arguments):
    """Starts `lockmesh dev` from the configuration of a test."""
    with open(arguments[arguments.index("-config-file") + 1]) as file:
        config = json.load(file)
    command = [os.environ["LOCKMESH"], "dev", "--http", f"127.0.0.1:{config['ports']['http']}"]
    command += ["--node", config["node_name"], "--node-id", config["node_id"], "--data-dir", config["data_dir"]]
    command += ["--datacenter", config.get("datacenter", "dc1")]
    for key, value in config.get("node_meta", {}).items():
        command += ["--node-meta", f"{key}={value}"]
    socket = config["addresses"].get("http", "")
    if socket.startswith("unix://"):
        command += ["--socket", socket.removeprefix("unix://")]
    os.execv(command[0], command)


def build(folder):
    """Compiles the tests, and returns the program with the folder of its sources."""
    go = {"GOROOT": f"{folder}/usr/lib/go-1.15", "GOPATH": f"{folder}/usr/share/gocode", "GO111MODULE": "off"}
    go |= {"GOCACHE": f"{folder}/cache", "CGO_ENABLED": "0"}
    package = "github.com/hashicorp/consul/api"
    command = [f"{go['GOROOT']}/bin/go", "test", "-c", "-o", f"{folder}/api.test", package]
    subprocess.run(command, env=os.environ | go, check=True)
    return f"{folder}/api.test", f"{go['GOPATH']}/src/{package}"


def run(program, sources):
    """Returns the output of the tests."""
    with tempfile.TemporaryDirectory(prefix="consul-api-") as folder:
        os.mkdir(f"{folder}/bin")
        os.symlink(os.path.abspath(__file__), f"{folder}/bin/consul")
        environment = os.environ | {
            "LOCKMESH": os.readlink(f"/proc/{os.environ['LOCKMESH_PID']}/exe"),
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "TMPDIR": folder,
        }
        command = [program, "-test.v", "-test.parallel", "6", "-test.timeout", "10m", "-test.run", PATTERN]
        done = subprocess.run(command, cwd=sources, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace")


def main(folder):
    output = run(*build(folder))
    results = {test: result for result, test in re.findall(r"^--- (\w+): (\S+)", output, re.MULTILINE)}
    failed = {test for test, result in results.items() if result != "PASS"}
    for test in sorted(failed & EXPECTED.keys()):
        print(f"go: {test}: fails as expected: {EXPECTED[test]}")
    wrong = sorted(failed - EXPECTED.keys())
    wrong += [f"{test} (listed as failing, but it passes)" for test in sorted(EXPECTED.keys() & results.keys() - failed)]
    wrong += [f"{test} (listed as failing, but it did not run)" for test in sorted(EXPECTED.keys() - results.keys())]
    unfinished = set(re.findall(r"^=== RUN   ([^/\s]+)$", output, re.MULTILINE)) - results.keys()
    wrong += [f"{test} (did not end)" for test in sorted(unfinished)]
    if wrong:
        # Without the servers' logs.
        print("\n".join(line for line in output.splitlines() if line.startswith(("    ", "---", "panic"))))
        sys.exit("go: unexpected: " + ", ".join(wrong))
    print(f"go: {len(results) - len(failed)} tests pass, {len(failed)} fail as expected: ok", flush=True)


if __name__ == "__main__":
    if os.path.basename(sys.argv[0]) == "consul":
        consul(sys.argv[1:])
    else:
        main(os.path.abspath(sys.argv[1]))
