// What became of the steps, attempt by attempt.
import { FATE_NAMES, cssFill, fateStyle } from "./colors.js";
import { button, head, make, swatch, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { count, percent } from "./format.js";
import { SKIPPED, scopeOf } from "./scope.js";
import { reportOf, whose } from "./subject.js";

export function startFates(model, state) {
  watch(state, ["document", "range", "attempt", "theme"], () => drawFates(model, state));
}

/** {attempt number: counts by fate}: from the steps where all of them are held, else from the histogram's buckets. */
export function fateCounts(model) {
  const byAttempt = new Map(model.attempts.map((one) => [one.number, [0, 0, 0, 0]]));
  const addTo = (attempt, fate, number) => {
    if (!byAttempt.has(attempt)) byAttempt.set(attempt, [0, 0, 0, 0]);
    byAttempt.get(attempt)[fate] += number;
  };
  const { steps, histogram } = model;
  if (model.detail.complete) {
    for (let row = 0; row < steps.rows; row++)
      if (steps.fate[row] !== SKIPPED) addTo(steps.attempt[row], steps.fate[row], 1);
  } else
    for (let row = 0; row < histogram.rows; row++)
      if (histogram.measure[row] === 0) addTo(histogram.attempt[row], histogram.fate[row], histogram.count[row]);
  return byAttempt;
}

function drawFates(model, state) {
  const report = reportOf(model);
  if (!report.started_steps) return fillCard("fates");
  const chosen = scopeOf(model, state).attempt;
  const byAttempt = fateCounts(model);
  const most = Math.max(1, ...[...byAttempt.values()].map((counts) => counts.reduce((sum, one) => sum + one, 0)));
  const rows = [...byAttempt].map(([attempt, counts]) =>
    fateRow(state, attempt, counts, most, chosen && chosen.number !== attempt),
  );
  const present = [0, 1, 2, 3].filter((fate) => [...byAttempt.values()].some((counts) => counts[fate]));
  const { kept, lost } = report.steps;
  const fates = `${count(kept, "kept", "kept")}, ${count(lost, "lost", "lost")}`;
  const pending = report.pending_steps ? `, ${report.pending_steps.toLocaleString("en")} pending` : "";
  fillCard(
    "fates",
    head("What became of the steps", `${whose(model)}whole run, ${count(report.started_steps, "step")} started: ${fates}${pending}`),
    make("div", { class: "scroll fate-rows" }, ...rows),
    make(
      "div",
      { class: "legends" },
      ...present.map((fate) => make("span", { class: "legend" }, swatch(cssFill(fateStyle(fate))), FATE_NAMES[fate])),
    ),
  );
}

function fateRow(state, attempt, counts, most, faded) {
  const sum = counts.reduce((total, one) => total + one, 0);
  const present = counts.map((number, fate) => [number, fate]).filter(([number]) => number);
  const words =
    present.map(([number, fate]) => `${number.toLocaleString("en")} ${FATE_NAMES[fate]}`).join(", ") || "no step";
  const parts = present.map(([number, fate]) =>
    make("span", {
      class: "piece",
      title: `${number.toLocaleString("en")} ${FATE_NAMES[fate]} (${percent(number, sum)})`,
      data: { fate: String(fate), count: String(number) },
      style: { "flex-grow": String(number / sum), background: cssFill(fateStyle(fate)) },
    }),
  );
  return make(
    "div",
    { class: `bar-row fate-row${faded ? " dim" : ""}`, data: { attempt: String(attempt) } },
    button(`attempt ${attempt}`, () => state.set({ attempt, range: null }), { class: "link" }),
    make(
      "div",
      {},
      make("div", { class: "bar thin", style: { width: `${Math.max(1, (100 * sum) / most)}%` } }, ...parts),
      make("span", { class: "soft", text: words }),
    ),
  );
}
