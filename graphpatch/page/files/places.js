"use strict";

// The lines of a graph in one order: those of its main body, and behind each op that calls
// functions the lines of these. A function has its place behind the first op that calls it.

class Places {
  constructor(bodies, main) {
    this.bodies = bodies;
    this.callers = new Map([[main, null]]); // by function, the line that calls it first
    this.places = new Map(); // by body, the place of each of its lines
    this.lines = []; // by place, the body and the row of a line
    const todo = [{ body: main, row: 0 }];
    while (todo.length) {
      const last = todo[todo.length - 1], { body, row } = last;
      if (!this.places.has(body)) this.places.set(body, new Int32Array(bodies[body].names.length));
      if (row === bodies[body].names.length) { todo.pop(); continue; }
      this.places.get(body)[row] = this.lines.length;
      this.lines.push({ body, row });
      last.row++;
      const called = (bodies[body].calls[row] || []).filter(one => !this.callers.has(one));
      for (const one of called.reverse()) { this.callers.set(one, { body, row }); todo.push({ body: one, row: 0 }); }
    }
    this.sumUp();
  }

  // What is in each body and in all that it calls: the rules, and whether a gradient ends there.
  sumUp() {
    const found = this.inside = new Map();
    for (const body of this.places.keys()) found.set(body, holds(this.bodies[body], 0, Infinity, null));
    for (let isNew = true; isNew;) {
      isNew = false;
      for (const body of this.places.keys()) {
        const own = found.get(body), before = own.rules.size + own.onPath;
        for (const one of Object.values(this.bodies[body].calls).flat()) join(own, found.get(one));
        isNew = isNew || own.rules.size + own.onPath > before;
      }
    }
  }

  // The place from which on to look for the next line: a scope stands before its first line.
  from(row, step) {
    if (!row) return step > 0 ? -1 : this.lines.length;
    const place = this.places.get(row.body)[Math.max(row.row, 0)] || 0;
    return row.kind === "line" || step < 0 ? place : place - 1;
  }

  // The next line of which something is true; null where it is true of none.
  next(row, step, test) {
    const count = this.lines.length, start = this.from(row, step);
    for (let tried = 1; tried <= count; tried++) {
      const line = this.lines[(start + step * tried + 2 * count) % count];
      if (test(line.body, line.row)) return line;
    }
    return null;
  }

  // What is in the functions that a line calls.
  called(body, row) {
    const found = { rules: new Set(), onPath: false };
    for (const one of this.bodies[body].calls[row] || []) join(found, this.inside.get(one));
    return found;
  }

  // The calls on the way to a function, from the main body on.
  pathTo(body) {
    const found = [];
    for (let call = this.callers.get(body); call; call = this.callers.get(call.body)) found.unshift(call);
    return found;
  }
}

// What the lines from `first` to `last` hold: the rules at them, and whether a gradient ends there.
function holds(body, first, last, inside) {
  const found = { rules: new Set(), onPath: false };
  for (const row of between(body.marked, first, last)) body.marks[row].forEach(mark => found.rules.add(mark));
  found.onPath = between(body.pathRows, first, last).length > 0;
  if (inside) for (const row of between(body.callRows, first, last)) body.calls[row].forEach(one => join(found, inside.get(one)));
  return found;
}

function join(found, other) {
  other.rules.forEach(rule => found.rules.add(rule));
  found.onPath = found.onPath || other.onPath;
}

// Those of some rows, which are in their order, that lie between two.
function between(rows, first, last) {
  return rows.slice(before(rows, first), before(rows, last + 1));
}

// How many of some rows, which are in their order, lie before a row.
function before(rows, row) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle] < row) low = middle + 1; else high = middle;
  }
  return low;
}
