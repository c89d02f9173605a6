// What is known of one thing that can be selected, as rows of text with exact ns beside them.
import { scaleText } from "./axis.js";
import { FATE_NAMES, sourceTitle } from "./colors.js";
import { reasonText } from "./disruptions.js";
import { count, duration, moment, percent, seconds } from "./format.js";
import { FLAGS, laneBins } from "./lanes.js";
import { OVER, lowerBound } from "./data.js";
import { SKIPPED, isSettled, timeByCategory } from "./scope.js";

const CLOCKS = ["device", "host", "unknown: only the dispatch was recorded"];
const FLAG_WORDS = {
  nonblocking: "in the background",
  failed: "failed",
  outlier: "outlier",
  interrupted: "interrupted: closed by recovery or shutdown",
  recompilation: "compiled again",
  summedUp: "summed up in the trace",
  exported: "",
};

/** Whether `selected` is in the document: an address may come from another one. */
export function isThere(source, selected) {
  if (!selected) return false;
  const rows = rowsOf(source, selected);
  return selected.row >= 0 && selected.row < rows;
}

function rowsOf(source, { kind, process }) {
  const { model } = source;
  if (kind === "bin") {
    const track = processTrack(source, process);
    return track ? track.count : 0;
  }
  const table = {
    step: model.steps,
    phase: model.phases,
    save: model.saves,
    steps: model.step_bins,
    owner: source.owners,
  }[kind];
  if (table) return table.rows;
  const list = { disruption: model.disruptions, attempt: model.attempts, notice: model.notices, slice: model.slices }[
    kind
  ];
  return list ? list.length : 0;
}

function processTrack(source, index) {
  const process = source.model.processes.find((one) => one.index === index);
  if (!process || index === source.own) return source.model.bins.count ? source.mainBins() : null;
  return laneBins(source.processLane(process));
}

/** {title, begin, end, rows: [[label, text, ns | null]], flags, trace, span, attempt} of what is selected; see trace_ids. */
export function factsOf(source, selected) {
  const facts = FACTS[selected.kind](source, selected.row, selected);
  const attempt = source.model.attempts.find((one) => one.number === facts.attempt);
  facts.span =
    { step: source.model.step_ids, phase: source.model.phase_ids }[facts.ids || selected.kind]?.get(
      facts.idRow ?? selected.row,
    ) || null;
  // Steps may be in traces of their own. What was not exported is in none.
  const alone = ["step", "phase", "save"].includes(selected.kind);
  facts.trace = (alone && !facts.span ? null : (source.model.trace_ids.get(facts.span) ?? attempt?.trace_id)) || null;
  const { origin_ms: origin } = source.model;
  facts.rows.unshift(
    ["begin", `${scaleText(facts.begin, 1e6)} · ${moment(origin + facts.begin / 1e6)}`, facts.begin],
    [
      "end",
      facts.open ? openWord(source, selected) : `${scaleText(facts.end, 1e6)} · ${moment(origin + facts.end / 1e6)}`,
      facts.open ? null : facts.end,
    ],
  );
  return facts;
}

const lengthRow = (label, ns) => [label, `${duration(ns)} (${seconds(ns)})`, ns];

/** The length `ns` of a span that is `wall` long according to the document. */
const howLong = (word, wall, ns) =>
  wall === OVER ? [word, "ended; details not received yet", null] : lengthRow(wall < 0 ? `${word}, so far` : word, ns);

const openWord = ({ model }, { kind, row }) =>
  ({ step: model.steps, phase: model.phases })[kind]?.wall[row] === OVER ? "ended; details not received yet" : "open";

function flagWords(flags) {
  return Object.entries(FLAGS)
    .filter(([name, bit]) => flags & bit && FLAG_WORDS[name])
    .map(([name]) => FLAG_WORDS[name]);
}

const FACTS = {
  step(source, row) {
    const { steps } = source.model;
    const begin = steps.start[row];
    const end = source.stepEnd(row);
    const open = steps.wall[row] < 0;
    const rows = [];
    if (steps.net[row] >= 0) rows.push(lengthRow("net", steps.net[row]));
    rows.push(howLong("wall", steps.wall[row], end - begin));
    if (steps.device_begin[row] >= 0 && steps.device_end[row] >= 0) {
      rows.push(lengthRow("on the device", steps.device_end[row] - steps.device_begin[row]));
      rows.push(["device begin", scaleText(steps.device_begin[row], 1e6), steps.device_begin[row]]);
      rows.push(["device end", scaleText(steps.device_end[row], 1e6), steps.device_end[row]]);
    } else {
      rows.push(["on the device", "not observed", null]);
    }
    rows.push(
      ["fate", FATE_NAMES[steps.fate[row]] || "not known", null],
      ["clock", CLOCKS[steps.clock[row]] || "not known", null],
    );
    // After a restore a loop may number its steps otherwise.
    if (steps.given[row] !== steps.number[row]) rows.push(["number in its loop", `${steps.given[row]}`, null]);
    rows.push(["attempt", `${steps.attempt[row]}`, null], ["parents", `job of attempt ${steps.attempt[row]}`, null]);
    return {
      title: `step ${steps.number[row]}`,
      begin,
      end,
      open,
      rows,
      attempt: steps.attempt[row],
      flags: flagWords(steps.flags[row]),
    };
  },

  phase(source, row) {
    const { phases, phase_names: known, names } = source.model;
    const begin = phases.start[row];
    const end = source.phaseEnd(row);
    const open = phases.wall[row] < 0;
    const rows = [["phase", known[phases.phase[row]], null]];
    if (names[phases.name[row]]) rows.push(["name", names[phases.name[row]], null]);
    rows.push(howLong("length", phases.wall[row], end - begin));
    if (phases.step[row] >= 0) rows.push(["step", `${phases.step[row]}`, null]);
    rows.push(["attempt", `${phases.attempt[row]}`, null]);
    const parents = [];
    for (let at = phases.parent[row]; at >= 0 && parents.length < 16; at = phases.parent[at])
      parents.push(source.phaseName(at));
    if (parents.length) rows.push(["parents", parents.join(" ‹ "), null]);
    return {
      title: source.phaseLabel(row),
      begin,
      end,
      open,
      rows,
      attempt: phases.attempt[row],
      flags: flagWords(phases.flags[row]),
    };
  },

  save(source, row) {
    const { saves, phases, phase_names: known } = source.model;
    const begin = saves.begin[row];
    const blocking = saves.blocking_end[row];
    const durable = saves.durable_at[row];
    const rows = [
      ["step", `${saves.step[row]}`, null],
      ["attempt", `${saves.attempt[row]}`, null],
    ];
    if (blocking >= 0)
      rows.push(lengthRow("blocked training", blocking - begin), ["blocking end", scaleText(blocking, 1e6), blocking]);
    if (durable >= 0)
      rows.push(lengthRow("until durable", durable - begin), ["durable at", scaleText(durable, 1e6), durable]);
    else rows.push(["durable", "not known to be", null]);
    const end = Math.max(begin, blocking, durable);
    const save = known.indexOf("checkpoint_save");
    const idRow = phases.start.findIndex((start, at) => start === begin && phases.phase[at] === save);
    return {
      title: `checkpoint of step ${saves.step[row]}`,
      begin,
      end,
      rows,
      attempt: saves.attempt[row],
      flags: saves.failed[row] ? ["failed"] : [],
      ids: "phase",
      idRow,
    };
  },

  disruption(source, row) {
    const one = source.model.disruptions[row];
    const begin = one.died_at ?? one.time;
    const correction = one.said_by === null ? [] : [["set by", one.said_by, null], ["original reason", one.first_reason, null]];
    if (one.note !== null) correction.push(["note", one.note, null]);
    const rows = [
      ["reason", reasonText(one), null],
      ...correction,
      lengthRow("until restarted", one.recovery_ns),
      lengthRow("steps lost", one.wasted_ns),
      lengthRow("cost", one.recovery_ns + one.wasted_ns),
    ];
    if (one.to_step !== null && one.from_step !== null)
      rows.push([one.to_step > one.from_step ? "went on" : "went back", `from step ${one.from_step} to ${one.to_step}`, null]);
    if (one.first_step_ns !== null) rows.push(lengthRow("to the first step", one.first_step_ns));
    if (one.regained_ns !== null) rows.push(lengthRow(`to regain step ${one.kept_step}`, one.regained_ns));
    rows.push(["where", one.attempt === null ? "within the process, without a restart" : `before attempt ${one.attempt}`, null]);
    return { title: `disruption: ${one.reason}`, begin, end: one.time, rows, attempt: one.attempt, flags: [] };
  },

  attempt(source, row) {
    const one = source.model.attempts[row];
    const end = source.ends.get(one.number);
    const rows = [["state", one.state, null], lengthRow("lasted", end - one.begin)];
    if (one.goodput !== null) rows.push(["goodput", percent(one.goodput, 1), null]);
    return {
      title: `attempt ${one.number}`,
      begin: one.begin,
      end,
      open: one.state === "running",
      rows,
      attempt: one.number,
      flags: [],
    };
  },

  owner(source, row) {
    const { owners } = source;
    const { categories } = source.model;
    const begin = owners.begin[row];
    return {
      title: sourceTitle(categories[owners.category[row]]),
      begin,
      end: begin + owners.length[row],
      attempt: attemptAt(source, begin),
      flags: [],
      rows: [
        ["category", sourceTitle(categories[owners.category[row]]), null],
        lengthRow("length", owners.length[row]),
      ],
    };
  },

  steps(source, row) {
    const { step_bins: bins, end } = source.model;
    const last = row + 1 < bins.rows ? bins.begin[row + 1] : end;
    const rows = [["steps", `${count(bins.count[row], "execution")}, ${bins.lost[row]} of them lost`, null]];
    for (const [name, words] of [
      ["net", "net"],
      ["outside", "between steps"],
      ["device", "on the device"],
    ]) {
      const [least, median, most] = ["min", "median", "max"].map((part) => bins[`${name}_${part}`][row]);
      if (median >= 0)
        rows.push([
          words,
          `${duration(least)} … ${duration(median)} … ${duration(most)} (minimum, median, maximum)`,
          median,
        ]);
    }
    return {
      title: `steps ${bins.first[row]} to ${bins.last[row]}, summed up`,
      begin: bins.begin[row],
      end: Math.max(last, bins.begin[row]),
      rows,
      attempt: attemptAt(source, bins.begin[row]),
      flags: [],
    };
  },

  bin(source, row, { process }) {
    const track = processTrack(source, process);
    const begin = track.begin + row * track.width;
    const end = begin + track.width;
    const leads = source.own === process;
    const rows = [["process", leads && !source.leader ? "all ranks" : `${process}`, null]];
    for (const { title, ns } of sharesOf(source, track, begin, end))
      rows.push([title, `${leads ? "" : "≈ "}${duration(ns)}, ${percent(ns, end - begin)}`, leads ? ns : null]);
    return { title: `bin of ${duration(track.width)}`, begin, end, rows, attempt: null, flags: [] };
  },

  notice(source, row) {
    const one = source.model.notices[row];
    return {
      title: `notice: ${one.reason}`,
      begin: one.time,
      end: one.time,
      attempt: attemptAt(source, one.time),
      flags: one.withdrawn ? ["withdrawn"] : [],
      rows: [["reason", one.reason, null]],
    };
  },

  slice(source, row) {
    const { slices, end } = source.model;
    const one = slices[row];
    return {
      title: `${one.active} of ${one.total} slices active`,
      begin: one.time,
      end: row + 1 < slices.length ? slices[row + 1].time : end,
      attempt: null,
      flags: [],
      rows: [
        ["active", `${one.active}`, null],
        ["available", `${one.available}`, null],
        ["in all", `${one.total}`, null],
      ],
    };
  },
};

function attemptAt(source, time) {
  const attempt = source.model.attempts.find((one) => one.begin <= time && time <= source.ends.get(one.number));
  return attempt ? attempt.number : null;
}

/** [{title, paint, ns}] of a track of categories between two times, what is 0 left out. */
export function sharesOf(source, track, begin, end) {
  const low = new Float64Array(track.kindCount);
  const high = new Float64Array(track.kindCount);
  track.before(begin, low);
  track.before(end, high);
  return source.categories
    .map((paint, kind) => ({ title: paint.title, paint, kind, ns: high[kind] - low[kind] }))
    .filter(({ ns }) => ns > 0);
}

/** What an interval is made of: {shares: [{title, paint, kind, ns}], exact, steps: {count, lost, first, last, exact}}. */
export function measureRange(source, begin, end) {
  const { model } = source;
  const sums = timeByCategory(model, begin, end);
  const shares = source.categories
    .map((paint, kind) => ({ title: paint.title, paint, kind, ns: sums[kind] }))
    .filter(({ ns }) => ns > 0);
  return { shares, exact: isSettled(model, begin, end), steps: stepsBetween(source, begin, end) };
}

/** Executions of steps that began in [begin, end): single ones, and bins where these are summed up. */
function stepsBetween(source, begin, end) {
  const { steps, step_bins: bins } = source.model;
  const covered = source.windows.some(([low, high]) => low <= begin && end <= high);
  const counts = { count: 0, lost: 0, first: null, last: null, exact: covered };
  const add = (first, last, number, lost) => {
    counts.count += number;
    counts.lost += lost;
    counts.first = counts.first === null ? first : Math.min(counts.first, first);
    counts.last = counts.last === null ? last : Math.max(counts.last, last);
  };
  if (covered || !bins || !bins.rows) {
    const low = lowerBound(steps.start, begin, 0, steps.rows);
    const high = lowerBound(steps.start, end, 0, steps.rows);
    for (let row = low; row < high; row++)
      if (steps.fate[row] !== 3 && steps.fate[row] !== SKIPPED)
        add(steps.number[row], steps.number[row], 1, Number(steps.fate[row] === 1));
    return counts;
  }
  for (let row = 0; row < bins.rows; row++) {
    const last = row + 1 < bins.rows ? bins.begin[row + 1] : source.model.end;
    const part = Math.min(
      1,
      Math.max(0, (Math.min(end, last) - Math.max(begin, bins.begin[row])) / (last - bins.begin[row] || 1)),
    );
    if (part)
      add(bins.first[row], bins.last[row], Math.round(part * bins.count[row]), Math.round(part * bins.lost[row]));
  }
  return counts;
}
