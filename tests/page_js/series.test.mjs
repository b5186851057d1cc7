import assert from "node:assert/strict";
import test from "node:test";

import { carried, combined, csv, joined, single, stacked, summary, together } from "./static/series.js";

const line = (times, values, more = {}) => ({ times, values, unit: "bytes", ...more });

test("a long gap interrupts a line, and a missing value is missing", () => {
  const { times, values } = single({ unit: "bytes" }, { times: [0, 10, 20, 100, 110], values: [1, null, 3, 4, 5] });
  assert.deepEqual(times, [0, 10, 20, 60, 100, 110]);
  assert.deepEqual(values, [1, null, 3, null, 4, 5]);
});

test("an answer of all nodes is one line with its band", () => {
  const answer = { unit: "bytes", together: { series: 2, times: [0, 5], sum: [3, null], mean: [1.5, 2], min: [1, 2], max: [2, 2] } };
  assert.deepEqual(together(answer, "sum"), { times: [0, 5], values: [3, null], min: [1, 2], max: [2, 2], unit: "bytes", several: true });
  assert.deepEqual(together({ unit: "bytes", together: null }, "sum").times, []);
});

test("a sum lacks a value where one of its terms does", () => {
  const found = combined([line([0, 1, 2], [5, 6, 7]), line([0, 2], [1, 2])], [1, -1]);
  assert.deepEqual(found.values, [4, null, 5]);
});

test("lines on one axis keep their interruptions, and those of others are none", () => {
  const [times, first, second] = joined([line([0, 2, 4], [1, null, 3]), line([1, 3], [7, 8])]);
  assert.deepEqual(times, [0, 1, 2, 3, 4]);
  assert.deepEqual(first, [1, null, null, null, 3]);
  assert.deepEqual(second, [undefined, 7, undefined, 8, undefined]);
  assert.deepEqual(carried(second), [null, 7, 7, 8, null]);
});

test("stacks end where a part is missing", () => {
  assert.deepEqual(stacked([[1, null, 3], [1, 1, 1]]), [[1, null, 3], [2, null, 4]]);
});

test("a line in four numbers", () => {
  assert.deepEqual(summary([null, 2, 4, null]), { last: 4, min: 2, max: 4, mean: 3 });
  assert.deepEqual(summary([null]), { last: null, min: null, max: null, mean: null });
});

test("a table for a spreadsheet computes no text, and quotes what has commas", () => {
  const text = csv([line([0], [1], { name: '=SUM("a")' }), line([5], [2], { name: "b, c", min: [1], max: [3] })]);
  const [head, first, second] = text.split("\r\n");
  assert.equal(head, `time,"'=SUM(""a"") [bytes]","b, c [bytes]","b, c, min [bytes]","b, c, max [bytes]"`.replaceAll("[bytes]", /\[(.*?)\]/.exec(head)[0]));
  assert.deepEqual([first, second], ["1970-01-01T00:00:00.000Z,1,,,", "1970-01-01T00:00:05.000Z,,2,1,3"]);
});
