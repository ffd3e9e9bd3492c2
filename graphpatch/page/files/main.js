"use strict";

// The page: what the file holds, what is selected, the search, and the keys.

const SHORT = 8; // lines of a body that is no more than a call
const MOST_OPEN = 12; // calls that are open at first
const VERDICTS = { flows: "flows", zero: "zeros", none: "None", error: "error" };

class View {
  constructor(doc) {
    this.doc = doc;
    this.bodies = doc.bodies;
    for (const body of doc.bodies) {
      body.pathRows = Object.keys(body.findings).map(Number).filter(row => body.findings[row].some(number => doc.tables.findings[number].on_path));
      body.onPath = new Set(body.pathRows);
      body.marked = Object.keys(body.marks).map(Number);
      body.callRows = Object.keys(body.calls).map(Number);
    }
    this.only = doc.models.length > 1 ? null : 0;
    this.selected = -1;
    this.shown = new Shown(doc);
    this.list = new List(this);
    this.search = new Search(this);
    this.panel = new Panel(this);
    this.choose(0);
    this.header();
    this.keys();
  }

  sides() {
    return this.only === null ? [0, 1] : [this.only];
  }

  choose(number) {
    this.number = number;
    this.graph = this.doc.graphs[number];
    this.places = new Places(this.bodies, this.graph.body);
    this.sizes = this.doc.run && this.doc.run.graphs[number] ? this.doc.run.graphs[number].sizes : null;
    this.openFirst();
    this.shown.build(this.graph.body);
    this.search.look();
    this.verdicts();
    this.legend();
    this.pictures();
  }

  // At first those functions are open in which a gradient ends or a rule is; and where the main
  // body is no more than a call, what it calls.
  openFirst() {
    const { places, shown, bodies } = this;
    let left = MOST_OPEN, short = this.graph.body;
    for (const body of places.places.keys()) for (const row of bodies[body].callRows) {
      const { names, callRows, calls } = bodies[body], inside = places.called(body, row);
      const isAlone = body === short && names.length <= SHORT && callRows.length === 1;
      if (left > 0 && (inside.onPath || inside.rules.size || isAlone)) { shown.open([...places.pathTo(body), { body, row }]); left--; }
      if (isAlone) short = calls[row][0];
    }
  }

  header() {
    const title = document.getElementById("title");
    this.doc.models.forEach((model, place) => {
      if (place) title.append(make("span", "to", " → "));
      title.append(make("bdi", "", model.title));
    });
    title.title = this.doc.models.map(model => `${model.path}: ${model.format}, ${model.ops.toLocaleString("en")} ops`).join("\n");
    const graphs = document.getElementById("graph");
    graphs.hidden = this.doc.graphs.length < 2;
    this.doc.graphs.forEach((graph, number) => graphs.append(new Option(graph.label || `graph ${number}`, number)));
    graphs.addEventListener("change", () => { this.selected = -1; this.panel.close(); this.choose(Number(graphs.value)); });
    this.sideButtons();
    const all = isOpen => { this.keep(() => this.shown.setAll(isOpen)); };
    document.getElementById("fold").addEventListener("click", () => all(false));
    document.getElementById("open").addEventListener("click", () => all(true));
    document.getElementById("theme").addEventListener("click", () => this.theme());
    document.getElementById("help").addEventListener("click", () => this.help());
  }

  sideButtons() {
    const group = document.getElementById("sides");
    group.hidden = this.doc.models.length < 2;
    const choices = [["both", null], ["before", 0], ["after", 1]];
    const buttons = choices.map(([name, only]) => {
      const button = make("button", "", name);
      button.type = "button";
      button.addEventListener("click", () => {
        this.only = only;
        buttons.forEach(one => one.setAttribute("aria-pressed", one === button));
        this.list.draw();
      });
      button.setAttribute("aria-pressed", only === this.only);
      return button;
    });
    group.append(...buttons);
  }

  theme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  }

  verdicts() {
    const box = document.getElementById("verdicts");
    const told = this.graph.pairs.map(pair => this.verdict(pair));
    if (!told.length && !this.graph.notes.length) told.push(make("p", "note", "No pair of tensors was asked about: there is no input, or nothing is computed."));
    if (this.graph.pairs_left_out) told.push(make("p", "note", `${this.graph.pairs_left_out.toLocaleString("en")} more pairs were not asked about; name --from and --to.`));
    for (const note of [...this.doc.notes, ...this.graph.notes]) told.push(make("p", "note", note));
    box.replaceChildren(...told);
  }

  verdict(pair) {
    const line = make("p", "verdict", "gradient of ", make("bdi", "mono", pair.to), " by ", make("bdi", "mono", pair.from), " ");
    const told = pair.sides.map(side => `${side.connected}, ${side.verdict}, ${side.findings.map(one => one.op)}`);
    const isAlike = told.length > 1 && told[0] === told[1];
    pair.sides.slice(0, isAlike ? 1 : 2).forEach((side, place) => {
      if (place) line.append(make("span", "to", " → "));
      const words = side.connected ? VERDICTS[side.verdict] : "None: not connected";
      const chip = make("span", `chip v-${side.verdict}`, words);
      chip.title = side.says;
      line.append(chip);
    });
    const blocked = pair.sides[0].verdict === "flows" ? [] : pair.sides[0].findings;
    blocked.slice(0, 3).forEach((finding, place) => {
      const link = make("button", "link", `${finding.type} ${finding.op}`);
      link.type = "button";
      link.title = finding.what;
      link.addEventListener("click", () => this.goTo(finding));
      line.append(place ? ", " : (isAlike ? " before and after, it ends at " : pair.sides.length > 1 ? " before, it ends at " : " it ends at "), link);
    });
    line.append(andMore(blocked, 3));
    if (pair.sides.length > 1 && pair.sides[pair.sides.length - 1].verdict === "flows") this.changed(line, pair, isAlike, blocked.length);
    return line;
  }

  // Whether a gradient ends at a line: on a path that was asked about, or anywhere where none was.
  ends(body, at) {
    const { onPath, sides } = this.bodies[body];
    return this.graph.pairs.length ? onPath.has(at) : sides.some(side => side.flow[at] >= Flow.BLOCKED);
  }

  // Which rules change what flows between two ends.
  changed(line, pair, isAlike, told) {
    const numbers = this.doc.rules.map((rule, number) => number).filter(number => Object.hasOwn(pair.changed, this.doc.rules[number].name));
    const words = told ? "; after, it is changed by " : " changed by ";
    line.append(numbers.length ? words : isAlike ? " not changed" : "");
    for (const number of numbers) line.append(badge(number, this.doc.rules[number].name));
  }

  goTo(finding) {
    const number = this.bodies.findIndex((body, place) => place >= this.graph.body && body.name === finding.body);
    const row = number < 0 ? -1 : this.bodies[number].names.findIndex((name, at) => this.bodies[number].onPath.has(at) && (name === finding.op || finding.op.startsWith(name + "/")));
    if (row >= 0) this.go(number, row);
  }

  legend() {
    const box = document.getElementById("legend");
    box.replaceChildren(...this.doc.rules.map((rule, number) => this.rule(rule, number)));
  }

  rule(rule, number) {
    const isAt = (body, row) => (this.bodies[body].marks[row] || []).includes(number);
    let shown = 0;
    for (const body of this.places.places.keys()) shown += this.bodies[body].marked.filter(row => isAt(body, row)).length;
    const ops = `${rule.ops.toLocaleString("en")} ${rule.ops === 1 ? "op" : "ops"}`;
    const count = shown < rule.ops ? `${shown.toLocaleString("en")} of ${ops} in view` : ops;
    const words = rule.words && rule.words !== rule.name ? ` ${rule.words}` : "";
    const button = make("button", "rule", badge(number, rule.name), " ", rule.name, make("span", "words", words), " ", make("span", "count", count));
    button.type = "button";
    button.title = "Go to the next op of this rule";
    if (rule.error) button.append(" ", make("span", "flow f6", rule.error));
    button.addEventListener("click", () => this.next(isAt, 1, `no op of ${rule.name} is in view`));
    return button;
  }

  pictures() {
    const box = document.getElementById("pictures"), run = this.doc.run && this.doc.run.graphs[this.number];
    box.replaceChildren();
    if (!run) return;
    if (run.note) box.append(make("p", "note", run.note));
    const figures = run.sources.flatMap(source => source.pictures.map(drawPicture));
    if (figures.length) box.append(make("div", "pictures", ...figures));
  }

  // Does something to the folds, and keeps the selected line selected.
  keep(change) {
    const row = this.shown.rows[this.selected];
    change();
    this.shown.build(this.graph.body);
    if (row) {
      const at = this.shown.rows.find(one => one.body === row.body && one.path === row.path && one.kind !== "function") || this.shown.rows.find(one => one.body === row.body && one.row <= row.row && row.row <= one.last && one.kind !== "scope");
      this.selected = at ? at.index : -1;
    }
    this.list.draw();
  }

  // Shows a line: opens what is folded around it, selects it, and shows what is known of it.
  go(number, row) {
    this.shown.reveal(number, row);
    this.shown.build(this.graph.body);
    if (!this.find(number, row)) {
      this.shown.open(this.places.pathTo(number));
      this.shown.build(this.graph.body);
    }
    const found = this.find(number, row);
    if (found) this.select(found.index, true);
  }

  // The row of a line: of a function that is open at several calls, that where the selected row is.
  find(number, row) {
    const selected = this.shown.rows[this.selected];
    const found = this.shown.rows.filter(one => one.kind === "line" && one.body === number && one.row === row);
    return found.find(one => selected && one.part.path === selected.part.path) || found[0];
  }

  select(index, withPanel) {
    this.selected = Math.max(0, Math.min(index, this.shown.rows.length - 1));
    if (withPanel || !this.panel.box.hidden) this.panel.show(this.shown.rows[this.selected]);
    this.list.scrollTo(this.selected); // after the panel has taken its room
    this.list.draw();
  }

  // Opens or closes a scope or the functions of a call; or shows what is known of a line.
  toggle(index) {
    const row = this.shown.rows[index];
    this.selected = index;
    if (!row) return;
    if (row.fold >= 0) this.keep(() => { this.shown.opened[row.body][row.fold] = row.kind === "folded"; });
    else if (row.kind === "line") { this.select(index, true); }
  }

  toggleCall(row, isOpen) {
    this.keep(() => { if (isOpen) this.shown.inside.add(row.path); else this.shown.inside.delete(row.path); });
  }

  // Goes to the next line of which something is true, in functions too, folded away or not.
  next(test, step = 1, none = "") {
    const line = this.places.next(this.shown.rows[this.selected], step, test);
    this.search.say(line ? "" : none);
    if (line) this.go(line.body, line.row);
  }

  help() {
    const keys = [["↑ ↓", "go from line to line"], ["→ ←", "open, fold"], ["Enter", "what is known of a line"], ["/", "search; Enter goes to the next"], ["n N", "next, previous found"], ["b", "next op at which a gradient ends"], ["r", "next op of a rule"], ["Esc", "close"]];
    const list = make("dl", "facts");
    for (const [key, does] of keys) list.append(make("dt", "mono", key), make("dd", "", does));
    const symbols = make("ul", "symbols");
    for (let flow = Flow.FULL; flow <= Flow.ERROR; flow++) symbols.append(symbol(flow));
    symbols.append(symbol(Flow.ZERO), symbol(Flow.NONE));
    const close = make("button", "close", "✕");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => this.panel.close());
    const says = make("p", "", "Each line is an op, from the targets back to the sources. A lane leads from an op to those that it reads: that is the way on which a gradient flows back.");
    this.panel.box.replaceChildren(close, make("h2", "", "Keys and symbols"), says, symbols, list);
    this.panel.box.hidden = false;
  }

  keys() {
    const box = this.list.box, search = this.search.box;
    box.addEventListener("click", event => {
      const element = event.target.closest(".row");
      if (!element) return;
      const index = Number(element.id.slice(3)), row = this.shown.rows[index];
      if (event.target.closest(".arrow") && row.kind === "line") { this.selected = index; this.toggleCall(row, !this.shown.inside.has(row.path)); }
      else this.toggle(index);
    });
    box.addEventListener("keydown", event => { if (this.key(event)) event.preventDefault(); });
    document.addEventListener("keydown", event => {
      if (event.key === "/" && document.activeElement !== search) { search.focus(); event.preventDefault(); }
      if (event.key === "?" && document.activeElement !== search) { this.help(); event.preventDefault(); }
      if (event.key === "Escape") this.panel.close();
    });
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.box.clientHeight / HEIGHT) - 1), row = this.shown.rows[this.selected];
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key in moves) this.select(this.selected + moves[event.key], false);
    else if (event.key === "n") this.search.next(1);
    else if (event.key === "N") this.search.next(-1);
    else if (event.key === "b") this.next((body, at) => this.ends(body, at), 1, "no gradient ends on the way");
    else if (event.key === "r") this.next((body, at) => at in this.bodies[body].marks, 1, "no op of a rule is in view");
    else if (!row) return false;
    else if (event.key === "ArrowRight" && row.kind === "folded") this.toggle(row.index);
    else if (event.key === "ArrowRight" && row.kind === "line") this.toggleCall(row, true);
    else if (event.key === "ArrowLeft") this.left(row);
    else if (event.key === "Enter" || event.key === " ") this.toggle(row.index);
    else return false;
    return true;
  }

  left(row) {
    if (row.kind === "scope") this.toggle(row.index);
    else if (row.kind === "line" && this.shown.inside.has(row.path)) this.toggleCall(row, false);
    else {
      for (let index = row.index - 1; index >= 0; index--) {
        const above = this.shown.rows[index];
        if (above.kind === "scope" && above.body === row.body && above.row <= row.row && row.row <= above.last) { this.select(index, false); return; }
      }
    }
  }
}

function symbol(flow) {
  const picture = svg("svg", { width: 30, height: HEIGHT, "aria-hidden": "true" });
  if (flow <= Flow.CHANGED) picture.append(svg("path", { d: `M12 0V${HEIGHT}`, class: `lane f${flow}` }));
  picture.append(drawKnot(12, flow, false));
  return make("li", "", picture, WORDS[flow]);
}

window.view = new View(JSON.parse(document.getElementById("document").textContent));
