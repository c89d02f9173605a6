// The tree of lanes: run, attempt, host, process, lane. Which rows there are, in which order, and where.
import { duration } from "./format.js";
import { laneHeight, ROW_HEIGHT } from "./lanes.js";

/** Orders of the processes of a host; hosts follow the first of theirs. */
export const PROCESS_ORDERS = [
  ["index", "by index", (one, other) => one.index - other.index],
  [
    "pace",
    "slowest first",
    (one, other) => paceOf(other, "median_s") - paceOf(one, "median_s") || one.index - other.index,
  ],
  [
    "lateness",
    "latest first",
    (one, other) => paceOf(other, "outside_s") - paceOf(one, "outside_s") || one.index - other.index,
  ],
];

function paceOf(process, figure) {
  const value = process.pace && process.pace[figure];
  return typeof value === "number" ? value : -1;
}

/** Rows: {id, level, title, tag, hint, lane | null, expandable, expanded, pinned, y, height, cut: times | null}. */
export class LaneTree {
  constructor() {
    this.closed = new Set(); // ids that a reader has closed though they are open at first, and the other way round
    this.opened = new Set();
    this.pins = [];
    this.order = "index";
    this.rows = [];
    this.pinned = [];
  }

  /** Take the lanes of `source`; what is open, pinned and sorted stays. */
  build(source, attempt = null) {
    this.source = source;
    this.attempt = attempt;
    this.runLanes = source.runLanes();
    this.ownLanes = source.ownLanes();
    this.hosts = hostsOf(source.model.processes);
    this.processLanes = new Map(source.model.processes.map((one) => [one.index, source.processLane(one)]));
    this.layOut();
  }

  isOpen(id, usual) {
    return usual ? !this.closed.has(id) : this.opened.has(id);
  }

  toggle(row, open = !row.expanded) {
    if (!row.expandable || open === row.expanded) return;
    const usual = row.usual ? this.closed : this.opened;
    if (open === row.usual) usual.delete(row.id);
    else usual.add(row.id);
    this.layOut();
  }

  pin(row) {
    if (!row.lane) return;
    if (this.pins.includes(row.id)) this.pins = this.pins.filter((id) => id !== row.id);
    else this.pins.push(row.id);
    this.layOut();
  }

  layOut() {
    this.rows = [];
    const { model } = this.source;
    const run = this.add({
      id: "run",
      level: 1,
      title: "run",
      tag: duration(model.end),
      expandable: true,
      usual: true,
    });
    if (run.expanded) {
      for (const lane of this.runLanes) this.addLane(lane, "run", 2, null);
      const { attempts } = model;
      const shown = this.attempt === null ? attempts : attempts.filter((one) => one.number === this.attempt);
      if (this.attempt === null && attempts.length !== 1)
        this.addLife("all", "all attempts", `${attempts.length}`, null, true);
      for (const one of shown) {
        const end = this.source.ends.get(one.number);
        this.addLife(
          `a${one.number}`,
          `attempt ${one.number}`,
          `${one.state} · ${duration(end - one.begin)}`,
          [one.begin, end],
          shown.length === 1,
          one,
        );
      }
    }
    let y = 0;
    for (const row of this.rows) {
      row.y = y;
      y += row.height;
    }
    this.height = y;
    this.layOutPins();
  }

  layOutPins() {
    let y = 0;
    const byId = new Map(this.rows.map((row) => [row.id, row]));
    this.pinned = this.pins
      .map((id) => byId.get(id) || this.known.get(id))
      .filter(Boolean)
      .map((row) => ({ ...row, pinned: true, level: 1 }));
    for (const row of this.pinned) {
      row.y = y;
      y += row.height;
      if (byId.has(row.id)) byId.get(row.id).isPinned = true;
    }
    this.pinnedHeight = y;
    this.known = new Map([...this.known, ...byId].filter(([id]) => this.pins.includes(id)));
  }

  known = new Map();

  add(row) {
    const whole = { tag: "", hint: "", lane: null, expandable: false, cut: null, height: ROW_HEIGHT, ...row };
    whole.expanded = whole.expandable && this.isOpen(whole.id, whole.usual);
    this.rows.push(whole);
    return whole;
  }

  addLane(lane, parent, level, cut, process = null) {
    this.add({
      id: `${parent}/${lane.key}`,
      level,
      title: lane.title,
      hint: lane.hint,
      lane,
      cut,
      process,
      height: laneHeight(lane),
    });
  }

  /** All attempts, or one: its hosts with their processes. */
  addLife(id, title, tag, cut, usual, attempt = null) {
    const row = this.add({ id, level: 2, title, tag, expandable: this.hosts.length > 0, usual, cut });
    if (!row.expanded) return;
    if (!this.source.leader) this.addJob(`${id}/job`, cut);
    const order = PROCESS_ORDERS.find(([name]) => name === this.order)[2];
    const hosts = this.hosts.map(([name, processes]) => [
      name,
      processes.filter((one) => tookPart(one, attempt)).sort(order),
    ]);
    const shown = hosts
      .filter(([, processes]) => processes.length)
      .sort(([, one], [, other]) => order(one[0], other[0]));
    for (const [name, processes] of shown) {
      const host = this.add({
        id: `${id}/h:${name}`,
        level: 3,
        title: name || "host not known",
        tag: processCount(processes.length),
        hint: name,
        expandable: true,
        usual: true,
        cut,
      });
      if (host.expanded) for (const process of processes) this.addProcess(process, `${id}/p${process.index}`, cut);
    }
  }

  addJob(id, cut) {
    const { ranks } = this.source.model.job;
    const row = this.add({
      id,
      level: 3,
      title: "job",
      tag: `${ranks} ranks`,
      hint: "What all ranks do together: a step is theirs when the last one has begun it",
      expandable: this.ownLanes.length > 0,
      usual: true,
      cut,
    });
    if (row.expanded) for (const lane of this.ownLanes) this.addLane(lane, id, 4, cut);
  }

  addProcess(process, id, cut) {
    const lane = this.processLanes.get(process.index);
    const leads = process === this.source.leader;
    const hint = [leads ? "The leader, with its steps and phases" : lane.hint, process.problem]
      .filter(Boolean)
      .join(". ");
    const row = this.add({
      id,
      level: 4,
      title: `process ${process.index}`,
      tag: tagOf(process, leads, this.order),
      hint,
      process: process.index,
      lane: leads ? null : lane,
      problem: process.problem,
      expandable: leads && this.ownLanes.length > 0,
      usual: leads,
      cut,
      height: leads ? ROW_HEIGHT : laneHeight(lane),
    });
    if (leads && row.expanded) for (const own of this.ownLanes) this.addLane(own, id, 5, cut, process.index);
  }

  /** The row of a process, its groups opened as needed. */
  openProcess(index) {
    const find = () => this.rows.find((one) => one.level === 4 && one.process === index);
    for (let tries = 0; tries < 4 && !find(); tries++) {
      const host = this.source.model.processes.find((one) => one.index === index)?.host || "";
      const closed = this.rows.find(
        (one) => one.expandable && !one.expanded && (one.level < 3 || one.id.endsWith(`/h:${host}`)),
      );
      if (!closed) return null;
      this.toggle(closed, true);
    }
    return find() || null;
  }

  /** Index of the row at `y` (of the scrolled part), or -1. */
  indexAt(y) {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].y + this.rows[middle].height <= y) low = middle + 1;
      else high = middle;
    }
    return y >= 0 && low < this.rows.length ? low : -1;
  }

  /** Rows between two heights. */
  between(top, bottom) {
    const first = this.indexAt(Math.max(0, top));
    if (first < 0) return [];
    let last = first;
    while (last < this.rows.length && this.rows[last].y < bottom) last++;
    return this.rows.slice(first, last);
  }
}

function tookPart(process, attempt) {
  return !attempt || !process.attempts || !process.attempts.length || process.attempts.includes(attempt.number);
}

function tagOf(process, leads, order) {
  if (process.problem) return "problem";
  const figure = order === "lateness" ? "outside_s" : "median_s";
  const value = paceOf(process, figure);
  const pace = value >= 0 ? duration(value * 1e9) : "";
  return leads ? ["leader", pace].filter(Boolean).join(" · ") : pace || process.state || "";
}

const processCount = (number) => `${number} ${number === 1 ? "process" : "processes"}`;

/** [[host, its processes]] */
function hostsOf(processes) {
  const hosts = new Map();
  for (const process of processes) {
    const name = process.host || "";
    if (!hosts.has(name)) hosts.set(name, []);
    hosts.get(name).push(process);
  }
  return [...hosts];
}
