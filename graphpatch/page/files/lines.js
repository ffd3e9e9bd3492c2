// The lines of the bodies. A line is an op, with what flows back through it before and after.

const Flow = { ABSENT: 0, NONE: 1, ZERO: 2, FULL: 3, CHANGED: 4, BLOCKED: 5, ERROR: 6 };
const FLOW_WORDS = ["not there", "none", "zero", "full", "changed", "ends here", "error"];
const SIDE_NAMES = ["before", "after"];
const LINES_ALL_OPEN = 48; // in a body of no more lines all scopes are open at first
const FEW_VARIABLES = 3; // so many variables stand in the list by themselves

const isFlowing = flow => flow === Flow.FULL || flow === Flow.CHANGED;

// What flows through a line on one side; a function may be on the other side alone.
const flowAt = (line, side) => line.sides[side]?.flow ?? Flow.ABSENT;

// The bodies of a document, each with its lines and the scopes that fold.
function readBodies(doc) {
  const bodies = doc.bodies.map(({ name, sides }) => ({ name, sideCount: sides.length }));
  bodies.forEach((body, at) => {
    body.byNumber = readLines(body, bodies, doc.bodies[at], doc);
    arrange(body, doc.bodies[at].variables);
  });
  return bodies;
}

// The lines of a body, from its table: columns of values, and mappings for what few lines have.
function readLines(body, bodies, table, { tables, defaults }) {
  const pick = (values, numbers = []) => numbers.map(number => values[number]);
  const lines = table.names.map((name, at) => {
    const type = tables.types[table.types[at]], marks = table.marks[at] || [];
    const findings = pick(tables.findings, table.findings[at]);
    return {
      body, number: at, name, type, marks, findings,
      isCause: findings.some(finding => finding.on_path), // it ends a gradient that was asked about
      tensor: tables.tensors[table.tensors[at]],
      attrs: tables.attrs[table.attrs[at]] || {},
      end: table.ends[at],
      calls: pick(bodies, table.calls[at]),
      carried: table.carried[at],
      inputs: table.inputs[at], // names, numbers of lines, and these with the tensor that is read
      plot: tables.plots[table.plots[at] ?? (marks.length ? -1 : defaults[type])],
    };
  });
  const edgesOf = edges => { // the lines that a line reads, each with what flows back there
    const read = [];
    for (let at = 0; at < edges.length; at += 2) read.push([lines[edges[at]], edges[at + 1]]);
    return read;
  };
  lines.forEach((line, at) => {
    line.sides = table.sides.map(({ flow, arrives, edges }) => ({
      flow: flow[at], arrives: arrives[at], edges: edgesOf(edges[at]),
    }));
  });
  return lines;
}

// Give the lines of a body their order, with its variables behind them, from the row `group` on.
function arrange(body, numbers) {
  const variables = numbers.map(number => body.byNumber[number]);
  const grouped = new Set(variables.length > FEW_VARIABLES ? variables : []);
  const ordered = readingOrder(body.byNumber).filter(line => !grouped.has(line));
  body.lines = [...ordered, ...[...grouped].sort((a, b) => a.name < b.name ? -1 : 1)];
  body.lines.forEach((line, row) => { line.row = row; });
  body.group = grouped.size ? ordered.length : Infinity;
  body.folds = foldsOf(ordered.map(line => line.name));
  const isOfInterest = line => line.isCause || line.marks.length || line.end;
  for (const fold of body.folds) {
    fold.isOpen = ordered.length <= LINES_ALL_OPEN
      || ordered.slice(fold.first, fold.last + 1).some(isOfInterest);
  }
  const group = { first: body.group, last: body.lines.length - 1, name: "" };
  if (grouped.size) body.folds.push({ ...group, isGroup: true, isOpen: false });
}

// The scopes of at least two lines that follow each other, outer ones before inner ones: each with
// its first and last row and its name. Of scopes of the same lines the innermost stands.
function foldsOf(names) {
  const begun = [], byLines = new Map();
  for (let row = 0; row <= names.length; row++) {
    const parts = row < names.length ? scopesOf(names[row]) : [];
    let shared = 0;
    while (shared < parts.length && begun[shared]?.part === parts[shared]) shared++;
    while (begun.length > shared) {
      const name = begun.map(scope => scope.part).join("/"), { first } = begun.pop();
      const key = `${first}:${row - 1}`;
      if (row - first > 1 && !byLines.has(key)) byLines.set(key, { first, last: row - 1, name });
    }
    for (const part of parts.slice(shared)) begun.push({ part, first: row });
  }
  return [...byLines.values()].sort((a, b) => a.first - b.first || b.last - a.last);
}

// The rules at some lines and in all that they call, and whether a gradient ends there.
function contentsBelow(lines) {
  const bodies = new Set(lines.flatMap(line => line.calls));
  for (const body of bodies) for (const line of body.lines) line.calls.forEach(bodies.add, bodies);
  const all = [lines, ...[...bodies].map(body => body.lines)];
  return {
    rules: new Set(all.flatMap(some => some.flatMap(line => line.marks))),
    isEnd: all.some(some => some.some(line => line.isCause)),
  };
}

// What flows through some lines: where a gradient ends among them, that; else what is changed.
function flowOf(lines, side) {
  const flows = lines.map(line => flowAt(line, side));
  if (lines.length === 1) return flows[0];
  const blocked = flows.find((flow, at) => flow >= Flow.BLOCKED && lines[at].isCause);
  const most = flows.includes(Flow.CHANGED) ? Flow.CHANGED : flows.find(flow => flow);
  return blocked || most || Flow.ABSENT;
}

// Of a line at which a gradient ends though doctor has no words for it: the nearest one behind it
// for which it has, in words, as far as nothing flows; nothing where there is none.
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
