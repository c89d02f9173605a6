// What interrupted the run, and what each interruption cost; and which processes the others wait for.
import { button, goTo, head, make, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { count, duration, percent } from "./format.js";
import { aroundDisruption } from "./shares.js";
import { timeText } from "./clock.js";
import { nanoseconds, scopeOf } from "./scope.js";
import { reportOf, whose } from "./subject.js";

const DISRUPTION_COLUMNS = [
  ["When", "text"],
  ["Reason", "text"],
  ["How it ended", "text"],
  ["Until restarted", "number"],
  ["Steps lost", "number"],
  ["Start-up", "number"],
  ["Restoring", "number"],
  ["Cost", "number"],
  ["Went back", "text"],
  ["First step", "number"],
  ["Regained", "text"],
  ["Attempt", "text"],
];

export function startDisruptions(model, state) {
  watch(state, ["document", "range", "attempt", "selected", "clock"], () => drawDisruptionTable(model, state));
  watch(state, ["document", "process", "theme"], () => drawPaces(model, state));
}

function drawDisruptionTable(model, state) {
  if (!model.disruptions.length) return fillCard("disruptions");
  const scope = scopeOf(model, state);
  const inScope = model.disruptions
    .map((one, row) => [one, row])
    .filter(([one]) => scope.kind === "run" || (one.time >= scope.begin && (one.died_at ?? one.time) <= scope.end));
  const recovery = inScope.reduce((sum, [one]) => sum + one.recovery_ns, 0);
  const wasted = inScope.reduce((sum, [one]) => sum + one.wasted_ns, 0);
  const reasons = new Map();
  for (const [one] of inScope) reasons.set(one.reason, (reasons.get(one.reason) || 0) + 1);
  const counted = [...reasons].map(([reason, number]) => `${number} ${reason}`).join(", ");
  const note = inScope.length
    ? `${counted}; ${duration(recovery)} down, ${duration(wasted)} in lost steps`
    : "none in this time";
  const rows = inScope.map(([one, row]) => disruptionRow(model, state, one, row));
  fillCard(
    "disruptions",
    head(count(inScope.length, "disruption"), `${whose(model)}${note}`),
    rows.length ? make("div", { class: "scroll" }, table("Disruptions", DISRUPTION_COLUMNS, rows)) : null,
  );
}

/** Why a disruption came, and which of several processes ended first. */
export function reasonText(one) {
  if (one.process !== null) return `${one.reason} (process ${one.process})`;
  return one.process_known ? one.reason : `${one.reason} (process not known)`;
}

/** What the report says of a disruption beyond the overview: how the process ended, and the start-up after it. */
export function reported(model, one) {
  const known = reportOf(model).disruption_list.find((entry) => entry.attempt === one.attempt && one.attempt !== null);
  const error = known ? [known.error_type, known.error_message].filter(Boolean).join(": ") : "";
  return {
    ended: known ? [error, known.ended_by].filter(Boolean).join("; ") : "",
    startup_ns: nanoseconds(known?.startup_s ?? 0),
    restored_ns: nanoseconds(known?.restored_s ?? 0),
  };
}

/** How long it took until the highest step kept before a disruption was reached again; empty if not (yet). */
export function regained(one) {
  return one.regained_ns === null ? "" : `step ${one.kept_step} after ${duration(one.regained_ns)}`;
}

function disruptionRow(model, state, one, row) {
  const process = model.processes.find((each) => each.leader)?.index ?? 0;
  const go = () => {
    state.set({ selected: { kind: "disruption", row, process }, view: aroundDisruption(one) });
    goTo("timeline-card");
  };
  const { ended, startup_ns, restored_ns } = reported(model, one);
  const selected = state.selected && state.selected.kind === "disruption" && state.selected.row === row;
  const back = one.from_step === null || one.to_step === null ? "" : `step ${one.from_step} → ${one.to_step}`;
  const cells = [
    button(timeText(model, one.time, 1e9), go, { class: "link" }),
    one.said_by === null ? reasonText(one) : `${reasonText(one)} (originally ${one.first_reason})`,
    ended,
    duration(one.recovery_ns),
    duration(one.wasted_ns),
    startup_ns ? duration(startup_ns) : "",
    restored_ns ? duration(restored_ns) : "",
    duration(one.recovery_ns + one.wasted_ns + startup_ns + restored_ns),
    back,
    one.first_step_ns === null ? "" : duration(one.first_step_ns),
    regained(one),
    one.attempt === null ? "no restart" : `${one.attempt}`,
  ];
  return tableRow(DISRUPTION_COLUMNS, cells, {
    "aria-selected": selected ? "true" : null,
    data: { disruption: String(row) },
  });
}

// --- paces ----------------------------------------------------------------------------------------------------------

const PACE_COLUMNS = [
  ["Process", "text"],
  ["Median step", "number"],
  ["p90", "number"],
  ["Between steps", "number"],
  ["Last step", "number"],
];
const PACES_SHOWN = 12;
const pacing = { order: "pace", all: false };
const PACE_ORDERS = [
  ["pace", "Slowest"],
  ["lateness", "Latest"],
  ["index", "By index"],
];

/** Compare processes by: index, the slowest or the latest first. */
export function processOrder(kind) {
  const pace = (one, name) => (one.pace ? one.pace[name] : -1);
  if (kind === "pace")
    return (one, other) => pace(other, "median_s") - pace(one, "median_s") || one.index - other.index;
  if (kind === "lateness")
    return (one, other) => pace(other, "outside_s") - pace(one, "outside_s") || one.index - other.index;
  return (one, other) => one.index - other.index;
}

function drawPaces(model, state) {
  const paced = model.processes.filter((one) => one.pace);
  if (paced.length < 2) return fillCard("paces");
  const redraw = (changes) => {
    Object.assign(pacing, changes);
    drawPaces(model, state);
  };
  const sorted = [...paced].sort(processOrder(pacing.order));
  const shown = pacing.all ? sorted : sorted.slice(0, PACES_SHOWN);
  const slowest = Math.max(...paced.map((one) => one.pace.median_s));
  const rows = shown.map((one) => paceRow(state, one, slowest));
  const orders = PACE_ORDERS.map(([value, text]) =>
    button(text, () => redraw({ order: value }), { "aria-pressed": String(value === pacing.order) }),
  );
  fillCard(
    "paces",
    head(
      "Pace of the processes",
      `${paced.length.toLocaleString("en")} of ${model.processes.length.toLocaleString("en")} report step times`,
      make("span", { class: "choice", role: "group", "aria-label": "Order" }, ...orders),
    ),
    make("p", { text: paceSentence(model) }),
    make("div", { class: "scroll" }, table("Pace of the processes", PACE_COLUMNS, rows)),
    sorted.length > PACES_SHOWN
      ? button(pacing.all ? "Fewer" : `All ${sorted.length}`, () => redraw({ all: !pacing.all }))
      : null,
  );
}

function paceSentence(model) {
  const processes = model.report.processes;
  const parts = [];
  if (processes?.straggler?.ratio > 1.05)
    parts.push(
      `The slowest is process ${processes.straggler.process}: ${processes.straggler.ratio.toFixed(2)} times the median of all.`,
    );
  if (processes?.late && processes.late.share >= 0.05)
    parts.push(
      `Process ${processes.late.process} is late: it spends ${percent(processes.late.share, 1)} of the time per step between steps.`,
    );
  return parts.join(" ") || "No process is much slower or later than the others.";
}

function paceRow(state, one, slowest) {
  const name = `process ${one.index}${one.host ? ` (${one.host})` : ""}`;
  const { median_s, p90_s, outside_s } = one.pace;
  const first = make(
    "div",
    {},
    button(name, () => (state.set({ process: one.index }), goTo("timeline-card")), { class: "link clamp" }),
    make("div", { class: "meter", style: { width: percent(median_s, slowest).replace(" ", "") } }),
  );
  const cells = [
    first,
    duration(median_s * 1e9),
    duration(p90_s * 1e9),
    duration(outside_s * 1e9),
    one.last_step === null ? "" : String(one.last_step),
  ];
  return tableRow(PACE_COLUMNS, cells, {
    "aria-selected": state.process === one.index ? "true" : null,
    data: { process: String(one.index) },
  });
}
