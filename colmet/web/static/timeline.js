// Jobs of a node as bars on a time line: from the archive, and those that run now.

import { Failure, ask, now, who } from "./api.js";
import { ENDS, jobAddress } from "./columns.js";
import { el, keep, mark, say } from "./dom.js";
import { clock, cores, count, day, when } from "./units.js";

const COLUMNS = "job,batch_id,start,end,user,name,cpus,hosts,state";
const MOST = 200; // bars
const LANES = 24;
const LANE = 26; // px
const LABEL = 76; // width of a time, px
const LOOK_S = 30; // between two requests to the archive
const STEPS_MIN = [1, 2, 5, 10, 20, 30, 60, 120, 180, 360, 720];

export class TimeLine {
  /** @param {string} node its name */
  constructor(node) {
    this.node = node;
    this.due = 0;
    this.asked = "";
    this.stored = [];
    this.total = 0;
    this.lanes = el("ol", { class: "lanes", "aria-label": `Jobs on ${node}` });
    this.axis = el("div", { class: "axis", "aria-hidden": "true" });
    this.about = el("p", { class: "soft" });
    this.element = el("div", { class: "timeline" }, el("h3", { text: "Jobs" }), this.lanes, this.axis, this.about);
    this.sized = new ResizeObserver(() => this.#marks());
    this.sized.observe(this.axis);
  }

  close() {
    this.sized.disconnect();
  }

  /**
   * Show the jobs of a time.
   * @param {AbortSignal} signal
   * @param {Array} running rows of the jobs on the node now
   * @param {number[]} span [since, until]
   */
  async refresh(signal, running, span) {
    const [since, until] = span.map(Math.round);
    const visitor = await who(signal);
    const asked = `${until - since} ${until >= now() - LOOK_S ? "now" : until}`;
    if (visitor.archive && (now() >= this.due || asked !== this.asked)) {
      try {
        const answer = await ask("api/v1/archive/jobs", { host: this.node, since, until, columns: COLUMNS, sort: "start", limit: MOST }, signal);
        [this.stored, this.total] = [answer.items, answer.total];
        this.wrong = "";
      } catch (error) {
        if (!(error instanceof Failure) || signal.aborted) throw error;
        this.wrong = error.message; // the jobs that run are shown
      }
      this.due = now() + LOOK_S;
      this.asked = asked;
    }
    this.span = [since, until];
    this.#show(running, visitor.archive);
  }

  #show(running, hasArchive) {
    const [since, until] = this.span;
    const here = new Map(running.map((row) => [row.job, row]));
    const stored = this.stored.map((row) => bar(row, here.get(row.job)));
    const known = new Set(this.stored.filter((row) => row.state === "running").map((row) => row.job));
    const others = running.filter((row) => !known.has(row.job)).map((row) => bar({ ...row, state: "running", cpus: null, start: row.age == null ? null : now() - row.age }, row));
    const bars = [...stored, ...others].filter((one) => (one.end ?? until) >= since && (one.start ?? since) <= until).sort((a, b) => (a.start ?? 0) - (b.start ?? 0));
    const ends = []; // of each lane
    const shown = bars.filter((one) => {
      const begin = one.start ?? since;
      const free = ends.findIndex((end) => end <= begin);
      one.lane = free < 0 ? ends.length : free;
      if (one.lane >= LANES) return false;
      ends[one.lane] = one.end ?? Infinity;
      return true;
    });
    const left = (time) => (100 * Math.min(1, Math.max(0, (time - since) / Math.max(1, until - since)))).toFixed(3);
    keep(this.lanes, shown, (one) => one.key, () => el("li", {}, el("a")), (node, one) => {
      const link = node.firstElementChild;
      const [from, to] = [left(one.start ?? since), left(one.end ?? until)];
      mark(link, "href", one.address);
      mark(link, "title", one.words);
      mark(link, "aria-label", one.words);
      mark(link, "data-state", ENDS[one.state] === "bad" ? "bad" : one.state === "running" ? "running" : "done");
      say(link, one.text);
      Object.assign(node.style, { left: `${from}%`, width: `${to - from}%`, top: `${LANE * one.lane}px` });
    });
    mark(this.lanes, "aria-label", `Jobs on ${this.node} from ${when(since)} to ${when(until)}`);
    this.lanes.style.height = `${LANE * ends.length}px`;
    this.lanes.hidden = !shown.length;
    const more = bars.length - shown.length + Math.max(0, this.total - this.stored.length);
    const none = shown.length ? "" : `No job from ${when(since)} to ${when(until)}.`;
    say(this.about, [none, more ? `${count(more)} more are not shown: choose a shorter time.` : "", this.wrong ?? "", hasArchive ? "" : "Only jobs that run now: the collector keeps no archive of jobs."].filter(Boolean).join(" "));
    this.#marks();
  }

  /** Write the times below the bars. */
  #marks() {
    if (!this.span) return;
    const [since, until] = this.span;
    const wide = this.axis.clientWidth || 300;
    const minutes = STEPS_MIN.find((one) => (60 * one * wide) / (until - since) >= LABEL);
    const step = 60 * (minutes ?? 1440 * Math.ceil(((until - since) * LABEL) / wide / 86400));
    const [hour, minute, second] = clock(1000 * since).split(":").map(Number);
    const midnight = since - 3600 * hour - 60 * minute - second; // in the shown time zone
    const times = [];
    for (let time = midnight + step * Math.ceil((since - midnight) / step); time <= until; time += step) times.push(time);
    keep(this.axis, times, String, () => el("span"), (node, time) => {
      const text = clock(1000 * time).slice(0, 5);
      say(node, text === "00:00" ? day(1000 * time).slice(5) : text);
      node.style.left = `${((100 * (time - since)) / (until - since)).toFixed(3)}%`;
    });
  }
}

/** Return what is shown of a job: a row of the archive, and the one of the node if it runs there now. */
function bar(row, live) {
  const runs = row.state === "running";
  const number = row.batch_id || String(row.job);
  const some = live?.cpus != null ? `${cores(live.cpus)} cores here` : row.cpus == null ? "" : `${cores(row.cpus)} cores${row.hosts > 1 ? ` on ${count(row.hosts)} nodes` : ""}`;
  const times = row.start == null ? "" : runs ? `since ${when(row.start)}` : `from ${when(row.start)} to ${when(row.end)}`;
  const state = String(row.state ?? "").replaceAll("_", " ");
  return {
    key: `${row.job} ${row.start}`, state: row.state, start: row.start, end: runs ? null : row.end, address: runs ? jobAddress(row.job) : `${jobAddress(row.job)}?start=${row.start}`,
    text: [number, row.user, some].filter(Boolean).join(" "),
    words: [`Job ${number}`, row.name ?? "", row.user ? `of ${row.user}` : "", some, times, state].filter(Boolean).join(", "),
  };
}
