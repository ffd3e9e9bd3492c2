// The rows that the list may show, as a tree. A body holds its scopes and lines, a scope those in
// it, a line the functions that it calls. A row is shown where all that hold it are open.

const ALL = { first: 0, last: Infinity, name: "", isOpen: true }; // what a body holds

// `fold` says whether it is open, and is none where it never is; a scope shares it with the same
// scope of the body called at other places. `part` is the row of the body that holds it, to which
// its lanes belong: `at` has there, for each line, the index of the row that is shown for it.
class Row {
  constructor(parent, kind, body, fold, line = null) {
    const isIndented = parent && parent.kind !== "function";
    const depth = parent ? parent.depth + isIndented : 0, part = isIndented ? parent.part : parent;
    Object.assign(this, { parent, kind, body, fold, line, depth, part });
    this.inside = (line?.calls || []).map(called => new Row(this, "function", called, ALL));
  }

  get isOpen() {
    return Boolean(this.fold?.isOpen);
  }

  // The lines that it stands for.
  get lines() {
    const { line, fold, body } = this;
    return line ? [line] : body.lines.slice(fold.first, fold.last + 1);
  }

  // The row of each line of a body, made when first asked for: a function may call itself.
  get ofLines() {
    return this.made ??= this.make();
  }

  make() {
    const { body } = this, around = [this], folds = [...body.folds].reverse();
    const add = (...of) => {
      const row = new Row(around.at(-1), of[0], body, ...of.slice(1));
      around.at(-1).inside.push(row);
      return row;
    };
    return body.lines.map((line, at) => {
      while (around.at(-1).fold.last < at) around.pop();
      while (folds.at(-1)?.first === at) {
        const fold = folds.pop();
        around.push(add(fold.isGroup ? "group" : "scope", fold));
      }
      return add("line", line.calls.length ? { name: "", isOpen: false } : null, line);
    });
  }

  // Add the rows that are shown in it to others, and lay out the lanes between those of a body.
  addTo(rows) {
    const isBody = this.kind === "function";
    if (isBody) this.at = new Int32Array(this.ofLines.length);
    for (const row of this.inside) {
      const { fold, line, part: { at } } = row, index = rows.push(row) - 1;
      if (line) at[line.row] = index;
      else if (!row.isOpen) at.fill(index, fold.first, fold.last + 1);
      if (row.isOpen) row.addTo(rows);
    }
    if (isBody) layOut(this);
  }

  // Open it, and all that hold it.
  open() {
    if (this.fold) this.fold.isOpen = true;
    this.parent?.open();
  }
}
