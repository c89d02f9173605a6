// What the lanes are made of: ends of spans, names, paints, and the partition as tracks.
import { FATE_NAMES, fateStyle, phaseStyle, sourceStyle, sourceTitle } from "./colors.js";
import { spanEnd } from "./data.js";
import { showsJob } from "./subject.js";
import { BinTrack, GrowingTracks, SpanTrack, uncovered } from "./spans.js";
import { Paint } from "./surface.js";

const JOB = -1; // in place of the index of a process
const MOST_PAINTS = 40; // names of a lane that have a paint of their own

/** A document as the timeline sees it. */
export class RunSource {
  constructor(model) {
    this.model = model;
    this.categories = model.categories.map((one) => new Paint(sourceTitle(one), () => sourceStyle(one)));
    this.fates = FATE_NAMES.map((name, fate) => new Paint(`step, ${name}`, () => fateStyle(fate)));
    this.phasePaints = new Map();
    // The process whose spans and bins these are; of a job of several ranks there is none.
    this.leader = showsJob(model) ? null : model.processes.find((one) => one.leader) || model.processes[0] || null;
    this.own = this.leader ? this.leader.index : JOB;
    this.cached = new Map();
    this.growing = new Map(); // by lane: tracks to which more is added
    this.grow();
  }

  /** Take what has been added to the model. */
  grow() {
    const { model } = this;
    this.ends = new Map(model.attempts.map((one) => [one.number, one.end === null ? model.end : one.end]));
    const latest = model.attempts[model.attempts.length - 1];
    // What all ranks did is known some seconds later than what process 0 did.
    const reached = showsJob(model) ? Math.min(model.end, Math.max(model.until, model.figures_at)) : model.end;
    if (model.live && latest && latest.state === "running") this.ends.set(latest.number, reached);
    this.windows = model.detail ? model.detail.windows : [[0, model.end]];
    const down = model.disruptions.filter((one) => one.died_at !== null).map((one) => [one.died_at, one.time]);
    // Nothing ran while it was down, so there is nothing to sum up.
    this.summed = uncovered(
      [...this.windows, ...down].sort((one, other) => one[0] - other[0]),
      0,
      reached,
    );
    this.ownBins = this.partition = this.deviceRows = undefined;
  }

  /** Tracks of a lane, see {@link GrowingTracks}. */
  laid(key, rows, entry, settled, kindCount) {
    if (!this.growing.has(key)) this.growing.set(key, new GrowingTracks());
    return this.growing.get(key).tracks(rows, entry, settled, kindCount);
  }

  /** Whose each instant is: of the whole run, or of a long one in what was read of it. Null: not known. */
  get owners() {
    return this.model.owners ?? this.model.window_owners;
  }

  refresh() {
    for (const paint of [...this.categories, ...this.fates, ...this.phasePaints.values()]) paint.refresh();
  }

  phaseName(row) {
    const { phases, phase_names: kinds, names } = this.model;
    return names[phases.name[row]] || kinds[phases.phase[row]].replaceAll("_", " ");
  }

  phaseEnd(row) {
    const { phases } = this.model;
    return this.endOf(phases.attempt[row], phases.start[row], phases.wall[row]);
  }

  stepEnd(row) {
    const { steps } = this.model;
    return this.endOf(steps.attempt[row], steps.start[row], steps.wall[row]);
  }

  /** End of a span; of one that is open that of its attempt so far. */
  endOf(attempt, start, wall) {
    return spanEnd(start, wall, Math.max(start, Math.min(this.model.end, this.ends.get(attempt) ?? this.model.end)));
  }

  phasePaint(phase, name) {
    const key = `${phase} ${name}`;
    if (!this.phasePaints.has(key)) {
      this.phasePaints.set(key, new Paint(name || phase.replaceAll("_", " "), () => phaseStyle(phase, name)));
    }
    return this.phasePaints.get(key);
  }

  ownerTrack(owners) {
    const ends = owners.begin.map((begin, row) => begin + owners.length[row]);
    const rows = Float64Array.from(ends, (_, row) => row);
    return new SpanTrack(owners.begin, ends, Uint16Array.from(owners.category), rows, this.categories.length);
  }

  mainBins() {
    const { begin, width, count, values, categories } = this.model.bins;
    const share = (kind, bin) => values[kind][bin];
    this.ownBins ??= new BinTrack(begin, width, count, this.categories.length, share, categories);
    return this.ownBins;
  }

  /** Shares of another process. Null: not known. */
  processBins(process) {
    const { bins } = process;
    if (!bins || !bins.shares) return null;
    if (!this.cached.has(process.index)) {
      const places = new Map(bins.categories.map((category, place) => [category, place]));
      const share = (kind, bin) => (bins.shares[places.get(kind) * bins.count + bin] * bins.width) / 255;
      const { begin, width, count, categories } = bins;
      this.cached.set(process.index, new BinTrack(begin, width, count, this.categories.length, share, categories));
    }
    return this.cached.get(process.index);
  }

  /** Index among `paints` for a phase; names beyond the fortieth share one. */
  kindOf(row, kinds, paints) {
    const { phases, phase_names: known, names } = this.model;
    const key = phases.phase[row] * 100003 + phases.name[row];
    if (!kinds.has(key)) {
      if (paints.length < MOST_PAINTS) paints.push(this.phasePaint(known[phases.phase[row]], names[phases.name[row]]));
      kinds.set(key, paints.length - 1);
    }
    return kinds.get(key);
  }
}
