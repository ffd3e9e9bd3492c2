// The rows of the list: lines, the scopes that fold, groups of variables, functions that are open.

// The scopes of at least two lines that follow each other, outer ones before inner ones: each with
// its first and last row and its name. Of scopes of the same lines the innermost stands.
function foldsOf(names) {
  const begun = [], byLines = new Map();
  for (let row = 0; row <= names.length; row++) {
    const parts = row < names.length ? scopesOf(names[row]) : [];
    const isShared = depth => begun[depth] && begun[depth].part === parts[depth];
    let shared = 0;
    while (shared < parts.length && isShared(shared)) shared++;
    while (begun.length > shared) {
      const name = begun.map(scope => scope.part).join("/"), { first } = begun.pop();
      const key = `${first}:${row - 1}`;
      if (row - first > 1 && !byLines.has(key)) byLines.set(key, { first, last: row - 1, name });
    }
    for (const part of parts.slice(shared)) begun.push({ part, first: row });
  }
  return [...byLines.values()].sort((a, b) => a.first - b.first || b.last - a.last);
}

// The lines that a row stands for.
const linesOf = row => row.line ? [row.line] : row.body.lines.slice(row.first, row.last + 1);

// Is a line or scope in the lines of a row, of the same body?
const isAround = (row, inner) =>
  row.body === inner.body && row.first <= inner.first && inner.first <= row.last;

// The rows that are shown. A row is {kind, body, first, last, line, fold, part, depth, scope}: it
// stands for the lines from `first` to `last` of its body. `part` is the stretch of rows of one
// body, to which its lanes belong; a function that was opened is a part of its own. `scope` is the
// open scope around a line, which its name leaves out.
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
    for (const line of lines) {
      this.addLine({ body: line.body, path: "" }, line, { depth: 0, scope: "" });
    }
  }

  addBody(body, depth, path) {
    const part = { body, path, at: new Int32Array(body.lines.length), sides: [] };
    const around = []; // the folds that the next row is in
    this.parts.push(part);
    const place = () => ({
      depth: depth + around.length, scope: around.length ? around.at(-1).name : "",
    });
    for (let row = 0; row < body.lines.length; row++) {
      const line = body.lines[row];
      while (around.length && around.at(-1).last < row) around.pop();
      let closed = null;
      for (const fold of line.folds) {
        const kind = fold.isGroup ? "group" : fold.isOpen ? "scope" : "folded";
        this.add(part, kind, { first: row, last: fold.last, fold, ...place() });
        around.push(fold);
        if (!fold.isOpen) { closed = fold; break; }
      }
      if (closed) {
        part.at.fill(this.rows.length - 1, row, closed.last + 1);
        row = closed.last;
        continue;
      }
      part.at[row] = this.rows.length;
      this.addLine(part, line, place());
      const pathOfCall = `${path}${body.number}:${row}`, deeper = depth + around.length + 1;
      for (const called of this.inside.has(pathOfCall) ? line.calls : []) {
        this.add(part, "function", { body: called, first: -1, last: -1, depth: deeper, scope: "" });
        this.addBody(called, deeper, `${pathOfCall}>`);
      }
    }
  }

  addLine(part, line, place) {
    this.add(part, "line", { line, first: line.row, last: line.row, ...place });
  }

  add(part, kind, row) {
    const path = `${part.path}${part.body.number}:${row.first}`, index = this.rows.length;
    this.rows.push({ kind, body: part.body, fold: null, part, path, index, ...row });
  }

  // Open the functions of calls, each in a function of the one before it.
  open(calls) {
    const path = [];
    for (const call of calls) {
      this.reveal(call);
      path.push(`${call.body.number}:${call.row}`);
      this.inside.add(path.join(">"));
    }
  }

  // Open the scopes around a line, so that it has a row of its own.
  reveal({ body, row }) {
    for (const fold of body.folds) if (fold.first <= row && row <= fold.last) fold.isOpen = true;
  }

  setAll(isOpen) {
    const folds = this.bodies.flatMap(body => body.folds);
    for (const fold of folds) fold.isOpen = isOpen && !fold.isGroup;
  }
}
