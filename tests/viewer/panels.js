// What the panels would show of a document: imported by test_panels.py into a page that has the page's own modules.
import { Model } from "./data.js";
import { binned, partitionOf, scopeOf } from "./scope.js";
import { seen } from "./subject.js";
import { histogramOf } from "./histogram.js";
import { cadenceOf } from "./cadence.js";
import { deviceUse } from "./device.js";
import { groupsOf } from "./topk.js";
import { fateCounts } from "./fates.js";

const sum = (values) => values.reduce((total, one) => total + one, 0);

function figures(model, range, attempt) {
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

/** `text`: a document in base64; `cuts`: moments (ns) that the run is cut at. */
export function panels(text, cuts) {
  const model = seen(Model.read(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))), { process: 0 });
  const edges = [0, ...cuts, model.end]; // the last stretch may reach beyond the end of the job
  return {
    run: figures(model, null, null),
    attempts: model.attempts.map((one) => figures(model, null, one.number)),
    ranges: edges.slice(1).map((end, at) => figures(model, [edges[at], end], null)),
    all: figures(model, [0, model.end], null),
    fates: Object.fromEntries(fateCounts(model)),
  };
}
