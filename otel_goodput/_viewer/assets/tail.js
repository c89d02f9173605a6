// What has happened since the document was made, span by span: sent once a second, and put into the model.
import { OVER, lowerBound } from "./data.js";
import { mergeSpans, renamed } from "./exact.js";
import { Rows } from "./rows.js";
import { joinedIntervals } from "./spans.js";

const MOST_ROWS = 50000; // beside the document; what comes then waits for the next one
const MOST_BINS = 2048; // of more, every two become one
const SPAN_KEYS = { steps: ["start", "attempt", "number"], phases: ["start", "attempt", "phase", "step"] };

/**
 * The spans that began or ended since the document. `take` puts those of a second into the model; a new document takes the
 * place of those that it has itself. Owners and bins go on as long as no second is missing; what is missing comes with
 * the next document.
 */
export class LiveSpans {
  constructor(model, state) {
    Object.assign(this, { model, parts: [] });
    state.on(["document"], () => this.renewed());
    this.stand();
  }

  /** Begin with what the model has now. */
  stand() {
    const { model } = this;
    // Another document, and not only windows beside it: its own tables are new.
    if (model.bins !== this.shownBins) {
      const { owners, bins, until: end } = model;
      Object.assign(this, { owners, bins, shownBins: bins, end, until: end, whole: true, live: [], cut: end, rows: 0 });
      Object.assign(model, { settled: end, known: end });
      return true;
    }
    return false;
  }

  renewed() {
    const fresh = this.stand();
    this.steps = this.phases = this.device = null;
    const { parts } = this;
    this.parts = [];
    if (fresh) {
      for (const part of parts) if (part.until > this.model.whole.until) this.take(part);
      return;
    }
    // Windows were fetched beside it: owners and bins stay, and the spans are put into the new tables.
    for (const part of parts) {
      this.parts.push(part);
      this.put(part);
      if (!part.owners) this.closeOthers(part);
    }
    this.addWindows();
  }

  /** Put what was sent of a second into the model. What has changed, as the state tells it; "": nothing. */
  take(part) {
    const { model } = this;
    if (part.origin_ns !== model.origin_ns || part.until <= model.whole.until) return "";
    if (this.parts.some((one) => one.until === part.until) || this.rows > MOST_ROWS) return "";
    this.rows += part.steps.rows + part.phases.rows;
    this.parts.push(part);
    if (model.shown === "leader") return ""; // until the job is shown again
    this.own(part);
    const inserted = this.put(part);
    if (!part.owners) this.closeOthers(part);
    this.addWindows();
    model.end = Math.max(model.end, part.until);
    return inserted ? "document" : "tail";
  }

  addWindows() {
    const { model, parts } = this;
    const windows = [...model.detail.windows, ...parts.map((part) => [part.begin, part.until])];
    windows.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    model.detail = { ...model.detail, windows: joinedIntervals(windows) };
  }

  // --- steps and phases --------------------------------------------------------------------------------------------

  /** Whether rows had to be put between others, so that all of them have moved. */
  put(news) {
    const { model } = this;
    const names = new Map(model.names.map((name, at) => [name, at]));
    const part = { ...news, phases: renamed(news, names, model.names) };
    for (const kind of ["steps", "phases", "device"]) this[kind] ??= new Rows(model[kind]);
    if (!this.inOrder(part)) {
      mergeSpans(model, [tablesOf(model), news]);
      this.steps = this.phases = this.device = null;
      return true;
    }
    const steps = this.placed("steps", part);
    const phases = this.placed("phases", part);
    part.phases.parent.forEach((above, row) => {
      if (above >= 0) this.phases.columns.parent[phases[row]] = phases[above];
    });
    for (let row = 0; row < part.device.rows; row++) {
      const owner = part.device.owner[row];
      const mine = owner >= 0 ? steps[owner] : -1 - phases[-1 - owner];
      const values = { begin: part.device.begin[row], end: part.device.end[row], owner: mine };
      this.device.set(this.deviceRow(values), values);
    }
    for (const kind of ["steps", "phases", "device"]) model[kind] = this[kind].table();
    for (const [id, trace] of part.trace_ids) model.trace_ids.set(id, trace);
    return false;
  }

  /** There was too much to be sent one by one: what was open before `part` and is not in it is over. */
  closeOthers(part) {
    for (const kind of ["steps", "phases"]) {
      const { start, attempt, wall, rows } = this.model[kind];
      const name = (table, row) => `${table.start[row]} ${table.attempt[row]}`;
      const still = new Set(Array.from({ length: part[kind].rows }, (_, row) => name(part[kind], row)));
      for (let row = 0; row < rows && start[row] < part.begin; row++) {
        if (wall[row] < 0 && !still.has(name({ start, attempt }, row))) wall[row] = OVER;
      }
    }
  }

  /** Where an interval of the device's time is already, or -1. While it is open its begin may still change. */
  deviceRow(values) {
    const known = this.device.find(["begin", "owner"], values);
    if (known >= 0) return known;
    const { columns, rows } = this.device;
    for (let row = rows - 1; row >= Math.max(0, rows - 64); row--) {
      if (columns.owner[row] === values.owner && columns.end[row] < 0) return row;
    }
    return -1;
  }

  /** Whether all that is new begins behind what is there: rows are in the order of their begins. */
  inOrder(part) {
    return ["steps", "phases"].every((kind) => {
      const { rows, columns } = this[kind];
      let last = rows ? columns.start[rows - 1] : -Infinity;
      for (let row = 0; row < part[kind].rows; row++) {
        if (this.rowOf(kind, part[kind], row) >= 0) continue;
        if (part[kind].start[row] < last) return false;
        last = part[kind].start[row];
      }
      return true;
    });
  }

  rowOf(kind, table, row) {
    const values = Object.fromEntries([...SPAN_KEYS[kind], "name"].map((name) => [name, table[name]?.[row]]));
    const known = this[kind].find(kind === "phases" ? [...SPAN_KEYS.phases, "name"] : SPAN_KEYS.steps, values);
    if (known >= 0 || kind === "steps" || this.model.phase_names[table.phase[row]] !== "compile") return known;
    const open = this.phases.find(SPAN_KEYS.phases, values); // what was compiled is known at the end
    return open >= 0 && this.phases.columns.wall[open] < 0 ? open : -1;
  }

  /** Put the rows of a table where they are already, or behind all; their places. */
  placed(kind, part) {
    const ids = kind === "steps" ? "step_ids" : "phase_ids";
    const table = part[kind];
    const places = [];
    for (let row = 0; row < table.rows; row++) {
      const known = this.rowOf(kind, table, row);
      const values = {};
      for (const name of this[kind].names) values[name] = table[name][row];
      if (kind === "phases") values.parent = known < 0 ? -1 : this.phases.columns.parent[known];
      if (known >= 0) values.flags |= this[kind].columns.flags[known];
      const place = this[kind].set(known, values);
      if (part[ids].has(row)) this.model[ids].set(place, part[ids].get(row));
      places.push(place);
    }
    return places;
  }

  // --- whose the time was ------------------------------------------------------------------------------------------

  /** Owners and bins go on. From the begin of a step that was in flight what is sent now counts. */
  own(part) {
    const categories = part.categories.map(({ name, custom }) =>
      this.model.categories.findIndex((one) => one.name === name && one.custom === custom),
    );
    const { owners } = part;
    const from = owners && owners.rows ? owners.begin[0] : part.begin;
    if (!owners || from > this.until || [...owners.category].some((one) => categories[one] < 0)) this.whole = false;
    if (!this.whole) return;
    this.until = part.until;
    this.cut = Math.min(this.cut, from);
    while (this.live.length && this.live[this.live.length - 1][0] >= from) this.live.pop();
    const last = this.live[this.live.length - 1];
    if (last) last[1] = Math.min(last[1], from - last[0]);
    for (let row = 0; row < owners.rows; row++)
      this.live.push([owners.begin[row], owners.length[row], categories[owners.category[row]]]);
    this.showOwners();
  }

  showOwners() {
    const { model, owners, live } = this;
    if (owners) {
      const kept = lowerBound(owners.begin, this.cut);
      const joined = { rows: kept + live.length };
      ["begin", "length", "category"].forEach((name, at) => {
        joined[name] = new Float64Array(joined.rows);
        joined[name].set(owners[name].subarray(0, kept));
        live.forEach((one, row) => (joined[name][kept + row] = one[at]));
      });
      if (kept) joined.length[kept - 1] = Math.min(joined.length[kept - 1], this.cut - joined.begin[kept - 1]);
      model.owners = joined;
    }
    model.bins = this.shownBins = this.longerBins();
    model.known = this.until;
  }

  /** The document's bins, with the time since then. */
  longerBins() {
    const { bins, live, end } = this;
    let joined = 1; // bins of the document in one
    while ((this.until - bins.begin) / (joined * bins.width) > MOST_BINS) joined *= 2;
    const width = joined * bins.width;
    const count = Math.ceil(Math.max(bins.count / joined, (this.until - bins.begin) / width));
    const categories = [...new Set([...bins.categories, ...live.map((one) => one[2])])].sort((one, other) => one - other);
    const values = { rows: count };
    for (const category of categories) {
      const sums = (values[category] = new Float64Array(count));
      bins.values[category]?.forEach((ns, bin) => (sums[Math.floor(bin / joined)] += ns));
    }
    for (const [begin, length, category] of live) {
      for (let at = Math.max(begin, end); at < begin + length; ) {
        const bin = Math.floor((at - bins.begin) / width);
        const edge = Math.min(begin + length, bins.begin + (bin + 1) * width);
        values[category][bin] += edge - at;
        at = edge;
      }
    }
    return { ...bins, width, count, categories, values };
  }
}

const tablesOf = ({ steps, phases, device, step_ids, phase_ids, trace_ids }) => {
  return { steps, phases, device, step_ids, phase_ids, trace_ids };
};
