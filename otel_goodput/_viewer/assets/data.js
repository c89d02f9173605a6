// The document that Python wrote: a JSON head and columns of integers. See _viewer/document.py for the format.

const MAGIC = "OGV1";

/** Undo gzip. Takes and returns bytes. */
export async function unzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Read the integers of a column: zigzag LEB128 varints of successive differences. */
function integers(bytes, rows) {
  const values = new Float64Array(rows);
  let at = 0;
  let last = 0;
  for (let row = 0; row < rows; row++) {
    let value = 0;
    let scale = 1;
    let byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    // Zigzag without bit operations: these have only 32 bits.
    last += value % 2 ? -(value + 1) / 2 : value / 2;
    values[row] = last;
  }
  return values;
}

/** Columns of equal length. Each is a property: a Float64Array, or a Uint8Array of a `u8` column. */
export class Table {
  constructor(described, blob) {
    this.rows = described ? described.rows : 0;
    for (const [name, column] of Object.entries(described ? described.columns : {})) {
      const bytes = blob.subarray(column.at, column.at + column.length);
      this[name] = column.type === "int" ? integers(bytes, this.rows) : bytes;
    }
  }
}

const TABLES = ["process_steps", "usage"];
const ACCOUNT_TABLES = ["step_bins", "histogram", "steps", "phases", "device", "owners", "window_owners", "saves", "at_risk"];

/** What is about the time of the job, or of one process. */
export const ACCOUNT = [
  ...ACCOUNT_TABLES,
  ...["until", "attempts", "disruptions", "bins", "groups", "excluded", "notices", "slices", "detail"],
  ...["step_ids", "phase_ids", "trace_ids", "attributes"],
];

/** In place of the length of a span, where -1 is one that is open: it is over, and when it ended is not known. */
export const OVER = -2;

/** End of a span by its begin and length; of one that is open `now`, of one whose end is not known its begin. */
export function spanEnd(start, wall, now) {
  if (wall >= 0) return start + wall;
  return wall === OVER ? start : now;
}

/** Everything that the page shows. Times are ns from the run's start, unless a name says otherwise. */
export class Model {
  /** Read a container (bytes, not compressed). Throws Error if it is not one. */
  static read(bytes) {
    const { head, blob } = opened(bytes);
    return new Model(head, blob);
  }

  constructor(head, blob) {
    Object.assign(this, head);
    this.origin_ms = Number(BigInt(head.origin_ns) / 1000000n);
    for (const name of TABLES) this[name] = head[name] ? new Table(head[name], blob) : null;
    Object.assign(this, accountOf(head, head, blob));
    // Of whom the tables are: see `showSubject` (subject.js).
    this.leader = head.leader ? { ...head.leader, ...accountOf(head.leader, head, blob) } : null;
    this.whole = Object.fromEntries(ACCOUNT.map((name) => [name, this[name]]));
    this.shown = "whole";
    this.figures_at = head.until;
    if (this.job) {
      this.job.waits = Object.assign(new Table(this.job.waits, blob), { width: this.job.waits.width });
      if (this.job.own) for (const name of ["windows", "times"]) this.job.own[name] = new Table(this.job.own[name], blob);
    }
    for (const one of this.processes) {
      const shares = one.bins && one.bins.shares;
      if (shares) one.bins.shares = blob.subarray(shares.at, shares.at + shares.length);
    }
  }
}

/** What a document tells of the job, or of one process: `part` is the head, or a part of it. */
function accountOf(part, head, blob) {
  const account = Object.fromEntries(ACCOUNT.map((name) => [name, part[name]]));
  for (const name of ACCOUNT_TABLES) account[name] = part[name] ? new Table(part[name], blob) : null;
  // Names are given by their index in `names`.
  const named = (name) => (typeof name === "number" ? head.names[name] : name);
  account.groups = part.groups.map((one) => ({ ...one, name: named(one.name) }));
  account.bins = { ...part.bins, values: new Table(part.bins.values, blob) };
  account.step_ids = spanIds(part.step_ids, blob);
  account.phase_ids = spanIds(part.phase_ids, blob);
  account.trace_ids = traceIds(part.trace_ids, blob);
  account.attributes = spanTexts(part.attributes, blob);
  return account;
}

function opened(bytes) {
  const magic = String.fromCharCode(...bytes.subarray(0, 4));
  if (magic !== MAGIC) throw new Error("this is not an otel-goodput page");
  const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(4, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
  return { head, blob: bytes.subarray(8 + size) };
}

/** Read the container of a window: the tables of spans, and what their numbers mean. Throws Error if it is none. */
export function readPart(bytes) {
  const { head, blob } = opened(bytes);
  const part = { ...head, step_ids: spanIds(head.step_ids, blob), phase_ids: spanIds(head.phase_ids, blob) };
  part.trace_ids = traceIds(head.trace_ids, blob);
  for (const name of ["steps", "phases", "device"]) part[name] = new Table(head[name], blob);
  part.owners = head.owners ? new Table(head.owners, blob) : null;
  return part;
}

/** Span ids (16 hex digits) by row; only exported spans have one. */
function spanIds(table, blob) {
  const ids = new Map();
  if (!table) return ids;
  const { rows } = new Table({ rows: table.rows, columns: { rows: table.columns.rows } }, blob);
  hexIds(table, blob).forEach((id, one) => ids.set(rows[one], id));
  return ids;
}

/** By span id: 32 hex digits of its trace where that is not the trace of its attempt; "" where it is not known. */
function traceIds(table, blob) {
  const traces = new Map();
  if (!table) return traces;
  const [high, low] = ["high", "low"].map((name) => hexIds(table, blob, name));
  hexIds(table, blob).forEach((id, one) => traces.set(id, /[1-9a-f]/.test(high[one] + low[one]) ? high[one] + low[one] : ""));
  return traces;
}

function hexIds(table, blob, name = "ids") {
  const { at, length } = table.columns[name];
  const bytes = blob.subarray(at, at + length);
  const ids = [];
  for (let one = 0; one < table.rows; one++) {
    let id = "";
    for (let byte = 0; byte < 8; byte++) id += bytes[8 * one + byte].toString(16).padStart(2, "0");
    ids.push(id);
  }
  return ids;
}

/** By span id: what the span says beside its times, {attributes: [[name, value]], status, message, events}. */
function spanTexts(texts, blob) {
  const spans = new Map();
  spans.text = texts ? texts.text : "";
  if (!texts) return spans;
  hexIds(texts, blob).forEach((id, row) => {
    const attributes = [];
    for (let at = 0; at < texts.pairs[row].length; at += 2) attributes.push([texts.names[texts.pairs[row][at]], texts.pairs[row][at + 1]]);
    spans.set(id, { attributes, status: 0, message: "", events: [], ...texts.more[row] });
  });
  return spans;
}

/** Index of the first of the rising `values` that is not below `value`. */
export function lowerBound(values, value, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
