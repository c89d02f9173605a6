// The map of ranks by itself: imported by test_browser_ranks.py into a page that has the page's own modules.
import { heatRows } from "./heat.js";
import { heatCells, medianShare, standOut } from "./heatgrid.js";
import { FULL, heatScale, UNKNOWN } from "./heatscale.js";
import { joinedCells } from "./heatmap.js";
import { ownCells, ownRows } from "./owntimes.js";

/** Colors of the shares 0, 1, … 100 % on the scale of a run with this median. */
export function colors(median, good) {
  const scale = heatScale(median, good);
  return Array.from({ length: 101 }, (_, share) => scale.color(share / 100));
}

/** The map of processes with these shares (0 to 255 of a bin that is whole), one bin a second. */
export function map(shares, columns) {
  const processes = shares.map((column) => ({
    bins: { begin: 0, width: 1e9, count: column.length, categories: [0, 4], shares: [...column, ...column.map((one) => 255 - one)] },
  }));
  const scope = { begin: 0, end: shares[0].length * 1e9 };
  const grid = heatCells(processes, 0, scope, columns);
  const rows = processes.map((one, at) => (at % 2 ? [] : [one, processes[at + 1]]));
  const pairs = rows.filter((row) => row.length);
  return {
    median: medianShare(processes, 0),
    cells: [...grid.cells].map((cell) => cell / FULL),
    worst: [...joinedCells(grid, pairs, true).cells].map((cell) => cell / FULL),
    aside: standOut(grid, true),
  };
}

export const rowsOf = (counts) => counts.map((count) => heatRows(count));

/** The map of own times of these windows: [usual, turn (ns), how many ranks, bands, [rank, own, waiting] each], a second each. */
export function own(given, columns) {
  const part = (ns, turn) => Math.round((1000 * ns) / turn);
  const windows = given.map(([usual, turn, compared, bands, ranks], at) => ({
    ...{ begin: at * 1e9, end: (at + 1) * 1e9, steps: 1, turn, compared, usual: part(usual, turn) },
    bands: bands.map((ns) => part(ns, turn)),
    ranks: new Map(ranks.map(([rank, ns]) => [rank, { own: part(ns, turn) }])),
  }));
  const { rows } = ownRows(windows, [0.9, 0.99], null);
  const { cells } = ownCells(rows, windows, { begin: 0, end: given.length * 1e9 }, columns);
  return { names: rows.map(({ name }) => name), cells: [...cells].map((cell) => (cell === UNKNOWN ? null : cell / FULL)) };
}
