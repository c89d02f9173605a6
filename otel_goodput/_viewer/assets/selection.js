// Beside the timeline: what is selected, what it is connected with, and what an interval of time is made of.
import { scaleText } from "./axis.js";
import { cssFill } from "./colors.js";
import { button, make, swatch } from "./elements.js";
import { factsOf, measureRange } from "./facts.js";
import { count, duration, moment, percent, seconds } from "./format.js";
import { relationsOf } from "./relations.js";
import { pageTimeline } from "./timeline.js";

const NOTHING_SELECTED = "Nothing is selected. Click a span, or drag with Shift for a range of time; ? lists the keys.";

export function startSelection(model, state) {
  const timeline = pageTimeline();
  const box = document.getElementById("selection");
  const measure = document.getElementById("measure");
  const draw = () => {
    const selected = timeline.selected();
    box.dataset.kind = selected ? selected.kind : "";
    box.dataset.row = selected ? selected.row : "";
    const parts = selected ? selectionParts(timeline, selected) : [];
    if (state.range)
      parts.push(
        rangePart(
          timeline,
          "Range",
          state.range,
          button("Clear", () => state.set({ range: null }), { class: "quiet" }),
        ),
      );
    if (!parts.length)
      parts.push(
        make("p", {
          class: "soft",
          text: NOTHING_SELECTED,
        }),
      );
    box.replaceChildren(...parts);
  };
  const drawMeasure = () => {
    const { measure: measured } = timeline;
    measure.hidden = !measured;
    if (!measured) return;
    const waiting = measured.begin === null ? "Measure: click the first point" : "Measure: click the second point";
    if (!measured.done) measure.replaceChildren(make("p", { text: `${waiting}, or press Escape.` }));
    else
      measure.replaceChildren(
        rangePart(
          timeline,
          "Measure",
          [measured.begin, measured.end],
          button("Close", () => timeline.endMeasure(), { class: "quiet" }),
        ),
      );
  };
  timeline.listen((what) => {
    if (what === "measure" || what === "model") drawMeasure();
    if (what === "selected" || what === "model") draw();
  });
  state.on(["range"], draw);
  state.on(["theme"], () => {
    draw();
    drawMeasure();
  });
  draw();
  drawMeasure();
}

function selectionParts(timeline, selected) {
  const facts = factsOf(timeline.source, selected);
  const rows = facts.rows.map(([label, text, ns]) => factRow(label, text, ns));
  if (facts.flags.length) rows.push(factRow("flags", facts.flags.join(", ")));
  if (facts.trace) rows.push(factRow("trace id", facts.trace, null, true));
  else if (facts.span) rows.push(factRow("trace id", "not known: not read, or not in the journal"));
  if (facts.span) rows.push(factRow("span id", facts.span, null, true));
  else if (["step", "phase"].includes(selected.kind))
    rows.push(factRow("span id", "not exported: only in the journal"));
  rows.push(...spanRows(timeline.model, facts));
  const tools = make(
    "span",
    { class: "tools" },
    button("Fit", () => timeline.fit(facts.begin, facts.end), { class: "quiet" }),
    facts.end > facts.begin
      ? button("As range", () => timeline.state.set({ range: [facts.begin, facts.end] }), { class: "quiet" })
      : null,
    traceLink(timeline.model, facts),
  );
  const about = make(
    "section",
    { class: "fact-card", "aria-label": "Current selection" },
    make("div", { class: "card-head" }, make("h3", { text: facts.title, title: facts.title }), tools),
    make("dl", {}, ...rows.flat()),
  );
  const relations = relationsOf(timeline.source, selected);
  const list = relations.map(({ title, detail, goal, time }) =>
    make(
      "li",
      {},
      goal
        ? button(title, () => timeline.centre(goal, time ?? null), {
            class: "link",
            data: { kind: goal.kind, row: goal.row, process: goal.process },
          })
        : make("span", { text: title }),
      detail ? make("span", { class: "soft", text: ` ${detail}` }) : null,
    ),
  );
  const related = list.length
    ? make("ul", { id: "connections" }, ...list)
    : make("p", { class: "soft", text: "None known." });
  return [
    about,
    make(
      "section",
      { class: "fact-card", "aria-label": "Connections" },
      make("div", { class: "card-head" }, make("h3", { text: "Connections" })),
      related,
    ),
  ];
}

/** What the span says in the trace, if its file was beside the journal: status, attributes and events. */
function spanRows(model, facts) {
  const about = facts.span && model.attributes.get(facts.span);
  if (!about) return facts.span && model.attributes.text ? [factRow("attributes", model.attributes.text)] : [];
  const words = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const rows = about.attributes.map(([name, value]) => factRow(name, words(value)));
  if (about.status === 2) rows.unshift(factRow("status", about.message ? `error: ${about.message}` : "error"));
  for (const { time, name, attributes } of about.events) {
    const held = Object.entries(attributes).map(([key, value]) => `${key}: ${words(value)}`);
    rows.push(factRow("event", [`${name} at ${duration(time)}`, ...held].join("\n")));
  }
  return rows;
}

function factRow(label, text, ns = null, copied = false) {
  const value = make("dd", { data: { fact: label, ...(ns === null ? {} : { ns }) } }, make("span", { text }));
  if (copied) {
    value.classList.add("mono");
    value.append(
      button("Copy", (event) => copyText(text, event.currentTarget), {
        class: "quiet copy",
        "aria-label": `Copy ${label}`,
      }),
    );
  }
  return [make("dt", { text: label, title: label }), value];
}

/** Copy, on pages from a disk as well, where browsers may refuse the clipboard. */
async function copyText(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = make("textarea", { class: "unseen" });
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  pressed.textContent = "Copied";
  setTimeout(() => (pressed.textContent = "Copy"), 1500);
}

/** To the trace in Google Cloud, if the document knows where; only addresses of the web. */
function traceLink(model, facts) {
  const address = model.traces && model.traces.cloud_trace;
  if (!address || !facts.trace || !/^https:\/\//.test(address)) return null;
  const href = address
    .replaceAll("{trace}", encodeURIComponent(facts.trace))
    .replaceAll("{span}", encodeURIComponent(facts.span || ""));
  return make("a", { href, target: "_blank", rel: "noopener noreferrer", text: "Cloud Trace" });
}

function rangePart(timeline, title, [begin, end], close) {
  const { origin_ms: origin } = timeline.model;
  const { shares, exact, steps } = measureRange(timeline.source, begin, end);
  const about = exact ? "" : "≈ ";
  const elapsed = shares.reduce((sum, one) => sum + one.ns, 0);
  const rows = [
    ...factRow("length", `${duration(end - begin)} (${seconds(end - begin)})`, end - begin),
    ...factRow("begin", `${scaleText(begin, 1e6)} · ${moment(origin + begin / 1e6)}`, begin),
    ...factRow("end", `${scaleText(end, 1e6)} · ${moment(origin + end / 1e6)}`, end),
    ...factRow("steps", stepsText(steps)),
  ];
  const pieces = shares
    .sort((one, other) => other.ns - one.ns)
    .map(({ title: name, paint, kind, ns }) =>
      make(
        "li",
        { data: { category: kind, ns } },
        swatch(cssFill(paint.style())),
        make("span", { class: "name", text: name, title: name }),
        make("span", { text: `${about}${duration(ns)}` }),
        make("span", { class: "soft", text: percent(ns, elapsed) }),
      ),
    );
  return make(
    "section",
    { class: "fact-card", "aria-label": title, data: { exact: String(exact) } },
    make(
      "div",
      { class: "card-head" },
      make("h3", { text: title }),
      make(
        "span",
        { class: "tools" },
        button("Fit", () => timeline.fit(begin, end), { class: "quiet" }),
        close,
      ),
    ),
    make("dl", {}, ...rows),
    make("ul", { class: "shares-list" }, ...pieces),
    exact
      ? null
      : make("p", {
          class: "soft",
          text: "≈: estimated from bins, assuming that time is spread evenly within each",
        }),
  );
}

function stepsText(steps) {
  if (!steps.count) return "none started";
  const number = `${steps.exact ? "" : "≈ "}${count(steps.count, "step")}`;
  const lost = steps.lost ? `, ${steps.exact ? "" : "≈ "}${steps.lost} of them lost` : "";
  return `${number} (${steps.first} to ${steps.last})${lost}`;
}
