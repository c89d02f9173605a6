// What was wrong with the job: incidents, where its ranks stood still, and profiles of slow steps.
import { button, goTo, head, make, table, tableRow, watch } from "./elements.js";
import { fillCard } from "./mount.js";
import { incidentColor } from "./colors.js";
import { count, duration, percent } from "./format.js";
import { timeText } from "./clock.js";
import { nanoseconds } from "./scope.js";
import { incidentSpans, incidentsOf, kindTitle, momentOf } from "./incidentspans.js";
import { categoryOf, doingCell, rankButton } from "./waits.js";

const INCIDENT_COLUMNS = [
  ["Since", "text"],
  ["Lasted", "text"],
  ["Kind", "text"],
  ["Cause", "text"],
  ["Rank", "text"],
  ["Line", "text"],
  ["Before → after", "text"],
  ["Cost", "number"],
  ["What is known", "text"],
];
const FUNCTION_COLUMNS = [
  ["Own", "number"],
  ["Total", "number"],
  ["Function", "text"],
  ["Line", "text"],
];
const INCIDENTS_SHOWN = 6; // before the table is unfolded
const INCIDENTS_MOST = 200;
const GROUPS_OPEN = 2; // groups of ranks whose stacks are unfolded
const OPEN_SHOWN = 3; // open incidents in the headline
const incidentView = { all: false };

export function startIncidents(model, state) {
  const draw = () => drawIncidentPanel(model, state, draw);
  watch(state, ["model", "document", "theme", "clock"], draw);
  watch(state, ["model", "document", "clock"], () => drawWrongNow(model));
}

/** What is wrong now, under the headline: a screen reader says it once, when it comes. */
function drawWrongNow(model) {
  const open = incidentsOf(model).filter((one) => one.ended === null);
  const mount = document.getElementById("wrong-now");
  const lines = open.slice(-OPEN_SHOWN).reverse().map((one) => `${kindTitle(one)} since ${timeText(model, momentOf(model, one.began), 1e9)}: ${one.text}`);
  if (open.length > OPEN_SHOWN) lines.push(`${count(open.length - OPEN_SHOWN, "other incident")} open`);
  const key = lines.join("\n");
  if (mount.dataset.shown === key) return;
  mount.dataset.shown = key;
  mount.replaceChildren(...lines.map((line) => make("p", {}, make("span", { class: "state state-wrong", text: "open" }), button(line, () => goTo("incidents-card"), { class: "link" }))));
}

function drawIncidentPanel(model, state, draw) {
  const incidents = incidentSpans(model).reverse();
  const { standstills, profiles } = model;
  if (!incidents.length && !standstills?.length && !profiles?.length) return fillCard("incidents");
  const most = incidentView.all ? INCIDENTS_MOST : INCIDENTS_SHOWN;
  const rows = incidents.slice(0, most).map((span) => incidentRow(model, state, span));
  const flip = () => {
    incidentView.all = !incidentView.all;
    draw();
  };
  const left = incidents.length - rows.length;
  return fillCard(
    "incidents",
    head("Incidents", incidentNote(incidents)),
    rows.length ? make("div", { class: "scroll" }, table("Incidents, the latest first", INCIDENT_COLUMNS, rows, { id: "incidents-table" })) : null,
    left || incidentView.all ? button(incidentView.all ? "Fewer" : `All ${incidents.length.toLocaleString("en")}`, flip, { "aria-expanded": String(incidentView.all) }) : null,
    incidentView.all && left ? make("p", { class: "soft", text: `${count(left, "earlier incident")}: see the report as JSON` }) : null,
    ...(standstills || []).map((one) => standstillPart(model, one)),
    ...(profiles || []).map((one) => profilePart(model, one)),
  );
}

function incidentNote(incidents) {
  if (!incidents.length) return "none; what is below was requested, or left by a standstill";
  const open = incidents.filter((one) => one.open).length;
  const cost = incidents.reduce((sum, { one }) => sum + one.cost_s, 0);
  return `${count(incidents.length, "incident")}${open ? `, ${open} open` : ""}; cost ${duration(nanoseconds(cost))}`;
}

function incidentRow(model, state, { begin, end, open, one }) {
  const go = () => {
    const pad = Math.max((end - begin) * 0.3, 1e9);
    state.set({ view: [begin - pad, end + pad] });
    goTo("timeline-card");
  };
  const choose = (rank) => {
    state.set({ process: rank });
    goTo("timeline-card");
  };
  const category = categoryOf(model, one.cause === "step" ? "productive" : one.cause, one.phase);
  const causes = one.kind === "restart_loop" ? one.phase || "restarts" : null;
  const paces = one.before_s !== null && one.after_s !== null ? `${duration(nanoseconds(one.before_s))} → ${duration(nanoseconds(one.after_s))}` : "";
  const cells = [
    button(timeText(model, begin, 1e9), go, { class: "link" }),
    `${duration(end - begin)}${open ? ", still open" : ""}`,
    make("span", { class: "incident-kind", style: { "border-color": `var(--${incidentColor(one.kind)})` }, text: kindTitle(one) }),
    causes ?? (one.cause === "step" ? make("span", { text: "step" }) : doingCell(category, one.cause, one.phase)),
    one.rank === null ? "all" : rankButton(model, one.rank, choose),
    one.line,
    paces,
    duration(nanoseconds(one.cost_s)),
    knownCell(model, one),
  ];
  return tableRow(INCIDENT_COLUMNS, cells, { data: { incident: `${one.attempt}-${one.number}`, kind: one.kind, open: String(open) } });
}

function knownCell(model, one) {
  const lost = one.shares.length > 1 ? [`lost to ${one.shares.slice(0, 3).map((share) => shareText(share, one.cost_s)).join(", ")}`] : [];
  const items = [...lost, ...one.evidence].map((text) => make("li", { text }));
  const still = (model.standstills || []).find((each) => stoodStill(each, one));
  const taken = (model.profiles || []).filter((each) => each.attempt === one.attempt && each.incident === one.number);
  return make(
    "div",
    { class: "incident-known" },
    make("p", { text: one.text }),
    items.length ? make("ul", {}, ...items) : null,
    still ? button("Stacks", () => unfold(standstillId(still)), { "aria-label": `Stacks of attempt ${one.attempt}` }) : null,
    ...taken.map((each) => button(`Profile of rank ${each.process}`, () => unfold(profileId(each)))),
  );
}

function shareText({ cause, phase, rank, seconds }, cost) {
  const of = rank === null ? "" : ` of rank ${rank}`;
  return `${[cause, phase].filter(Boolean).join(" ")}${of} ${percent(seconds, cost)}`;
}

/** Whether ranks stood still in the time of an incident. */
function stoodStill(still, one) {
  return still.attempt === one.attempt && still.at >= one.began && (one.ended === null || still.since <= one.ended);
}

/** Go to a part of the panel, with what is in it in sight. */
function unfold(id) {
  const part = document.getElementById(id);
  if (part instanceof HTMLDetailsElement) part.open = true;
  goTo(id);
  part?.querySelector("summary")?.focus({ preventScroll: true });
}

// --- stacks -------------------------------------------------------------------------------------------------------

const standstillId = (still) => `stacks-${still.attempt}`;

function standstillPart(model, still) {
  const end = still.moved_on ?? still.at;
  const ended = still.moved_on === null ? "" : ", then it went on";
  const when = `since ${timeText(model, momentOf(model, still.since), 1e9)}, for ${duration(nanoseconds(end - still.since))}${ended}`;
  const more = [];
  if (still.more_groups) more.push(count(still.more_groups, "other place"));
  if (still.more_missing) more.push(`${count(still.more_missing, "other rank")} without stacks`);
  return make(
    "section",
    { class: "standstill", id: standstillId(still), "aria-label": `Stacks of attempt ${still.attempt}`, data: { attempt: String(still.attempt) } },
    make("h3", { text: `Attempt ${still.attempt}: training stood still ${when}` }),
    still.verdict ? make("p", { class: "strong", text: still.verdict }) : null,
    ...still.groups.map((group, at) => groupPart(group, at < GROUPS_OPEN, still.waits_for)),
    ...still.missing.map((one) => make("p", { data: { missing: String(one.rank) }, text: `rank ${one.rank} left no stacks: ${one.reason}` })),
    more.length ? make("p", { class: "soft", text: `${more.join("; ")}: see otel-goodput stacks` }) : null,
  );
}

function groupPart(group, open, awaited) {
  const held = group.ranks.some((rank) => awaited.includes(rank));
  const frames = group.frames.map((one) => make("li", {}, make("code", { text: one.function }), ` ${one.path}:${one.line}`));
  if (group.left_out) frames.splice(frames.length / 2, 0, make("li", { class: "soft", text: `${count(group.left_out, "frame")} left out` }));
  return make(
    "details",
    { open, data: { ranks: group.ranks.join(","), awaited: String(held) } },
    make("summary", {}, group.text, held ? make("span", { class: "state state-wrong", text: "the others wait" }) : null),
    make("ol", { class: "frames" }, ...frames),
  );
}

// --- profiles -----------------------------------------------------------------------------------------------------

const profileId = (one) => `profile-${one.process}-${one.attempt}-${one.number}`;

function profilePart(model, one) {
  const when = timeText(model, momentOf(model, one.began_at), 1e9);
  const rows = one.functions.map((each) => [percent(each.own, 1), percent(each.total, 1), each.function, `${each.file.split("/").slice(-2).join("/")}:${each.line}`]);
  return make(
    "details",
    { id: profileId(one), class: "profile", data: { profile: `${one.process}-${one.attempt}-${one.number}` } },
    make("summary", { text: `Profile of rank ${one.process}, attempt ${one.attempt}, at ${when} (${one.cause})${one.growth ? `: ${one.growth}` : ""}` }),
    one.note ? make("p", { text: one.note }) : null,
    one.trace ? make("p", { text: `Trace, in the run's folder: ${one.trace}` }) : null,
    make("div", { class: "scroll" }, table("Functions by their own time", FUNCTION_COLUMNS, rows)),
  );
}
