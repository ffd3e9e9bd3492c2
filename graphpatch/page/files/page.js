"use strict";

// The page: what the file holds, what is selected, the header, the search, and the keys.

const SHORT = 8; // lines of a body that is no more than a call
const MOST_OPEN = 12; // calls that are open at first
const FIRST_PAIRS = 3; // verdicts that are shown at first
const FIRST_ENDS = 6; // inputs, and outputs, that are shown
const NARROW = 1000; // pixels of a page that shows half of these
const VERDICTS = { flows: "flows", zero: "zeros", none: "None", error: "error" };

const byId = id => document.getElementById(id);

class View {
  constructor(doc) {
    this.doc = doc;
    this.bodies = readBodies(doc);
    this.only = doc.models.length > 1 ? null : 0;
    this.selected = -1;
    this.shown = new Shown(this.bodies);
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
    const run = this.doc.run ? this.doc.run.graphs[place] : null;
    this.sizes = run ? run.sizes : null;
    this.main = this.bodies[this.graph.body];
    this.places = new Places(this.main);
    this.openFirst();
    this.search.look();
    this.ends();
    this.verdicts(FIRST_PAIRS);
    this.legend();
    const figures = run ? run.sources.flatMap(source => source.pictures.map(drawPicture)) : [];
    byId("pictures").replaceChildren(run && run.note ? make("p", "note", run.note) : "", figures.length ? make("div", "pictures", ...figures) : "");
  }

  // Open those functions at first in which a gradient ends or a rule is; and where the main body is
  // no more than a call, what it calls.
  openFirst() {
    const isCall = line => line.calls.length > 0, calls = [...this.places.callers.keys()].flatMap(body => body.lines.filter(isCall));
    let short = this.main;
    for (const line of calls.slice(0, MOST_OPEN)) {
      const { lines, group } = line.body, held = heldBelow([line]);
      const isAlone = line.body === short && Math.min(lines.length, group) <= SHORT && lines.filter(isCall).length === 1;
      if (held.isEnd || held.rules.size || isAlone) this.shown.open([...this.places.pathTo(line.body), line]);
      if (isAlone) [short] = line.calls;
    }
  }

  header() {
    const { models, graphs } = this.doc, title = byId("title");
    models.forEach((model, place) => title.append(place ? make("span", "to", " → ") : "", make("bdi", "", model.title)));
    title.title = models.map(model => `${model.path}: ${model.format}, ${plural(model.ops, "op")}`).join("\n");
    const select = byId("graph");
    select.hidden = graphs.length < 2;
    graphs.forEach((graph, place) => select.append(new Option(graph.label || `graph ${place}`, place)));
    select.addEventListener("change", () => { this.selected = -1; this.panel.close(); this.choose(Number(select.value)); });
    const group = byId("sides");
    group.hidden = models.length < 2;
    const choices = [["both", null], ["before", 0], ["after", 1]];
    group.append(...choices.map(([name, only]) => makeButton("", name, event => {
      this.only = only;
      for (const button of group.children) button.setAttribute("aria-pressed", button === event.target);
      this.show();
    })));
    group.firstChild.setAttribute("aria-pressed", true);
    const root = document.documentElement, isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const clicks = {
      fold: () => this.keep(() => this.shown.setAll(false)),
      open: () => this.keep(() => this.shown.setAll(true)),
      svg: () => savePicture(this, false),
      png: () => savePicture(this, true),
      help: () => this.panel.help(),
      theme: () => { root.dataset.theme = isDark() ? "light" : "dark"; },
    };
    for (const [id, does] of Object.entries(clicks)) byId(id).addEventListener("click", does);
  }

  // The model's inputs and outputs: a click leads to the line of one, where it has one.
  ends() {
    const { weights } = this.graph, most = innerWidth < NARROW ? FIRST_ENDS / 2 : FIRST_ENDS;
    const groups = ["inputs", "outputs"].map(name => {
      const ends = this.graph[name].map(end => ({ ...end, line: this.main.lines.find(line => line.name === end.op) }));
      const first = [...ends.filter(end => end.line), ...ends.filter(end => !end.line)].slice(0, most), more = ends.length - first.length;
      const shown = first.flatMap(({ line, signature, ...end }) => {
        const words = `${end.name} ${end.tensor}`, element = line ? makeButton("link", words, () => this.go(line)) : make("span", "mono soft", words);
        element.title = [signature, line ? "" : "not between these ends: name it with --from or --to"].filter(Boolean).join("; ");
        return [element, " "];
      });
      return make("div", "", make("span", "soft", `${name} `), ...shown, make("span", "soft", !ends.length ? "none" : more ? `and ${number(more)} more` : ""));
    });
    byId("ends").replaceChildren(...groups, weights ? make("span", "soft", weights) : "");
  }

  verdicts(most) {
    const { pairs, pairs_left_out: leftOut, notes } = this.graph, note = words => make("p", "note", words);
    const lines = pairs.slice(0, most).map(pair => this.verdict(pair));
    if (pairs.length > most) lines.push(makeButton("link", `and ${plural(pairs.length - most, "more pair")}`, () => { this.verdicts(Infinity); this.show(); }));
    if (!lines.length && !notes.length) lines.push(note("No pair of tensors was asked about: there is no input, or nothing is computed."));
    if (leftOut) lines.push(note(`${number(leftOut)} more pairs were not asked about; name --from and --to.`));
    const said = [...this.doc.notes, ...notes].map(note), isTwo = this.doc.models.length > 1;
    byId("verdicts").replaceChildren(...(isTwo ? [...said, ...lines] : [...lines, ...said])); // what rules did comes first
  }

  // "gradient of Y with respect to X  None → flows  before, it ends at Round r; after, it is changed by A".
  verdict(pair) {
    const line = make("p", "verdict", "gradient of ", make("bdi", "mono", pair.to), " with respect to ", make("bdi", "mono", pair.from), " ");
    const { sides } = pair, last = sides[sides.length - 1];
    const told = sides.map(side => `${side.connected}, ${side.verdict}, ${side.findings.map(finding => finding.op)}`);
    const isTwo = sides.length > 1, isAlike = isTwo && told[0] === told[1];
    sides.slice(0, isAlike ? 1 : 2).forEach((side, place) => {
      const chip = make("span", `chip v-${side.verdict}`, side.connected ? VERDICTS[side.verdict] : "None: not connected");
      chip.title = side.says;
      line.append(place ? make("span", "to", " → ") : "", chip);
    });
    const ends = [];
    sides.slice(0, isAlike ? 1 : 2).forEach((side, place) => {
      if (side.verdict === "flows" || !side.findings.length) return;
      const when = isAlike ? " before and after," : isTwo ? [" before,", " after,"][place] : "";
      ends.push([`${when} it ends at `, ...this.blockers(side.findings)]);
    });
    const rules = this.doc.rules.flatMap((rule, place) => Object.hasOwn(pair.changed, rule.name) ? [badge(place, rule.name)] : []);
    if (isTwo && last.verdict === "flows" && rules.length) ends.push([ends.length ? " after, it is changed by " : " changed by ", ...rules]);
    else if (isAlike && last.verdict === "flows") ends.push([" not changed"]);
    ends.forEach((words, place) => line.append(place ? ";" : "", ...words));
    return line;
  }

  // Links to the ops at which a gradient ends, the first and a button for the others.
  blockers(findings) {
    const [first, ...others] = findings.map(finding => {
      const link = makeButton("link", `${finding.type} ${finding.op}`, () => { const line = this.lineOf(finding); if (line) this.go(line); });
      link.title = finding.what;
      return link;
    });
    if (!others.length) return [first];
    const button = makeButton("link more", `and ${number(others.length)} more`, () => { button.replaceWith(...others.flatMap(link => [", ", link])); this.show(); });
    return [first, button];
  }

  lineOf({ op, body: name }) {
    const body = this.bodies.slice(this.graph.body).find(body => body.name === name);
    return body && body.lines.find(line => line.isCause && (line.name === op || op.startsWith(`${line.name}/`)));
  }

  legend() {
    const rules = [...this.doc.rules.entries()].sort(([, a], [, b]) => !a.ops - !b.ops); // those without an op come last
    byId("legend").replaceChildren(...rules.map(([place, rule]) => {
      const isAt = line => line.marks.includes(place), inView = this.places.lines.filter(isAt).length;
      const count = inView < rule.ops ? `${number(inView)} of ${plural(rule.ops, "op")} in view` : plural(rule.ops, "op");
      const button = makeButton("rule", badge(place, rule.name), () => this.next(isAt, `no op of ${rule.name} is in view`));
      button.append(" ", rule.name, make("span", "words", rule.words && rule.words !== rule.name ? ` ${rule.words}` : ""), " ", make("span", "count", count));
      button.title = "Go to the next op of this rule";
      if (rule.error) button.append(" ", make("span", "flow f6", rule.error));
      return button;
    }));
  }

  // Draw the rows anew, after the folds, the search or the width has changed.
  show() {
    if (this.search.isOn) this.shown.filter(this.search.hits);
    else this.shown.build(this.main);
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
    const at = rows.find(now => now.body === row.body && now.path === row.path && now.kind !== "function") || rows.find(now => now.body === row.body && now.first <= row.first && row.first <= now.last && now.kind !== "scope");
    this.selected = at ? at.index : -1;
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
    if (!find()) { this.shown.open(this.places.pathTo(line.body)); this.show(); }
    if (find()) this.select(find().index, true);
  }

  // Follow a link to an op: `#op=NAME`.
  goToHash() {
    const name = new URLSearchParams(location.hash.slice(1)).get("op"), line = name && this.places.lines.find(line => line.name === name);
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

  toggleCall(row, isOpen) {
    this.keep(() => { if (isOpen) this.shown.inside.add(row.path); else this.shown.inside.delete(row.path); });
  }

  // Go to the next line of which something is true, in functions too, folded away or not.
  next(test, none) {
    const line = this.places.next(this.shown.rows[this.selected], test);
    this.search.say(line ? "" : none);
    if (line) this.go(line);
  }

  // Does a gradient end at a line: on a path that was asked about, or anywhere where none was?
  isEnd(line) {
    return this.graph.pairs.length ? line.isCause : line.sides.some(side => side.flow >= Flow.BLOCKED);
  }

  keys() {
    const { box } = this.list, field = this.search.box;
    box.addEventListener("click", event => {
      const element = event.target.closest(".row");
      if (!element) return;
      const row = this.shown.rows[Number(element.id.slice(3))];
      this.selected = row.index;
      if (event.target.closest(".arrow") && row.line) this.toggleCall(row, !this.shown.inside.has(row.path));
      else this.toggle(row);
    });
    box.addEventListener("keydown", event => { if (this.key(event)) event.preventDefault(); });
    document.addEventListener("keydown", event => {
      if (document.activeElement !== field && "/?".includes(event.key)) {
        if (event.key === "/") field.focus(); else this.panel.help();
        event.preventDefault();
      }
      if (event.key === "Escape") this.panel.leave();
    });
  }

  // Do what a key in the list is for; return whether it is for anything.
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const page = Math.max(1, Math.floor(this.list.box.clientHeight / HEIGHT) - 1), row = this.shown.rows[this.selected];
    const move = step => () => this.select(this.selected + step, false);
    const keys = {
      ArrowDown: move(1), ArrowUp: move(-1), PageDown: move(page), PageUp: move(-page), Home: move(-Infinity), End: move(Infinity),
      n: () => this.search.next(1),
      N: () => this.search.next(-1),
      b: () => this.next(line => this.isEnd(line), "no gradient ends on the path"),
      r: () => this.next(line => line.marks.length, "no op of a rule is in view"),
    };
    const onRow = { ArrowRight: () => this.openRow(row), ArrowLeft: () => this.closeRow(row), Enter: () => this.toggle(row), " ": () => this.toggle(row) };
    const does = keys[event.key] || (row && onRow[event.key]);
    if (does) does();
    return Boolean(does);
  }

  openRow(row) {
    if (row.line) this.toggleCall(row, true);
    else if (row.fold && !row.fold.isOpen) this.toggle(row);
  }

  closeRow(row) {
    if (row.fold && row.fold.isOpen) this.toggle(row);
    else if (row.line && this.shown.inside.has(row.path)) this.toggleCall(row, false);
    else {
      const around = this.shown.rows.slice(0, row.index).reverse().find(above => above.fold && above.kind !== "folded" && above.body === row.body && above.first <= row.first && row.first <= above.last);
      if (around) this.select(around.index, false);
    }
  }
}

// The search: the list shows the lines of all bodies that have every word in their name or op type.
class Search {
  constructor(view) {
    this.view = view;
    this.box = byId("search");
    this.hits = [];
    this.isOn = false;
    this.box.addEventListener("input", () => this.look());
    this.box.addEventListener("keydown", event => {
      if (event.key === "Enter") { this.next(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape") { this.leave(); event.stopPropagation(); }
    });
  }

  say(words) {
    byId("found").textContent = words;
  }

  clear() {
    this.box.value = "";
    this.look();
  }

  leave() {
    const row = this.view.shown.rows[this.view.selected];
    this.clear();
    if (row && row.line) this.view.go(row.line);
    this.view.list.box.focus();
  }

  look() {
    const { view } = this, words = this.box.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const isHit = ({ name, type }) => words.every(word => name.toLowerCase().includes(word) || type.toLowerCase().includes(word));
    this.isOn = words.length > 0;
    this.hits = this.isOn ? [...view.places.callers.keys()].flatMap(body => body.lines.filter(isHit)) : [];
    this.say(this.isOn ? plural(this.hits.length, "op") : "");
    view.selected = -1;
    view.list.box.scrollTop = 0;
    view.show();
  }

  next(step) {
    const { view } = this, count = this.hits.length, index = view.selected < 0 && step < 0 ? 0 : view.selected;
    if (!count) return;
    view.select((index + step + count) % count, true);
    this.say(`${number(view.selected + 1)} of ${plural(count, "op")}`);
  }
}

// Save what is in sight of the list as a picture.
async function savePicture(view, isPng) {
  const box = view.list.box.getBoundingClientRect(), style = getComputedStyle(document.body);
  const picture = svg("svg", { xmlns: SVG, width: box.width, height: box.height, viewBox: `0 0 ${box.width} ${box.height}` });
  picture.append(svg("rect", { width: "100%", height: "100%", fill: style.backgroundColor }));
  for (const element of view.list.space.querySelectorAll("svg,.badge,.arrow,.type,.leaf,.scope-of,.end,.tensor,.count,.why,.flow,.to")) {
    const at = element.getBoundingClientRect(), own = getComputedStyle(element), x = at.x - box.x, y = at.y - box.y;
    if (element.matches("svg")) picture.append(copyOf(element, x, y));
    else if (at.width && element.textContent) {
      const isBadge = element.matches(".badge");
      if (isBadge) picture.append(svg("rect", { x, y, width: at.width, height: at.height, rx: 4, fill: own.backgroundColor }));
      picture.append(svg("text", { x: x + (isBadge ? 5 : 0), y: y + 13, fill: own.color, "font-size": own.fontSize, "font-family": own.fontFamily, "font-weight": own.fontWeight }, element.textContent));
    }
  }
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" }));
  if (!isPng) { download(url, "graphpatch.svg"); return; }
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = url;
  await image.decode();
  canvas.width = box.width * 2;
  canvas.height = box.height * 2;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob(blob => download(URL.createObjectURL(blob), "graphpatch.png"));
}

// A copy of an SVG of a row at its place in the picture, with the colours that it has in the page.
function copyOf(element, x, y) {
  const copy = element.cloneNode(true), own = element.querySelectorAll("*");
  copy.setAttribute("x", x);
  copy.setAttribute("y", y);
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

window.view = new View(JSON.parse(byId("document").textContent));
