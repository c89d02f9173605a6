// Shares of one category on many processes over time, as rows of cells of equal length.
import { FULL, UNKNOWN } from "./heatscale.js";

const LEAST = 8; // of a bin, in 255ths, must have been accounted for: of less, no share is known

const sharesKnown = new WeakMap(); // by the bins of a process: shares by category

/** For each bin of a process the share of `category` in what was accounted for, as a number up to FULL. */
export function categoryShares(process, category) {
  if (!sharesKnown.has(process.bins)) sharesKnown.set(process.bins, new Map());
  const known = sharesKnown.get(process.bins);
  if (!known.has(category)) known.set(category, workedShares(process.bins, category));
  return known.get(category);
}

function workedShares({ count, categories, shares }, category) {
  const held = new Uint16Array(count);
  for (let at = 0; at < categories.length; at++)
    for (let bin = 0; bin < count; bin++) held[bin] += shares[at * count + bin];
  const own = categories.indexOf(category);
  return Uint8Array.from(held, (whole, bin) => {
    if (whole < LEAST) return UNKNOWN;
    return own < 0 ? 0 : Math.min(FULL, Math.round((FULL * shares[own * count + bin]) / whole));
  });
}

/** Cells of a scope: {columns, cells: row by row}. What a cell has of several bins is their mean. */
export function heatCells(rows, category, scope, columns) {
  const cells = new Uint8Array(rows.length * columns).fill(UNKNOWN);
  const wide = (scope.end - scope.begin) / columns;
  rows.forEach((process, row) => {
    if (!process.bins) return;
    const { begin, width, count } = process.bins;
    const shares = categoryShares(process, category);
    const [from, step] = [(scope.begin - begin) / width, wide / width];
    for (let column = 0; column < columns; column++) {
      const at = from + column * step;
      const value = step <= 1 ? shares[Math.floor(at + step / 2)] : meanShare(shares, at, at + step, count);
      if (value !== undefined) cells[row * columns + column] = value;
    }
  });
  return { columns, cells };
}

function meanShare(shares, from, until, count) {
  let sum = 0;
  let known = 0;
  for (let bin = Math.max(0, Math.floor(from)); bin < until && bin < count; bin++) {
    if (shares[bin] === UNKNOWN) continue;
    sum += shares[bin];
    known++;
  }
  return known ? Math.round(sum / known) : UNKNOWN;
}

/** The median share of all bins of all processes, 0 to 1. */
export function medianShare(processes, category) {
  const counts = new Uint32Array(UNKNOWN);
  for (const process of processes)
    for (const share of process.bins ? categoryShares(process, category) : []) if (share !== UNKNOWN) counts[share]++;
  return middleOf(counts) / FULL;
}

function middleOf(counts) {
  const all = counts.reduce((sum, number) => sum + number, 0);
  let before = 0;
  for (let value = 0; value < counts.length; value++) {
    before += counts[value];
    if (all && 2 * before >= all) return value;
  }
  return 0;
}

/** For each column the median of its known cells, UNKNOWN where there are none. */
function columnMedians({ columns, cells }) {
  const counts = new Uint32Array(columns * UNKNOWN);
  for (let at = 0, column = 0; at < cells.length; at++) {
    if (cells[at] !== UNKNOWN) counts[column * UNKNOWN + cells[at]]++;
    if (++column === columns) column = 0;
  }
  return Uint8Array.from({ length: columns }, (_, column) => {
    const own = counts.subarray(column * UNKNOWN, (column + 1) * UNKNOWN);
    return own.some((number) => number) ? middleOf(own) : UNKNOWN;
  });
}

const ASIDE = 0.03; // of the time: a row that is no further from the others is like them
const ASIDE_LOST = 0.001; // of all the time; rows that lost less than that in their worst stretch are like the others, too
const BRIDGED = 3; // columns like the others between two that are not, which belong to one stretch

/**
 * The rows that are worse than the others, the worst first: [{row, first, last (columns), share, others}]; `share` is the
 * mean in the stretch, `others` that of the median of all rows.
 */
export function standOut(grid, good) {
  const { columns, cells } = grid;
  const rows = cells.length / columns;
  const medians = columnMedians(grid);
  const least = ASIDE * FULL;
  const aside = [];
  for (let row = 0; row < rows; row++) {
    const stretches = [];
    for (let column = 0; column < columns; column++) {
      const value = cells[row * columns + column];
      if (good ? value > medians[column] - least : value < medians[column] + least || value === UNKNOWN) continue;
      const worse = Math.abs(medians[column] - value) / FULL;
      const last = stretches[stretches.length - 1];
      if (last && column - last.last <= BRIDGED) Object.assign(last, { last: column, lost: last.lost + worse });
      else stretches.push({ row, first: column, last: column, lost: worse });
    }
    const worst = stretches.reduce((one, other) => (other.lost > (one?.lost ?? 0) ? other : one), null);
    if (worst && worst.lost >= ASIDE_LOST * columns) aside.push(worst);
  }
  aside.sort((one, other) => other.lost - one.lost || one.row - other.row);
  const mean = ({ first, last }, at) => {
    const values = [];
    for (let column = first; column <= last; column++) if (at(column) !== UNKNOWN) values.push(at(column));
    return values.reduce((sum, value) => sum + value, 0) / values.length / FULL;
  };
  return aside.map((one) => ({
    ...one,
    share: mean(one, (column) => cells[one.row * columns + column]),
    others: mean(one, (column) => medians[column]),
  }));
}
