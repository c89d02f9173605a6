// Two runs side by side: what changed, where the time went in each, and how long their steps took.
import { categoryStyle, cssFill, sourceStyle, sourceTitle } from "./colors.js";
import { complaint } from "./connection.js";
import { head, make, swatch, table } from "./elements.js";
import { duration } from "./format.js";

const A_SECOND = 1e9;
const STATISTICS = [["median", "Median"], ["p90", "90th percentile"], ["mean", "Mean"]];
const FIGURES = [
  ["goodput", "Goodput"], ["elapsed", "Elapsed"], ["kept_steps", "Steps kept"], ["lost_steps", "Steps lost"], ["disruptions", "Disruptions"],
  ["attempts", "Attempts"], ["recompilations", "Recompilations"], ["at_risk", "At risk"], ["scheduling_goodput", "Scheduling goodput"],
  ["program_goodput", "Program goodput (MFU)"], ["productivity_goodput", "ML productivity"],
];

/** Show the comparison that is in the page or, on a served page, that the address names. */
export async function startCompare() {
  const section = document.getElementById("compare");
  document.getElementById("sections").hidden = true;
  document.title = "Comparison · otel-goodput";
  section.hidden = false;
  const waiting = make("p", { class: "soft", text: "Reading both runs…" });
  section.replaceChildren(waiting);
  try {
    const holder = document.getElementById("comparison");
    drawComparison(section, holder ? JSON.parse(holder.textContent) : await fetched(), !holder);
  } catch (error) {
    section.replaceChildren(make("p", {}, allRuns()));
    complaint(`These runs cannot be compared: ${error.message}.`);
  }
  document.documentElement.dataset.ready = "yes";
}

async function fetched() {
  const answer = await fetch(`./api/compare${location.search}`);
  const comparison = await answer.json();
  if (!answer.ok) throw new Error(comparison.error || answer.statusText);
  return comparison;
}

function allRuns() {
  return make("a", { href: "./", text: "All runs" });
}

function drawComparison(section, comparison, served) {
  section.replaceChildren(
    make(
      "div",
      { class: "card" },
      head("Comparison", "", served ? allRuns() : null),
      make("p", { id: "compare-verdict", class: "compare-verdict", text: comparison.verdict }),
      comparison.same_run ? make("p", { class: "soft", text: "Both are the same run." }) : null,
      make("div", { class: "compare-sides" }, sideOf(comparison, "a", served), sideOf(comparison, "b", served)),
    ),
    make("div", { class: "card" }, head("Where the time went", "share of each run, and the time for each step kept"), ...compareBars(comparison), sourceTable(comparison)),
    make("div", { class: "card" }, head("Step time", "net time of kept steps"), stepTimes(comparison), stepHistogram(comparison)),
    make("div", { class: "card" }, head("Figures"), figureTable(comparison)),
    ...(comparison.configuration?.length ? [make("div", { class: "card" }, head("What they ran with", "where it is not the same"), configurationTable(comparison))] : []),
  );
}

function sideOf(comparison, side, served) {
  const one = comparison[side];
  const notes = one.warnings.map((note) => make("li", { text: note.text }));
  if (one.steps_without_times) notes.push(make("li", { text: `The step times are not those of the first ${whole(one.steps_without_times)} steps.` }));
  return make(
    "div",
    { class: `compare-side side-${side}` },
    make("b", { class: "side-name", text: side.toUpperCase() }),
    served ? make("a", { href: `./runs/${encodeURIComponent(nameOf(side))}`, text: one.run_id }) : make("span", { text: one.run_id }),
    make("span", { class: "soft", text: ` ${one.job_name === one.run_id ? "" : one.job_name} ${one.state}` }),
    make("div", { class: "goodput-value", text: share(one.goodput) }),
    notes.length ? make("ul", { class: "warnings" }, ...notes) : null,
  );
}

function nameOf(side) {
  return new URLSearchParams(location.search).get(side) || "";
}

// --- where the time went ------------------------------------------------------------------------------------------

function compareBars(comparison) {
  return ["a", "b"].map((side) => {
    const pieces = comparison.sources
      .filter((source) => source[`${side}_s`] > 0)
      .map((source) => {
        const about = { name: source.category, custom: source.custom };
        const words = `${sourceTitle(about)}: ${time(source[`${side}_s`])}, ${share(source[`${side}_share`])}`;
        return make("div", { class: "piece", title: words, data: { category: source.category, side }, style: { "flex-grow": String(source[`${side}_s`]), background: cssFill(sourceStyle(about)) } });
      });
    return make("div", { class: "bar-row" }, make("span", { class: "bar-title", text: side.toUpperCase() }), make("div", { class: "bar", role: "img", "aria-label": `Where the time of ${side.toUpperCase()} went` }, ...pieces));
  });
}

const SOURCE_COLUMNS = [
  ["", "text"], ["Category", "text"], ["A", "number"], ["B", "number"], ["A, share", "number"], ["B, share", "number"], ["Difference", "number"],
  ["A, per step", "number"], ["B, per step", "number"], ["Difference", "number"],
];

function sourceTable(comparison) {
  const rows = comparison.sources.map((source) => {
    const about = { name: source.category, custom: source.custom };
    return [
      swatch(cssFill(sourceStyle(about))), sourceTitle(about), time(source.a_s), time(source.b_s), share(source.a_share), share(source.b_share),
      points(source.a_share, source.b_share), time(source.a_per_step_s), time(source.b_per_step_s), timeChange(source.a_per_step_s, source.b_per_step_s),
    ];
  });
  return make("div", { class: "scroll" }, table("Time by category in both runs", SOURCE_COLUMNS, rows, { id: "compare-sources" }));
}

// --- step times ---------------------------------------------------------------------------------------------------

const STEP_COLUMNS = [["", "text"], ["A", "number"], ["B", "number"], ["Difference", "number"], ["B / A", "number"], ["95 % interval", "number"], ["", "text"]];

function stepTimes(comparison) {
  const rows = STATISTICS.map(([name, title]) => {
    const one = comparison.step_time[name];
    const known = one.low !== null && one.high !== null;
    const interval = known ? `${change(one.low)} to ${change(one.high)}` : "too few steps";
    const clear = known && (one.low > 1 || one.high < 1);
    const words = !known ? "" : clear ? (one.ratio > 1 ? "B is slower" : "B is faster") : "no clear difference";
    return [title, time(one.a_s), time(one.b_s), signed(one.difference_s), one.ratio === null ? "–" : change(one.ratio), interval, words];
  });
  return make("div", { class: "scroll" }, table("Step time of both runs", STEP_COLUMNS, rows, { id: "compare-steps" }));
}

const HIGH = 120; // px

/** Both distributions over one axis: of each bucket the share of the run's steps, A upwards and B downwards. */
function stepHistogram(comparison) {
  const buckets = comparison.histogram;
  if (!buckets.length) return make("p", { class: "soft", text: "No step times are known." });
  const totals = [2, 3].map((side) => buckets.reduce((sum, bucket) => sum + bucket[side], 0) || 1);
  const most = Math.max(...buckets.flatMap((bucket) => [bucket[2] / totals[0], bucket[3] / totals[1]]));
  const low = Math.log(buckets[0][0]);
  const wide = Math.log(buckets[buckets.length - 1][1]) - low;
  const bars = buckets.flatMap(([from, until, ...counts]) =>
    counts.map((counted, side) => {
      const words = `${time(from)} to ${time(until)}: ${counted} steps of ${"AB"[side]}, ${share(counted / totals[side])}`;
      return make("div", {
        class: `compare-bin side-${"ab"[side]}`,
        title: words,
        data: { side: "ab"[side], count: String(counted) },
        style: {
          left: `${(100 * (Math.log(from) - low)) / wide}%`,
          width: `${(100 * (Math.log(until) - Math.log(from))) / wide}%`,
          height: `${(HIGH * counted) / totals[side] / most}px`,
          background: cssFill(categoryStyle(side ? "data_loading" : "productive")),
        },
      });
    }),
  );
  return make(
    "div",
    { id: "compare-histogram" },
    make("div", { class: "compare-plot", role: "img", "aria-label": "Distribution of step times, A upwards and B downwards" }, make("span", { class: "up", text: "A" }), make("span", { class: "down", text: "B" }), ...bars),
    make("div", { class: "compare-axis soft" }, make("span", { text: time(buckets[0][0]) }), make("span", { text: "net step time (logarithmic)" }), make("span", { text: time(buckets[buckets.length - 1][1]) })),
  );
}

// --- figures ------------------------------------------------------------------------------------------------------

const FIGURE_COLUMNS = [["", "text"], ["A", "number"], ["B", "number"], ["Difference", "number"]];

function figureTable(comparison) {
  const shown = FIGURES.map(([name, title]) => [title, comparison.figures[name]]).filter(([, one]) => one && (one.a !== null || one.b !== null));
  const reasons = ["a", "b"].map((side) => comparison[side].disruption_reasons);
  for (const reason of Object.keys({ ...reasons[0], ...reasons[1] }).sort()) {
    shown.push([`Disruptions: ${reason}`, { kind: "count", a: reasons[0][reason] ?? 0, b: reasons[1][reason] ?? 0 }]);
  }
  const rows = shown.map(([title, { kind, a, b }]) => {
    if (kind === "share") return [title, share(a), share(b), points(a, b)];
    if (kind === "time") return [title, time(a), time(b), timeChange(a, b)];
    const known = a !== null && b !== null;
    return [title, whole(a), whole(b), known ? `${b >= a ? "+" : "−"}${Math.abs(b - a).toLocaleString("en")}` : "–"];
  });
  return make("div", { class: "scroll" }, table("Figures of both runs", FIGURE_COLUMNS, rows, { id: "compare-figures" }));
}

const CONFIGURATION_COLUMNS = [["", "text"], ["", "text"], ["A", "text"], ["B", "text"]];

function configurationTable(comparison) {
  const rows = comparison.configuration.map(({ kind, name, a, b }) => [kind.slice(0, -1), name, a === null ? "–" : String(a), b === null ? "–" : String(b)]);
  return make("div", { class: "scroll" }, table("What the runs were configured with", CONFIGURATION_COLUMNS, rows, { id: "compare-configuration" }));
}

function time(seconds) {
  return seconds === null || seconds === undefined ? "–" : duration(Math.round(seconds * A_SECOND));
}

function signed(seconds) {
  return seconds === null ? "–" : `${seconds < 0 ? "−" : "+"}${time(Math.abs(seconds))}`;
}

function timeChange(a, b) {
  return a === null || b === null ? "–" : signed(b - a);
}

function share(part) {
  return part === null || part === undefined ? "–" : `${(100 * part).toFixed(2)} %`;
}

/** Difference of two shares, in percentage points. */
function points(a, b) {
  return a === null || b === null ? "–" : `${b < a ? "−" : "+"}${(100 * Math.abs(b - a)).toFixed(2)} pp`;
}

function change(ratio) {
  return `${ratio < 1 ? "−" : "+"}${(100 * Math.abs(ratio - 1)).toFixed(2)} %`;
}

function whole(value) {
  return value === null ? "–" : value.toLocaleString("en");
}
