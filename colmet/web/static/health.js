// The view of the health of the collector and the nodes, for administrators.

import { ask, now } from "./api.js";
import { nodeAddress } from "./columns.js";
import { Facts, el, keep, mark, say } from "./dom.js";
import { Table, column, linked } from "./table.js";
import { NONE, ago, count, lasting, moment, sentence, size, when } from "./units.js";

const WORDS = { ok: "OK", warning: "Warning", critical: "Critical", unknown: "Unknown" };
const MOST = 20; // rows of a list before "and more"
const LATE_S = 20; // an older report is named
const WHY = {
  unknown_key: "with an unknown key",
  key_withdrawn: "with a key that was removed",
  handshake_failed: "without a key, or with one for another collector",
};
const RECEIVED = [
  ["missing", "Batches missing"], ["duplicates", "Batches twice"], ["rejects", "Messages that cannot be read"], ["foreign", "Messages with another host's key"],
  ["limited", "Messages beyond the rate limit"], ["left_out", "Rows dropped"], ["conflicts", "Batches with another one's number"],
];
const REST = ": colmet status collector --all";
const NOTHING = "Nothing was dropped or refused in the last hour.";

/** Fill an element with a text in which `...` is code. */
function words(node, text) {
  if (node.dataset.text === text) return;
  node.dataset.text = text;
  node.replaceChildren(...text.split("`").map((part, n) => (n % 2 ? el("code", { text: part }) : part)));
}

/** A list of findings with their remedies. */
class Findings {
  constructor(label) {
    this.element = el("ul", { class: "findings", "aria-label": label });
  }

  show(findings) {
    this.element.hidden = !findings.length;
    keep(this.element, findings, (one) => one.found, () => el("li", {}, el("strong"), " ", el("span"), el("p", { class: "remedy" })), (node, one) => {
      const [level, found, remedy] = node.children;
      mark(node, "data-level", one.level);
      say(level, `${WORDS[one.level] ?? one.level}:`);
      say(found, one.found);
      remedy.hidden = !one.remedy;
      words(remedy, one.remedy ? sentence(one.remedy) : "");
    });
  }
}

/** A section with a line of text and a table, which is absent without rows. */
class Part {
  constructor(id, title, columns, key, sort) {
    this.text = el("p");
    this.more = el("p", { class: "soft", hidden: true });
    this.table = columns && new Table(title, columns, key, { sort, reverse: false }, () => this.#list());
    this.rows = [];
    this.element = el("section", { class: "narrow", "aria-labelledby": id }, el("h2", { id, text: title }), this.text, ...(columns ? [this.table.element, this.more] : []));
  }

  /**
   * Show rows below a text.
   * @param {number} total number of all rows, if these are the first of them
   * @param {string} where the others are
   */
  show(text, rows = [], total = rows.length, where = "") {
    words(this.text, text);
    this.text.hidden = !text;
    this.rows = rows;
    if (!this.table) return;
    this.table.element.hidden = !rows.length;
    const more = Math.max(total, rows.length) - Math.min(MOST, rows.length);
    this.more.hidden = !more;
    say(this.more, `and ${count(more)} more${where}`);
    this.#list();
  }

  #list() {
    this.table.show(this.table.arranged(this.rows).slice(0, MOST));
  }
}

const node = linked("node", "Node", (row) => row.node, (row) => nodeAddress(row.node));
const number = (key, title, more) => column(key, title, (row) => count(row[key]), more);

export class Health {
  title = "Health";

  constructor() {
    this.verdict = el("p", { class: "verdict", role: "status" });
    this.about = el("p", { class: "soft" });
    this.findings = new Findings("What is wrong, the worst first");
    this.facts = new Facts("The collector and its nodes");
    this.outputs = new Part("outputs-title", "Outputs", [
      column("name", "Output", (row) => row.name, { left: true }),
      column("state", "State", (row) => row.state, { left: true, show: (cell, row) => {
        say(cell, row.state);
        cell.classList.toggle("bad", !row.available);
      } }),
      column("behind_s", "Behind", (row) => (row.waiting ? lasting(row.behind_s) : NONE), { long: "age of the oldest message that waits for it" }),
      number("waiting", "Waiting", { rank: 1, long: "messages that wait for it" }),
      number("written", "Rows written", { rank: 1 }),
      number("lost", "Lost", { long: "messages that were gone when their turn came" }),
      number("dropped", "Dropped", { long: "rows dropped for a defect" }),
    ], (row) => row.name, "name");
    this.silent = new Part("silent-title", "Silent nodes", [
      node,
      column("seen", "Last heard", (row) => when(row.seen), { show: (cell, row) => {
        say(cell, when(row.seen));
        mark(cell, "title", row.seen == null ? null : `${ago(row.seen, now())}, ${moment(row.seen)}`);
      } }),
      column("version", "Version", (row) => row.version ?? NONE, { left: true }),
    ], (row) => row.node, "seen");
    this.late = new Part("late-title", "Lag", [node, column("lag", "Lag", (row) => lasting(row.lag), { long: "age of the latest rows on arrival" })], (row) => row.node, "lag");
    this.spools = new Part("spools-title", "Spools of the nodes", [
      node, number("waiting", "Waiting", { long: "batches kept until they are acknowledged" }), number("dropped", "Dropped", { long: "batches given up, beyond the bounds of the spool" }),
    ], (row) => row.node, "waiting");
    this.drops = new Part("drops-title", "Drops in the last hour", [column("what", "What", (row) => row.what, { left: true }), number("count", "Number")], (row) => row.what, "count");
    this.events = new Part("events-title", "Other events of the last hour", [column("what", "What", (row) => row.what, { left: true }), number("count", "Number")], (row) => row.what, "count");
    this.since = new Facts("Missing, refused and dropped since the start of the collector");
    this.started = el("section", { "aria-labelledby": "since-title" }, el("h2", { id: "since-title", text: "Since the start of the collector" }), this.since.element);
    this.versions = new Part("versions-title", "Versions", [column("version", "colmet-node", (row) => row.version, { left: true }), number("nodes", "Nodes")], (row) => row.version, "nodes");
    this.keys = new Part("keys-of-nodes-title", "Keys", [
      column("address", "From", (row) => row.address || NONE, { left: true }),
      column("why", "Refused", (row) => WHY[row.why] ?? row.why, { left: true }),
      number("count", "Connections"),
    ], (row) => `${row.address} ${row.why}`, "count");
    this.advice = new Findings("Refused connections");
    this.keys.element.append(this.advice.element);
    this.element = el("div", {},
      el("h1", { text: "Health", tabindex: "-1" }),
      this.verdict, this.about, this.findings.element, this.facts.element,
      ...[this.outputs, this.silent, this.late, this.spools, this.drops, this.events].map((part) => part.element),
      this.started, this.versions.element, this.keys.element);
  }

  close() {}

  async refresh(signal) {
    this.#show(await ask("api/v1/health", {}, signal));
  }

  #show(health) {
    const { collector, nodes, outputs, journal, spools } = health;
    const wrong = health.level !== "ok";
    mark(this.verdict, "data-level", health.level);
    say(this.verdict, wrong ? `${WORDS[health.level]}: ${count(health.findings.length)} ${health.findings.length === 1 ? "finding" : "findings"}` : `OK: ${health.findings[0]?.found ?? ""}`);
    const age = health.reported_age;
    say(this.about, age != null && age > LATE_S ? `The collector's report is of ${when(health.time - age)}.` : "As colmet status collector reports it.");
    this.findings.show(wrong ? health.findings : []);
    const up = collector.uptime_s == null ? null : health.time - collector.uptime_s;
    this.facts.show([
      ["Nodes", nodes.heard == null ? null : `${count(nodes.heard)} heard`],
      ["Silent", nodes.silent ? count(nodes.silent) : null],
      ["Gone", nodes.gone ? count(nodes.gone) : null, "silent for more than a day"],
      ["Lag, median", nodes.lag_median_s == null ? null : lasting(nodes.lag_median_s), "age of the rows of a node on arrival"],
      ["Lag, max", nodes.lag_max_s == null ? null : lasting(nodes.lag_max_s)],
      ["Collector", collector.version, collector.host],
      ["Started", up == null ? null : when(up), up == null ? null : ago(up, health.time)],
      ["Journal", journal.bytes == null ? null : size(journal.bytes), journal.directory || "in memory"],
    ]);
    this.outputs.show(outputs.length ? "" : "The collector has no output.", outputs.map((one) => ({
      ...one, state: one.available ? "writes" : `AWAY for ${lasting(one.away_s)}`,
    })));
    this.silent.show(health.silent.length ? "" : "No node is silent.", health.silent.map((one) => ({ ...one, seen: one.seen_age == null ? null : health.time - one.seen_age })), nodes.silent, REST);
    this.late.show(health.late.length ? "" : "No node's rows arrive more than 10 s late.", health.late, nodes.late, REST);
    this.spools.show(spool(spools), spools.worst, spools.remarkable);
    const drops = health.last_hour.filter((one) => one.dropped);
    this.drops.show(drops.length ? "" : NOTHING, drops);
    const events = health.last_hour.filter((one) => !one.dropped);
    this.events.show("", events.map((one) => ({ ...one, what: one.harmless ? `${one.what} (harmless)` : one.what })));
    this.events.element.hidden = !events.length;
    this.since.show(RECEIVED.map(([key, name]) => [name, health.received[key] ? count(health.received[key]) : null]));
    this.started.hidden = !RECEIVED.some(([key]) => health.received[key]);
    const other = health.versions.filter((one) => one.version !== collector.version).reduce((sum, one) => sum + one.nodes, 0);
    this.versions.show(
      other ? `${count(other)} ${other === 1 ? "node has" : "nodes have"} another version than the collector, ${collector.version}.` : health.versions.length ? `All nodes have the version of the collector, ${collector.version}.` : "No node is heard.",
      other ? health.versions : []);
    this.keys.show(keyed(health.keys), health.keys.refused);
    this.advice.show(health.keys.findings);
  }
}

function spool({ nodes, waiting, dropped }) {
  if (!nodes) return "No node has reported its spool yet; they do so once a minute.";
  if (!waiting && !dropped) return "No batch waits for the collector, and none was dropped since the nodes' start.";
  return `${count(nodes)} ${nodes === 1 ? "node reports" : "nodes report"}: ${count(waiting)} batches wait for the collector, ${count(dropped)} were dropped since the nodes' start.`;
}

function keyed({ required, keys, connections, broken_keys: broken }) {
  if (required == null) return "Not known yet.";
  if (!required) return "Keys are off: any host that reaches the collector can send, in clear text. `colmet enrol NAME...` makes keys.";
  return `Only known keys are accepted: ${count(keys)} keys of nodes, ${count(connections)} connections now${broken ? `; ${count(broken)} files of keys cannot be used` : ""}.`;
}
