// The page: which graph it shows, what of it is open, and which row is selected.

const SHORT = 8; // lines of a body that is no more than a call
const MOST_OPEN = 12; // calls that are open at first

class View {
  constructor(doc) {
    this.doc = doc;
    this.bodies = readBodies(doc);
    this.only = doc.models.length > 1 ? null : 0; // the side that is shown alone
    this.shown = new Shown(this.bodies);
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
    this.run = this.doc.run && this.doc.run.graphs[at];
    this.sizes = this.run && this.run.sizes;
    this.main = this.bodies[this.graph.body];
    this.places = new Places(this.main);
    this.selected = -1;
    this.panel.close();
    this.openFirst();
    this.search.update();
    this.header.show();
  }

  // Open those functions at first in which a gradient ends or a rule is; and where the main body is
  // no more than a call, what it calls.
  openFirst() {
    const isCall = line => line.calls.length > 0;
    const calls = [...this.places.callers.keys()].flatMap(body => body.lines.filter(isCall));
    let short = this.main;
    for (const line of calls.slice(0, MOST_OPEN)) {
      const { lines, group } = line.body, { isEnd, rules } = contentsBelow([line]);
      const isShort = Math.min(lines.length, group) <= SHORT && lines.filter(isCall).length === 1;
      const isAlone = line.body === short && isShort;
      if (isEnd || rules.size || isAlone) this.shown.open([...this.places.pathTo(line.body), line]);
      if (isAlone) [short] = line.calls;
    }
  }

  // Draw the rows anew, after the folds, the search or the width has changed.
  show() {
    if (this.search.isOn) this.shown.filter(this.search.hits);
    else this.shown.build(this.main);
    this.list.redraw();
  }

  // Do something to the folds, and keep the selected line selected.
  keep(change) {
    const row = this.shown.rows[this.selected];
    change();
    this.show();
    if (!row) return;
    const { rows } = this.shown;
    const isSame = now => now.body === row.body && now.path === row.path && now.kind !== "function";
    const now = rows.find(isSame) || rows.find(now => now.kind !== "scope" && isAround(now, row));
    this.selected = now ? now.index : -1;
    this.list.draw();
  }

  // Show a line: open what is folded around it, select it, and show what is known of it.
  go(line) {
    const selected = this.shown.rows[this.selected];
    const find = () => {
      const rows = this.shown.rows.filter(row => row.line === line);
      return rows.find(row => selected && row.part.path === selected.part.path) || rows[0];
    };
    if (this.search.isOn && !find()) this.search.clear();
    this.shown.reveal(line);
    this.show();
    if (!find()) {
      this.shown.open(this.places.pathTo(line.body));
      this.show();
    }
    if (find()) this.select(find().index, true);
  }

  // Follow a link to an op: `#op=NAME`.
  goToHash() {
    const name = new URLSearchParams(location.hash.slice(1)).get("op");
    const line = name && this.places.lines.find(line => line.name === name);
    if (line) this.go(line);
    else if (name) this.search.say(`no op ${name} is in view`);
  }

  select(index, withPanel) {
    this.selected = Math.max(0, Math.min(index, this.shown.rows.length - 1));
    const row = this.shown.rows[this.selected], isHidden = this.panel.box.hidden;
    if (withPanel || !isHidden) this.panel.show(row);
    if (isHidden !== this.panel.box.hidden) this.list.place(); // the list is narrower now
    if (row && row.line) history.replaceState(null, "", `#op=${encodeURIComponent(row.line.name)}`);
    for (let time = 0; time < 2; time++) { // rows that are drawn for the first time may move it
      this.list.scrollTo(this.selected);
      this.list.draw();
    }
  }

  // Open or close a scope, or show what is known of a line.
  toggle(row) {
    this.selected = row.index;
    if (row.fold) this.keep(() => { row.fold.isOpen = !row.fold.isOpen; });
    else if (row.line) this.select(row.index, true);
  }

  toggleCall({ path }, isOpen) {
    const { inside } = this.shown;
    this.keep(() => { if (isOpen) inside.add(path); else inside.delete(path); });
  }

  // Go to the next line of which something is true, in functions too, folded away or not.
  next(test, none) {
    const line = this.places.next(this.shown.rows[this.selected], test);
    this.search.say(line ? "" : none);
    if (line) this.go(line);
  }

  // Does a gradient end at a line: on a path that was asked about, or anywhere where none was?
  isEnd(line) {
    const isBlocked = line.sides.some(side => side.flow >= Flow.BLOCKED);
    return this.graph.pairs.length ? line.isCause : isBlocked;
  }
}

window.view = new View(JSON.parse(byId("document").textContent));
