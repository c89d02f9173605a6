// How much of the time the leader's device was busy, as far as that was observed.
import { spanEnd } from "./data.js";
import { isDetailed, timeByCategory } from "./scope.js";

/**
 * {pieces: [[name, ns]], exact}, adding up to the scope's length, or null where the device was never observed. Exact
 * where the phases stand one by one; else busy time is known for the whole run only, and rounded.
 */
export function deviceUse(model, scope) {
  const { device, steps } = model;
  const total = scope.end - scope.begin;
  if (total <= 0) return null;
  if (!isDetailed(model, scope) || !device) return roughUse(model, scope, total);
  if (!device.rows) return null;
  const busy = covered(device.begin, device.end, device.rows, scope);
  const away = gaps(model, scope);
  // Steps whose end on the device is not known: their time is neither busy nor idle as far as we can tell.
  let unseen = 0;
  for (let row = 0; row < steps.rows; row++) {
    if (steps.device_begin[row] >= 0 && steps.device_end[row] >= 0) continue;
    const end = spanEnd(steps.start[row], steps.wall[row], model.end);
    unseen += Math.max(0, Math.min(end, scope.end) - Math.max(steps.start[row], scope.begin));
  }
  unseen = Math.min(unseen, Math.max(0, total - busy - away));
  return {
    pieces: usePieces({ busy, idle: total - busy - unseen - away, "not observed": unseen, "no process": away }),
    exact: true,
  };
}

function usePieces(pieces) {
  return Object.entries(pieces).filter(([, ns]) => ns > 0);
}

function roughUse(model, scope, total) {
  const share = model.processes.find((one) => one.leader)?.busy_share;
  if (scope.kind !== "run" || share === null || share === undefined) return null;
  const busy = Math.round(share * total);
  const away = gaps(model, scope);
  return {
    pieces: usePieces({ busy, "idle or not observed": Math.max(0, total - busy - away), "no process": away }),
    exact: false,
  };
}

/** Time between attempts in a scope, in which there was no process. */
function gaps(model, scope) {
  if (scope.kind === "attempt") return 0;
  const sums = timeByCategory(model, scope.begin, scope.end);
  return sums[model.categories.findIndex((one) => one.name === "infrastructure_recovery")] || 0;
}

/** Length of the union of intervals in a scope; they are in order of their begin. */
export function covered(begins, ends, rows, scope) {
  let sum = 0;
  let reached = scope.begin;
  for (let row = 0; row < rows && begins[row] < scope.end; row++) {
    const begin = Math.max(reached, begins[row]);
    const end = Math.min(scope.end, ends[row]);
    if (end > begin) {
      sum += end - begin;
      reached = end;
    }
  }
  return sum;
}
