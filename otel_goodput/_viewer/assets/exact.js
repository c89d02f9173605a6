// Exact spans of what a served run sums up: fetched when the timeline looks closely at it, and put into the model.
import { complaint } from "./connection.js";
import { readPart } from "./data.js";
import { uncovered } from "./spans.js";
import { reportOf } from "./subject.js";

const MOST_PARTS = 8; // windows kept; the one that was used longest ago goes first
const MOST_SPANS = 15000; // an interval with about more than that is looked at from too far away
const REST_MS = 150; // after the last change of the view
const SPANS = { steps: ["attempt", "start", "number"], phases: ["attempt", "start", "phase", "name", "step"] };

/** Follow the view of the timeline on a served page; a page from a file has nobody to ask. */
export function startExact(model, state) {
  const source = document.getElementById("document")?.dataset.source;
  return source ? new ExactSpans(model, state, source.replace(/document$/, "window")) : null;
}

class ExactSpans {
  constructor(model, state, address) {
    Object.assign(this, { model, state, address, parts: [], refused: [], asking: null });
    this.keep();
    state.on(["document"], () => this.renewed());
    state.on(["view"], () => this.rest());
    this.rest();
  }

  /** Remember what the document itself has. */
  keep() {
    const { steps, phases, device, step_ids, phase_ids, trace_ids, window_owners: owners, detail } = this.model;
    const { windows } = detail;
    this.own = { steps, phases, device, step_ids, phase_ids, trace_ids, owners, windows, end: this.model.end };
    this.lost = reportOf(this.model).steps?.lost;
    this.shown = this.model.shown;
  }

  /** The document has been fetched again: what was fetched beside it is put into it before anybody draws. */
  renewed() {
    if (this.telling) return;
    const { lost, shown } = this;
    this.keep();
    this.refused = [];
    // The fate of steps that were fetched earlier may be another one by now.
    if (lost !== this.lost || shown !== this.shown) this.parts = [];
    if (this.parts.length) this.merge();
    this.rest();
  }

  rest() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), REST_MS);
  }

  /** Ask for what is missing in the view: one request at a time. */
  async look() {
    const wanted = this.asking ? null : this.wanted();
    if (!wanted) return;
    this.asking = wanted;
    try {
      const { shown } = this.model;
      const whose = shown === "leader" ? "&process=0" : "";
      const answer = await fetch(`${this.address}?begin=${wanted[0]}&end=${wanted[1]}${whose}`);
      if (!answer.ok) throw new Error(`the server says ${answer.status}`);
      const part = readPart(new Uint8Array(await answer.arrayBuffer()));
      if (part.origin_ns !== this.model.origin_ns) throw new Error("the run was started over; reload this page");
      if (shown !== this.model.shown) return;
      // An answer without an end of its own would be asked for again and again.
      if (!(part.until > wanted[0])) throw new Error("the journal has no readable data for this time");
      this.parts.push(part);
      if (this.parts.length > MOST_PARTS) this.parts.shift();
      this.merge();
      this.telling = true;
      this.state.tell(["document"]);
      complaint("");
    } catch (error) {
      this.refused.push(wanted);
      complaint(`The single spans of this time cannot be read: ${error.message}. It stays summed up.`);
    } finally {
      this.telling = false;
      this.asking = null;
      this.rest(); // the view may have moved meanwhile
    }
  }

  /** The first interval of the view that is summed up and near enough to be shown span by span, or null. */
  wanted() {
    const { view } = this.state;
    if (!view || this.model.detail.complete) return null;
    // What came after the document is sent by itself, or with the next one.
    const [begin, end] = [Math.max(0, Math.floor(view[0])), Math.min(this.own.end, Math.ceil(view[1]))];
    if (!(end > begin) || this.spansIn(begin, end) > MOST_SPANS) return null;
    this.parts.sort((one, other) => overlaps(one, begin, end) - overlaps(other, begin, end));
    const known = [...this.model.detail.windows, ...this.refused].sort((one, other) => one[0] - other[0]);
    const missing = uncovered(known, begin, end)[0];
    if (!missing) return null;
    // With some room, so that a small move asks for nothing.
    const room = Math.round((end - begin) / 2);
    const roomy = [Math.max(0, missing[0] - room), Math.min(this.own.end, missing[1] + room)];
    const around = uncovered(known, ...roomy).find(([low, high]) => low <= missing[0] && missing[1] <= high);
    return around && this.spansIn(...around) <= MOST_SPANS ? around : missing;
  }

  /** About how many spans there are from `begin` to `end`. */
  spansIn(begin, end) {
    const { step_bins: bins, groups } = this.model;
    let count = 0;
    let all = 0;
    for (let row = 0; row < bins.rows; row++) {
      const low = bins.begin[row];
      const high = row + 1 < bins.rows ? bins.begin[row + 1] : this.model.end;
      const part = Math.min(end, high) - Math.max(begin, low);
      all += bins.count[row];
      if (part > 0) count += (bins.count[row] * part) / (high - low);
    }
    return all ? (count * groups.reduce((sum, one) => sum + one.count, 0)) / all : 0;
  }

  /** Put all parts into the model. What the document says itself counts: it may be newer. */
  merge() {
    const { model, own, parts } = this;
    mergeSpans(model, [...parts, own]);
    model.window_owners = mergedOwners([...parts, own], model.categories.length);
    const windows = [...own.windows, ...parts.map((part) => [part.begin, part.until])];
    model.detail = { ...model.detail, windows: windows.sort((one, other) => one[0] - other[0]) };
  }
}

/** Make the tables of `model` of those of all `sources`; of two that have the same span the last counts. */
export function mergeSpans(model, sources) {
  const names = new Map(model.names.map((name, at) => [name, at]));
  const parts = sources.map((one) => (one.names ? { ...one, phases: renamed(one, names, model.names) } : one));
  const steps = merged("steps", parts, "step_ids");
  const phases = merged("phases", parts, "phase_ids");
  const { parent } = phases.table;
  phases.origin.forEach(([at, row], to) => {
    const above = parts[at].phases.parent[row];
    parent[to] = above < 0 ? -1 : phases.places[at][above];
  });
  model.device = devices(parts, steps.places, phases.places);
  Object.assign(model, { steps: steps.table, phases: phases.table, step_ids: steps.ids, phase_ids: phases.ids });
  model.trace_ids = new Map(sources.flatMap((one) => [...one.trace_ids]));
}

/** Owners of all sources as one table: what two of them tell is taken once. */
function mergedOwners(sources, categories) {
  const all = sources.flatMap(({ owners }) => {
    if (!owners) return [];
    const { begin, length, category } = owners;
    return Array.from({ length: owners.rows }, (_, row) => [begin[row], begin[row] + length[row], category[row]]);
  });
  all.sort((one, other) => one[0] - other[0]);
  const kept = [];
  let reached = -Infinity;
  for (const [begin, end, category] of all) {
    // A category that is newer than the document has no name in it yet.
    if (end > reached && category < categories) kept.push([Math.max(begin, reached), end, category]);
    reached = Math.max(reached, end);
  }
  const column = (of) => Float64Array.from(kept, of);
  const [begin, length] = [column((one) => one[0]), column((one) => one[1] - one[0])];
  return { rows: kept.length, begin, length, category: column((one) => one[2]) };
}

const overlaps = (part, begin, end) => Number(part.begin < end && part.until > begin);

/** Phases of a part with the numbers that the document gives to names. */
export function renamed(part, names, texts) {
  const name = part.phases.name.map((at) => {
    const text = part.names[at];
    if (!names.has(text)) names.set(text, texts.push(text) - 1);
    return names.get(text);
  });
  return { ...part.phases, name };
}

/**
 * One table of those of all sources. A span that several have is taken from the last, with what any of them knows.
 * `origin`: [source, row] by row; `places`: row by source and its row.
 */
function merged(kind, sources, ids) {
  const byKey = new Map();
  const keys = sources.map((source) => {
    const table = source[kind];
    const columns = SPANS[kind].map((name) => table[name]);
    return Array.from({ length: table.rows }, (_, row) => columns.map((column) => column[row]).join(" "));
  });
  keys.forEach((all, at) => all.forEach((key, row) => byKey.set(key, [at, row])));
  const start = ([at, row]) => sources[at][kind].start[row];
  const order = [...byKey].sort((one, other) => start(one[1]) - start(other[1]));
  const origin = order.map(([, from]) => from);
  const rows = new Map(order.map(([key], row) => [key, row]));
  const places = keys.map((all) => all.map((key) => rows.get(key)));
  const table = { rows: order.length };
  for (const name of Object.keys(sources[0][kind])) {
    if (name !== "rows") table[name] = Float64Array.from(origin, ([at, row]) => sources[at][kind][name][row]);
  }
  const known = new Map();
  sources.forEach((source, at) => {
    places[at].forEach((to, row) => (table.flags[to] |= source[kind].flags[row]));
    for (const [row, id] of source[ids]) known.set(places[at][row], id);
  });
  return { table, origin, places, ids: known };
}

function devices(sources, steps, phases) {
  const byBegin = new Map();
  sources.forEach(({ device }, at) => {
    for (let row = 0; row < device.rows; row++) {
      const owner = device.owner[row];
      const moved = owner >= 0 ? steps[at][owner] : -1 - phases[at][-1 - owner];
      byBegin.set(`${moved} ${device.begin[row]}`, [device.begin[row], device.end[row], moved]);
    }
  });
  const all = [...byBegin.values()].sort((one, other) => one[0] - other[0]);
  const column = (at) => Float64Array.from(all, (one) => one[at]);
  return { rows: all.length, begin: column(0), end: column(1), owner: column(2) };
}
