"use strict";

// The lines of the bodies: their order, the scopes that fold, and the rows that are shown of them.
// A line is an op; a row is what the list draws: a line, a scope, a group of variables, a function.

const Flow = { ABSENT: 0, NONE: 1, ZERO: 2, FULL: 3, CHANGED: 4, BLOCKED: 5, ERROR: 6 };
const WORDS = ["", "none", "zero", "full", "changed", "ends here", "error"];
const DEEPEST_SCOPE = 12; // scopes in each other that count
const LINES_ALL_OPEN = 48; // in a body of no more lines all scopes are open at first
const FEW_VARIABLES = 3; // so many variables stand in the list by themselves

const scopesOf = name => name.split("/").slice(0, -1).slice(0, DEEPEST_SCOPE);
const producersOf = edges => edges.filter((_, place) => place % 2 === 0);
const byRow = (few, rowOf) => Object.fromEntries(Object.entries(few).map(([line, value]) => [rowOf[line], value]));

// Bring a body's lines into the order in which they are read, variables behind them, and find what
// the page knows besides what the document says.
function prepare(body, findings) {
  const variables = body.variables.length > FEW_VARIABLES ? new Set(body.variables) : new Set();
  const order = readingOrder(body).filter(line => !variables.has(line));
  body.group = variables.size ? order.length : Infinity; // from this row on: variables
  order.push(...[...variables].sort((a, b) => body.names[a] < body.names[b] ? -1 : 1));
  const rowOf = body.rowOf = new Int32Array(order.length);
  order.forEach((line, row) => { rowOf[line] = row; });
  for (const column of ["names", "types", "tensors", "attrs", "inputs"]) body[column] = order.map(line => body[column][line]);
  const moved = input => typeof input === "string" ? input : typeof input === "number" ? rowOf[input] : [rowOf[input[0]], input[1]];
  body.inputs = body.inputs.map(inputs => inputs.map(moved));
  for (const few of ["marks", "findings", "ends", "calls", "carried", "plots"]) body[few] = byRow(body[few], rowOf);
  for (const side of body.sides) {
    for (const column of ["flow", "arrives", "edges"]) side[column] = order.map(line => side[column][line]);
    side.edges = side.edges.map(edges => edges.map((value, place) => place % 2 ? value : rowOf[value]));
  }
  const rows = few => Object.keys(few).map(Number);
  body.pathRows = rows(body.findings).filter(row => body.findings[row].some(number => findings[number].on_path));
  body.onPath = new Set(body.pathRows);
  body.marked = rows(body.marks);
  body.callRows = rows(body.calls);
  const names = body.names.slice(0, Math.min(body.group, body.names.length));
  body.folds = foldsOf(names);
  const shown = [...body.pathRows, ...body.marked, ...rows(body.ends)].sort((a, b) => a - b);
  for (const fold of body.folds) fold.isOpen = names.length <= LINES_ALL_OPEN || between(shown, fold.first, fold.last).length > 0;
  if (variables.size) body.folds.push({ first: body.group, last: body.names.length - 1, depth: 0, name: "", isGroup: true, isOpen: false });
}

// Of a line at which a gradient ends though doctor has no words for it: the nearest one behind it for
// which it has, in words, as far as nothing flows; nothing where there is none.
function causeBehind(body, side, row, types) {
  if (side.flow[row] !== Flow.BLOCKED || body.onPath.has(row)) return "";
  const visited = new Set([row]);
  for (const line of visited) {
    for (const read of producersOf(side.edges[line])) {
      if (side.flow[read] === Flow.FULL || side.flow[read] === Flow.CHANGED) continue; // it ends elsewhere
      if (body.onPath.has(read)) return `because of ${types[body.types[read]]} ${body.names[read]}`;
      visited.add(read);
    }
  }
  return "";
}

// The order: a line comes after all that read it; of those that may come next, one of the scope that
// the last line is in, or of the nearest scope around it.
function readingOrder(body) {
  const all = body.names.map((_, line) => {
    const read = new Set(body.sides.flatMap(side => producersOf(side.edges[line])));
    read.delete(line);
    return [...read];
  });
  const isRead = new Uint8Array(all.length), isTaken = new Uint8Array(all.length), waiting = new Int32Array(all.length);
  for (const producer of all.flat()) isRead[producer] = 1;
  const rank = line => isRead[line] ? 2 : ["target", "output"].includes(body.ends[line]) ? 0 : 1;
  const starts = all.map((_, line) => line).sort((a, b) => rank(a) - rank(b));
  const reads = withoutReturns(all, starts);
  for (const producer of reads.flat()) waiting[producer]++;
  const stacks = new Map(), around = new Map(); // by scope: lines that may come next; the stacks from the innermost on
  const stackOf = scope => stacks.get(scope) || stacks.set(scope, []).get(scope);
  const stacksOf = line => {
    const scopes = scopesOf(body.names[line]), key = scopes.join("/");
    if (!around.has(key)) around.set(key, [...scopes, ""].map((_, depth) => stackOf(scopes.slice(0, scopes.length - depth).join("/"))));
    return around.get(key);
  };
  const add = line => stacksOf(line).forEach(stack => stack.push(line));
  starts.filter(line => !waiting[line]).reverse().forEach(add);
  const order = [];
  for (let near = [stackOf("")]; order.length < all.length; near = stacksOf(order[order.length - 1])) {
    for (const stack of near) while (stack.length && isTaken[stack[stack.length - 1]]) stack.pop();
    const line = near.find(stack => stack.length).pop();
    isTaken[line] = 1;
    order.push(line);
    for (const producer of reads[line].reverse()) if (!--waiting[producer]) add(producer);
  }
  return order;
}

// What lines read, without what leads back to a line on the way from a start: the returns of loops.
function withoutReturns(reads, starts) {
  const kept = reads.map(() => []), state = new Uint8Array(reads.length); // 1: on the way, 2: done
  for (const start of starts.filter(line => !state[line])) {
    if (state[start]) continue;
    const way = [[start, 0]];
    state[start] = 1;
    while (way.length) {
      const step = way[way.length - 1], [line] = step, producer = reads[line][step[1]++];
      if (producer === undefined) {
        state[line] = 2;
        way.pop();
      } else if (state[producer] !== 1) {
        kept[line].push(producer);
        if (!state[producer]) way.push([producer, 0]);
        state[producer] = state[producer] || 1;
      }
    }
  }
  return kept;
}

// The scopes of at least two lines that follow each other, outer ones before inner ones: each with
// its first and last row, its depth and its name. Of scopes of the same lines the innermost stands.
function foldsOf(names) {
  const begun = [], byLines = new Map(), around = [];
  for (let row = 0; row <= names.length; row++) {
    const parts = row < names.length ? scopesOf(names[row]) : [];
    let shared = 0;
    while (shared < begun.length && shared < parts.length && begun[shared].part === parts[shared]) shared++;
    while (begun.length > shared) {
      const name = begun.map(scope => scope.part).join("/"), { first } = begun.pop(), key = `${first}:${row - 1}`;
      if (row - first > 1 && !byLines.has(key)) byLines.set(key, { first, last: row - 1, name, depth: 0 });
    }
    for (const part of parts.slice(shared)) begun.push({ part, first: row });
  }
  const folds = [...byLines.values()].sort((a, b) => a.first - b.first || b.last - a.last);
  for (const fold of folds) {
    while (around.length && around[around.length - 1].last < fold.first) around.pop();
    fold.depth = around.length;
    around.push(fold);
  }
  return folds;
}

// The rows that are shown. A row is {kind, body, row, last, fold, part, depth, scope}: `part` is the
// stretch of rows of one body, to which its lanes belong; a function that was opened is a part of
// its own. `scope` is the open scope around a line, which its name leaves out.
class Shown {
  constructor(bodies) {
    this.bodies = bodies;
    this.inside = new Set(); // calls whose functions are open: "0:17" is row 17 of body 0
    this.clear();
  }

  clear() {
    this.rows = [];
    this.parts = [];
  }

  build(number) {
    this.clear();
    this.addBody(number, 0, "");
    for (const part of this.parts) layOut(part, this.bodies[part.body]);
  }

  // The rows of a search: the lines that it finds, and nothing else.
  filter(hits) {
    this.clear();
    for (const [body, rows] of hits) {
      const part = this.newPart(body, "");
      for (const row of rows) this.add(part, "line", { row, last: row, depth: 0, scope: "" });
    }
  }

  newPart(body, path) {
    const part = { body, path, at: new Int32Array(this.bodies[body].names.length).fill(-1), sides: [] };
    this.parts.push(part);
    return part;
  }

  addBody(number, depth, path) {
    const body = this.bodies[number], part = this.newPart(number, path), around = [];
    let next = 0;
    for (let row = 0; row < body.names.length; row++) {
      while (around.length && around[around.length - 1].last < row) around.pop();
      while (next < body.folds.length && body.folds[next].first < row) next++;
      const place = () => ({ depth: depth + around.length, scope: around.length ? around[around.length - 1].name : "" });
      let isClosed = false;
      for (; !isClosed && next < body.folds.length && body.folds[next].first === row; next++) {
        const fold = body.folds[next];
        isClosed = !fold.isOpen;
        if (isClosed) part.at.fill(this.rows.length, row, fold.last + 1);
        this.add(part, fold.isGroup ? "group" : isClosed ? "folded" : "scope", { row, last: fold.last, fold: next, ...place() });
        if (isClosed) row = fold.last;
        else around.push(fold);
      }
      if (isClosed) continue;
      part.at[row] = this.rows.length;
      this.add(part, "line", { row, last: row, ...place() });
      const inner = `${path}${number}:${row}`;
      for (const called of this.inside.has(inner) ? body.calls[row] || [] : []) {
        this.add(part, "function", { body: called, row: -1, last: -1, depth: depth + around.length + 1, scope: "" });
        this.addBody(called, depth + around.length + 1, `${inner}>`);
      }
    }
  }

  add(part, kind, row) {
    this.rows.push({ kind, body: part.body, fold: -1, part, path: `${part.path}${part.body}:${row.row}`, index: this.rows.length, ...row });
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
    this.inside = new Map(); // by body: the rules in it and in all that it calls; does a gradient end there?
    this.addBody(main);
    for (let size = -1; size !== this.size();) {
      size = this.size();
      for (const body of this.places.keys()) this.inside.set(body, this.holds(body, 0, Infinity));
    }
  }

  addBody(body) {
    const places = new Int32Array(this.bodies[body].names.length);
    this.places.set(body, places);
    places.forEach((_, row) => {
      places[row] = this.lines.length;
      this.lines.push({ body, row });
      for (const inner of this.bodies[body].calls[row] || []) {
        if (this.callers.has(inner)) continue;
        this.callers.set(inner, { body, row });
        this.addBody(inner);
      }
    });
  }

  size() {
    return [...this.inside.values()].reduce((sum, held) => sum + held.rules.size + held.isEnd, 0);
  }

  // The rules at the lines from `first` to `last`, and in what they call; does a gradient end there?
  holds(number, first, last) {
    const body = this.bodies[number], rows = between(body.marked, first, last);
    const called = between(body.callRows, first, last).flatMap(row => body.calls[row]);
    const inner = called.map(callee => this.inside.get(callee)).filter(Boolean);
    return {
      rules: new Set([...rows.flatMap(row => body.marks[row]), ...inner.flatMap(held => [...held.rules])]),
      isEnd: between(body.pathRows, first, last).length > 0 || inner.some(held => held.isEnd),
    };
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
    const call = this.callers.get(body);
    return call ? [...this.pathTo(call.body), call] : [];
  }
}

// How many of some numbers, which are in their order, lie before one.
function before(numbers, number) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < number) low = middle + 1; else high = middle;
  }
  return low;
}

// Those of some rows, which are in their order, that lie between two.
const between = (rows, first, last) => rows.slice(before(rows, first), before(rows, last + 1));

// What flows through some lines: where a gradient ends among them, that; else what is changed.
function flowOf(side, first, last, body) {
  if (first === last) return side.flow[first];
  const blocked = between(body.pathRows, first, last).find(row => side.flow[row] >= Flow.BLOCKED);
  if (blocked !== undefined) return side.flow[blocked];
  const flows = side.flow.slice(first, last + 1);
  return flows.includes(Flow.CHANGED) ? Flow.CHANGED : flows.find(flow => flow !== Flow.ABSENT) || Flow.ABSENT;
}
