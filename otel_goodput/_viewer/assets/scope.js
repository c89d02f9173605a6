// What the panels tell about: the whole run, one attempt, or an interval of time; and its partition.
import { lowerBound } from "./data.js";

/** {kind: "run" | "attempt" | "range", begin, end, attempt}: the interval selected, else the attempt, else the run. */
export function scopeOf(model, state) {
  if (state.range) {
    const [begin, end] = state.range;
    const last = runEnd(model);
    return {
      kind: "range",
      begin: Math.max(0, Math.min(begin, last)),
      end: Math.max(0, Math.min(end, last)),
      attempt: null,
    };
  }
  const attempt = model.attempts.find((one) => one.number === state.attempt);
  if (attempt) return { kind: "attempt", begin: attempt.begin, end: attempt.end, attempt };
  return { kind: "run", begin: 0, end: runEnd(model), attempt: null };
}

/** The end of the run's time: that of its last attempt, which for one that has ended is before the account's moment. */
export function runEnd(model) {
  return model.attempts.reduce((last, one) => Math.max(last, one.end), model.live ? model.known || 0 : 0);
}

/** The owners that tell each moment of [begin, end), or null: the run's, or of a long run those of what was read. */
export function ownersOf(model, begin, end) {
  const { owners, window_owners: partial } = model;
  if (owners || !partial) return owners;
  let reached = begin;
  for (let row = Math.max(0, lowerBound(partial.begin, begin + 1) - 1); row < partial.rows && reached < end; row++) {
    if (partial.begin[row] > reached) return null;
    reached = Math.max(reached, partial.begin[row] + partial.length[row]);
  }
  return reached >= end ? partial : null;
}

/** Whether the owner of each moment of [begin, end) is known for good: what came after the document is not. */
export function isSettled(model, begin, end) {
  return ownersOf(model, begin, end) !== null && end <= (model.settled ?? Infinity);
}

/** Seconds of a report as whole ns. Exact: seconds are ns / 1e9, and up to 104 days a double holds all of them. */
export function nanoseconds(secondsTold) {
  return Math.round(secondsTold * 1e9);
}

/**
 * Partition of a scope: {pieces: [{category, ns}], elapsed, exact}; the pieces add up to elapsed. Productive time comes
 * first, then the largest loss. The run's and an attempt's numbers are those of the report.
 */
export function partitionOf(model, scope) {
  let byCategory;
  let exact = true;
  if (scope.kind === "run") byCategory = reportedSeconds(model, model.report.seconds);
  else if (scope.kind === "attempt" && !isOfOthers(model)) byCategory = reportedSeconds(model, scope.attempt.seconds);
  else {
    exact = isSettled(model, scope.begin, scope.end);
    byCategory = timeByCategory(model, scope.begin, scope.end);
  }
  const pieces = byCategory.map((ns, category) => ({ category, ns })).filter((piece) => piece.ns > 0);
  const productive = (piece) => (model.categories[piece.category].name === "productive" ? 1 : 0);
  pieces.sort((one, other) => productive(other) - productive(one) || other.ns - one.ns);
  return { pieces, elapsed: pieces.reduce((sum, piece) => sum + piece.ns, 0), exact };
}

/** Whether a model as `seen` (subject.js) is about others than its attempts. */
function isOfOthers(model) {
  const { subject } = model;
  if (!subject) return false;
  return subject.kind === "job" ? !model.leader : Boolean(subject.process && !subject.process.leader);
}

/** ns by category of a report's seconds. */
function reportedSeconds(model, given) {
  return model.categories.map(({ name, custom }) => {
    const value = name === "custom" ? (given.custom || {})[custom] : given[name];
    return value ? nanoseconds(value) : 0;
  });
}

/** ns by category between two moments: exact from owners; without them, of a bin cut by an edge the share in time. */
export function timeByCategory(model, begin, end) {
  const sums = new Array(model.categories.length).fill(0);
  const { bins } = model;
  const owners = ownersOf(model, begin, end);
  if (owners) {
    let row = Math.max(0, lowerBound(owners.begin, begin) - 1);
    for (; row < owners.rows && owners.begin[row] < end; row++) {
      const held = Math.min(end, owners.begin[row] + owners.length[row]) - Math.max(begin, owners.begin[row]);
      if (held > 0) sums[owners.category[row]] += held;
    }
    return sums;
  }
  const last = runEnd(model);
  for (const index of bins.categories) {
    const column = bins.values[String(index)];
    const [lowest, highest] = binsBetween(bins, begin, end);
    for (let bin = lowest; bin < highest; bin++) {
      const from = bins.begin + bin * bins.width;
      const until = Math.min(from + bins.width, last);
      const held = Math.min(end, until) - Math.max(begin, from);
      if (held > 0 && until > from) sums[index] += (column[bin] * held) / (until - from);
    }
  }
  return sums.map(Math.round);
}

function binsBetween(bins, begin, end) {
  const first = Math.max(0, Math.floor((begin - bins.begin) / bins.width));
  return [first, Math.min(bins.count, Math.ceil((end - bins.begin) / bins.width))];
}

/**
 * The scope cut into bins, for a chart: {begins, values: by category an array, width}. Bins are those of the document
 * for the run, and finer ones made of the owners for less.
 */
export function binned(model, scope, most = 600) {
  const { bins } = model;
  const owners = scope.kind === "run" ? null : ownersOf(model, scope.begin, scope.end);
  if (!owners) {
    const [first, last] = binsBetween(bins, scope.begin, scope.end);
    const begins = Array.from({ length: last - first }, (_, at) => bins.begin + (first + at) * bins.width);
    const values = model.categories.map(() => null);
    for (const index of bins.categories) values[index] = bins.values[String(index)].subarray(first, last);
    return { begins, values, width: bins.width };
  }
  const width = Math.max(1, Math.ceil((scope.end - scope.begin) / most));
  const count = Math.max(1, Math.ceil((scope.end - scope.begin) / width));
  const begins = Array.from({ length: count }, (_, at) => scope.begin + at * width);
  const values = model.categories.map(() => null);
  let row = Math.max(0, lowerBound(owners.begin, scope.begin) - 1);
  for (; row < owners.rows && owners.begin[row] < scope.end; row++) {
    const category = owners.category[row];
    const until = Math.min(scope.end, owners.begin[row] + owners.length[row]);
    let at = Math.max(scope.begin, owners.begin[row]);
    while (at < until) {
      const bin = Math.floor((at - scope.begin) / width);
      const edge = Math.min(until, scope.begin + (bin + 1) * width);
      values[category] ||= new Float64Array(count);
      values[category][bin] += edge - at;
      at = edge;
    }
  }
  return { begins, values, width };
}

/** Whether all of a scope lies in the region whose phases the document holds one by one. */
export function isDetailed(model, scope) {
  if (model.detail.complete) return true;
  return model.detail.windows.some(([begin, end]) => begin <= scope.begin && scope.end <= end);
}

/** Rows of `table` (steps, phases) that start in a scope; of an attempt, its own. */
export function rowsIn(table, scope) {
  const rows = [];
  for (let row = 0; row < table.rows; row++) {
    if (scope.kind === "run") rows.push(row);
    else if (scope.kind === "attempt") {
      if (table.attempt[row] === scope.attempt.number) rows.push(row);
    } else if (table.start[row] >= scope.begin && table.start[row] < scope.end) rows.push(row);
  }
  return rows;
}

// The fate of a batch that the loop skipped after a restore: it has a row among the steps, and is none.
export const SKIPPED = 4;

/** The rows of the steps in a scope. */
export function stepRowsIn(steps, scope) {
  return rowsIn(steps, scope).filter((row) => steps.fate[row] !== SKIPPED);
}

/** "whole run", "attempt 2" or "the selected time". */
export function scopeTitle(scope) {
  return { run: "whole run", attempt: `attempt ${scope.attempt?.number}`, range: "selected time" }[scope.kind];
}

/** Put a moment in the middle of the timeline, with `around` ns on each side. */
export function centred(model, time, around) {
  const half = Math.max(around, 1e6);
  return [time - half, time + half];
}
