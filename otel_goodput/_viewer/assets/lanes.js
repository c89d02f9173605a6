// The lanes of a run: which rows of the document each shows, how they are called and what they are painted in.
import { theme } from "./colors.js";
import { OVER } from "./data.js";
import { duration } from "./format.js";
import { RunSource } from "./source.js";
import { packTracks, trackOf, uncovered } from "./spans.js";
import { Paint } from "./surface.js";

export const FLAGS = {
  nonblocking: 1,
  failed: 2,
  exported: 4,
  outlier: 8,
  interrupted: 16,
  recompilation: 32,
  summedUp: 64,
};
export const ROW_HEIGHT = 20;
const IN_FLIGHT = 2; // the fate of a step
const MOST_KINDS = 64; // paints of a lane, at most

/** Everything that the lanes of one document are made of. */
export class LaneSource extends RunSource {
  /** Lanes that tell about the whole run. */
  runLanes() {
    return [this.attemptLane(), this.partitionLane()];
  }

  attemptLane() {
    const { attempts } = this.model;
    const paint = new Paint("attempt", () => ({
      color: theme() === "dark" ? "#3b4c5c" : "#c5d3df",
      hatch: "none",
    }));
    this.phasePaints.set("attempt", paint);
    const spans = attempts.map((one, row) => [one.begin, this.ends.get(one.number), 0, row]);
    const label = (row) => `attempt ${attempts[row].number} · ${attempts[row].state}`;
    return {
      key: "attempts",
      title: "attempts",
      hint: "Attempts of the run, one after the other",
      kind: "attempt",
      tracks: packTracks(spans, 1),
      paints: [paint],
      label,
      least: 2,
    };
  }

  /** The same one for the run and for whose spans these are. */
  partitionLane() {
    this.partition ??= this.makePartitionLane();
    return this.partition;
  }

  makePartitionLane() {
    const { model } = this;
    const { owners } = this;
    const bins = model.bins.count ? this.mainBins() : null;
    const tracks = owners && owners.rows ? [this.ownerTrack(owners)] : [];
    const label = (row) => this.categories[owners.category[row]].title;
    return {
      key: "partition",
      title: "partition",
      hint: "The category of each moment; together they add up to the whole time",
      kind: "owner",
      tracks,
      paints: this.categories,
      bins,
      label,
      binKind: "bin",
      tall: true,
      summed: model.owners ? [] : uncovered(tracks.length ? tracks[0].covered() : [], 0, model.end),
    };
  }

  processLane(process) {
    return {
      key: `process-${process.index}`,
      kind: null,
      binKind: "bin",
      tracks: [],
      paints: this.categories,
      lazyBins: () => this.processBins(process),
      process: process.index,
      ofProcess: true,
      hint: "Shares of this process's own time, rounded to 1/255; its journal has the single spans",
    };
  }

  /** Lanes of the job or of the leader, each with something in it. */
  ownLanes() {
    // Without a choice the partition is the run's, which has a lane of its own.
    const own = this.leader && this.model.processes.length > 1 ? this.partitionLane() : null;
    const lanes = [
      own,
      this.stepLane(),
      this.deviceLane(),
      ...this.phaseLanes(),
      this.noticeLane(),
      this.sliceLane(),
      this.riskLane(),
    ];
    return lanes.filter((lane) => lane && (lane.tracks.length || lane.bins || lane.marks || lane.levels || lane.curve));
  }

  stepLane() {
    const { model } = this;
    const { steps } = model;
    const entry = (row) =>
      steps.wall[row] === OVER ? null : [steps.start[row], this.stepEnd(row), steps.fate[row], row];
    const settled = (row) => steps.wall[row] >= 0 && steps.fate[row] !== IN_FLIGHT;
    return {
      key: "steps",
      title: "steps",
      hint: "Steps, colored by whether they were kept or lost",
      kind: "step",
      tracks: this.laid("steps", steps.rows, entry, settled, 4),
      paints: this.fates,
      label: (row) => `${steps.number[row]}`,
      flags: steps.flags,
      tall: true,
      least: 2,
      bins: this.summed.length ? this.stepBins() : null,
      binKind: "steps",
      summed: this.summed,
      binLabel: (bin) => `${model.step_bins.first[bin]} – ${model.step_bins.last[bin]}, summed up`,
    };
  }

  /** The bins of steps as spans: lost ones are drawn by their share. */
  stepBins() {
    const { step_bins: bins } = this.model;
    const spans = [];
    for (let row = 0; row < bins.rows; row++) {
      const begin = bins.begin[row];
      const end = Math.max(begin, row + 1 < bins.rows ? bins.begin[row + 1] : this.model.end);
      const part = bins.count[row] ? bins.lost[row] / bins.count[row] : 0;
      spans.push([begin, begin + (end - begin) * (1 - part), 0, row]);
      if (part) spans.push([begin + (end - begin) * (1 - part), end, 1, row]);
    }
    return trackOf(spans, 4);
  }

  deviceLane() {
    const { device, steps, phases } = this.model;
    const { paints, kinds } = this.painted("device", () => [...this.fates]);
    const entry = (row) => {
      const owner = device.owner[row];
      const end = Math.max(device.begin[row], device.end[row] < 0 ? this.model.end : device.end[row]);
      const kind = owner >= 0 ? steps.fate[owner] : this.kindOf(-owner - 1, kinds, paints);
      return [device.begin[row], end, kind, row];
    };
    const settled = (row) => device.end[row] >= 0 && steps.fate[device.owner[row]] !== IN_FLIGHT;
    const label = (row) => {
      const owner = device.owner[row];
      return owner >= 0 ? `${steps.number[owner]}` : this.phaseName(-owner - 1);
    };
    return {
      key: "device",
      title: "device",
      hint: "What the accelerator worked on; empty where the end of its work was not observed",
      kind: "device",
      tracks: this.laid("device", device.rows, entry, settled, MOST_KINDS),
      paints,
      label,
      sparse: !phases.rows,
    };
  }

  phaseLanes() {
    const { phases, phase_names: known, saves } = this.model;
    this.sorted ??= { rows: 0, byLane: new Map(PHASE_LANES.map((lane) => [lane[0], []])) };
    for (; this.sorted.rows < phases.rows; this.sorted.rows++) {
      const row = this.sorted.rows;
      const key = laneOfPhase(known[phases.phase[row]], Boolean(phases.flags[row] & FLAGS.nonblocking));
      this.sorted.byLane.get(key).push(row);
    }
    return PHASE_LANES.map(([key, title, hint]) => {
      const { paints, kinds } = this.painted(key, () => []);
      const rows = this.sorted.byLane.get(key);
      const entry = (at) =>
        phases.wall[rows[at]] === OVER
          ? null
          : [phases.start[rows[at]], this.phaseEnd(rows[at]), this.kindOf(rows[at], kinds, paints), rows[at]];
      const tracks = this.laid(key, rows.length, entry, (at) => phases.wall[rows[at]] >= 0, MOST_KINDS);
      const lane = {
        key,
        title,
        hint,
        kind: "phase",
        paints,
        least: 3,
        label: (row) => this.phaseLabel(row),
        flags: phases.flags,
      };
      return key === "commits" ? this.commitLane(lane, tracks, saves) : { ...lane, tracks };
    });
  }

  /** Paints of a lane, and which of them each name has; they stay when more comes. */
  painted(key, first) {
    this.lanePaints ??= new Map();
    if (!this.lanePaints.has(key)) this.lanePaints.set(key, { paints: first(), kinds: new Map() });
    return this.lanePaints.get(key);
  }

  phaseLabel(row) {
    const { phases } = this.model;
    const name = this.phaseName(row);
    return phases.step[row] >= 0 ? `${name} ${phases.step[row]}` : name;
  }

  /** From the end of the blocking part of a save until it is durable; beneath, saves in the background. */
  commitLane(lane, background, saves) {
    const paint = this.phasePaint("checkpoint_restore", "");
    const entry = (row) => {
      const begin = saves.blocking_end[row] >= 0 ? saves.blocking_end[row] : saves.begin[row];
      return saves.durable_at[row] > begin ? [begin, saves.durable_at[row], 0, row] : null;
    };
    const label = (row) => `commit ${saves.step[row]}`;
    const tracks = this.laid("saves", saves.rows, entry, () => true, 1);
    const own = tracks.length;
    return {
      ...lane,
      kind: "save",
      tracks: [...tracks, ...background],
      paintsOf: (depth) => (depth < own ? [paint] : lane.paints),
      kindAt: (depth) => (depth < own ? "save" : "phase"),
      labelOf: (depth) => (depth < own ? label : lane.label),
      paints: lane.paints.length ? lane.paints : [paint],
      flags: null,
    };
  }

  noticeLane() {
    const { notices } = this.model;
    if (!notices.length) return null;
    const marks = notices.map((one, row) => ({
      time: one.time,
      row,
      text: one.withdrawn ? `${one.reason} (withdrawn)` : one.reason,
    }));
    return {
      key: "notices",
      title: "notices",
      hint: "Notices that the process is about to be stopped",
      kind: "notice",
      marks,
      tracks: [],
      paints: [],
    };
  }

  sliceLane() {
    const { slices } = this.model;
    if (!slices.length) return null;
    return {
      key: "slices",
      title: "slices",
      hint: "Active, available and total slices",
      kind: "slice",
      levels: slices,
      tracks: [],
      paints: [],
      tall: true,
    };
  }

  riskLane() {
    const { at_risk: curve } = this.model;
    if (!curve || !curve.rows) return null;
    let most = 0;
    for (let row = 0; row < curve.rows; row++) most = Math.max(most, curve.ns[row]);
    return {
      key: "at-risk",
      title: "at risk",
      hint: `Progress that a crash would have cost, up to ${duration(most)}`,
      kind: null,
      curve,
      most: most || 1,
      tracks: [],
      paints: [],
      tall: true,
    };
  }
}

// key, title, what it holds
const PHASE_LANES = [
  ["loading", "loading, exposed", "Data loading that the training thread waited for"],
  ["loading-hidden", "loading, hidden", "Data loading in parallel with training"],
  ["init", "init and prep", "Accelerator initialization and training preparation"],
  ["checkpoints", "checkpoints", "Saves and restores, while they block training"],
  ["commits", "commits", "Saves being written to durable storage in the background"],
  ["custom", "custom", "Custom phases"],
  ["compile", "compile", "Compilations by function"],
  ["parts", "parts", "Parts of steps and stages of checkpoints; the time stays the step's or the checkpoint's"],
  ["elastic", "elastic, excluded", "Waiting for slices, reinitializations, excluded times"],
  ["jobs", "jobs", "Jobs, from start to end"],
];

function laneOfPhase(name, background) {
  if (name === "data_loading") return background ? "loading-hidden" : "loading";
  if (name === "checkpoint_save") return background ? "commits" : "checkpoints";
  return (
    {
      checkpoint_restore: "checkpoints",
      custom: "custom",
      compile: "compile",
      part: "parts",
      job: "jobs",
      accelerator_init: "init",
      training_prep: "init",
    }[name] || "elastic"
  );
}

/** Height of a lane in CSS pixels. */
export function laneHeight(lane) {
  if (lane.ofProcess) return 18;
  if (lane.tracks.length > 1) return 6 + 16 * lane.tracks.length;
  return lane.tall ? 28 : ROW_HEIGHT;
}

/** The bins of a lane, made when they are first seen. */
export function laneBins(lane) {
  if (lane.lazyBins && lane.bins === undefined) lane.bins = lane.lazyBins();
  return lane.bins;
}
