// When something was wrong with the job, for the panel and for whatever has a time axis.
import { leadersFigures } from "./subject.js";

/** The incidents of the run as the report has them, in the order in which they were noticed, each with its sentence. */
export function incidentsOf(model) {
  const { report, incident_texts: texts } = leadersFigures(model);
  return (report.incidents || []).map((one, row) => ({ ...one, text: texts?.[row] || "" }));
}

/** Seconds since the epoch as ns from the run's start. */
export function momentOf(model, epochSeconds) {
  return epochSeconds * 1e9 - Number(BigInt(model.origin_ns));
}

/** [{begin, end, open, one}] in ns; what is open goes on until now. */
export function incidentSpans(model) {
  return incidentsOf(model).map((one) => {
    const begin = Math.max(0, momentOf(model, one.began));
    const end = one.ended === null ? model.end : momentOf(model, one.ended);
    return { begin, end: Math.max(begin, end), open: one.ended === null, one };
  });
}

/** "hang", "restart loop" */
export function kindTitle(one) {
  return one.kind.replaceAll("_", " ");
}
