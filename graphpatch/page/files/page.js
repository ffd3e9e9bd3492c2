"use strict";

// The page: what the file holds, what is selected, the header, the search, and the keys.

const SHORT = 8; // lines of a body that is no more than a call
const MOST_OPEN = 12; // calls that are open at first
const FIRST_PAIRS = 3; // verdicts that are shown at first
const VERDICTS = { flows: "flows", zero: "zeros", none: "None", error: "error" };

class View {
  constructor(doc) {
    this.doc = doc;
    this.bodies = doc.bodies;
    for (const body of doc.bodies) prepare(body, doc.tables.findings);
    for (const graph of doc.run ? doc.run.graphs.map((run, place) => ({ run, body: doc.graphs[place].body })) : []) {
      if (graph.run.sizes) graph.run.sizes.lines = byRow(graph.run.sizes.lines, this.bodies[graph.body].rowOf);
    }
    this.only = doc.models.length > 1 ? null : 0;
    this.selected = -1;
    this.shown = new Shown(doc.bodies);
    this.list = new List(this);
    this.search = new Search(this);
    this.panel = new Panel(this);
    this.choose(0);
    this.header();
    this.keys();
    window.addEventListener("hashchange", () => this.goToHash());
    this.list.box.focus();
    this.goToHash();
  }

  sides() {
    return this.only === null ? [0, 1] : [this.only];
  }

  choose(place) {
    this.graph = this.doc.graphs[place];
    this.run = this.doc.run ? this.doc.run.graphs[place] : null;
    this.sizes = this.run ? this.run.sizes : null;
    this.places = new Places(this.bodies, this.graph.body);
    this.allPairs = false;
    this.openFirst();
    this.search.look();
    this.ends();
    this.verdicts();
    this.legend();
    this.pictures();
  }

  // Open those functions at first in which a gradient ends or a rule is; and where the main body is
  // no more than a call, what it calls.
  openFirst() {
    const { places, shown, bodies } = this;
    let most = MOST_OPEN, short = this.graph.body;
    for (const body of places.places.keys()) for (const row of bodies[body].callRows) {
      const { names, callRows, calls } = bodies[body], inside = places.holds(body, row, row);
      const isAlone = body === short && names.length <= SHORT && callRows.length === 1;
      if (most > 0 && (inside.onPath || inside.rules.size || isAlone)) { shown.open([...places.pathTo(body), { body, row }]); most--; }
      if (isAlone) short = calls[row][0];
    }
  }

  header() {
    const title = document.getElementById("title");
    this.doc.models.forEach((model, place) => {
      if (place) title.append(make("span", "to", " → "));
      title.append(make("bdi", "", model.title));
    });
    title.title = this.doc.models.map(model => `${model.path}: ${model.format}, ${plural(model.ops, "op")}`).join("\n");
    const graphs = document.getElementById("graph");
    graphs.hidden = this.doc.graphs.length < 2;
    this.doc.graphs.forEach((graph, place) => graphs.append(new Option(graph.label || `graph ${place}`, place)));
    graphs.addEventListener("change", () => { this.selected = -1; this.panel.close(); this.choose(Number(graphs.value)); });
    const group = document.getElementById("sides");
    group.hidden = this.doc.models.length < 2;
    const choices = [["both", null], ["before", 0], ["after", 1]];
    const buttons = choices.map(([name, only]) => makeButton("", name, event => {
      this.only = only;
      buttons.forEach(button => button.setAttribute("aria-pressed", button === event.target));
      this.show();
    }));
    buttons[0].setAttribute("aria-pressed", true);
    group.append(...buttons);
    const on = (id, does) => document.getElementById(id).addEventListener("click", does);
    on("fold", () => this.keep(() => this.shown.setAll(false)));
    on("open", () => this.keep(() => this.shown.setAll(true)));
    on("svg", () => savePicture(this, false));
    on("png", () => savePicture(this, true));
    on("help", () => this.panel.help());
    on("theme", () => {
      const root = document.documentElement;
      const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
    });
  }

  // The model's inputs and outputs: a click leads to the line of one, where it has one.
  ends() {
    const box = document.getElementById("ends"), body = this.bodies[this.graph.body];
    const button = end => {
      const row = body.names.indexOf(end.op), words = `${end.name} ${end.tensor}`;
      const element = row >= 0 ? makeButton("link", words, () => this.go(this.graph.body, row)) : make("span", "mono soft", words);
      element.title = [end.signature, row >= 0 ? "" : "not between these ends: name it with --from or --to"].filter(Boolean).join("; ");
      return element;
    };
    const list = (name, some) => some.length ? [make("span", "soft", `${name} `), ...some.slice(0, 6).flatMap(end => [button(end), " "]), some.length > 6 ? make("span", "soft", `and ${number(some.length - 6)} more `) : ""] : [];
    const { inputs, outputs, weights } = this.graph;
    box.replaceChildren(...list("inputs", inputs), ...list("outputs", outputs), ...weights ? [make("span", "soft", weights)] : []);
  }

  verdicts() {
    const { pairs, pairs_left_out: more, notes } = this.graph;
    const lines = pairs.slice(0, this.allPairs ? pairs.length : FIRST_PAIRS).map(pair => this.verdict(pair));
    if (pairs.length > lines.length) lines.push(makeButton("link", `and ${plural(pairs.length - lines.length, "more pair")}`, () => { this.allPairs = true; this.verdicts(); this.show(); }));
    if (!lines.length && !notes.length) lines.push(make("p", "note", "No pair of tensors was asked about: there is no input, or nothing is computed."));
    if (more) lines.push(make("p", "note", `${number(more)} more pairs were not asked about; name --from and --to.`));
    for (const note of [...this.doc.notes, ...notes]) lines.push(make("p", "note", note));
    document.getElementById("verdicts").replaceChildren(...lines);
  }

  verdict(pair) {
    const line = make("p", "verdict", "gradient of ", make("bdi", "mono", pair.to), " with respect to ", make("bdi", "mono", pair.from), " ");
    const told = pair.sides.map(side => `${side.connected}, ${side.verdict}, ${side.findings.map(finding => finding.op)}`);
    const isAlike = told.length > 1 && told[0] === told[1], isTwo = pair.sides.length > 1;
    pair.sides.slice(0, isAlike ? 1 : 2).forEach((side, place) => {
      if (place) line.append(make("span", "to", " → "));
      const chip = make("span", `chip v-${side.verdict}`, side.connected ? VERDICTS[side.verdict] : "None: not connected");
      chip.title = side.says;
      line.append(chip);
    });
    const blocked = pair.sides[0].verdict === "flows" ? [] : pair.sides[0].findings;
    if (blocked.length) line.append(isAlike ? " before and after, it ends at " : isTwo ? " before, it ends at " : " it ends at ", this.blocker(blocked[0]));
    if (blocked.length > 1) {
      const button = makeButton("link more", `and ${number(blocked.length - 1)} more`, () => { button.replaceWith(...blocked.slice(1).flatMap(finding => [", ", this.blocker(finding)])); this.list.place(); this.list.draw(); });
      line.append(button);
    }
    const after = isTwo && !isAlike ? pair.sides[1].findings : [];
    if (after.length) line.append(blocked.length ? "; after, it ends at " : " after, it ends at ", this.blocker(after[0]));
    if (isTwo && pair.sides[1].verdict === "flows") {
      const places = this.doc.rules.map((_, place) => place).filter(place => Object.hasOwn(pair.changed, this.doc.rules[place].name));
      line.append(places.length ? blocked.length ? "; after, it is changed by " : " changed by " : isAlike ? " not changed" : "");
      for (const place of places) line.append(badge(place, this.doc.rules[place].name));
    }
    return line;
  }

  blocker(finding) {
    const link = makeButton("link", `${finding.type} ${finding.op}`, () => { const line = this.lineOf(finding); if (line) this.go(line.body, line.row); });
    link.title = finding.what;
    return link;
  }

  lineOf(finding) {
    const body = this.bodies.findIndex((some, place) => place >= this.graph.body && some.name === finding.body);
    if (body < 0) return null;
    const row = this.bodies[body].pathRows.find(at => this.bodies[body].names[at] === finding.op || finding.op.startsWith(`${this.bodies[body].names[at]}/`));
    return row === undefined ? null : { body, row };
  }

  legend() {
    const rules = this.doc.rules.map((rule, place) => [rule, place]);
    rules.sort(([a], [b]) => !a.ops - !b.ops); // those without an op come last
    document.getElementById("legend").replaceChildren(...rules.map(([rule, place]) => {
      const isAt = (body, row) => (this.bodies[body].marks[row] || []).includes(place);
      let inView = 0;
      for (const body of this.places.places.keys()) inView += this.bodies[body].marked.filter(row => isAt(body, row)).length;
      const count = inView < rule.ops ? `${number(inView)} of ${plural(rule.ops, "op")} in view` : plural(rule.ops, "op");
      const words = rule.words && rule.words !== rule.name ? ` ${rule.words}` : "";
      const button = makeButton("rule", badge(place, rule.name), () => this.next(isAt, 1, `no op of ${rule.name} is in view`));
      button.append(" ", rule.name, make("span", "words", words), " ", make("span", "count", count));
      button.title = "Go to the next op of this rule";
      if (rule.error) button.append(" ", make("span", "flow f6", rule.error));
      return button;
    }));
  }

  pictures() {
    const box = document.getElementById("pictures");
    box.replaceChildren();
    if (!this.run) return;
    if (this.run.note) box.append(make("p", "note", this.run.note));
    const figures = this.run.sources.flatMap(source => source.pictures.map(drawPicture));
    if (figures.length) box.append(make("div", "pictures", ...figures));
  }

  // Draw the rows anew, after the folds, the search or the width has changed.
  show() {
    if (this.search.isOn) this.shown.filter(this.search.hits);
    else this.shown.build(this.graph.body);
    this.list.place();
    this.list.draw();
  }

  // Do something to the folds, and keep the selected line selected.
  keep(change) {
    const row = this.shown.rows[this.selected];
    change();
    this.show();
    if (!row) return;
    const { rows } = this.shown;
    const at = rows.find(now => now.body === row.body && now.path === row.path && now.kind !== "function") || rows.find(now => now.body === row.body && now.row <= row.row && row.row <= now.last && now.kind !== "scope");
    this.selected = at ? at.index : -1;
    this.list.draw();
  }

  // Show a line: open what is folded around it, select it, and show what is known of it.
  go(body, row) {
    const selected = this.shown.rows[this.selected];
    const find = () => {
      const rows = this.shown.rows.filter(one => one.kind === "line" && one.body === body && one.row === row);
      return rows.find(one => selected && one.part.path === selected.part.path) || rows[0];
    };
    if (this.search.isOn && !find()) this.search.clear();
    this.shown.reveal(body, row);
    this.show();
    if (!find()) { this.shown.open(this.places.pathTo(body)); this.show(); }
    if (find()) this.select(find().index, true);
  }

  // Follow a link to an op: `#op=NAME`.
  goToHash() {
    const name = new URLSearchParams(location.hash.slice(1)).get("op");
    const line = name && this.places.lines.find(({ body, row }) => this.bodies[body].names[row] === name);
    if (line) this.go(line.body, line.row);
    else if (name) this.search.say(`no op ${name} is in view`);
  }

  select(index, withPanel) {
    this.selected = Math.max(0, Math.min(index, this.shown.rows.length - 1));
    const row = this.shown.rows[this.selected], isHidden = this.panel.box.hidden;
    if (withPanel || !isHidden) this.panel.show(row);
    if (isHidden !== this.panel.box.hidden) this.list.place(); // the list is narrower now
    if (row && row.kind === "line") history.replaceState(null, "", `#op=${encodeURIComponent(this.bodies[row.body].names[row.row])}`);
    this.list.scrollTo(this.selected);
    this.list.draw();
  }

  // Open or close a scope, or show what is known of a line.
  toggle(index) {
    const row = this.shown.rows[index];
    this.selected = index;
    if (!row) return;
    if (row.fold >= 0) this.keep(() => { const fold = this.bodies[row.body].folds[row.fold]; fold.isOpen = !fold.isOpen; });
    else if (row.kind === "line") this.select(index, true);
  }

  toggleCall(row, isOpen) {
    this.keep(() => { if (isOpen) this.shown.inside.add(row.path); else this.shown.inside.delete(row.path); });
  }

  // Go to the next line of which something is true, in functions too, folded away or not.
  next(test, step = 1, none = "") {
    const line = this.places.next(this.shown.rows[this.selected], step, test);
    this.search.say(line ? "" : none);
    if (line) this.go(line.body, line.row);
  }

  // Does a gradient end at a line: on a path that was asked about, or anywhere where none was?
  isEnd(body, at) {
    const { onPath, sides } = this.bodies[body];
    return this.graph.pairs.length ? onPath.has(at) : sides.some(side => side.flow[at] >= Flow.BLOCKED);
  }

  keys() {
    const { box } = this.list, field = this.search.box;
    box.addEventListener("click", event => {
      const element = event.target.closest(".row");
      if (!element) return;
      const row = this.shown.rows[Number(element.id.slice(3))];
      if (event.target.closest(".arrow") && row.kind === "line") { this.selected = row.index; this.toggleCall(row, !this.shown.inside.has(row.path)); }
      else this.toggle(row.index);
    });
    box.addEventListener("keydown", event => { if (this.key(event)) event.preventDefault(); });
    document.addEventListener("keydown", event => {
      if (document.activeElement !== field && (event.key === "/" || event.key === "?")) {
        if (event.key === "/") field.focus(); else this.panel.help();
        event.preventDefault();
      }
      if (event.key === "Escape") { this.panel.close(); this.list.place(); this.list.draw(); }
    });
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.box.clientHeight / HEIGHT) - 1), row = this.shown.rows[this.selected];
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key in moves) this.select(this.selected + moves[event.key], false);
    else if (event.key === "n") this.search.next(1);
    else if (event.key === "N") this.search.next(-1);
    else if (event.key === "b") this.next((body, at) => this.isEnd(body, at), 1, "no gradient ends on the path");
    else if (event.key === "r") this.next((body, at) => at in this.bodies[body].marks, 1, "no op of a rule is in view");
    else if (!row) return false;
    else if (event.key === "ArrowRight") this.openRow(row);
    else if (event.key === "ArrowLeft") this.closeRow(row);
    else if (event.key === "Enter" || event.key === " ") this.toggle(row.index);
    else return false;
    return true;
  }

  openRow(row) {
    if (row.kind === "line") this.toggleCall(row, true);
    else if (row.fold >= 0 && !this.bodies[row.body].folds[row.fold].isOpen) this.toggle(row.index);
  }

  closeRow(row) {
    if (row.fold >= 0 && this.bodies[row.body].folds[row.fold].isOpen) this.toggle(row.index);
    else if (row.kind === "line" && this.shown.inside.has(row.path)) this.toggleCall(row, false);
    else {
      const around = this.shown.rows.slice(0, row.index).reverse().find(one => ["scope", "group"].includes(one.kind) && one.body === row.body && one.row <= row.row && row.row <= one.last);
      if (around) this.select(around.index, false);
    }
  }
}

// The search: the list shows the lines of all bodies that have every word in their name or op type.
class Search {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("search");
    this.count = 0;
    this.hits = new Map(); // by body, the rows in their order
    this.isOn = false;
    this.box.addEventListener("input", () => this.look());
    this.box.addEventListener("keydown", event => {
      if (event.key === "Enter") { this.next(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape") { const row = view.shown.rows[view.selected]; this.clear(); if (row && row.kind === "line") view.go(row.body, row.row); view.list.box.focus(); event.stopPropagation(); }
    });
  }

  say(words) {
    document.getElementById("found").textContent = words;
  }

  clear() {
    this.box.value = "";
    this.look();
  }

  look() {
    const { view } = this, words = this.box.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    this.isOn = words.length > 0;
    this.hits = new Map();
    this.count = 0;
    const types = view.doc.tables.types.map(type => type.toLowerCase());
    for (const body of this.isOn ? view.places.places.keys() : []) {
      const { names, types: typeOf } = view.bodies[body], rows = [];
      for (let row = 0; row < names.length; row++) {
        const name = names[row].toLowerCase(), type = types[typeOf[row]];
        if (words.every(word => name.includes(word) || type.includes(word))) rows.push(row);
      }
      if (rows.length) this.hits.set(body, rows);
      this.count += rows.length;
    }
    this.say(this.isOn ? plural(this.count, "op") : "");
    view.selected = -1;
    view.list.box.scrollTop = 0;
    view.show();
  }

  next(step) {
    if (!this.count) return;
    const { view } = this, index = view.selected < 0 && step < 0 ? 0 : view.selected;
    view.select((index + step + this.count) % this.count, true);
    this.say(`${number(view.selected + 1)} of ${plural(this.count, "op")}`);
  }
}

// Save what is in sight of the list as a picture.
async function savePicture(view, isPng) {
  const box = view.list.box.getBoundingClientRect(), style = getComputedStyle(document.body);
  const picture = svg("svg", { xmlns: SVG, width: box.width, height: box.height, viewBox: `0 0 ${box.width} ${box.height}` });
  picture.append(svg("rect", { width: "100%", height: "100%", fill: style.backgroundColor }));
  for (const row of view.list.space.querySelectorAll(".row")) {
    for (const element of row.querySelectorAll("svg")) picture.append(placed(element, box));
    for (const element of row.querySelectorAll(".badge,.arrow,.type,.leaf,.scope-of,.end,.tensor,.count,.why,.flow,.to")) {
      const at = element.getBoundingClientRect(), own = getComputedStyle(element);
      if (!at.width || !element.textContent) continue;
      if (element.matches(".badge")) picture.append(svg("rect", { x: at.x - box.x, y: at.y - box.y, width: at.width, height: at.height, rx: 4, fill: own.backgroundColor }));
      picture.append(svg("text", { x: at.x - box.x + (element.matches(".badge") ? 5 : 0), y: at.y - box.y + 13, fill: own.color, "font-size": own.fontSize, "font-family": own.fontFamily, "font-weight": own.fontWeight }, element.textContent));
    }
  }
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" }));
  if (!isPng) { download(url, "graphpatch.svg"); return; }
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = box.width * 2;
  canvas.height = box.height * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob(blob => download(URL.createObjectURL(blob), "graphpatch.png"));
}

// A copy of an SVG of a row at its place in the picture, with the colours that it has in the page.
function placed(element, box) {
  const copy = element.cloneNode(true), at = element.getBoundingClientRect();
  copy.setAttribute("x", at.x - box.x);
  copy.setAttribute("y", at.y - box.y);
  const own = element.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((part, place) => {
    const style = getComputedStyle(own[place]);
    for (const key of ["fill", "stroke", "stroke-width", "stroke-dasharray"]) part.setAttribute(key, style.getPropertyValue(key));
  });
  return copy;
}

function download(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}

window.view = new View(JSON.parse(document.getElementById("document").textContent));
