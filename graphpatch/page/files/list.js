// The list: of all rows, those in sight are in the page, each at its place in a tall, empty box.

const MORE = 12; // rows above and below those in sight
const DEEPEST = 12; // scopes and functions in each other that are indented
const INDENT = 14; // pixels
const MOST_PRINTED = 4000;
const HEAD_ROOM = 36; // pixels that "before" takes above its lanes

class List {
  constructor(view) {
    this.view = view;
    this.box = byId("list");
    this.space = byId("space");
    this.box.addEventListener("scroll", () => this.draw());
    window.addEventListener("resize", () => this.redraw());
    window.addEventListener("beforeprint", () => this.draw(true));
    window.addEventListener("afterprint", () => this.draw());
  }

  // Draw anew, after the rows, the sides or the width have changed.
  redraw() {
    this.place();
    this.draw();
  }

  // Find how wide lanes are. A row counts as one line of text tall until it has been drawn.
  place() {
    const { rows, parts } = this.view.shown, sides = this.view.sides();
    const room = Math.max(48, this.box.clientWidth * 0.3 / sides.length);
    this.pitch = new Map();
    for (const side of sides) {
      const widths = parts.map(part => part.sides[side] ? part.sides[side].width : 0);
      const widest = widths.reduce((most, width) => Math.max(most, width), 1);
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

  // Draw the rows in sight.
  draw(isPrinted = false) {
    const { shown, selected } = this.view, { rows } = shown, { box } = this;
    const first = isPrinted ? 0 : Math.max(0, this.at(box.scrollTop) - MORE);
    const below = isPrinted ? MOST_PRINTED : this.at(box.scrollTop + box.clientHeight) + MORE;
    const last = Math.min(rows.length, below);
    this.space.style.height = `${this.tops[isPrinted ? last : rows.length]}px`;
    const passing = new Map(); // by side of a part, the lanes in sight: there may be many others
    for (const side of shown.parts.flatMap(part => part.sides)) {
      passing.set(side, side.lanes.filter(lane => lane.from <= last && first <= lane.to));
    }
    const drawn = rows.slice(first, last).map(row => this.row(row, passing));
    this.space.replaceChildren(...(rows.length ? drawn : [this.nothing()]));
    if (this.grow(rows.slice(first, last), drawn)) {
      this.draw(isPrinted);
      return;
    }
    this.heads();
    const isInSight = selected >= first && selected < last;
    if (isInSight) box.setAttribute("aria-activedescendant", `row${selected}`);
    else box.removeAttribute("aria-activedescendant");
  }

  nothing() {
    return make("p", "empty", this.view.search.isOn
      ? "No op has these words in its name or type."
      : "No op lies between these ends: name others with --from and --to.");
  }

  // Give rows the heights that they have as drawn; return whether any has changed. The first row
  // in sight stays where it is.
  grow(rows, drawn) {
    const heights = drawn.map(element => Math.max(HEIGHT, element.offsetHeight));
    if (rows.every((row, at) => row.height === heights[at])) return false;
    const { box } = this, top = this.at(box.scrollTop), below = box.scrollTop - this.tops[top];
    rows.forEach((row, at) => { row.height = heights[at]; });
    this.stack();
    box.scrollTop = this.tops[top] + below;
    return true;
  }

  // What the columns are, and what the symbols mean, above the list.
  heads() {
    const { view } = this, sides = view.search.isOn ? [] : view.sides();
    const cells = sides.map(side => {
      const cell = make("span", "lanes", sides.length > 1 ? SIDE_NAMES[side] : "");
      cell.style.width = `${this.laneWidth(side)}px`;
      return cell;
    });
    const flows = [Flow.FULL, Flow.CHANGED, Flow.ZERO, Flow.NONE, Flow.BLOCKED, Flow.ERROR];
    const legend = make("span", "symbols", ...flows.map(drawSymbol));
    const largest = view.sizes ? make("span", "largest", "largest |gradient|") : "";
    if (largest) largest.title = `under ${view.sizes.tiny} of the largest counts as 0`;
    byId("heads").replaceChildren(
      ...cells, make("span", "", "op"), make("span", "grow"), legend, largest);
  }

  row(row, passing) {
    const element = make("div", `row ${row.kind}`);
    const indent = make("span", "indent"), text = make("div", "text");
    element.id = `row${row.index}`;
    element.style.transform = `translateY(${this.tops[row.index]}px)`;
    element.setAttribute("role", "treeitem");
    const aria = {
      level: row.depth + 1, setsize: this.view.shown.rows.length, posinset: row.index + 1,
      selected: row.index === this.view.selected,
    };
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
      if (side) {
        const flow = flowOf(lines, number), { of: pitch } = this.pitch.get(number);
        cell.append(drawLanes(row, side, passing.get(side), flow, pitch, row.height));
      }
      return cell;
    });
  }

  fillScope(element, text, row) {
    const { fold } = row, lines = linesOf(row), path = `${fold.name}/`;
    const words = fold.isGroup ? variablesInWords(lines) : this.withoutScope(path, row);
    const name = make("span", "name", make("bdi", "leaf", words));
    name.title = fold.isGroup ? words : path;
    text.append(this.arrow(element, fold.isOpen), name);
    if (!fold.isGroup) text.append(make("span", "count", plural(lines.length, "op")));
    if (fold.isOpen) return;
    const { rules, isEnd } = contentsBelow(lines);
    text.append(...this.badges(rules), isEnd ? make("span", "why", "a gradient ends inside") : "");
    text.append(make("span", "grow"), fold.isGroup ? "" : this.flow(lines), this.bars());
  }

  fillLine(element, text, row) {
    const { line } = row, { view } = this, isOpen = view.shown.inside.has(row.path);
    if (line.calls.length && !view.search.isOn) text.append(this.arrow(element, isOpen));
    const words = this.withoutScope(line.name, row), cut = words.lastIndexOf("/") + 1;
    const scope = make("span", "scope-of", words.slice(0, cut));
    const name = make("span", "name", scope, make("bdi", "leaf", words.slice(cut)));
    name.title = line.name;
    const rules = isOpen ? line.marks : contentsBelow([line]).rules, why = this.why(line, isOpen);
    text.append(...this.badges(rules), make("span", "type", line.type), name);
    if (line.end) text.append(make("span", "end", line.end));
    text.append(make("span", "tensor", line.tensor));
    if (why) text.append(make("span", "why", why));
    text.append(make("span", "grow"), this.flow([line]), this.bars(line.sizes));
  }

  // The size of the gradient, or the room for it; nothing where it was not run.
  bars(sizes) {
    const { view } = this;
    if (!view.sizes) return "";
    return sizes ? drawBars(sizes, view.sizes, view.sides()) : make("span", "bars none-run");
  }

  arrow(element, isOpen) {
    element.setAttribute("aria-expanded", isOpen);
    return make("span", "arrow", isOpen ? "▾" : "▸");
  }

  withoutScope(name, { scope }) {
    return scope ? name.slice(scope.length + 1) : name;
  }

  badges(rules) {
    return [...rules].map(rule => badge(rule, this.view.doc.rules[rule].name));
  }

  // Why a gradient ends at a line, where it does.
  why(line, isOpen) {
    const [finding] = line.findings, cause = causeBehind(line, line.sides.length - 1);
    if (line.isCause) return finding.what;
    if (cause) return `goes no further, ${cause}`;
    if (finding && line.sides.some(side => side.flow >= Flow.BLOCKED)) return finding.what;
    const isEndInside = line.calls.length && !isOpen && contentsBelow([line]).isEnd;
    return isEndInside ? "a gradient ends inside" : "";
  }

  // What flows on, where that is not the full gradient on all sides.
  flow(lines) {
    const element = make("span", "flows");
    const flows = this.view.sides().map(side => flowOf(lines, side));
    const isSame = flows.every(flow => flow === flows[0]);
    if (isSame && flows[0] === Flow.FULL) return element;
    (isSame ? flows.slice(0, 1) : flows).forEach((flow, at) => {
      if (at) element.append(make("span", "to", "→"));
      element.append(make("span", `flow f${flow}`, FLOW_WORDS[flow]));
    });
    return element;
  }

  scrollTo(index) {
    if (!(index in this.tops)) return;
    const top = this.tops[index], bottom = this.tops[index + 1] || top + HEIGHT, { box } = this;
    const isBelow = bottom + HEIGHT > box.scrollTop + box.clientHeight;
    if (top < box.scrollTop + HEIGHT) box.scrollTop = Math.max(0, top - 2 * HEIGHT);
    else if (isBelow) box.scrollTop = bottom + 2 * HEIGHT - box.clientHeight;
  }
}

// "61 variables: 46 get a gradient", on the last side.
function variablesInWords(lines) {
  const got = lines.filter(line => isFlowing(line.sides.at(-1).flow)).length;
  const some = got ? `${number(got)} get a gradient` : "none gets a gradient";
  const words = got === lines.length ? "each gets a gradient" : some;
  return `${plural(lines.length, "variable")}: ${words}`;
}

function drawSymbol(flow) {
  const picture = svg("svg", { width: 22, height: HEIGHT, "aria-hidden": "true" });
  const lane = { d: `M11 3V${HEIGHT - 3}`, class: `lane f${flow}` };
  if (flow <= Flow.CHANGED) picture.append(svg("path", lane));
  picture.append(drawKnot(11, flow, false));
  return make("span", "symbol", picture, FLOW_WORDS[flow]);
}
