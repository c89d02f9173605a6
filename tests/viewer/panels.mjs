// What the panels would show of a document, as JSON: run by test_panels.py with the page's own modules.
// Arguments: the folder of the modules, the document, and moments (ns) that the run is cut at.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, document, cuts] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${folder}/${name}`).href);
const { Model } = await load("data.js");
const { binned, partitionOf, scopeOf } = await load("scope.js");
const { histogramOf } = await load("histogram.js");
const { cadenceOf } = await load("cadence.js");
const { deviceUse } = await load("device.js");
const { groupsOf } = await load("topk.js");
const { fateCounts } = await load("fates.js");

const model = Model.read(new Uint8Array(readFileSync(document)));
const sum = (values) => values.reduce((total, one) => total + one, 0);

function told(range, attempt) {
  const scope = scopeOf(model, { range, attempt });
  const account = partitionOf(model, scope);
  const cut = binned(model, scope, 50);
  const histograms = {};
  for (const measure of ["net", "wall", "device"]) {
    for (const scale of ["linear", "log"]) {
      const { bins, missing, exact } = histogramOf(model, scope, measure, scale);
      const counts = [0, 1, 2, 3].map((fate) => sum(bins.map((bin) => bin.counts[fate])));
      const listed = sum(bins.map((bin) => bin.rows.length));
      const kept = bins.every((bin) => bin.low < bin.high);
      histograms[`${measure} ${scale}`] = { counts, missing, exact, listed, kept };
    }
  }
  return {
    length: scope.end - scope.begin,
    elapsed: account.elapsed,
    exact: account.exact,
    pieces: Object.fromEntries(account.pieces.map(({ category, ns }) => [category, ns])),
    bins: Object.fromEntries(cut.values.map((column, at) => [at, column ? sum([...column]) : 0]).filter(([, ns]) => ns)),
    histograms,
    cadence: cadenceOf(model, scope),
    device: deviceUse(model, scope),
    groups: groupsOf(model, scope),
  };
}

const edges = [0, ...JSON.parse(cuts), model.end]; // the last stretch may reach beyond the end of the job
console.log(
  JSON.stringify({
    run: told(null, null),
    attempts: model.attempts.map((one) => told(null, one.number)),
    ranges: edges.slice(1).map((end, at) => told([edges[at], end], null)),
    all: told([0, model.end], null),
    fates: Object.fromEntries(fateCounts(model)),
  }),
);
