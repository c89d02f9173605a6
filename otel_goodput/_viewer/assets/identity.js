// What names something that can be selected, in new data and in the address: numbers of rows change as data comes.
import { factsOf, isThere } from "./facts.js";

const LONGEST_TITLE = 200; // of a title in an address

const BEGINS = {
  step: (model) => model.steps.start,
  phase: (model) => model.phases.start,
  save: (model) => model.saves.begin,
  owner: (model) => (model.owners ?? model.window_owners)?.begin ?? [],
  steps: (model) => model.step_bins.begin,
  disruption: (model) => model.disruptions.map((one) => one.died_at ?? one.time),
  attempt: (model) => model.attempts.map((one) => one.begin),
  notice: (model) => model.notices.map((one) => one.time),
  slice: (model) => model.slices.map((one) => one.time),
};

/** {kind, process, begin (ns), title} of what is selected. */
export function identityOf({ kind, process = 0 }, { begin, title }) {
  return { kind, process, begin, title: title.slice(0, LONGEST_TITLE) };
}

/** What has this identity, as {kind, row, process}, or null. */
export function findIdentity(source, identity) {
  const { kind, process } = identity;
  const is = (row) => same(source, { kind, row, process }, identity);
  if (kind === "bin") {
    const first = { kind, row: 0, process };
    if (!isThere(source, first)) return null;
    const { begin, end } = factsOf(source, first); // all bins are as wide as the first
    const row = Math.round((identity.begin - begin) / (end - begin));
    return is(row) ? { kind, row, process } : null;
  }
  const row = BEGINS[kind](source.model).findIndex((begin, at) => begin === identity.begin && is(at));
  return row >= 0 ? { kind, row, process } : null;
}

/** What was selected, in new data: rows may have moved, and what was open may have got another title. */
export function foundAgain(source, selected, identity) {
  if (same(source, selected, identity)) return selected;
  const begins = isThere(source, selected) && factsOf(source, selected).begin === identity.begin;
  return findIdentity(source, identity) ?? (begins ? selected : null);
}

function same(source, selected, identity) {
  if (!isThere(source, selected)) return false;
  const { begin, title } = identityOf(selected, factsOf(source, selected));
  return begin === identity.begin && title === identity.title;
}
