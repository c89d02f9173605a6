// What belongs together: arrows on the timeline, and the list of connections beside the selection.
import { lowerBound } from "./data.js";
import { duration } from "./format.js";
import { onOtherProcesses } from "./processes.js";
import { SKIPPED } from "./scope.js";

const MOST_RELATIONS = 40;

/** [{title, detail, goal: selected | null, from: {kind, row, time} | null, to: ...}] of what is selected. */
export function relationsOf(source, selected) {
  const find = RELATIONS[selected.kind];
  const relations = find ? find(source, selected.row) : [];
  if (relations.length <= MOST_RELATIONS) return relations;
  const more = { title: `and ${relations.length - MOST_RELATIONS} more`, detail: "", goal: null };
  return [...relations.slice(0, MOST_RELATIONS), more];
}

const goalOf = (kind, row, process = 0) => ({ kind, row, process });

const RELATIONS = {
  step(source, row) {
    const { steps, phases, saves, disruptions } = source.model;
    const number = steps.number[row];
    const relations = [];
    if (steps.device_begin[row] >= 0) {
      relations.push({
        title: "dispatch → device",
        detail: `${duration(steps.device_begin[row] - steps.start[row])} later`,
        goal: goalOf("step", row),
        time: steps.device_begin[row],
        from: { lane: "steps", time: steps.start[row] },
        to: { lane: "device", time: steps.device_begin[row] },
      });
    }
    for (let at = 0; at < steps.rows; at++) {
      if (at === row || !isStep(steps, at, number) || steps.fate[row] === SKIPPED) continue;
      const [first, second] = steps.start[at] < steps.start[row] ? [at, row] : [row, at];
      relations.push({
        title: `the same step in attempt ${steps.attempt[at]}`,
        detail: duration(source.stepEnd(at) - steps.start[at]),
        goal: goalOf("step", at),
        from: { lane: "steps", time: source.stepEnd(first) },
        to: { lane: "steps", time: steps.start[second] },
      });
    }
    if (steps.fate[row] === SKIPPED) {
      relations.push({ title: "a batch that the loop skipped after a restore, not a step", detail: "", goal: null });
    } else if (steps.fate[row] === 1) {
      const at = disruptions.findIndex(
        (one) => one.time >= steps.start[row] && one.to_step !== null && one.to_step <= number,
      );
      if (at >= 0)
        relations.push({ title: `lost by ${disruptions[at].reason}`, detail: "", goal: goalOf("disruption", at) });
    } else {
      let holder = -1;
      for (let at = 0; at < saves.rows && holder < 0; at++)
        if (saves.begin[at] >= steps.start[row] && saves.step[at] >= number && saves.durable_at[at] >= 0) holder = at;
      if (holder >= 0)
        relations.push({
          title: `held by the checkpoint of step ${saves.step[holder]}`,
          detail: "",
          goal: goalOf("save", holder),
        });
    }
    relations.push(...onOtherProcesses(source, row));
    for (let at = 0; at < phases.rows; at++) {
      if (phases.step[at] !== number || phases.attempt[at] !== steps.attempt[row]) continue;
      relations.push({
        title: source.phaseLabel(at),
        detail: duration(source.phaseEnd(at) - phases.start[at]),
        goal: goalOf("phase", at),
      });
    }
    return relations;
  },

  phase(source, row) {
    const { phases, phase_names: known, device, saves } = source.model;
    const relations = [];
    const name = known[phases.phase[row]];
    for (let at = 0; at < device.rows; at++) {
      if (device.owner[at] !== -row - 1) continue;
      relations.push({
        title: "dispatch → device",
        detail: duration(device.end[at] - device.begin[at]),
        goal: goalOf("phase", row),
        time: device.begin[at],
        from: { lane: "own", time: phases.start[row] },
        to: { lane: "device", time: device.begin[at] },
      });
    }
    if (name === "checkpoint_save") {
      const save = saves.begin.findIndex((begin) => begin === phases.start[row]);
      if (save >= 0) relations.push(...RELATIONS.save(source, save));
    }
    if (name === "checkpoint_restore") {
      let held = -1;
      for (let at = 0; at < saves.rows; at++)
        if (saves.begin[at] < phases.start[row] && saves.durable_at[at] >= 0 && saves.step[at] <= phases.step[row])
          held = at;
      if (held >= 0)
        relations.push({
          title: `restores the checkpoint of step ${saves.step[held]}`,
          detail: "",
          goal: goalOf("save", held),
          from: { lane: "commits", time: saves.durable_at[held] },
          to: { lane: "checkpoints", time: phases.start[row] },
        });
    }
    const step = stepOf(source, phases.attempt[row], phases.step[row]);
    if (step >= 0) relations.push({ title: `step ${phases.step[row]}`, detail: "", goal: goalOf("step", step) });
    for (let at = phases.parent[row]; at >= 0 && relations.length < MOST_RELATIONS; at = phases.parent[at]) {
      relations.push({ title: `inside ${source.phaseName(at)}`, detail: "", goal: goalOf("phase", at) });
    }
    return relations;
  },

  save(source, row) {
    const { saves } = source.model;
    const relations = [];
    const [begin, blocking, durable] = [saves.begin[row], saves.blocking_end[row], saves.durable_at[row]];
    if (blocking >= 0 && durable >= 0) {
      relations.push({
        title: "save → commit → durable",
        detail: `durable ${duration(durable - begin)} after its start`,
        goal: goalOf("save", row),
        time: durable,
        from: { lane: "checkpoints", time: blocking },
        to: { lane: "commits", time: blocking },
      });
    }
    const step = stepOf(source, saves.attempt[row], saves.step[row]);
    if (step >= 0)
      relations.push({
        title: `holds step ${saves.step[row]} and those before`,
        detail: "",
        goal: goalOf("step", step),
        from: { lane: "steps", time: source.stepEnd(step) },
        to: { lane: "checkpoints", time: begin },
      });
    return relations;
  },

  disruption(source, row) {
    const { disruptions, attempts, steps } = source.model;
    const one = disruptions[row];
    const relations = [];
    const next = attempts.findIndex((attempt) => attempt.number === one.attempt);
    const died = one.died_at ?? one.time;
    if (next >= 0)
      relations.push({
        title: `next: attempt ${one.attempt}`,
        detail: `${duration(one.time - died)} later`,
        goal: goalOf("attempt", next),
        from: { lane: "attempts", time: died },
        to: { lane: "attempts", time: attempts[next].begin },
      });
    if (one.to_step !== null) {
      const from = lowerBound(steps.start, one.time, 0, steps.rows);
      let again = -1;
      for (let at = from; at < steps.rows && again < 0; at++) if (isStep(steps, at, one.to_step)) again = at;
      if (again >= 0)
        relations.push({
          title: `${one.from_step !== null && one.to_step > one.from_step ? "went on with" : "went back to"} step ${one.to_step}`,
          detail: `${duration(steps.start[again] - one.time)} after the restart`,
          goal: goalOf("step", again),
          from: { lane: "steps", time: died },
          to: { lane: "steps", time: steps.start[again] },
        });
      for (let at = 0; at < from; at++) {
        if (steps.fate[at] !== 1 || steps.number[at] !== one.to_step || source.stepEnd(at) > one.time) continue;
        relations.push({
          title: `first lost step: ${one.to_step} in attempt ${steps.attempt[at]}`,
          detail: "",
          goal: goalOf("step", at),
        });
      }
    }
    return relations;
  },
};

/** Row of the execution of step `number` in an attempt (its latest), or -1. */
function stepOf(source, attempt, number) {
  const { steps } = source.model;
  if (number < 0) return -1;
  for (let row = steps.rows - 1; row >= 0; row--)
    if (isStep(steps, row, number) && steps.attempt[row] === attempt) return row;
  return -1;
}

/** Whether a row is an execution of this step, and no batch that a loop skipped. */
function isStep(steps, row, number) {
  return steps.number[row] === number && steps.fate[row] !== SKIPPED;
}
