// The same step on the other processes, as far as their digests show: bins of steps, of single ones while a run is short.
import { duration } from "./format.js";

const MOST_OTHERS = 12; // that are shown one by one
const lately = new WeakMap(); // by source: the latest answer, which a picture asks for sixty times a second

/** Relations of the step in `row` to the same step of single processes, the slowest first. */
export function onOtherProcesses(source, row) {
  const { process_steps: table } = source.model;
  if (!table || !table.rows) return [];
  const known = lately.get(source);
  if (known && known.table === table && known.row === row) return known.relations;
  const relations = relationsTo(source, row, table);
  lately.set(source, { table, row, relations });
  return relations;
}

function relationsTo(source, row, table) {
  const { steps, processes } = source.model;
  const number = steps.number[row];
  const there = [...binsWith(source, table, row)].sort(([, one], [, other]) => table.net_median[other] - table.net_median[one]);
  const relations = there.slice(0, MOST_OTHERS).map(([index, bin]) => {
    const time = momentIn(table, bin, number, source.model.end);
    const track = source.processBins(processes.find((one) => one.index === index) || {});
    const at = track ? track.at(time) : -1;
    const arrow = { from: { lane: "steps", time: steps.start[row] }, to: { lane: `process-${index}`, time } };
    return {
      title: `step ${number} on process ${index}`,
      detail: detailOf(table, bin),
      goal: at >= 0 ? { kind: "bin", row: at, process: index } : null,
      time,
      ...(table.count[bin] === 1 ? arrow : {}), // elsewhere the moment is a guess
    };
  });
  if (there.length > MOST_OTHERS) {
    const rest = there.length - MOST_OTHERS;
    const fastest = table.net_median[there[there.length - 1][1]];
    const title = `and on ${rest} more ${rest > 1 ? "processes" : "process"}, none of them slower`;
    relations.push({ title, detail: `down to ${duration(fastest)}`, goal: null });
  }
  return relations;
}

/** By process, the row of the bin that holds the step, in the attempt of `row`; of several the one that began nearest. */
function binsWith(source, table, row) {
  const { steps, attempts } = source.model;
  const [number, start] = [steps.number[row], steps.start[row]];
  const attempt = attempts.find((one) => one.number === steps.attempt[row]);
  const [begin, end] = attempt ? [attempt.begin, source.ends.get(attempt.number)] : [-Infinity, Infinity];
  const bins = new Map();
  for (let at = 0; at < table.rows; at++) {
    if (table.process[at] === source.own) continue;
    if (number < table.first[at] || number > table.last[at] || table.net_median[at] < 0) continue;
    if (table.begin[at] > end || endOf(table, at, Infinity) < begin) continue;
    const index = table.process[at];
    const other = bins.get(index);
    if (other === undefined || Math.abs(table.begin[at] - start) < Math.abs(table.begin[other] - start))
      bins.set(index, at);
  }
  return bins;
}

function endOf(table, row, end) {
  return row + 1 < table.rows && table.process[row + 1] === table.process[row] ? table.begin[row + 1] : end;
}

/** When the step began on that process, about: the steps of a bin are taken to follow each other evenly. */
function momentIn(table, row, number, end) {
  const [first, last, begin] = [table.first[row], table.last[row], table.begin[row]];
  const length = Math.max(0, endOf(table, row, end) - begin);
  return begin + (length * (number - first)) / (last - first + 1);
}

function detailOf(table, row) {
  if (table.count[row] === 1) return `net ${duration(table.net_median[row])}`;
  const [median, longest] = [duration(table.net_median[row]), duration(table.net_max[row])];
  return `≈ ${median}, the median of steps ${table.first[row]} to ${table.last[row]}; the longest took ${longest}`;
}
