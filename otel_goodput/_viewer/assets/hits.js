// What is at a point of the timeline's canvas, and where on it a span is.
import { factsOf, isThere } from "./facts.js";
import { laneItemAt, spanPlaces } from "./places.js";
import { FLAGS_HIGH, MAP_HIGH, SCALE_HIGH } from "./scene.js";

/** {area: "map" | "axis" | "flags" | "lane" | "empty", time, row, item: selected | null} at a point in CSS pixels. */
export function drawnAt(timeline, x, y) {
  const time = timeline.timeAt(x);
  if (y < MAP_HIGH)
    return {
      area: "map",
      time: timeline.whole[0] + ((timeline.whole[1] - timeline.whole[0]) * x) / timeline.width,
      row: null,
      item: null,
    };
  if (y < MAP_HIGH + 2 * SCALE_HIGH) return { area: "axis", time, row: null, item: null };
  if (y < timeline.head) {
    const high = y < MAP_HIGH + 2 * SCALE_HIGH + FLAGS_HIGH; // below are those of incidents
    const flag = (timeline.flags || []).find((one) => high && x >= one.left && x <= one.right);
    return {
      area: "flags",
      time,
      row: null,
      item: flag ? { kind: "disruption", row: flag.row, process: 0 } : null,
    };
  }
  const under = timeline.rowAt(y);
  if (!under) return { area: "empty", time, row: null, item: null };
  const { row, top } = under;
  const reach = ((timeline.view()[1] - timeline.view()[0]) / timeline.width) * 3;
  const place = (y - top) / row.height;
  const inside = !row.cut || (time >= row.cut[0] && time <= row.cut[1]);
  return {
    area: "lane",
    time,
    row,
    item: row.lane && inside ? laneItemAt(timeline.source, row.lane, time, reach, place) : null,
  };
}

/** {x0, x1, y0, y1, lane} of the first row in sight that shows it, or null. */
export function placeOnCanvas(timeline, selected) {
  if (!isThere(timeline.source, selected)) return null;
  const facts = factsOf(timeline.source, selected);
  const [begin, end] = timeline.view();
  const x = (time) => ((time - begin) / (end - begin)) * timeline.width;
  for (const { row: one, top } of timeline.placedRows()) {
    const [place] = one.lane ? spanPlaces(timeline.source, one.lane, selected, facts) : [];
    if (!place) continue;
    const high = (one.height - 4) / place.of;
    return {
      x0: x(place.begin),
      x1: x(place.end),
      y0: top + 2 + high * place.depth,
      y1: top + 2 + high * (place.depth + 1),
      lane: one.title,
    };
  }
  return null;
}
