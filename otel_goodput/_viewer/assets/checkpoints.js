// Checkpoints: how long each held up training, how long it took to be durable, and what was at risk meanwhile.
import { button, goTo, head, make, swatch, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { cssFill, categoryStyle, inkOf, shade } from "./colors.js";
import { axisStyle, drawPlot, inkColor, lengthAxis, timeAxis } from "./plot.js";
import { count, duration } from "./format.js";
import { nanoseconds, scopeOf, scopeTitle } from "./scope.js";
import { timeText } from "./clock.js";
import { reportOf, whose } from "./subject.js";

const SAVES_SHOWN = 100;
const SAVE_COLUMNS = [
  ["Begin", "text"],
  ["Step", "number"],
  ["Attempt", "number"],
  ["Blocking", "number"],
  ["Until durable", "number"],
  ["", "text"],
];

const STAGE_COLUMNS = [
  ["Stage", "text"],
  ["Count", "number"],
  ["Min", "number"],
  ["Mean", "number"],
  ["Max", "number"],
  ["Deviation", "number"],
  ["Slowest process", "text"],
];

export function startCheckpoints(model, state) {
  watch(state, ["document", "range", "attempt", "selected", "theme", "clock"], () => drawCheckpoints(model, state));
}

function savesIn(model, scope) {
  const { saves } = model;
  const rows = [];
  for (let row = 0; row < saves.rows; row++) {
    if (
      scope.kind === "attempt"
        ? saves.attempt[row] === scope.attempt.number
        : saves.begin[row] >= scope.begin && saves.begin[row] <= scope.end
    )
      rows.push(row);
  }
  return rows;
}

function drawCheckpoints(model, state) {
  const { saves, at_risk: risk } = model;
  const stages = listedStages(reportOf(model).checkpoints || {});
  if (!saves.rows && !stages.length) return fillCard("checkpoints");
  const scope = scopeOf(model, state);
  const rows = savesIn(model, scope);
  const lengthsOf = (column) => rows.map((row) => column(row)).filter((ns) => ns >= 0);
  const blocking = lengthsOf((row) => (saves.blocking_end[row] < 0 ? -1 : saves.blocking_end[row] - saves.begin[row]));
  const durable = lengthsOf((row) => (saves.durable_at[row] < 0 ? -1 : saves.durable_at[row] - saves.begin[row]));
  const parts = [`${whose(model)}${scopeTitle(scope)}`, count(rows.length, "save")];
  if (blocking.length) parts.push(`blocked training for ${duration(totalOf(blocking))}`);
  if (durable.length) parts.push(`durable after ${duration(totalOf(durable) / durable.length)} on average`);
  const mount = make("div");
  const now = reportOf(model).at_risk_s;
  fillCard(
    "checkpoints",
    head("Checkpoints", parts.join(", ")),
    now
      ? make("p", {
          text: `Now at risk: ${duration(nanoseconds(now))} of progress since the last durable checkpoint.`,
        })
      : null,
    risk.rows > 1 ? make("h3", { text: "Progress at risk" }) : null,
    mount,
    legendOfSaves(),
    rows.length
      ? make("div", { class: "scroll short" }, table("Checkpoints", SAVE_COLUMNS, listed(model, state, rows)))
      : null,
    rows.length > SAVES_SHOWN ? make("p", { class: "soft", text: `The last ${SAVES_SHOWN} are listed.` }) : null,
    stages.length ? make("h3", { text: "Stages reported by Orbax, whole run" }) : null,
    stages.length
      ? make("div", { class: "scroll short" }, table("Stages of checkpoints", STAGE_COLUMNS, stages))
      : null,
  );
  if (risk.rows > 1) drawRisk(mount, model, state, scope);
}

const totalOf = (values) => values.reduce((sum, one) => sum + one, 0);

function legendOfSaves() {
  const items = [
    [cssFill(categoryStyle("checkpoint_save")), "blocked training"],
    [shade(inkOf("checkpoint_save"), 0.45), "committed in the background, until durable"],
    [inkOf("wasted_progress"), "progress at risk"],
  ];
  return make(
    "div",
    { class: "legends" },
    ...items.map(([background, name]) => make("span", { class: "legend" }, swatch(background), name)),
  );
}

/** The saw-tooth of unsaved progress, and the saves as bars along its foot. */
function drawRisk(mount, model, state, scope) {
  const { at_risk: risk } = model;
  const times = distinct(Array.from(risk.time));
  const red = inkOf("wasted_progress");
  drawPlot(
    mount,
    {
      height: 190,
      scales: {
        x: { time: false, range: [scope.begin, Math.max(scope.end, scope.begin + 1)] },
        y: { range: (_, low, high) => [0, high * 1.05 || 1] },
      },
      axes: [timeAxis(model), { ...axisStyle(), ...lengthAxis() }],
      series: [{}, { label: "at risk", stroke: red, width: 1.5, fill: `${red}33`, points: { show: false } }],
      onRange: (range) => state.set({ range, view: range }),
      tip: (at) => [
        [null, timeText(model, risk.time[at], 1e9), ""],
        [red, "at risk", duration(risk.ns[at])],
      ],
      hooks: { draw: [(plot) => drawSaves(plot, model, state)] },
    },
    [times, Array.from(risk.ns)],
  );
}

/** uPlot wants rising times; where the curve falls at once, its two corners have the same one. */
function distinct(times) {
  for (let at = 1; at < times.length; at++) if (times[at] <= times[at - 1]) times[at] = times[at - 1] + 1;
  return times;
}

function drawSaves(plot, model, state) {
  const { ctx, bbox } = plot;
  const { saves } = model;
  const tall = 7 * (window.devicePixelRatio || 1);
  const top = bbox.top + bbox.height - tall;
  const bar = (begin, end, fill) => {
    const from = Math.max(bbox.left, plot.valToPos(begin, "x", true));
    const until = Math.min(bbox.left + bbox.width, plot.valToPos(end, "x", true));
    if (until < bbox.left || from > bbox.left + bbox.width) return;
    ctx.fillStyle = fill;
    ctx.fillRect(from, top, Math.max(1.5, until - from), tall);
  };
  ctx.save();
  for (let row = 0; row < saves.rows; row++) {
    const until = saves.blocking_end[row] < 0 ? model.end : saves.blocking_end[row];
    if (saves.durable_at[row] > until) bar(until, saves.durable_at[row], shade(inkOf("checkpoint_save"), 0.45));
    bar(saves.begin[row], until, inkOf("checkpoint_save"));
    if (state.selected?.kind !== "save" || state.selected.row !== row) continue;
    ctx.strokeStyle = inkColor("--text");
    ctx.strokeRect(plot.valToPos(saves.begin[row], "x", true) - 2, top - 2, 4, tall + 2);
  }
  ctx.restore();
}

/** A row for each stage of saves and restores: lengths on the leader, and the process on which it takes longest. */
function listedStages(checkpoints) {
  const inWords = (seconds) => duration(nanoseconds(seconds));
  return Object.entries(checkpoints).flatMap(([operation, stages]) =>
    Object.entries(stages).map(([stage, figures]) => {
      const { slowest } = figures;
      const cells = [
        `${operation} ${stage}`.replaceAll("_", " "),
        figures.count.toLocaleString("en"),
        inWords(figures.min_s),
        inWords(figures.mean_s),
        inWords(figures.max_s),
        figures.count > 1 ? inWords(figures.deviation_s) : "–",
        slowest ? `${slowest.process}: ${inWords(slowest.mean_s)}, median ${inWords(slowest.median_s)}` : "",
      ];
      return tableRow(STAGE_COLUMNS, cells, { data: { stage: `${operation}.${stage}` } });
    }),
  );
}

function listed(model, state, rows) {
  const { saves } = model;
  const process = model.processes.find((one) => one.leader)?.index ?? 0;
  return rows
    .slice(-SAVES_SHOWN)
    .reverse()
    .map((row) => {
      const [begin, end, durable] = [saves.begin[row], saves.blocking_end[row], saves.durable_at[row]];
      const last = Math.max(begin, end, durable);
      const go = () => {
        const pad = Math.max(last - begin, 1e9);
        state.set({ selected: { kind: "save", row, process }, view: [begin - pad / 2, last + pad / 2] });
        goTo("timeline-card");
      };
      const note = saves.failed[row]
        ? "failed"
        : end < 0
          ? "in progress"
          : durable < 0
            ? "not known to be durable"
            : "";
      const cells = [
        button(timeText(model, begin, 1e9), go, { class: "link" }),
        saves.step[row] < 0 ? "" : String(saves.step[row]),
        String(saves.attempt[row]),
        end < 0 ? "–" : duration(end - begin),
        durable < 0 ? "–" : duration(durable - begin),
        note,
      ];
      const selected = state.selected?.kind === "save" && state.selected.row === row;
      return tableRow(SAVE_COLUMNS, cells, {
        "aria-selected": selected ? "true" : null,
        data: { save: String(row) },
      });
    });
}
