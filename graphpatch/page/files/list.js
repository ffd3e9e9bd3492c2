"use strict";

// The list: of all rows, those in sight are in the page, each at its place in a tall, empty box.

const MORE = 12; // rows above and below those in sight
const DEEPEST = 12; // scopes and functions in each other that are indented
const INDENT = 14; // pixels
const MOST_PRINTED = 4000;
const HEAD_ROOM = 36; // pixels that "before" takes above its lanes

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function makeButton(className, words, does) {
  const button = make("button", className, words);
  button.type = "button";
  button.addEventListener("click", does);
  return button;
}

const number = count => count.toLocaleString("en");
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// The letter of a rule, in its colour.
function badge(place, name) {
  const element = make("span", `badge c${place % 8}`, String.fromCharCode(65 + place % 26) + (Math.floor(place / 26) || ""));
  element.title = name;
  return element;
}

class List {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("list");
    this.space = document.getElementById("space");
    this.box.addEventListener("scroll", () => this.draw());
    window.addEventListener("resize", () => { this.place(); this.draw(); });
    window.addEventListener("beforeprint", () => this.draw(true));
    window.addEventListener("afterprint", () => this.draw());
  }

  // Find how wide lanes are. A row counts as one line of text tall until it has been drawn.
  place() {
    const { rows, parts } = this.view.shown, sides = this.view.sides();
    const room = Math.max(48, this.box.clientWidth * 0.3 / sides.length);
    this.pitch = new Map();
    for (const side of sides) {
      const widest = parts.reduce((most, part) => Math.max(most, part.sides[side] ? part.sides[side].width : 0), 1);
      const columns = Math.min(widest, MOST_LANES + 1);
      this.pitch.set(side, { of: Math.max(6, Math.min(15, room / columns)), columns });
    }
    rows.forEach(row => { row.height = HEIGHT; });
    this.stack();
  }

  // Find the top of each row.
  stack() {
    const { rows } = this.view.shown;
    this.tops = new Float64Array(rows.length + 1);
    rows.forEach((row, index) => { this.tops[index + 1] = this.tops[index] + row.height; });
    this.space.style.height = `${this.tops[rows.length]}px`;
  }

  laneWidth(side) {
    const { of, columns } = this.pitch.get(side);
    const head = this.view.sides().length > 1 ? HEAD_ROOM : 0; // "before" and "after" stand above
    return Math.max(head, columns * of + 6);
  }

  // The index of the row at a height.
  at(top) {
    return Math.max(0, before(this.tops, top + 0.5) - 1);
  }

  // Draw the rows in sight, and again where one is taller than it was; the first in sight stays there.
  draw(isPrinted = false) {
    const { rows } = this.view.shown, { box } = this;
    const first = isPrinted ? 0 : Math.max(0, this.at(box.scrollTop) - MORE);
    const last = Math.min(rows.length, isPrinted ? MOST_PRINTED : this.at(box.scrollTop + box.clientHeight) + MORE);
    this.space.style.height = `${this.tops[isPrinted ? last : rows.length]}px`;
    const passing = new Map(); // by side of a part, the lanes in sight: there may be very many others
    for (const side of this.view.shown.parts.flatMap(part => part.sides)) passing.set(side, side.lanes.filter(lane => lane.from <= last && first <= lane.to));
    const drawn = rows.slice(first, last).map(row => this.row(row, passing));
    if (!rows.length) drawn.push(make("p", "empty", this.view.search.isOn ? "No op has these words in its name or type." : "No op lies between these ends: name others with --from and --to."));
    this.space.replaceChildren(...drawn);
    const heights = rows.slice(first, last).map((_, place) => Math.max(HEIGHT, drawn[place].offsetHeight));
    if (heights.some((height, place) => height !== rows[first + place].height)) {
      const top = this.at(box.scrollTop), below = box.scrollTop - this.tops[top];
      heights.forEach((height, place) => { rows[first + place].height = height; });
      this.stack();
      box.scrollTop = this.tops[top] + below;
      this.draw(isPrinted);
      return;
    }
    this.heads();
    const { selected } = this.view;
    if (selected >= first && selected < last) box.setAttribute("aria-activedescendant", `row${selected}`);
    else box.removeAttribute("aria-activedescendant");
  }

  // What the columns are, and what the symbols mean, above the list.
  heads() {
    const sides = this.view.sides();
    const cells = this.view.search.isOn ? [] : sides.map(side => {
      const cell = make("span", "lanes", sides.length > 1 ? ["before", "after"][side] : "");
      cell.style.width = `${this.laneWidth(side)}px`;
      return cell;
    });
    const flows = [Flow.FULL, Flow.CHANGED, Flow.ZERO, Flow.NONE, Flow.BLOCKED, Flow.ERROR];
    const legend = make("span", "symbols", ...flows.map(symbol));
    document.getElementById("heads").replaceChildren(...cells, make("span", "", "op"), make("span", "grow"), legend, this.view.sizes ? make("span", "largest", "largest |gradient|") : "");
  }

  row(row, passing) {
    const element = make("div", `row ${row.kind}`), indent = make("span", "indent"), text = make("div", "text");
    element.id = `row${row.index}`;
    element.style.transform = `translateY(${this.tops[row.index]}px)`;
    const aria = { level: row.depth + 1, setsize: this.view.shown.rows.length, posinset: row.index + 1, selected: row.index === this.view.selected };
    element.setAttribute("role", "treeitem");
    for (const [key, value] of Object.entries(aria)) element.setAttribute(`aria-${key}`, value);
    indent.style.width = `${Math.min(row.depth, DEEPEST) * INDENT}px`;
    element.append(...this.view.search.isOn ? [] : this.lanes(row, passing), indent, text);
    if (row.line) this.fillLine(element, text, row);
    else if (row.kind === "function") text.append(make("span", "name", "ƒ ", row.body.name));
    else this.fillScope(element, text, row);
    return element;
  }

  lanes(row, passing) {
    const lines = row.kind === "line" || row.kind === "folded" ? linesOf(row) : [];
    return this.view.sides().map(number => {
      const cell = make("span", "lanes"), side = row.part.sides[number];
      cell.style.width = `${this.laneWidth(number)}px`;
      if (side) cell.append(drawLanes(row, side, passing.get(side), flowOf(lines, number), this.pitch.get(number).of, row.height));
      return cell;
    });
  }

  fillScope(element, text, row) {
    const { fold } = row, lines = linesOf(row);
    element.setAttribute("aria-expanded", fold.isOpen);
    const words = fold.isGroup ? this.variables(lines) : `${fold.name.slice(row.scope ? row.scope.length + 1 : 0)}/`;
    const name = make("span", "name", make("bdi", "leaf", words));
    name.title = fold.isGroup ? words : `${fold.name}/`;
    text.append(make("span", "arrow", fold.isOpen ? "▾" : "▸"), name);
    if (!fold.isGroup) text.append(make("span", "count", plural(lines.length, "op")));
    if (fold.isOpen) return;
    const held = heldBelow(lines);
    text.append(...this.badges(held.rules), held.isEnd ? make("span", "why", "a gradient ends inside") : "", make("span", "grow"));
    if (!fold.isGroup) text.append(this.flow(lines));
  }

  badges(rules) {
    return [...rules].map(rule => badge(rule, this.view.doc.rules[rule].name));
  }

  // "61 variables: 46 get a gradient", of the last side.
  variables(lines) {
    const got = lines.filter(line => isFlowing(line.sides.at(-1).flow)).length;
    return `${plural(lines.length, "variable")}: ${got === lines.length ? "each gets a gradient" : got ? `${number(got)} get a gradient` : "none gets a gradient"}`;
  }

  fillLine(element, text, row) {
    const { line } = row, { name } = line, { view } = this, isOpen = view.shown.inside.has(row.path);
    if (line.calls.length && !view.search.isOn) {
      element.setAttribute("aria-expanded", isOpen);
      text.append(make("span", "arrow", isOpen ? "▾" : "▸"));
    }
    const words = row.scope ? name.slice(row.scope.length + 1) : name, cut = words.lastIndexOf("/") + 1;
    const named = make("span", "name", make("span", "scope-of", words.slice(0, cut)), make("bdi", "leaf", words.slice(cut)));
    named.title = name;
    text.append(...this.badges(isOpen ? line.marks : heldBelow([line]).rules), make("span", "type", line.type), named);
    if (line.end) text.append(make("span", "end", line.end));
    text.append(make("span", "tensor", line.tensor));
    const why = this.why(line, isOpen);
    if (why) text.append(make("span", "why", why));
    text.append(make("span", "grow"));
    if (view.sizes) text.append(line.sizes ? drawBars(line.sizes, view.sizes, view.sides()) : make("span", "bars none-run"));
    text.append(this.flow([line]));
  }

  // Why a gradient ends at a line, where it does.
  why(line, isOpen) {
    const [finding] = line.findings, cause = causeBehind(line, line.sides.length - 1);
    if (line.isCause) return finding.what;
    if (cause) return `goes no further, ${cause}`;
    if (finding && line.sides.some(side => side.flow >= Flow.BLOCKED)) return finding.what;
    return line.calls.length && !isOpen && heldBelow([line]).isEnd ? "a gradient ends inside" : "";
  }

  // What flows on, where that is not the full gradient on all sides.
  flow(lines) {
    const element = make("span", "flows"), flows = this.view.sides().map(side => flowOf(lines, side));
    const isSame = flows.every(flow => flow === flows[0]);
    if (isSame && flows[0] === Flow.FULL) return element;
    (isSame ? flows.slice(0, 1) : flows).forEach((flow, place) => {
      if (place) element.append(make("span", "to", "→"));
      element.append(make("span", `flow f${flow}`, WORDS[flow] || "not there"));
    });
    return element;
  }

  scrollTo(index) {
    if (!(index in this.tops)) return;
    const top = this.tops[index], bottom = this.tops[index + 1] || top + HEIGHT, { box } = this;
    if (top < box.scrollTop + HEIGHT) box.scrollTop = Math.max(0, top - 2 * HEIGHT);
    else if (bottom + HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = bottom + 2 * HEIGHT - box.clientHeight;
  }
}

function symbol(flow) {
  const picture = svg("svg", { width: 22, height: HEIGHT, "aria-hidden": "true" });
  if (flow <= Flow.CHANGED) picture.append(svg("path", { d: `M11 3V${HEIGHT - 3}`, class: `lane f${flow}` }));
  picture.append(drawKnot(11, flow, false));
  return make("span", "symbol", picture, WORDS[flow]);
}
