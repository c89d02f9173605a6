// All processes over time, one row each: the color is the share of one category, the marks are where the job waited.
import { choice, goTo, head, make, select, swatch, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { drawHeat, followHeat, heatColumns, heatRows } from "./heat.js";
import { heatCells, medianShare, standOut } from "./heatgrid.js";
import { heatRamp, pointsText } from "./heatlegend.js";
import { heatScale, UNKNOWN } from "./heatscale.js";
import { processOrder } from "./disruptions.js";
import { rangeText } from "./clock.js";
import { scopeOf, scopeTitle } from "./scope.js";
import { cssFill, sourceStyle, sourceTitle } from "./colors.js";
import { count, duration, percent } from "./format.js";

const heated = { category: null, order: "index", cursor: null };
const HEAT_ORDERS = [
  ["index", "By index"],
  ["waits", "Waited for"],
  ["pace", "Slowest"],
  ["lateness", "Latest"],
];
const MARKED = 0.02; // of a bin: shorter waits are not marked
const NAMED = 8; // rows that are named first: those for which the job waited most,
const WORTH_NAMING = 0.005; // at least so much of the time
const SEEN = 0.002; // of a bin: what has less is not named
const HEAT_LISTED = 3; // categories and rows in a text

export function startHeatmap(model, state) {
  const draw = () => drawHeatmap(model, state, draw);
  state.on(["category"], () => {
    heated.category = state.category;
    draw();
  });
  watch(state, ["document", "range", "attempt", "process", "theme", "clock"], draw);
}

function drawHeatmap(model, state, draw) {
  const known = model.processes.filter((one) => one.bins);
  if (model.processes.length < 2 || !known.length) return fillCard("heatmap");
  const scope = scopeOf(model, state);
  const productive = model.categories.findIndex((one) => one.name === "productive");
  const category = heated.category ?? productive;
  const good = category === productive;
  const change = (changes) => {
    Object.assign(heated, changes);
    draw();
  };
  const used = new Set(known.flatMap((one) => one.bins.categories));
  const choices = model.categories
    .map((one, at) => [String(at), at === productive ? "goodput" : sourceTitle(one).slice(0, 60)])
    .filter(([at]) => used.has(Number(at)));
  const orders = HEAT_ORDERS.filter(([order]) => order !== "waits" || model.job);
  const order = model.job || heated.order !== "waits" ? heated.order : "index";
  const mount = make("div", { class: "heat" });
  const words = make("p", { id: "heatmap-words", class: "heat-words" });
  const missing = model.processes.length - known.length;
  const hatched = missing ? ` (${missing} not known: hatched)` : "";
  const what = model.job ? count(known.length, "rank") : count(known.length, "process", "processes");
  fillCard(
    "heatmap",
    head(
      model.job ? "Ranks over time" : "Processes over time",
      `${scopeTitle(scope)}, ${what}${hatched}; shares ± 0.2 %`,
      select("Share of", choices, String(category), (value) => change({ category: Number(value) })),
      choice("Order of the processes", orders, order, (value) => change({ order: value })),
    ),
    words,
    mount,
  );
  if (scope.end <= scope.begin) return undefined;
  const waits = waitsByRank(model);
  const rows = heatRowsOf(model, order, waits);
  const { rowHeight } = heatRows(model.processes.length);
  const scale = heatScale(medianShare(known, category), good);
  const columns = heatColumns(mount);
  const cells = heatCells(rows.flat(), category, scope, columns);
  const name = good ? "goodput" : sourceTitle(model.categories[category]);
  const places = new Map(rows.flatMap((processes, at) => processes.map((one) => [one.index, at])));
  const row = (index) => places.get(index) ?? -1;
  const grid = joinedCells(cells, rows, good);
  words.textContent = heatWords(model, rows.flat(), cells, scope, scale, name);
  mount.after(heatLegends(model, scale, name, waits));
  drawHeat(mount, {
    model,
    scope,
    rows,
    grid,
    scale,
    rowHeight,
    marks: heatMarks(model, waits, row),
    named: mostWaitedFor(model, waits).map(row).filter((at) => at >= 0),
    chosen: row(state.process),
    label: model.job ? "Ranks over time" : "Processes over time",
    words: "heatmap-words",
    rowName: heatRowName,
    isKnown: (processes) => processes.some((one) => one.bins),
    cursor: heated,
    open: (at, time) => {
      state.set({ process: worstOf(rows[at], category, good, time).index });
      goTo("timeline-card");
    },
    tip: (at, time) => heatTip(model, worstOf(rows[at], category, good, time), time, scale, category, waits),
  });
  followHeat(mount, draw);
  return undefined;
}

/** The processes of each row, in order. */
function heatRowsOf(model, order, waits) {
  const cost = (one) => waits.get(one.index)?.total ?? 0;
  const compared =
    order === "waits" ? (one, other) => cost(other) - cost(one) || one.index - other.index : processOrder(order);
  const sorted = [...model.processes].sort(compared);
  const { together } = heatRows(sorted.length);
  return Array.from({ length: Math.ceil(sorted.length / together) }, (_, at) =>
    sorted.slice(at * together, (at + 1) * together),
  );
}

function heatRowName(processes) {
  const first = processes[0].index;
  return processes.length > 1 ? `${first}–${processes[processes.length - 1].index}` : String(first);
}

/** Cells of rows that several processes share: of each the worst. */
export function joinedCells({ columns, cells }, rows, good) {
  if (rows.length * columns === cells.length) return { columns, cells };
  const worst = new Uint8Array(rows.length * columns).fill(UNKNOWN);
  let process = 0;
  rows.forEach((processes, row) => {
    for (const _ of processes) {
      for (let column = 0; column < columns; column++) {
        const value = cells[process * columns + column];
        const at = row * columns + column;
        if (value === UNKNOWN) continue;
        if (worst[at] === UNKNOWN || (good ? value < worst[at] : value > worst[at])) worst[at] = value;
      }
      process++;
    }
  });
  return { columns, cells: worst };
}

/** Of the processes that share a row, the one that its cell shows. */
function worstOf(processes, category, good, time) {
  if (processes.length === 1) return processes[0];
  const shares = processes.map((one) => binAt(one, time)?.[category] ?? (good ? Infinity : -Infinity));
  return processes[shares.indexOf(good ? Math.min(...shares) : Math.max(...shares))];
}

/** Shares of a process at a time, by category. Null: not known. */
function binAt({ bins }, time) {
  const bin = bins ? Math.floor((time - bins.begin) / bins.width) : -1;
  if (bin < 0 || bin >= bins.count) return null;
  const parts = bins.categories.map((_, at) => bins.shares[at * bins.count + bin]);
  const whole = parts.reduce((sum, part) => sum + part, 0);
  if (!whole) return null;
  const shares = [];
  bins.categories.forEach((category, at) => (shares[category] = parts[at] / whole));
  return shares;
}

/** By rank: {total (ns), bins: [{begin, category, ns}]} of the time for which the job waited for it, the longest first. */
function waitsByRank({ job }) {
  const ranks = new Map();
  if (!job) return ranks;
  const { begin, rank, category, ns, rows } = job.waits;
  for (let row = 0; row < rows; row++) {
    if (!ranks.has(rank[row])) ranks.set(rank[row], { total: 0, bins: [] });
    const one = ranks.get(rank[row]);
    one.total += ns[row];
    one.bins.push({ begin: begin[row], category: category[row], ns: ns[row] });
  }
  return new Map(
    [...ranks]
      .map(([index, one]) => [index, { ...one, marked: one.bins.filter((bin) => bin.ns >= MARKED * job.waits.width) }])
      .sort(([, one], [, other]) => other.total - one.total)
      .filter(([, one]) => one.marked.length),
  );
}

function mostWaitedFor(model, waits) {
  const worth = [...waits].filter(([, { total }]) => total >= WORTH_NAMING * model.end);
  return worth.slice(0, NAMED).map(([index]) => index);
}

function heatMarks({ job }, waits, rowOf) {
  const marks = [];
  for (const [index, { marked }] of waits) {
    const row = rowOf(index);
    for (const { begin, category } of row < 0 ? [] : marked) {
      const last = marks[marks.length - 1];
      const end = begin + job.waits.width;
      if (last && last.row === row && last.category === category && last.end === begin) last.end = end;
      else marks.push({ row, begin, end, category });
    }
  }
  return marks;
}

// --- in words -----------------------------------------------------------------------------------------------------

/** What the map shows, for who cannot see it: which ranks are worse than the others, when, and by how much. */
function heatWords(model, processes, grid, scope, { median, good }, name) {
  const wide = (scope.end - scope.begin) / grid.columns;
  const worse = standOut(grid, good);
  const text = worse.slice(0, HEAT_LISTED).map(({ row, first, last, share, others }) => {
    const range = [scope.begin + first * wide, scope.begin + (last + 1) * wide];
    const when = rangeText(model, range, duration(range[1] - range[0]));
    return `${rankName(model, processes[row])} ${(100 * share).toFixed(1)} % against ${(100 * others).toFixed(1)} % of the others, ${when}`;
  });
  const more = worse.length > HEAT_LISTED ? `; and ${count(worse.length - HEAT_LISTED, "other")}` : "";
  const usual = `Median ${name} ${(100 * median).toFixed(1)} %.`;
  const all = model.job ? "No rank differs much from the others." : "No process differs much from the others.";
  return text.length ? `${usual} ${good ? "Lower" : "Higher"} than the others: ${text.join("; ")}${more}.` : `${usual} ${all}`;
}

function rankName(model, process) {
  const host = process.host ? ` (${process.host})` : "";
  return `${model.job ? "rank" : "process"} ${process.index}${host}`;
}

function heatTip(model, process, time, { median, good }, shown, waits) {
  const line = (text, share = "", fill = null) =>
    make("div", {}, make("span", {}, fill ? swatch(fill) : null, text), make("span", { text: share }));
  const lines = [make("div", { class: "strong", text: rankName(model, process) })];
  const shares = binAt(process, time);
  if (!shares) return [...lines, line(process.problem || (process.bins ? "was not running" : "not known"))];
  const { begin, width } = process.bins;
  const from = begin + Math.floor((time - begin) / width) * width;
  lines.push(line(rangeText(model, [from, from + width], duration(width))));
  const name = good ? "goodput" : sourceTitle(model.categories[shown]);
  lines.push(line(name, `${(100 * (shares[shown] ?? 0)).toFixed(1)} % (median ${(100 * median).toFixed(1)} %)`));
  const largest = shares
    .map((share, category) => [share, category])
    .filter(([share, category]) => share >= SEEN && category !== shown)
    .sort(([one], [other]) => other - one);
  for (const [share, category] of largest.slice(0, HEAT_LISTED + 1)) {
    const about = model.categories[category];
    lines.push(line(sourceTitle(about), `${(100 * share).toFixed(1)} %`, cssFill(sourceStyle(about))));
  }
  for (const { category, ns } of waitsAt(model, waits.get(process.index), time)) {
    const about = model.categories[category];
    lines.push(line(`the job waited for it: ${sourceTitle(about)}`, `${percent(ns, model.job.waits.width)} of the time`, cssFill(sourceStyle(about))));
  }
  if (process.pace) lines.push(line("median step", duration(process.pace.median_s * 1e9)));
  return lines;
}

function waitsAt({ job }, waits, time) {
  return waits ? waits.bins.filter(({ begin }) => begin <= time && time < begin + job.waits.width) : [];
}

/** The scale with its numbers, and what the marks are. */
function heatLegends(model, scale, name, waits) {
  const marked = new Set([...waits.values()].flatMap((one) => one.marked.map((bin) => bin.category)));
  const marks = [...marked].slice(0, 2 * HEAT_LISTED).map((category) => {
    const about = model.categories[category];
    return make("span", { class: "legend" }, swatch(cssFill(sourceStyle(about))), sourceTitle(about));
  });
  return make(
    "div",
    { class: "legends heat-legends" },
    heatRamp(scale, name),
    marks.length ? make("span", { text: "Marks: the job waited for this rank, in" }) : null,
    ...marks,
    make("span", { text: "Click a row, or use the arrow keys and Enter, to open the process." }),
  );
}
