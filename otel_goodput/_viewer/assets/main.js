// Where the page begins: reads the document and starts its parts.
import { Model, unzip } from "./data.js";
import { state } from "./state.js";
import { startClock } from "./clock.js";
import { drawn } from "./elements.js";
import { startSubject } from "./subject.js";
import { startTheme } from "./theme.js";
import { startOverview } from "./overview.js";
import { startPartition } from "./partition.js";
import { startShares } from "./shares.js";
import { startDisruptions } from "./disruptions.js";
import { startHeatmap } from "./heatmap.js";
import { startIncidents } from "./incidents.js";
import { startOwnTimes } from "./owntimes.js";
import { startWaits } from "./waits.js";
import { startHistogram } from "./histogram.js";
import { startTopK } from "./topk.js";
import { startCadence } from "./cadence.js";
import { startFates } from "./fates.js";
import { startCheckpoints } from "./checkpoints.js";
import { startLoader } from "./loader.js";
import { startUsage } from "./usage.js";
import { startCharts } from "./charts.js";
import { startInfo } from "./info.js";
import { startTimeline } from "./timeline.js";
import { startSelection } from "./selection.js";
import { startSearch } from "./search.js";
import { startExact } from "./exact.js";
import { startLive, startLiveSpans } from "./live.js";
import { startRuns } from "./runs.js";
import { startCompare } from "./compare.js";

// Each part is started with the model and the state. One that fails says so and leaves the others alone.
const PARTS = () => [
  ["subject", startSubject], // whose tables all others draw
  ["single spans", startExact], // before the others, so that the others draw a new document with what was fetched beside it
  ["new spans", startLiveSpans], // and with what has happened since
  ["overview", startOverview],
  ["incidents", startIncidents],
  ["ranks over time", startHeatmap],
  ["own times", startOwnTimes],
  ["waits", startWaits],
  ["partition", startPartition],
  ["shares", startShares],
  ["timeline", startTimeline],
  ["disruptions", startDisruptions],
  ["histogram", startHistogram],
  ["top-k", startTopK],
  ["cadence", startCadence],
  ["fates", startFates],
  ["checkpoints", startCheckpoints],
  ["data loader", startLoader],
  ["usage", startUsage],
  ["charts", startCharts],
  ["info", startInfo],
  ["selection", startSelection],
  ["search", startSearch],
  ["live", startLive],
];

/** Bytes of the document: inlined (gzip, base64) or, on a served page, from its own origin. Null: there is none. */
async function documentBytes() {
  const holder = document.getElementById("document");
  if (!holder) return null;
  const source = holder.dataset.source;
  if (source) {
    const answer = await fetch(source);
    if (!answer.ok) throw new Error(`the server says ${answer.status} ${answer.statusText}`);
    return new Uint8Array(await answer.arrayBuffer());
  }
  const text = atob(holder.textContent.trim());
  // `Uint8Array.from` with a function would take half a second for a page of 5 MB.
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  holder.textContent = "";
  return unzip(packed);
}

/** Tell people why there is nothing to see. */
export function complain(text) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = false;
}

/** A page without a document: two runs side by side, or the list of all runs. */
function startElsewhere() {
  if (document.getElementById("comparison") || location.pathname.endsWith("/compare")) startCompare();
  else startRuns();
}

async function main() {
  startTheme(state);
  startClock(state);
  if (typeof DecompressionStream === "undefined") {
    complain(
      "This browser is too old for this page, because it cannot decompress gzip. Use Chrome 80, Firefox 113, Safari 16.4 or newer.",
    );
    return;
  }
  const loading = document.getElementById("loading");
  let model;
  try {
    const bytes = await documentBytes();
    if (!bytes) return startElsewhere();
    model = Model.read(bytes);
    if (model.format !== 1) throw new Error(`its format is ${model.format}, but this page reads format 1`);
  } catch (error) {
    complain(`This run cannot be shown: ${error.message}. Write the page again with "otel-goodput report --html".`);
    return;
  } finally {
    loading.hidden = true;
  }
  document.getElementById("run-page").hidden = false;
  state.fromHash(location.hash);
  window.goodput = { model, state, drawn, timeline: null };
  let spans = null;
  for (const [name, start] of PARTS()) {
    try {
      const started = start(model, state, spans);
      if (name === "timeline") window.goodput.timeline = started;
      if (name === "new spans") spans = started;
    } catch (error) {
      console.error(error);
      complain(`The part "${name}" of this page failed: ${error.message}`);
    }
  }
  document.documentElement.dataset.ready = "yes";
}

main();
