// Tests the npm package `consul` against the server on LOCKMESH_PORT: keys, sessions, watches, a lock passed between two
// contenders, services and checks. Every step asserts; the first failure ends the program.

const assert = require("node:assert");
const Consul = require("consul");

const consul = new Consul({ host: "127.0.0.1", port: Number(process.env.LOCKMESH_PORT) });

// Resolves with the first change of a watch that `wanted` accepts.
function watched(options, wanted) {
  const watch = consul.watch(options);
  return new Promise((resolve, reject) => {
    watch.on("change", (data, response) => {
      if (!wanted(data, response)) return;
      watch.end();
      resolve(data);
    });
    watch.on("error", (error) => {
      watch.end();
      reject(error);
    });
  });
}

async function keys() {
  assert.strictEqual(await consul.kv.get("npm/absent"), undefined);
  assert.strictEqual(await consul.kv.set("npm/key", "value"), true);
  const entry = await consul.kv.get("npm/key");
  assert.strictEqual(entry.Value, "value");
  // The package converts a response of `false` to `undefined`.
  assert.ok(!(await consul.kv.set({ key: "npm/key", value: "x", cas: "0" })));
  assert.strictEqual(await consul.kv.set({ key: "npm/key", value: "y", cas: String(entry.ModifyIndex) }), true);
  assert.strictEqual(await consul.kv.set({ key: "npm/b/c", value: "ç < & >", flags: "42" }), true);
  assert.strictEqual((await consul.kv.get("npm/b/c")).Value, "ç < & >");
  assert.strictEqual((await consul.kv.get("npm/b/c")).Flags, 42);
  assert.deepStrictEqual(await consul.kv.keys("npm/"), ["npm/b/c", "npm/key"]);
  assert.deepStrictEqual(await consul.kv.keys({ key: "npm/", separator: "/" }), ["npm/b/", "npm/key"]);
  assert.strictEqual((await consul.kv.get({ key: "npm/", recurse: true })).length, 2);
  await consul.kv.del({ key: "npm/", recurse: true });
  await assert.rejects(consul.kv.keys("npm/"), { statusCode: 404 });
}

async function sessions() {
  const { ID: id } = await consul.session.create({ name: "npm", ttl: "10s", behavior: "delete", lockdelay: "1s" });
  const info = await consul.session.info(id);
  assert.strictEqual(info.Name, "npm");
  assert.strictEqual(info.TTL, "10s");
  assert.strictEqual(info.LockDelay, 1e9);
  assert.strictEqual((await consul.session.renew(id))[0].ID, id);
  assert.ok((await consul.session.list()).some((session) => session.ID === id));
  assert.ok((await consul.session.node(info.Node)).some((session) => session.ID === id));
  await consul.session.destroy(id);
  assert.strictEqual(await consul.session.info(id), undefined);
  await assert.rejects(consul.session.renew(id), { statusCode: 404 });
}

async function watches() {
  const key = "npm/watched";
  const made = watched({ method: consul.kv.get, options: { key } }, (entry) => entry?.Value === "made");
  const listed = watched({ method: consul.session.list }, (list) => list.some((session) => session.Name === "npm seen"));
  await consul.kv.set(key, "made");
  await made;
  const gone = watched({ method: consul.kv.get, options: { key } }, (entry) => entry === undefined);
  await consul.kv.del(key);
  await gone;
  const { ID: id } = await consul.session.create({ name: "npm seen" });
  await listed;
  await consul.session.destroy(id);
}

// Two contenders acquire the same lock three times each; the loser waits with a watch.
async function lock() {
  const key = "npm/lock";
  let inside = 0;
  let turns = 0;
  async function contend(name) {
    const { ID: session } = await consul.session.create({ name, ttl: "60s" });
    for (let turn = 0; turn < 3; turn++) {
      while (!(await consul.kv.set({ key, value: name, acquire: session }))) {
        await watched({ method: consul.kv.get, options: { key } }, (entry) => !entry?.Session || entry.Session === session);
      }
      inside += 1;
      assert.strictEqual(inside, 1, "two hold the lock at once");
      assert.strictEqual((await consul.kv.get({ key, consistent: true })).Session, session);
      await new Promise((resolve) => setTimeout(resolve, 20));
      inside -= 1;
      turns += 1;
      assert.strictEqual(await consul.kv.set({ key, value: "", release: session }), true);
    }
    await consul.session.destroy(session);
  }
  await Promise.all([contend("npm one"), contend("npm two")]);
  assert.strictEqual(turns, 6);
  assert.strictEqual((await consul.kv.get(key)).LockIndex, 6);
}

async function services() {
  const { service, check } = consul.agent;
  const first = { ttl: "1h", status: "passing", notes: "own" };
  const second = { tcp: "127.0.0.1:1", interval: "10s", timeout: "1s", failuresbeforecritical: 3 };
  await service.register({
    name: "npm-web", id: "npm-1", address: "10.0.0.1", port: 80, tags: ["a"], meta: { k: "v" }, checks: [first, second],
    connect: { sidecarservice: { port: 9000 } }, taggedaddresses: { lan: { address: "10.0.0.2", port: 81 } },
  });
  const shown = (await service.list())["npm-1"];
  assert.deepStrictEqual([shown.Service, shown.Port, shown.Tags, shown.Meta], ["npm-web", 80, ["a"], { k: "v" }]);
  assert.strictEqual((await check.list())["service:npm-1:1"].Notes, "own");
  assert.deepStrictEqual((await consul.catalog.service.list())["npm-web"], ["a"]);
  assert.strictEqual((await consul.catalog.service.nodes({ service: "npm-web", tag: "a" }))[0].ServiceID, "npm-1");
  assert.strictEqual((await consul.catalog.connect.nodes("npm-web"))[0].ServicePort, 9000);
  assert.strictEqual((await consul.health.checks("npm-web")).length, 2);
  assert.deepStrictEqual(await consul.health.service({ service: "npm-web", passing: true }), []);
  await check.deregister("service:npm-1:2");
  assert.strictEqual((await consul.health.service({ service: "npm-web", tag: "a", passing: true })).length, 1);

  const failed = watched({ method: consul.health.service, options: { service: "npm-web" } }, (list) =>
    list[0].Checks.some(({ Status, Output }) => Status === "critical" && Output === "ill"));
  await check.fail({ id: "service:npm-1:1", note: "ill" });
  await failed;
  await check.warn("service:npm-1:1");
  await check.pass("service:npm-1:1");
  await service.maintenance({ id: "npm-1", enable: true, reason: "disk" });
  assert.strictEqual((await check.list())["_service_maintenance:npm-1"].Notes, "disk");
  await service.maintenance({ id: "npm-1", enable: false });
  await check.register({ name: "npm alias", aliasservice: "npm-1", notes: "follows" });
  const { Node: node } = (await consul.health.state("any")).find(({ CheckID }) => CheckID === "npm alias");
  assert.ok((await consul.health.node(node)).some(({ CheckID }) => CheckID === "serfHealth"));
  assert.ok((await consul.catalog.node.services(node)).Services["npm-1"]);
  await check.deregister("npm alias");
  await service.deregister("npm-1");
  assert.deepStrictEqual(Object.keys(await service.list()).filter((id) => id.startsWith("npm")), []);
  await service.deregister("npm-1");
  await assert.rejects(check.pass("service:npm-1:1"), { statusCode: 500 });
  await assert.rejects(service.register({ name: "npm-web", check: { script: "true", interval: "10s" } }), { statusCode: 400 });

  await consul.catalog.register({ node: "npm-node", address: "10.9.9.9", service: { service: "npm-far", id: "npm-far-1" } });
  assert.ok((await consul.catalog.node.list()).some(({ Node: name }) => name === "npm-node"));
  await consul.catalog.deregister({ node: "npm-node" });
}

(async () => {
  for (const part of [keys, sessions, watches, lock, services]) {
    await part();
    console.log(`npm consul: ${part.name}: ok`);
  }
})().catch((fault) => {
  console.error(fault);
  process.exit(1);
});
