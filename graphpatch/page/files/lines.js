"use strict";

// The lines of the bodies: their order, the scopes that fold, and the rows that are shown of them.
// A line is an op; a row is what the list draws: a line, a scope, a group of variables, a function.

const Flow = { ABSENT: 0, NONE: 1, ZERO: 2, FULL: 3, CHANGED: 4, BLOCKED: 5, ERROR: 6 };
const WORDS = ["", "none", "zero", "full", "changed", "ends here", "error"];
const DEEPEST_SCOPE = 12; // scopes in each other that count
const LINES_ALL_OPEN = 48; // in a body of no more lines all scopes are open at first
const FEW_VARIABLES = 3; // so many variables stand in the list by themselves

const scopesOf = name => name.split("/").slice(0, -1).slice(0, DEEPEST_SCOPE);

// Bring a body's lines, which are written as they were found, into the order in which they are read.
function arrange(body) {
  const variables = body.variables.length > FEW_VARIABLES ? new Set(body.variables) : new Set();
  const order = readingOrder(body).filter(line => !variables.has(line));
  const grouped = [...variables].sort((a, b) => body.names[a] < body.names[b] ? -1 : 1);
  order.push(...grouped);
  const rowOf = body.rowOf = new Int32Array(order.length);
  order.forEach((line, row) => { rowOf[line] = row; });
  for (const column of ["names", "types", "tensors", "attrs", "inputs"]) body[column] = order.map(line => body[column][line]);
  body.inputs = body.inputs.map(inputs => inputs.map(input => typeof input === "number" ? rowOf[input] : typeof input === "string" ? input : [rowOf[input[0]], input[1]]));
  for (const few of ["marks", "findings", "ends", "calls", "carried", "plots"]) body[few] = byRow(body[few], rowOf);
  for (const side of body.sides) {
    side.flow = order.map(line => side.flow[line]);
    side.arrives = order.map(line => side.arrives[line]);
    side.edges = order.map(line => side.edges[line].map((value, place) => place % 2 ? value : rowOf[value]));
  }
  body.group = grouped.length ? order.length - grouped.length : Infinity; // from this row on: variables
}

const byRow = (few, rowOf) => Object.fromEntries(Object.entries(few).map(([line, value]) => [rowOf[line], value]));

// The order: a line comes after all that read it; of those that may come next, one of the scope that
// the last line is in. Lines that read each other (a loop) follow those that read any of them.
function readingOrder(body) {
  const reads = body.names.map((_, line) => {
    const read = new Set(body.sides.flatMap(side => side.edges[line].filter((_, place) => place % 2 === 0)));
    read.delete(line);
    return [...read];
  });
  const waiting = new Int32Array(reads.length), ready = new ReadyLines(body.names);
  for (const read of reads) for (const producer of read) waiting[producer]++;
  const isStart = line => body.ends[line] === "target" || body.ends[line] === "output";
  const begin = [...body.names.keys()].filter(line => !waiting[line]);
  for (const line of [...begin.filter(isStart), ...begin.filter(line => !isStart(line))].reverse()) ready.add(line);
  const order = [];
  let loops = null;
  while (order.length < reads.length) {
    let line = ready.take();
    if (line === undefined) {
      loops = loops || new Loops(reads, ready.taken);
      line = ready.begin(loops.next(waiting));
    }
    order.push(line);
    for (const producer of reads[line].reverse()) {
      waiting[producer]--;
      if (!waiting[producer] && !ready.taken[producer]) ready.add(producer);
    }
  }
  return order;
}

// The lines that may come next, on a stack for each scope around them.
class ReadyLines {
  constructor(names) {
    this.names = names;
    this.taken = new Uint8Array(names.length);
    this.stacks = new Map();
    this.around = new Map(); // by scope, the stacks of it and of those around it, innermost first
    this.last = "";
  }

  stacksOf(scope) {
    if (!this.around.has(scope)) {
      const parts = scope ? scope.split("/") : [], stacks = [];
      for (let depth = parts.length; depth >= 0; depth--) {
        const key = parts.slice(0, depth).join("/");
        if (!this.stacks.has(key)) this.stacks.set(key, []);
        stacks.push(this.stacks.get(key));
      }
      this.around.set(scope, stacks);
    }
    return this.around.get(scope);
  }

  add(line) {
    for (const stack of this.stacksOf(scopesOf(this.names[line]).join("/"))) stack.push(line);
  }

  take() {
    for (const stack of this.stacksOf(this.last)) {
      while (stack.length) {
        const line = stack.pop();
        if (!this.taken[line]) return this.begin(line);
      }
    }
    return undefined;
  }

  begin(line) {
    this.taken[line] = 1;
    this.last = scopesOf(this.names[line]).join("/");
    return line;
  }
}

// The lines that are left when none is ready, by the loops that they form: loops that read others
// first. Tarjan's algorithm gives strongly connected components in the opposite order.
class Loops {
  constructor(reads, taken) {
    this.taken = taken;
    this.readers = Int32Array.from(reads, () => 0);
    reads.forEach(read => read.forEach(producer => { this.readers[producer]++; }));
    const index = new Int32Array(reads.length).fill(-1), low = new Int32Array(reads.length);
    const isOpen = new Uint8Array(reads.length), open = [], loops = [];
    let count = 0;
    for (let root = 0; root < reads.length; root++) {
      if (taken[root] || index[root] >= 0) continue;
      const path = [[root, 0]];
      while (path.length) {
        const step = path[path.length - 1], [line, next] = step;
        if (next === 0) { index[line] = low[line] = count++; open.push(line); isOpen[line] = 1; }
        const producer = reads[line][next];
        if (producer !== undefined) {
          step[1]++;
          if (index[producer] < 0) path.push([producer, 0]);
          else if (isOpen[producer]) low[line] = Math.min(low[line], index[producer]);
          continue;
        }
        path.pop();
        if (path.length) low[path[path.length - 1][0]] = Math.min(low[path[path.length - 1][0]], low[line]);
        if (low[line] !== index[line]) continue;
        const members = open.splice(open.indexOf(line));
        members.forEach(member => { isOpen[member] = 0; });
        loops.push(members.sort((a, b) => a - b));
      }
    }
    this.loops = loops; // the one that nothing else reads is the last
  }

  // The line with which to go on: in the first loop that is left, one that a taken line reads.
  next(waiting) {
    for (;;) {
      const loop = this.loops[this.loops.length - 1].filter(line => !this.taken[line]);
      if (loop.length) return loop.find(line => waiting[line] < this.readers[line]) ?? loop[0];
      this.loops.pop();
    }
  }
}

// The scopes of at least two lines that follow each other, outer ones before inner ones: each with
// its first and last row, its depth and its name. Of scopes of the same lines the innermost stands.
function foldsOf(names) {
  const begun = [], byLines = new Map();
  for (let row = 0; row <= names.length; row++) {
    const parts = row < names.length ? scopesOf(names[row]) : [];
    let shared = 0;
    while (shared < begun.length && shared < parts.length && begun[shared].part === parts[shared]) shared++;
    while (begun.length > shared) {
      const name = begun.map(scope => scope.part).join("/"), { first } = begun.pop();
      const key = `${first}:${row - 1}`;
      if (row - first > 1 && !byLines.has(key)) byLines.set(key, { first, last: row - 1, name, depth: 0 });
    }
    for (const part of parts.slice(shared)) begun.push({ part, first: row });
  }
  const folds = [...byLines.values()].sort((a, b) => a.first - b.first || b.last - a.last), around = [];
  for (const fold of folds) {
    while (around.length && around[around.length - 1].last < fold.first) around.pop();
    fold.depth = around.length;
    around.push(fold);
  }
  return folds;
}

// What a page knows of a body besides what the document says of it.
function prepare(body, findings) {
  arrange(body);
  const isOnPath = row => body.findings[row].some(number => findings[number].on_path);
  body.pathRows = Object.keys(body.findings).map(Number).filter(isOnPath);
  body.onPath = new Set(body.pathRows);
  body.marked = Object.keys(body.marks).map(Number);
  body.callRows = Object.keys(body.calls).map(Number);
  const names = body.names.slice(0, Math.min(body.group, body.names.length));
  body.folds = foldsOf(names);
  const shown = [...body.pathRows, ...body.marked, ...Object.keys(body.ends).map(Number)].sort((a, b) => a - b);
  const isOpen = fold => names.length <= LINES_ALL_OPEN || before(shown, fold.last + 1) > before(shown, fold.first);
  for (const fold of body.folds) fold.isOpen = isOpen(fold);
  if (body.group < Infinity) body.folds.push({ first: body.group, last: body.names.length - 1, depth: 0, name: "", isGroup: true, isOpen: false });
}

// The rows that are shown. A row is {kind, body, row, last, fold, part, depth, scope}: `part` is the
// stretch of rows of one body, to which its lanes belong; a function that was opened is a part of
// its own. `scope` is the open scope around a line, which its name leaves out.
class Shown {
  constructor(bodies) {
    this.bodies = bodies;
    this.inside = new Set(); // calls whose functions are open: "0:17" is row 17 of body 0
    this.rows = [];
    this.parts = [];
  }

  build(number) {
    this.rows = [];
    this.parts = [];
    this.addBody(number, 0, "");
    for (const part of this.parts) layOut(part, this.bodies[part.body]);
  }

  // The rows of a search: the lines that it finds, and nothing else.
  filter(found) {
    this.rows = [];
    this.parts = [];
    for (const [number, rows] of found) {
      const part = this.newPart(number, 0, "");
      for (const row of rows) this.add(part, { kind: "line", body: number, row, last: row, fold: -1, depth: 0, scope: "" });
    }
  }

  newPart(body, depth, path) {
    const part = { body, depth, path, at: new Int32Array(this.bodies[body].names.length).fill(-1), rows: [], sides: [] };
    this.parts.push(part);
    return part;
  }

  addBody(number, depth, path) {
    const body = this.bodies[number], part = this.newPart(number, depth, path), around = [];
    let next = 0;
    for (let row = 0; row < body.names.length; row++) {
      while (around.length && around[around.length - 1].last < row) around.pop();
      while (next < body.folds.length && body.folds[next].first < row) next++;
      let closed = null;
      for (; !closed && next < body.folds.length && body.folds[next].first === row; next++) {
        const fold = body.folds[next], scope = around.length ? around[around.length - 1].name : "";
        const place = { body: number, row, last: fold.last, fold: next, depth: depth + around.length, scope };
        if (fold.isOpen) {
          this.add(part, { kind: fold.isGroup ? "group" : "scope", ...place });
          around.push(fold);
        } else closed = { kind: fold.isGroup ? "group" : "folded", ...place };
      }
      if (closed) {
        part.at.fill(this.rows.length, row, closed.last + 1);
        this.add(part, closed);
        row = closed.last;
        continue;
      }
      part.at[row] = this.rows.length;
      const scope = around.length && !around[around.length - 1].isGroup ? around[around.length - 1].name : "";
      this.add(part, { kind: "line", body: number, row, last: row, fold: -1, depth: depth + around.length, scope });
      this.addCalled(part, row, depth + around.length);
    }
  }

  addCalled(part, row, depth) {
    const path = `${part.path}${part.body}:${row}`;
    if (!this.inside.has(path)) return;
    for (const inner of this.bodies[part.body].calls[row] || []) {
      this.add(part, { kind: "function", body: inner, row: -1, last: -1, fold: -1, depth: depth + 1, scope: "" });
      this.addBody(inner, depth + 1, `${path}>`);
    }
  }

  add(part, row) {
    row.part = part;
    row.path = `${part.path}${part.body}:${row.row}`;
    row.index = this.rows.length;
    this.rows.push(row);
  }

  // Open the functions of calls, each in a function of the one before it.
  open(calls) {
    calls.forEach((call, place) => {
      this.reveal(call.body, call.row);
      this.inside.add(calls.slice(0, place + 1).map(step => `${step.body}:${step.row}`).join(">"));
    });
  }

  // Open the scopes around a line, so that it has a row of its own.
  reveal(number, row) {
    for (const fold of this.bodies[number].folds) if (fold.first <= row && row <= fold.last) fold.isOpen = true;
  }

  setAll(isOpen) {
    for (const body of this.bodies) for (const fold of body.folds) fold.isOpen = isOpen && !fold.isGroup;
  }
}

// All lines of a graph in one order: those of its main body, and behind each op that calls functions
// the lines of these, where they are called first.
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
      const called = (bodies[body].calls[row] || []).filter(inner => !this.callers.has(inner));
      for (const inner of called.reverse()) { this.callers.set(inner, { body, row }); todo.push({ body: inner, row: 0 }); }
    }
    this.inside = new Map(); // by body: the rules in it and in all that it calls; does a gradient end there?
    for (const body of this.places.keys()) this.inside.set(body, this.holds(body, 0, Infinity));
    for (let isNew = true; isNew;) {
      isNew = false;
      for (const [body, own] of this.inside) {
        const size = own.rules.size + own.onPath;
        for (const inner of Object.values(this.bodies[body].calls).flat()) join(own, this.inside.get(inner));
        isNew = isNew || own.rules.size + own.onPath > size;
      }
    }
  }

  // The rules at the lines from `first` to `last`, and in what they call; does a gradient end there?
  holds(number, first, last) {
    const body = this.bodies[number], held = { rules: new Set(), onPath: between(body.pathRows, first, last).length > 0 };
    for (const row of between(body.marked, first, last)) body.marks[row].forEach(mark => held.rules.add(mark));
    for (const row of between(body.callRows, first, last)) for (const inner of body.calls[row]) join(held, this.inside.get(inner));
    return held;
  }

  // The next line of which something is true, from a row on; null where it is true of none.
  next(row, step, test) {
    const count = this.lines.length;
    let start = step > 0 ? -1 : count;
    if (row) {
      const place = this.places.get(row.body)[Math.max(row.row, 0)] || 0;
      start = row.kind === "line" || step < 0 ? place : place - 1; // a scope stands before its first line
    }
    for (let tried = 1; tried <= count; tried++) {
      const line = this.lines[(start + step * tried + 2 * count) % count];
      if (test(line.body, line.row)) return line;
    }
    return null;
  }

  // The calls on the way to a function, from the main body on.
  pathTo(body) {
    const calls = [];
    for (let call = this.callers.get(body); call; call = this.callers.get(call.body)) calls.unshift(call);
    return calls;
  }
}

function join(held, more) {
  if (!more) return; // of a function whose own are being counted
  more.rules.forEach(rule => held.rules.add(rule));
  held.onPath = held.onPath || more.onPath;
}

// Those of some rows, which are in their order, that lie between two.
const between = (rows, first, last) => rows.slice(before(rows, first), before(rows, last + 1));

// How many of some rows, which are in their order, lie before a row.
function before(rows, row) {
  let low = 0, high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle] < row) low = middle + 1; else high = middle;
  }
  return low;
}

// What flows through some lines: where a gradient ends among them, that; else what is changed.
function flowOf(side, first, last, body) {
  if (first === last) return side.flow[first];
  const key = `${first}:${last}`;
  side.flows = side.flows || new Map();
  if (!side.flows.has(key)) {
    const blocked = between(body.pathRows, first, last).find(row => side.flow[row] >= Flow.BLOCKED);
    const flows = side.flow.slice(first, last + 1), isThere = flow => flow !== Flow.ABSENT;
    const most = Math.max(flows.find(isThere) || Flow.ABSENT, flows.includes(Flow.CHANGED) ? Flow.CHANGED : 0);
    side.flows.set(key, blocked === undefined ? most : side.flow[blocked]);
  }
  return side.flows.get(key);
}
