"use strict";

// The rows that are shown: of each body its lines, but of a scope that is folded one row. A row is
// {kind, body, row, last, fold, part}: `part` is the stretch of rows of one body, to which its
// lanes belong; the body of a function that was opened is a part of its own.

const Flow = { ABSENT: 0, NONE: 1, ZERO: 2, FULL: 3, CHANGED: 4, BLOCKED: 5, ERROR: 6 };
const WORDS = ["", "none", "zero", "full", "changed", "ends here", "error"];

class Shown {
  constructor(doc) {
    this.doc = doc;
    this.opened = doc.bodies.map(body => body.folds.map(fold => fold[4] === 1));
    this.inside = new Set(); // calls whose functions are open: "0:17" is row 17 of body 0
    this.rows = [];
    this.parts = [];
  }

  build(number) {
    this.rows = [];
    this.parts = [];
    this.addBody(number, 0, null, "");
    for (const part of this.parts) layOut(part, this.doc.bodies[part.body]);
  }

  addBody(number, depth, outer, path) {
    const body = this.doc.bodies[number];
    const part = { body: number, depth, outer, path, first: this.rows.length, at: new Int32Array(body.names.length), rows: [] };
    this.parts.push(part);
    let next = 0;
    for (let row = 0; row < body.names.length; row++) {
      while (next < body.folds.length && body.folds[next][0] < row) next++;
      let closed = -1;
      while (closed < 0 && next < body.folds.length && body.folds[next][0] === row) {
        const isOpen = this.opened[number][next];
        if (isOpen) this.add(part, { kind: "scope", body: number, row, last: body.folds[next][1], fold: next });
        else closed = next;
        next++;
      }
      if (closed >= 0) {
        const last = body.folds[closed][1];
        for (let inner = row; inner <= last; inner++) part.at[inner] = this.rows.length;
        this.add(part, { kind: "folded", body: number, row, last, fold: closed });
        row = last;
        continue;
      }
      part.at[row] = this.rows.length;
      this.add(part, { kind: "line", body: number, row, last: row, fold: -1 });
      this.addCalled(part, row, depth);
    }
  }

  addCalled(part, row, depth) {
    const path = `${part.path}${part.body}:${row}`;
    const called = this.doc.bodies[part.body].calls[row];
    if (!called || !this.inside.has(path)) return;
    for (const inner of called) {
      this.add(part, { kind: "function", body: inner, row: -1, last: -1, fold: -1 });
      this.addBody(inner, depth + 1, part, `${path}>`);
    }
  }

  add(part, row) {
    row.part = part;
    row.path = `${part.path}${part.body}:${row.row}`;
    row.index = this.rows.length;
    this.rows.push(row);
  }

  // Opens the functions of calls, each in a function of the one before it.
  open(calls) {
    calls.forEach((call, place) => {
      this.reveal(call.body, call.row);
      this.inside.add(calls.slice(0, place + 1).map(one => `${one.body}:${one.row}`).join(">"));
    });
  }

  // Opens the scopes around a line, so that it has a row of its own.
  reveal(number, row) {
    this.doc.bodies[number].folds.forEach((fold, place) => {
      if (fold[0] <= row && row <= fold[1]) this.opened[number][place] = true;
    });
  }

  setAll(isOpen) {
    this.opened = this.opened.map(folds => folds.map(() => isOpen));
  }
}

// What flows through the first of some lines; where a gradient ends among them, or is changed, that.
function flowOf(side, first, last, body) {
  if (first === last) return side.flow[first];
  const key = `${first}:${last}`;
  side.flows = side.flows || new Map();
  if (!side.flows.has(key)) side.flows.set(key, flowOfMany(side, first, last, body));
  return side.flows.get(key);
}

function flowOfMany(side, first, last, body) {
  const blocked = between(body.pathRows, first, last).find(row => side.flow[row] >= Flow.BLOCKED);
  if (blocked !== undefined) return side.flow[blocked];
  const flows = side.flow.slice(first, last + 1);
  return Math.max(flows.find(flow => flow !== Flow.ABSENT) || Flow.ABSENT, flows.includes(Flow.CHANGED) ? Flow.CHANGED : 0);
}
