// A table that grows: rows are added behind the others, or put in the place of one.
import { lowerBound } from "./data.js";

export class Rows {
  /** A copy of `table` with room for more; the first of its columns that is looked for by must be in order. */
  constructor(table) {
    this.rows = table.rows;
    this.names = Object.keys(table).filter((name) => name !== "rows");
    this.room = this.rows + (this.rows >> 3) + 256;
    this.columns = {};
    for (const name of this.names) this.columns[name] = this.wider(table[name]);
  }

  wider(column) {
    const made = new Float64Array(this.room);
    made.set(column.subarray(0, this.rows));
    return made;
  }

  /** The row that has these values in the columns `names`, or -1. Rows are in the order of the first of them. */
  find(names, values) {
    const [first] = names;
    const column = this.columns[first];
    for (let row = lowerBound(column, values[first], 0, this.rows); row < this.rows; row++) {
      if (column[row] !== values[first]) return -1;
      if (names.every((name) => this.columns[name][row] === values[name])) return row;
    }
    return -1;
  }

  /** Put values in the place of a row, or behind all (`row` -1); its place. */
  set(row, values) {
    let place = row;
    if (place < 0) {
      place = this.rows;
      if (place === this.room) {
        this.room = 2 * this.room;
        for (const name of this.names) this.columns[name] = this.wider(this.columns[name]);
      }
      this.rows += 1;
    }
    for (const name of this.names) this.columns[name][place] = values[name];
    return place;
  }

  /** The table as it is now. */
  table() {
    const table = { rows: this.rows };
    for (const name of this.names) table[name] = this.columns[name].subarray(0, this.rows);
    return table;
  }
}
