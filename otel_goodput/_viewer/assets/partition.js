// Where the time went: one bar for the run, an attempt or the selected time, its table, and the device beside it.
import { cssFill, sourceStyle, sourceTitle, categoryStyle } from "./colors.js";
import { choice, head, make, select, swatch, table, tableRow, watch, button } from "./elements.js";
import { fillCard } from "./mount.js";
import { duration, percent, seconds } from "./format.js";
import { deviceUse } from "./device.js";
import { partitionOf, scopeOf, scopeTitle } from "./scope.js";
import { seen } from "./subject.js";

const BUTTONS = 8; // attempts that get a button each; more of them, a list

export function startPartition(model, state) {
  watch(state, ["model", "document", "range", "attempt", "category", "process", "theme"], () => {
    const about = seen(model, state);
    if (!model.report.elapsed_s) return fillCard("account") && fillCard("partition");
    const scope = scopeOf(model, state);
    const account = partitionOf(about, scope);
    fillCard(
      "partition",
      head("Where the time went", titleOf(about, scope, account), scopeSwitch(model, state, scope)),
      ...partitionBars(about, state, scope, account),
    );
    fillCard("account", accountTable(model, state, account));
    return undefined;
  });
}

function titleOf({ subject }, scope, account) {
  const whose = subject.title ? `${subject.title}, ` : "";
  return `${whose}${scopeTitle(scope)}, ${account.exact ? "" : "≈ "}${duration(account.elapsed)}`;
}

function scopeSwitch(model, state, scope) {
  const chosen = scope.kind === "attempt" ? String(scope.attempt.number) : scope.kind;
  const to = (value) => {
    if (value === "range") return;
    const attempt = model.attempts.find((one) => String(one.number) === value);
    state.set({
      range: null,
      attempt: attempt ? attempt.number : null,
      view: attempt ? [attempt.begin, attempt.end] : null,
    });
  };
  const attempts =
    model.attempts.length > 1 ? model.attempts.map((one) => [String(one.number), `Attempt ${one.number}`]) : [];
  const choices = [["run", "Whole run"], ...attempts];
  if (scope.kind === "range") choices.push(["range", "Selected time"]);
  if (choices.length === 1) return null;
  return attempts.length > BUTTONS
    ? select("Time range to show", choices, chosen, to)
    : choice("Time range to show", choices, chosen, to);
}

function partitionBars(model, state, scope, account) {
  const pieces = account.pieces.map(({ category, ns }) => {
    const about = model.categories[category];
    const words = `${sourceTitle(about)}: ${duration(ns)}, ${percent(ns, account.elapsed)}`;
    return button("", () => state.set({ category: state.category === category ? null : category }), {
      class: `piece${dimmed(state, category, account)}`,
      title: words,
      "aria-label": words,
      "aria-pressed": String(state.category === category),
      data: { category: about.name, name: about.custom, ns: String(ns) },
      style: { "flex-grow": String(ns / account.elapsed), background: cssFill(sourceStyle(about)) },
    });
  });
  const bar = make("div", { class: "bar", role: "group", "aria-label": "Where the time went" }, ...pieces);
  const own = model.subject.kind === "run" || model.subject.process?.leader;
  const device = own ? deviceBar(model, scope) : null; // what is known of the device is the leader's
  const parts = [make("div", { class: "bar-row" }, make("span", { class: "bar-title", text: "Time" }), bar)];
  if (device) parts.push(device);
  return [make("div", { class: "bars" }, ...parts)];
}

/** Others are dimmed beside an emphasised category, if that has any time here. */
function dimmed(state, category, account) {
  const shown = account.pieces.some((piece) => piece.category === state.category);
  return shown && state.category !== category ? " dim" : "";
}

const DEVICE_STYLES = {
  busy: () => categoryStyle("productive"),
  idle: () => categoryStyle("data_loading"),
  "not observed": () => categoryStyle("other"),
  "no process": () => categoryStyle("infrastructure_recovery"),
};

/** Device busy, idle, not observed. Null where nothing at all is known of it. */
function deviceBar(model, scope) {
  const use = deviceUse(model, scope);
  if (!use) return null;
  const sum = use.pieces.reduce((total, [, ns]) => total + ns, 0);
  const made = use.pieces.map(([name, ns]) => {
    const style = (DEVICE_STYLES[name] || DEVICE_STYLES["not observed"])();
    const words = `${name}: ${use.exact ? "" : "≈ "}${duration(ns)}, ${percent(ns, sum)}`;
    return make("div", {
      class: "piece",
      title: words,
      data: { device: name, ns: String(ns) },
      style: { "flex-grow": String(ns / sum), background: cssFill(style) },
    });
  });
  const legend = use.pieces.map(([name, ns]) => {
    const style = (DEVICE_STYLES[name] || DEVICE_STYLES["not observed"])();
    return make(
      "span",
      { class: "legend" },
      swatch(cssFill(style)),
      `${name} ${use.exact ? "" : "≈ "}${percent(ns, sum)}`,
    );
  });
  return make(
    "div",
    { class: "bar-row", id: "device-use" },
    make("span", { class: "bar-title", text: "Device" }),
    make(
      "div",
      {},
      make("div", { class: "bar thin", role: "img", "aria-label": "Device in use" }, ...made),
      make("div", { class: "legends" }, ...legend),
    ),
  );
}

const ACCOUNT_COLUMNS = [
  ["Category", "text"],
  ["Share", "number"],
  ["Time", "number"],
  ["Exactly", "number"],
];

function accountTable(model, state, account) {
  const roughly = account.exact ? "" : "≈ ";
  const exactly = (ns) => make("span", { class: "soft", text: roughly + seconds(ns) });
  const rows = account.pieces.map(({ category, ns }) => {
    const about = model.categories[category];
    const name = button(
      sourceTitle(about),
      () => state.set({ category: state.category === category ? null : category }),
      {
        class: "link clamp",
        title: sourceTitle(about),
        "aria-pressed": String(state.category === category),
      },
    );
    const cells = [
      make("div", { class: "name-line" }, swatch(cssFill(sourceStyle(about))), name),
      roughly + percent(ns, account.elapsed),
      duration(ns),
      exactly(ns),
    ];
    return tableRow(ACCOUNT_COLUMNS, cells, {
      class: dimmed(state, category, account).trim(),
      data: { category: about.name, name: about.custom, ns: String(ns) },
    });
  });
  rows.push(
    tableRow(
      ACCOUNT_COLUMNS,
      ["sum = elapsed", account.elapsed ? "100 %" : "–", duration(account.elapsed), exactly(account.elapsed)],
      { class: "sum", data: { sum: String(account.elapsed) } },
    ),
  );
  return make("div", { class: "scroll" }, table("Time by category", ACCOUNT_COLUMNS, rows, { id: "partition-table" }));
}
