"""Tests access control with py-consul, against `dev --initial-management root --acl-default-policy deny` on LOCKMESH_PORT:
tokens, policies, roles, the refusals that the client distinguishes, and a lock with the smallest rights. Every step
asserts; the first failure ends the program."""

import json
import os
import time

import consul
from consul.exceptions import ACLPermissionDenied, ConsulException

PORT = int(os.environ["LOCKMESH_PORT"])
ANONYMOUS = "00000000-0000-0000-0000-000000000002"


def client(token=None):
    return consul.Consul(host="127.0.0.1", port=PORT, token=token)


def refused(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} was not refused")


def until_the_lists_exist(root):
    """The leader creates them once it serves; until then access control is off."""
    end = time.monotonic() + 10
    while True:
        try:
            return root.acl.token.list()
        except ConsulException:
            assert time.monotonic() < end, "the lists were not created within 10 s"
            time.sleep(0.05)


def fresh_lists(root):
    tokens = root.acl.token.list()
    assert len(tokens) == 2 and all("SecretID" in token for token in tokens), tokens
    assert {token["Description"] for token in tokens} == {"Initial Management Token", "Anonymous Token"}
    assert root.acl.token.read_self()["SecretID"] == "root"
    names = {policy["Name"] for policy in root.acl.policy.list()}
    assert names == {"global-management", "builtin/global-read-only"}, names


def without_rights():
    for caller in (client(), client("unknown")):
        refused(ACLPermissionDenied, caller.kv.get, "a")
        refused(ACLPermissionDenied, caller.kv.put, "a", "1")
        refused(ACLPermissionDenied, caller.acl.token.list)


def policies_and_roles(root):
    # The client sends rules as JSON.
    rules = {"key_prefix": {"jobs/": {"policy": "write"}}}
    policy = root.acl.policy.create("jobs", rules=rules, description="text")
    assert json.loads(root.acl.policy.read(policy["ID"])["Rules"]) == rules
    refused(ConsulException, root.acl.policy.create, "jobs")
    refused(ConsulException, root.acl.policy.create, "bad", rules={"key": {"a": {"policy": "bogus"}}})
    role = root.acl.role.create("workers", policies_id=[policy["ID"]])
    assert root.acl.role.read_by_name("workers")["ID"] == role["ID"]
    token = root.acl.token.create(roles_name=["workers"], description="worker")
    worker = client(token["SecretID"])
    assert worker.kv.put("jobs/a", "1") is True
    refused(ACLPermissionDenied, worker.kv.put, "other", "1")
    assert root.kv.put("other", "1") is True
    assert worker.kv.get("", keys=True)[1] == ["jobs/a"]
    assert root.acl.policy.delete(policy["ID"]) is True
    refused(ACLPermissionDenied, worker.kv.put, "jobs/a", "2")
    assert root.acl.role.delete(role["ID"]) is True
    assert root.acl.role.read(role["ID"]) is None
    assert root.acl.token.delete(token["AccessorID"]) is True
    refused(ACLPermissionDenied, worker.kv.get, "jobs/a")


def tokens(root):
    accessor, secret = "aaaaaaaa-1111-2222-3333-444444444444", "bbbbbbbb-1111-2222-3333-444444444444"
    created = root.acl.token.create(accessor_id=accessor, secret_id=secret, description="chosen")
    assert (created["AccessorID"], created["SecretID"]) == (accessor, secret)
    assert root.acl.token.read(accessor)["Hash"] == created["Hash"]
    copy = root.acl.token.clone(accessor, description="copy")
    assert copy["AccessorID"] != accessor and copy["Description"] == "copy"
    root.acl.token.update(accessor, description="changed")
    assert root.acl.token.read(accessor)["Description"] == "changed"
    short = root.acl.token.create(expiration_ttl="60s")
    assert short["ExpirationTime"] and short["ExpirationTime"] > short["CreateTime"]
    for one in (accessor, copy["AccessorID"], short["AccessorID"]):
        assert root.acl.token.delete(one) is True
    assert root.acl.token.read(accessor) is None
    refused(ConsulException, root.acl.token.delete, ANONYMOUS)


def users_of_a_host(root):
    root.acl.auth_method.create("host", "unix-peer")
    assert root.acl.auth_method.read("host")["Type"] == "unix-peer"
    refused(ConsulException, root.acl.auth_method.create, "other", "kubernetes")
    rule = root.acl.binding_rule.create("host", "policy", "own-jobs", selector='user == "deploy"')
    assert [one["ID"] for one in root.acl.binding_rule.list()] == [rule["ID"]]
    assert root.acl.auth_method.delete("host") is True
    assert root.acl.binding_rule.list() == []


def lock_with_smallest_rights(root):
    node = root.catalog.nodes()[1][0]["Node"]
    rules = {"key": {"lock": {"policy": "write"}}, "session": {node: {"policy": "write"}}}
    root.acl.policy.create("locker", rules=rules)
    locker = client(root.acl.token.create(policies_name=["locker"])["SecretID"])
    session = locker.session.create(ttl=10)
    assert locker.kv.put("lock", "x", acquire=session) is True
    assert locker.kv.put("lock", "x", release=session) is True
    refused(ACLPermissionDenied, locker.kv.put, "lock2", "x", acquire=session)
    refused(ACLPermissionDenied, locker.agent.self)
    assert locker.session.destroy(session) is True


def main():
    root = client("root")
    until_the_lists_exist(root)
    fresh_lists(root)
    without_rights()
    policies_and_roles(root)
    tokens(root)
    users_of_a_host(root)
    lock_with_smallest_rights(root)

    print("py-consul with access control: all steps passed")


if __name__ == "__main__":
    main()
