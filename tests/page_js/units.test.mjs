import assert from "node:assert/strict";
import test from "node:test";

import { NONE, cores, count, declare, energy, iso, lasting, quantity, sentence, setZone, share, size, when } from "./static/units.js";

test("an unknown value is a dash and never 0", () => {
  for (const text of [count, cores, size, share, energy, lasting]) {
    assert.equal(text(null), NONE);
    assert.equal(text(undefined), NONE);
    assert.notEqual(text(0), NONE);
  }
});

test("bytes are in powers of 1024, and round up to the next unit", () => {
  assert.deepEqual([0, 1023, 1024, 1536, 2 ** 20 - 1, 47.3 * 2 ** 30, -0.2].map(size),
    ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "1.00 MiB", "47.3 GiB", "0 B"]);
});

test("100 % is for all, and small shares keep a digit", () => {
  assert.deepEqual([0, 0.0123, 0.5, 0.9996, 1].map(share), ["0 %", "1.2 %", "50 %", "99.9 %", "100 %"]);
});

test("energy is in joules, and from ten watt-hours on in these", () => {
  assert.deepEqual([999, 35000, 36000, 3.6e9].map(energy), ["999 J", "35.0 kJ", "10.0 Wh", "1.00 MWh"]);
});

test("a message becomes a sentence once", () => {
  assert.equal(sentence("it is away"), "It is away.");
  assert.equal(sentence("Is it?"), "Is it?");
});

test("a declared unit has its factor and its family, and an unknown one is itself", () => {
  declare({ units: { "kbytes/s": { factor: 1024, family: "flow" } } }.units);
  assert.equal(quantity("kbytes/s").factor, 1024);
  assert.equal(quantity("furlongs").factor, 1);
});

test("times are of the chosen zone, and have a date on another day", () => {
  setZone("Europe/Paris");
  const noon = Date.UTC(2026, 0, 15, 12) / 1000;
  assert.match(when(noon, noon * 1000), /^13:00:00/);
  assert.match(when(noon, (noon + 86400) * 1000), /15/);
  assert.equal(iso(noon), "2026-01-15T12:00:00.000Z");
});
