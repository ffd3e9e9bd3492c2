// The page: which graph it shows, what of it is open, and which row is selected.

const SHORT = 8; // lines of a body that is no more than a call
const MOST_OPEN = 12; // calls that are open at first

class View {
  constructor(doc) {
    this.doc = doc;
    this.bodies = readBodies(doc);
    this.only = doc.models.length > 1 ? null : 0; // the side that is shown alone
    this.list = new List(this);
    this.search = new Search(this);
    this.panel = new Panel(this);
    this.header = new Header(this);
    this.keys = new Keys(this);
    this.choose(0);
    window.addEventListener("hashchange", () => this.goToHash());
    this.list.box.focus();
    this.goToHash();
  }

  sides() {
    return this.only === null ? [0, 1] : [this.only];
  }

  // Show a graph of the model.
  choose(at) {
    this.graph = this.doc.graphs[at];
    this.run = this.doc.run?.graphs[at];
    this.sizes = this.run?.sizes;
    this.main = this.bodies[this.graph.body];
    this.root = new Row(null, "function", this.main, ALL);
    this.callers = new Map(); // by body, the line that calls it first
    this.lines = this.linesFrom(this.main);
    this.lines.forEach((line, place) => { line.place = place; });
    this.panel.close();
    this.openFirst();
    this.search.update();
    this.header.show();
  }

  // All lines in one order: those of a body, and behind each op that calls functions the lines of
  // these, where they are called first.
  linesFrom(body) {
    return body.lines.flatMap(line => {
      const inner = line.calls.filter(called => called !== this.main && !this.callers.has(called));
      for (const called of inner) this.callers.set(called, line);
      return [line, ...inner.flatMap(called => this.linesFrom(called))];
    });
  }

  // The row of a line, in the function where it is called first.
  rowOf(line) {
    const { body } = line, call = this.callers.get(body);
    const part = call ? this.rowOf(call).inside.find(row => row.body === body) : this.root;
    return part.ofLines[line.row];
  }

  // Open those functions at first in which a gradient ends or a rule is; and where the main body is
  // no more than a call, what it calls.
  openFirst() {
    const isCall = line => line.calls.length > 0;
    const calls = [this.main, ...this.callers.keys()].flatMap(body => body.lines.filter(isCall));
    let short = this.main;
    for (const line of calls.slice(0, MOST_OPEN)) {
      const { lines, group } = line.body, { isEnd, rules } = contentsBelow([line]);
      const isShort = Math.min(lines.length, group) <= SHORT && lines.filter(isCall).length === 1;
      const isAlone = line.body === short && isShort;
      if (isEnd || rules.size || isAlone) this.rowOf(line).open();
      if (isAlone) [short] = line.calls;
    }
  }

  // Draw the rows anew, after the folds, the search or the width has changed. If the selected one
  // is folded away, what holds it is selected.
  show() {
    const { isOn, hits } = this.search;
    this.rows = hits.map(line => this.rowOf(line));
    if (!isOn) this.root.addTo(this.rows);
    this.rows.forEach((row, index) => { row.index = index; });
    const functions = this.rows.filter(row => row.kind === "function");
    this.parts = isOn ? [] : [this.root, ...functions]; // with lanes
    const isShown = row => this.rows[row.index] === row;
    while (this.selected && !isShown(this.selected)) this.selected = this.selected.parent;
    this.list.redraw();
  }

  // Show a line: open what is folded around it, select it, and show what is known of it.
  go(line) {
    const part = this.selected?.part;
    if (this.search.isOn && !this.search.hits.includes(line)) this.search.clear();
    const row = part?.body === line.body ? part.ofLines[line.row] : this.rowOf(line);
    row.parent.open();
    this.show();
    this.select(row, true);
  }

  // Follow a link to an op: `#op=NAME`.
  goToHash() {
    const name = new URLSearchParams(location.hash.slice(1)).get("op");
    const line = name && this.lines.find(line => line.name === name);
    if (line) this.go(line);
    else if (name) this.search.say(`no op ${name} is in view`);
  }

  select(row, withPanel) {
    this.selected = row;
    if (withPanel || !this.panel.box.hidden) this.panel.show(row);
    this.list.fit(); // the panel takes room
    if (row?.line) history.replaceState(null, "", `#op=${encodeURIComponent(row.line.name)}`);
    this.list.select();
  }

  // Open or close what a row holds.
  fold(row, isOpen) {
    this.selected = row;
    if (row.fold && row.kind !== "function") row.fold.isOpen = isOpen;
    this.show();
  }

  foldAll(isOpen) {
    const folds = this.bodies.flatMap(body => body.folds);
    for (const fold of folds) fold.isOpen = isOpen && !fold.isGroup;
    this.show();
  }

  // Open or close a scope, or show what is known of a line.
  toggle(row) {
    if (row.line) this.select(row, true);
    else this.fold(row, !row.isOpen);
  }

  // Go to the next line of which something is true, in functions too, folded away or not.
  next(test, none) {
    const row = this.selected; // a scope stands before its lines
    const start = row ? row.lines[0].place + (row.kind === "line") : 0;
    const line = [...this.lines.slice(start), ...this.lines.slice(0, start)].find(test);
    this.search.say(line ? "" : none);
    if (line) this.go(line);
  }

  // Does a gradient end at a line: on a path that was asked about, or anywhere where none was?
  isEnd(line) {
    const isBlocked = line.sides.some(side => side.flow >= Flow.BLOCKED);
    return this.graph.pairs.length ? line.isCause : isBlocked;
  }

  // How large the gradients at a line are, before and after, where they were run.
  sizesOf(line) {
    return line.body === this.main ? this.sizes?.lines[line.number] : undefined;
  }
}

window.view = new View(JSON.parse(byId("document").textContent));
