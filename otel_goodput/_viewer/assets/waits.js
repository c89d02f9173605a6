// Which ranks the job waited for, and what its ranks are doing now.
import { button, goTo, head, make, swatch, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { cssFill, sourceStyle, sourceTitle } from "./colors.js";
import { count, duration, percent } from "./format.js";
import { timeText } from "./clock.js";
import { nanoseconds } from "./scope.js";

const WAIT_COLUMNS = [
  ["Rank", "text"],
  ["What it did", "text"],
  ["Time", "number"],
  ["Share", "number"],
  ["Goodput without it", "number"],
  ["Latest", "text"],
];
const OPEN_COLUMNS = [
  ["Rank", "text"],
  ["PID", "number"],
  ["State", "text"],
  ["Doing", "text"],
  ["Step", "number"],
  ["Since", "text"],
  ["Last sign of life", "text"],
];
const SHOWN = 8; // rows of a table before it is waitsUnfolded
const WORTH = 0.005; // of the time: shorter waits are listed only if all are
const waitsUnfolded = { waits: false, open: false };

export function startWaits(model, state) {
  const draw = () => drawWaits(model, state, draw);
  watch(state, ["model", "document", "theme", "clock"], draw);
}

function drawWaits(model, state, draw) {
  const { ranks, elapsed_s: elapsed } = model.report;
  if (!ranks || !elapsed) return fillCard("waits");
  const choose = (rank) => {
    state.set({ process: rank });
    goTo("timeline-card");
  };
  const open = ranks.open || [];
  return fillCard("waits", ...lostToRanks(model, ranks, elapsed, choose, draw), ...(open.length ? openNow(model, ranks, choose, draw) : []));
}

function lostToRanks(model, { waits, count: known }, elapsed, choose, draw) {
  const sum = waits.reduce((total, one) => total + one.seconds, 0);
  const worth = waits.filter((one) => one.seconds >= WORTH * elapsed);
  const rows = waitsUnfolded.waits ? waits : worth.slice(0, SHOWN);
  const note = `the job waited ${duration(nanoseconds(sum))} (${percent(sum, elapsed)}) for single ones of its ${count(known, "rank")}`;
  return [
    head("Lost to ranks", sum ? note : ""),
    rows.length
      ? make("div", { class: "scroll" }, table("Lost to ranks", WAIT_COLUMNS, rows.map((one) => waitRow(model, one, elapsed, choose)), { id: "waits-table" }))
      : make("p", { text: sum ? "No single rank held the others up for long." : "No rank held the others up." }),
    unfoldTable("waits", waits.length, rows.length, draw),
  ];
}

function unfoldTable(which, all, shown, draw) {
  if (all <= shown && !waitsUnfolded[which]) return null;
  const flip = () => {
    waitsUnfolded[which] = !waitsUnfolded[which];
    draw();
  };
  return button(waitsUnfolded[which] ? "Fewer" : `All ${all.toLocaleString("en")}`, flip, { "aria-expanded": String(waitsUnfolded[which]) });
}

function waitRow(model, one, elapsed, choose) {
  const category = categoryOf(model, one.category, one.name);
  const cells = [
    rankButton(model, one.rank, choose),
    doingCell(category, one.category, one.name),
    duration(nanoseconds(one.seconds)),
    percent(one.seconds, elapsed),
    one.goodput_without === null || one.goodput_without === undefined ? "–" : percent(one.goodput_without, 1),
    `${waitMoment(model, one.since)} – ${waitMoment(model, one.until)}`,
  ];
  return tableRow(WAIT_COLUMNS, cells, { data: { rank: String(one.rank), category: one.category, name: one.name } });
}

export function categoryOf(model, name, custom) {
  return model.categories.find((one) => one.name === name && one.custom === (custom || ""));
}

export function doingCell(category, name, custom) {
  const words = category ? sourceTitle(category) : [name.replaceAll("_", " "), custom].filter(Boolean).join(": ");
  return make("div", { class: "name-line" }, category ? swatch(cssFill(sourceStyle(category))) : null, make("span", { class: "clamp", text: words, title: words }));
}

export function rankButton(model, rank, choose) {
  const process = model.processes.find((one) => one.index === rank);
  const name = `rank ${rank}${process?.host ? ` (${process.host})` : ""}`;
  return button(name, () => choose(rank), { class: "link clamp" });
}

function waitMoment(model, seconds) {
  // Another rank may have begun before the one from whose begin times are counted.
  return timeText(model, Math.max(0, seconds * 1e9 - Number(BigInt(model.origin_ns))), 1e9);
}

// --- now ----------------------------------------------------------------------------------------------------------

function openNow(model, { open, waiting_for: waited }, choose, draw) {
  // The one that the others wait for comes first, then those that are no longer heard of.
  const rank = (one) => (one.rank === waited?.rank ? 0 : one.state === "running" ? 2 : 1);
  const sorted = [...open].sort((one, other) => rank(one) - rank(other) || one.rank - other.rank);
  const rows = waitsUnfolded.open ? sorted : sorted.slice(0, SHOWN);
  return [
    head("Open now", waited ? waitingText(model, waited) : ""),
    make("div", { class: "scroll" }, table("Open now", OPEN_COLUMNS, rows.map((one) => openRow(model, one, waited, choose)), { id: "open-table" })),
    unfoldTable("open", sorted.length, rows.length, draw),
  ];
}

function waitingText(model, { rank, category, name, since }) {
  const about = categoryOf(model, category, name);
  const what = about ? sourceTitle(about) : category;
  return `the job waits for rank ${rank} (${what}) since ${waitMoment(model, since)}`;
}

function openRow(model, one, waited, choose) {
  const cells = [
    rankButton(model, one.rank, choose),
    one.pid === null || one.pid === undefined ? "" : String(one.pid),
    one.state,
    one.phase === null ? "between phases" : doingCell(categoryOf(model, one.phase, one.name), one.phase, one.name),
    one.step === null || one.step === undefined ? "" : String(one.step),
    one.since === null || one.since === undefined ? "" : waitMoment(model, one.since),
    waitMoment(model, one.last_sign_of_life),
  ];
  return tableRow(OPEN_COLUMNS, cells, { "aria-selected": one.rank === waited?.rank ? "true" : null, data: { rank: String(one.rank), state: one.state } });
}
