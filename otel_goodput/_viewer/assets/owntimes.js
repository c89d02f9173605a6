// What each rank does itself inside of its steps, over time: the color is by how much it takes longer than the others.
import { goTo, choice, head, make, table, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { drawHeat, followHeat, heatColumns, heatRows } from "./heat.js";
import { heatRamp, pointsText } from "./heatlegend.js";
import { excessScale, FULL, UNKNOWN } from "./heatscale.js";
import { rangeText, timeText } from "./clock.js";
import { incidentSpans, momentOf } from "./incidentspans.js";
import { nanoseconds, scopeOf } from "./scope.js";
import { count, duration, percent } from "./format.js";
import { rankButton } from "./waits.js";

const ownView = { order: null, cursor: null };
const OWN_ORDERS = [
  ["rank", "By rank"],
  ["cost", "Slowest"],
];
const OWN_ALL = 64; // of so many ranks all times are known, and each has a row; of more
const OWN_SLOWEST = 24; // so many, those that were longest over the others
const OWN_NAMED = 8; // rows that are named first
const OWN_LISTED = 3; // ranks of a window in the table
const SLOW_COLUMNS = [
  ["Rank", "text"],
  ["Pattern", "text"],
  ["Slow", "text"],
  ["Since", "text"],
  ["Own time in a turn", "number"],
  ["Others", "number"],
  ["Time lost", "number"],
  ["Without it", "number"],
];
const WINDOW_COLUMNS = [
  ["Time", "text"],
  ["Steps", "number"],
  ["A turn", "number"],
  ["Own time of the others", "number"],
  ["Longest own times", "text"],
  ["A turn without the slow ranks", "number"],
];
const ownKnown = new WeakMap(); // by the table of windows: what ownWindows() says

export function startOwnTimes(model, state) {
  const draw = () => drawOwnTimes(model, state, draw);
  watch(state, ["document", "range", "attempt", "process", "theme", "clock"], draw);
  state.on(["model"], () => (takeLatest(model) ? draw() : showOwnWords(model)));
}

/** Add the window that has ended since the document was made; whether there is one. */
export function takeLatest(model) {
  const [own, latest] = [model.job?.own, model.own_latest];
  if (!own || !latest) return false;
  const windows = ownWindows(own);
  const [begin, end] = [latest.begin, latest.end].map((moment) => Number(BigInt(moment) - BigInt(model.origin_ns)));
  if (begin < windows[windows.length - 1].end) return false;
  const ranks = latest.ranks.map(([rank, time, waiting, slow]) => [rank, { own: time, waiting, slow: Boolean(slow) }]);
  windows.push({ ...latest, begin, end, bands: [latest.most, latest.nearly_all], ranks: new Map(ranks) });
  return true;
}

/** Of each window of time: {begin, end, steps, turn (ns), usual, bands (thousandths), ranks: by rank {own, waiting, slow}}. */
export function ownWindows({ windows, times }) {
  if (!ownKnown.has(windows)) {
    const list = Array.from({ length: windows.rows }, (_, at) => ({
      ...Object.fromEntries(["begin", "end", "steps", "turn", "usual", "waiting", "without", "compared"].map((name) => [name, windows[name][at]])),
      bands: [windows.most[at], windows.nearly_all[at]],
      ranks: new Map(),
    }));
    for (let row = 0; row < times.rows; row++)
      list[times.window[row]].ranks.set(times.rank[row], { own: times.own[row], waiting: times.waiting[row], slow: Boolean(times.slow[row]) });
    ownKnown.set(windows, list);
  }
  return ownKnown.get(windows);
}

/**
 * The rows of the map: {name, rank, excess(window)} each; `excess` is by which share of a turn its own time is longer than the
 * others' median, null if that is not known. Of many ranks, bands of all and those that took most beyond the others.
 */
export function ownRows(windows, bands, order) {
  const compared = windows.reduce((most, one) => Math.max(most, one.compared || one.ranks.size), 0);
  const cost = new Map();
  for (const { ranks, usual, turn, steps } of windows)
    for (const [rank, { own }] of ranks) cost.set(rank, (cost.get(rank) || 0) + Math.max(0, own - usual) * turn * steps);
  const slowest = [...cost.keys()].sort((one, other) => cost.get(other) - cost.get(one) || one - other);
  const few = compared <= OWN_ALL;
  const shown = few ? slowest : slowest.slice(0, OWN_SLOWEST);
  const named = shown.filter((rank) => windows.some(({ ranks }) => ranks.get(rank)?.slow)).slice(0, OWN_NAMED);
  if ((order || (few ? "rank" : "cost")) === "rank") shown.sort((one, other) => one - other);
  const share = (own, { usual }) => Math.max(0, (own - usual) / 1000);
  const rows = shown.map((rank) => ({
    name: String(rank),
    rank: () => rank,
    slow: named.includes(rank),
    excess: (window) => (window.ranks.has(rank) ? share(window.ranks.get(rank).own, window) : null),
  }));
  if (few) return { rows, compared, few };
  const longest = ({ ranks }) => [...ranks].reduce((most, one) => (one[1].own > most[1].own ? one : most));
  const all = [...bands].map((part, at) => ({
    name: `${100 * part} %`,
    band: `${100 * part} % of the ranks are not longer`,
    rank: () => null,
    excess: (window) => share(window.bands[at], window),
  }));
  const first = { name: "slowest", rank: (window) => longest(window)[0], excess: (window) => share(longest(window)[1].own, window) };
  return { rows: [first, ...all.reverse(), ...rows], compared, few };
}

/** Cells of the map: for each column of a scope what its window says of each row. */
export function ownCells(rows, windows, scope, columns) {
  const cells = new Uint8Array(rows.length * columns).fill(UNKNOWN);
  const values = rows.map(({ excess }) => windows.map((one) => (excess(one) === null ? UNKNOWN : Math.round(FULL * Math.min(1, excess(one))))));
  let at = 0;
  for (let column = 0; column < columns; column++) {
    const time = scope.begin + ((column + 0.5) * (scope.end - scope.begin)) / columns;
    while (at < windows.length && windows[at].end <= time) at++;
    if (at < windows.length && windows[at].begin <= time) values.forEach((of, row) => (cells[row * columns + column] = of[at]));
  }
  return { columns, cells };
}

/** The scope of the panels, without the attempts before that of which own times are known. */
function ownScope(model, state, windows) {
  const scope = scopeOf(model, state);
  if (scope.kind !== "run") return scope;
  const attempt = model.attempts.filter((one) => one.begin <= windows[0].begin).pop();
  return { ...scope, begin: attempt ? attempt.begin : 0, end: Math.max(scope.end, windows[windows.length - 1].end) };
}

function drawOwnTimes(model, state, draw) {
  const own = model.job?.own;
  if (!own) return fillCard("own-times");
  const all = ownWindows(own);
  const scope = ownScope(model, state, all);
  const windows = all.filter(({ begin, end }) => end > scope.begin && begin < scope.end);
  const { rows, compared, few } = ownRows(windows, own.bands, ownView.order);
  const order = ownView.order || (few ? "rank" : "cost");
  const change = (value) => {
    Object.assign(ownView, { order: value, cursor: null });
    draw();
  };
  const what = few ? count(compared, "rank") : `the slowest ${OWN_SLOWEST} of ${count(compared, "rank")}, and the shares of all that are not longer`;
  const mount = make("div", { class: "heat" });
  const choose = (rank) => {
    state.set({ process: rank });
    goTo("timeline-card");
  };
  fillCard(
    "own-times",
    head(
      "Own time of ranks in steps",
      windows.length ? `${count(windows.length, "window")}, ${what}; without waits for others` : "",
      choice("Order of the ranks", OWN_ORDERS, order, change),
    ),
    make("div", { id: "own-times-words", class: "heat-words", data: { shown: "" } }),
    windows.length ? mount : make("p", { text: "Of this time, own times are not known." }),
    slowTable(model, choose),
    windows.length ? windowTable(model, windows) : null,
  );
  showOwnWords(model);
  if (!windows.length || scope.end <= scope.begin) return undefined;
  const scale = excessScale();
  mount.after(ownLegends(scale, few));
  const windowAt = (time) => windows.find(({ begin, end }) => begin <= time && time < end);
  drawHeat(mount, {
    model,
    scope,
    rows,
    grid: ownCells(rows, windows, scope, heatColumns(mount)),
    scale,
    rowHeight: heatRows(rows.length).rowHeight,
    marks: [],
    named: rows.flatMap((one, row) => (one.slow ? [row] : [])),
    chosen: rows.findIndex((one) => state.process !== null && one.name === String(state.process)),
    label: "Own time of ranks in steps",
    words: "own-times-words",
    rowName: ({ name }) => name,
    isKnown: () => true,
    cursor: ownView,
    open: (row, time) => {
      const window = windowAt(time);
      const rank = window ? rows[row].rank(window) : null;
      if (rank !== null) choose(rank);
    },
    tip: (row, time) => ownTip(model, rows[row], windowAt(time), time),
  });
  followHeat(mount, draw);
  return undefined;
}

// --- in words -----------------------------------------------------------------------------------------------------

/** Who is slow, and in which pattern; on a served page it changes with the figures. */
function showOwnWords(model) {
  const mount = document.getElementById("own-times-words");
  const texts = model.own_texts || [];
  if (!mount || mount.dataset.shown === texts.join("\n")) return;
  mount.dataset.shown = texts.join("\n");
  mount.replaceChildren(...texts.map((text) => make("p", { text })));
}

function rankWords(model, rank) {
  const host = model.processes.find((one) => one.index === rank)?.host;
  return `rank ${rank}${host ? ` (${host})` : ""}`;
}

const inTurn = (parts, { turn }) => duration((parts * turn) / 1000);

function ownTip(model, row, window, time) {
  const line = (text, value = "") => make("div", {}, make("span", { text }), make("span", { text: value }));
  const rank = window ? row.rank(window) : null;
  const name = row.band || (rank === null ? row.name : rankWords(model, rank));
  const lines = [make("div", { class: "strong", text: name })];
  if (!window) return [...lines, line(`${timeText(model, time, 1e9)}: not known`)];
  lines.push(line(rangeText(model, [window.begin, window.end], duration(window.end - window.begin))));
  const share = row.excess(window);
  if (share === null) return [...lines, line(window.compared > OWN_ALL ? `not among the longest of ${count(window.compared, "rank")}` : "too few samples")];
  const its = rank === null ? null : window.ranks.get(rank);
  lines.push(line("longer than the others", share ? `by ${pointsText(share)} of a turn` : "no"));
  if (its) lines.push(line("its own time in a turn", inTurn(its.own, window)), line("it waits", inTurn(its.waiting, window)));
  lines.push(line("own time of the others (median)", inTurn(window.usual, window)), line("a turn", duration(window.turn)));
  if (its?.slow) lines.push(line("the others wait for it", inTurn(window.waiting, window)));
  const wrong = incidentSpans(model).filter(({ begin, end }) => begin < window.end && end >= window.begin);
  for (const { one } of wrong.slice(-2)) lines.push(line(`incident: ${one.text}`));
  return lines;
}

function slowTable(model, choose) {
  const slow = model.report.ranks?.own?.slow || [];
  if (!slow.length) return null;
  const rows = slow.map((one) => [
    rankButton(model, one.rank, choose),
    one.pattern,
    `${one.windows} of ${one.seen} times`,
    timeText(model, momentOf(model, one.since), 1e9),
    duration(nanoseconds(one.own_s)),
    duration(nanoseconds(one.usual_s)),
    duration(nanoseconds(one.lost_s)),
    `+${percent(one.gain_without, 1)}`,
  ]);
  return make("div", { class: "scroll short" }, table("Ranks that were slow in steps", SLOW_COLUMNS, rows, { id: "slow-table" }));
}

/** The same as the map has, for who reads it row by row, made once it is unfolded. */
function windowTable(model, windows) {
  const mount = make("div", { class: "scroll" });
  const fill = ({ target }) => target.open && !mount.childNodes.length && mount.append(windowRows(model, windows));
  return make("details", { on: { toggle: fill } }, make("summary", { text: "As a table" }), mount);
}

/** The latest window first. */
function windowRows(model, windows) {
  const rows = [...windows].reverse().map((one) => {
    const longest = [...one.ranks].sort(([, a], [, b]) => b.own - a.own).slice(0, OWN_LISTED);
    const texts = longest.map(([rank, { own, slow }]) => `rank ${rank} ${inTurn(own, one)} (+${pointsText(Math.max(0, own - one.usual) / 1000)}${slow ? ", slow" : ""})`);
    return [
      rangeText(model, [one.begin, one.end], duration(one.end - one.begin)),
      one.steps.toLocaleString("en"),
      duration(one.turn),
      inTurn(one.usual, one),
      texts.join(", "),
      inTurn(one.without, one),
    ];
  });
  return table("Own times of ranks in steps, the latest first", WINDOW_COLUMNS, rows, { id: "own-times-table" });
}

function ownLegends(scale, few) {
  return make(
    "div",
    { class: "legends heat-legends" },
    heatRamp(scale, "how much longer than the others"),
    make("span", { text: "Longer than the median of all ranks in the same window, as a share of a turn of the loop." }),
    few ? null : make("span", { text: "Blank: not among the longest." }),
    make("span", { text: "Bars at the foot: incidents. Click a row, or use the arrow keys and Enter, to open the process." }),
  );
}
