import assert from "node:assert/strict";
import test from "node:test";

import "./browser.mjs";

const { percent } = await import("./static/filters.js");
const { natural } = await import("./static/table.js");
const { bytes, measured } = await import("./static/memory.js");
const { jobAddress, nodeAddress } = await import("./static/columns.js");

test("names are sorted with numbers by value", () => {
  assert.deepEqual(["node-10", "node-2", "Node-1", "node-2b"].sort(natural), ["Node-1", "node-2", "node-2b", "node-10"]);
});

test("the filter of efficiency takes whole percent alone", () => {
  assert.deepEqual(["1", "50", "100"].map(percent), [0.01, 0.5, 1]);
  for (const text of ["", "0", "101", "5.5", "-1", "x", "1e1"]) assert.equal(percent(text), null);
});

test("sizes of Grid Engine", () => {
  assert.deepEqual(["47.3G", "1k", "1K", "-", "", null, "1X"].map(bytes), [47.3 * 2 ** 30, 1000, 1024, null, null, null, null]);
});

test("free memory of a host depends on all jobs, and unknown use is unknown", () => {
  const hosts = { n1: { mem_total: "8G", num_proc: "4", jobs: { 7: { jobcount: 2, taskid: [], owner: "alice", jobname: "x" } } } };
  const owners = { alice: { jobs: { 7: { hostname: { n1: { 0: "x" } }, requested_h_vmem_dblval: 2 ** 30 } } } };
  const [host] = measured(hosts, owners, true);
  assert.deepEqual([host.reserved, host.used, host.free, host.slots, host.cpus], [2 * 2 ** 30, null, 6 * 2 ** 30, 2, 4]);
  assert.equal(measured(hosts, owners, false)[0].free, null);
});

test("addresses of jobs and nodes are encoded", () => {
  assert.equal(jobAddress("1/2"), "#/job/1%2F2");
  assert.equal(nodeAddress("n\ud800"), "#/node/n%EF%BF%BD");
});
