"use strict";

// The lines of the bodies: their order, the scopes that fold, and the rows that are shown of them.
// A line is an op; a row is what the list draws: a line, a scope, a group of variables, a function.

const Flow = { ABSENT: 0, NONE: 1, ZERO: 2, FULL: 3, CHANGED: 4, BLOCKED: 5, ERROR: 6 };
const WORDS = ["", "none", "zero", "full", "changed", "ends here", "error"];
const DEEPEST_SCOPE = 12; // scopes in each other that count
const LINES_ALL_OPEN = 48; // in a body of no more lines all scopes are open at first
const FEW_VARIABLES = 3; // so many variables stand in the list by themselves

const scopesOf = name => name.split("/").slice(0, -1).slice(0, DEEPEST_SCOPE);
const isFlowing = flow => flow === Flow.FULL || flow === Flow.CHANGED;

// What flows through a line on one side; a function may be on the other side alone.
const flowAt = (line, side) => line.sides[side] ? line.sides[side].flow : Flow.ABSENT;

// The bodies of a document. Each has its lines in the order in which they are read, variables behind
// them, from the row `group` on; and the scopes that fold.
function readBodies(doc) {
  const bodies = doc.bodies.map(({ name, sides }, number) => ({ number, name, sideCount: sides.length }));
  const sizes = new Map(doc.run ? doc.graphs.map((graph, place) => [graph.body, doc.run.graphs[place].sizes]) : []);
  bodies.forEach((body, number) => readLines(body, bodies, doc, (sizes.get(number) || { lines: {} }).lines));
  return bodies;
}

function readLines(body, bodies, { bodies: allColumns, tables, defaults }, sizes) {
  const columns = allColumns[body.number];
  const lines = columns.names.map((name, at) => {
    const type = tables.types[columns.types[at]], marks = columns.marks[at] || [];
    const findings = (columns.findings[at] || []).map(number => tables.findings[number]);
    return {
      body, number: at, name, type, marks, findings, // `isCause`: a gradient ends here, on a path that was asked about
      isCause: findings.some(finding => finding.on_path),
      tensor: tables.tensors[columns.tensors[at]],
      attrs: tables.attrs[columns.attrs[at]] || {},
      end: columns.ends[at],
      calls: (columns.calls[at] || []).map(number => bodies[number]),
      carried: columns.carried[at],
      inputs: columns.inputs[at], // names, numbers of lines, and these with the tensor that is read
      plot: tables.plots[at in columns.plots ? columns.plots[at] : marks.length ? -1 : defaults[type]],
      sizes: sizes[at],
      folds: [], // those that begin here
    };
  });
  const edgesOf = edges => { // the lines that a line reads, each with what flows back there
    const read = [];
    for (let place = 0; place < edges.length; place += 2) read.push([lines[edges[place]], edges[place + 1]]);
    return read;
  };
  lines.forEach((line, at) => { line.sides = columns.sides.map(({ flow, arrives, edges }) => ({ flow: flow[at], arrives: arrives[at], edges: edgesOf(edges[at]) })); });
  const variables = new Set(columns.variables.length > FEW_VARIABLES ? columns.variables.map(at => lines[at]) : []);
  const ordered = readingOrder(lines).filter(line => !variables.has(line));
  body.lines = [...ordered, ...[...variables].sort((a, b) => a.name < b.name ? -1 : 1)];
  body.lines.forEach((line, row) => { line.row = row; });
  body.group = variables.size ? ordered.length : Infinity;
  body.folds = foldsOf(ordered.map(line => line.name));
  for (const fold of body.folds) fold.isOpen = ordered.length <= LINES_ALL_OPEN || ordered.slice(fold.first, fold.last + 1).some(line => line.isCause || line.marks.length || line.end);
  if (variables.size) body.folds.push({ first: body.group, last: lines.length - 1, name: "", isGroup: true, isOpen: false });
  for (const fold of body.folds) body.lines[fold.first].folds.push(fold);
  Object.assign(body, { byNumber: lines, held: heldIn(lines) });
}

// Of a line at which a gradient ends though doctor has no words for it: the nearest one behind it for
// which it has, in words, as far as nothing flows; nothing where there is none.
function causeBehind(line, side) {
  if (flowAt(line, side) !== Flow.BLOCKED || line.isCause) return "";
  const visited = new Set([line]);
  for (const { sides } of visited) {
    for (const [read] of sides[side].edges) {
      if (isFlowing(flowAt(read, side))) continue; // it ends elsewhere
      if (read.isCause) return `because of ${read.type} ${read.name}`;
      visited.add(read);
    }
  }
  return "";
}

// The order: a line comes after all that read it; of those that may come next, one of the scope that
// the last line is in, or of the nearest scope around it.
function readingOrder(lines) {
  const all = lines.map(line => {
    const read = new Set(line.sides.flatMap(side => side.edges.map(([producer]) => producer)));
    read.delete(line);
    return [...read];
  });
  const isRead = new Uint8Array(all.length), isTaken = new Uint8Array(all.length), waiting = new Int32Array(all.length);
  for (const producers of all) for (const { number } of producers) isRead[number] = 1;
  const rank = line => isRead[line.number] ? 2 : ["target", "output"].includes(line.end) ? 0 : 1;
  const starts = [...lines].sort((a, b) => rank(a) - rank(b));
  const reads = withoutReturns(all, starts);
  for (const producers of reads) for (const { number } of producers) waiting[number]++;
  const stacks = new Map(), around = new Map(); // by scope: lines that may come next; the stacks from the innermost on
  const stackOf = scope => stacks.get(scope) || stacks.set(scope, []).get(scope);
  const stacksOf = ({ name }) => {
    const scope = name.slice(0, name.lastIndexOf("/") + 1), scopes = around.has(scope) ? [] : scopesOf(name);
    if (!around.has(scope)) around.set(scope, [...scopes, ""].map((_, depth) => stackOf(scopes.slice(0, scopes.length - depth).join("/"))));
    return around.get(scope);
  };
  const add = line => stacksOf(line).forEach(stack => stack.push(line));
  starts.filter(line => !waiting[line.number]).reverse().forEach(add);
  const order = [];
  for (let near = [stackOf("")]; order.length < lines.length; near = stacksOf(order.at(-1))) {
    for (const stack of near) while (stack.length && isTaken[stack.at(-1).number]) stack.pop();
    const line = near.find(stack => stack.length).pop();
    isTaken[line.number] = 1;
    order.push(line);
    for (const producer of reads[line.number].reverse()) if (!--waiting[producer.number]) add(producer);
  }
  return order;
}

// What lines read, without what leads back to a line on the way from a start: the returns of loops.
function withoutReturns(reads, starts) {
  const kept = reads.map(() => []), state = new Uint8Array(reads.length), way = []; // 1: on the way, 2: done
  const enter = ({ number }) => {
    state[number] = 1;
    way.push([number, reads[number].values()]);
  };
  for (const start of starts) {
    if (!state[start.number]) enter(start);
    while (way.length) {
      const [number, rest] = way.at(-1), { value: producer } = rest.next();
      if (!producer) state[way.pop()[0]] = 2;
      else if (state[producer.number] !== 1) {
        kept[number].push(producer);
        if (!state[producer.number]) enter(producer);
      }
    }
  }
  return kept;
}

// The scopes of at least two lines that follow each other, outer ones before inner ones: each with
// its first and last row and its name. Of scopes of the same lines the innermost stands.
function foldsOf(names) {
  const begun = [], byLines = new Map();
  for (let row = 0; row <= names.length; row++) {
    const parts = row < names.length ? scopesOf(names[row]) : [];
    let shared = 0;
    while (shared < begun.length && shared < parts.length && begun[shared].part === parts[shared]) shared++;
    while (begun.length > shared) {
      const name = begun.map(scope => scope.part).join("/"), { first } = begun.pop(), key = `${first}:${row - 1}`;
      if (row - first > 1 && !byLines.has(key)) byLines.set(key, { first, last: row - 1, name });
    }
    for (const part of parts.slice(shared)) begun.push({ part, first: row });
  }
  return [...byLines.values()].sort((a, b) => a.first - b.first || b.last - a.last);
}

// The rows that are shown. A row is {kind, body, first, last, line, fold, part, depth, scope}: it
// stands for the lines from `first` to `last` of its body. `part` is the stretch of rows of one body,
// to which its lanes belong; a function that was opened is a part of its own. `scope` is the open
// scope around a line, which its name leaves out.
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

  build(body) {
    this.clear();
    this.addBody(body, 0, "");
    this.parts.forEach(layOut);
  }

  // The rows of a search: the lines that it finds, and nothing else.
  filter(lines) {
    this.clear();
    for (const line of lines) this.addLine({ body: line.body, path: "" }, line, { depth: 0, scope: "" });
  }

  addBody(body, depth, path) {
    const part = { body, path, at: new Int32Array(body.lines.length), sides: [] }, around = [];
    this.parts.push(part);
    for (let row = 0; row < body.lines.length; row++) {
      const line = body.lines[row], closed = line.folds.find(fold => !fold.isOpen);
      while (around.length && around.at(-1).last < row) around.pop();
      const place = () => ({ depth: depth + around.length, scope: around.length ? around.at(-1).name : "" });
      for (const fold of line.folds.slice(0, closed ? line.folds.indexOf(closed) + 1 : undefined)) {
        this.add(part, fold.isGroup ? "group" : fold.isOpen ? "scope" : "folded", { first: row, last: fold.last, fold, ...place() });
        around.push(fold);
      }
      part.at.fill(this.rows.length - (closed ? 1 : 0), row, closed ? closed.last + 1 : row + 1);
      if (closed) { row = closed.last; continue; }
      this.addLine(part, line, place());
      const inner = `${path}${body.number}:${row}`, deeper = depth + around.length + 1;
      for (const called of this.inside.has(inner) ? line.calls : []) {
        this.add(part, "function", { body: called, first: -1, last: -1, depth: deeper, scope: "" });
        this.addBody(called, deeper, `${inner}>`);
      }
    }
  }

  addLine(part, line, place) {
    this.add(part, "line", { line, first: line.row, last: line.row, ...place });
  }

  add(part, kind, row) {
    this.rows.push({ kind, body: part.body, fold: null, part, path: `${part.path}${part.body.number}:${row.first}`, index: this.rows.length, ...row });
  }

  // Open the functions of calls, each in a function of the one before it.
  open(calls) {
    calls.forEach((call, place) => {
      this.reveal(call);
      this.inside.add(calls.slice(0, place + 1).map(({ body, row }) => `${body.number}:${row}`).join(">"));
    });
  }

  // Open the scopes around a line, so that it has a row of its own.
  reveal({ body, row }) {
    for (const fold of body.folds) if (fold.first <= row && row <= fold.last) fold.isOpen = true;
  }

  setAll(isOpen) {
    for (const body of this.bodies) for (const fold of body.folds) fold.isOpen = isOpen && !fold.isGroup;
  }
}

// All lines of a graph in one order: those of its main body, and behind each op that calls functions
// the lines of these, where they are called first.
class Places {
  constructor(main) {
    this.callers = new Map([[main, null]]); // by body, the line that calls it first
    this.lines = [];
    this.addBody(main);
  }

  addBody(body) {
    for (const line of body.lines) {
      line.place = this.lines.length;
      this.lines.push(line);
      for (const inner of line.calls) {
        if (this.callers.has(inner)) continue;
        this.callers.set(inner, line);
        this.addBody(inner);
      }
    }
  }

  // The next line of which something is true, from a row on; undefined where it is true of none.
  next(row, test) {
    const from = row && (row.line || row.body.lines[Math.max(row.first, 0)]); // a scope stands before its first line
    const start = from ? from.place + (row.kind === "line") : 0;
    return [...this.lines.slice(start), ...this.lines.slice(0, start)].find(test);
  }

  // The calls on the way to a function, from the main body on.
  pathTo(body) {
    const call = this.callers.get(body);
    return call ? [...this.pathTo(call.body), call] : [];
  }
}

// The rules at some lines, what they call, and whether a gradient ends there.
const heldIn = lines => ({ rules: [...new Set(lines.flatMap(line => line.marks))], calls: [...new Set(lines.flatMap(line => line.calls))], isEnd: lines.some(line => line.isCause) });

// The same of some lines and all that they call, and these call.
function heldBelow(lines) {
  const own = heldIn(lines), bodies = new Set(own.calls);
  for (const body of bodies) body.held.calls.forEach(inner => bodies.add(inner));
  const held = [own, ...[...bodies].map(body => body.held)];
  return { rules: new Set(held.flatMap(({ rules }) => rules)), isEnd: held.some(({ isEnd }) => isEnd) };
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

// The lines that a row stands for.
const linesOf = row => row.line ? [row.line] : row.body.lines.slice(row.first, row.last + 1);

// What flows through some lines: where a gradient ends among them, that; else what is changed.
function flowOf(lines, side) {
  const flows = lines.map(line => flowAt(line, side));
  if (lines.length === 1) return flows[0];
  const blocked = flows.find((flow, place) => flow >= Flow.BLOCKED && lines[place].isCause);
  return blocked || (flows.includes(Flow.CHANGED) ? Flow.CHANGED : flows.find(flow => flow) || Flow.ABSENT);
}
