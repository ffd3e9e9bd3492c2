// The list: its rows lie in blocks, of which those in sight, and near it, are filled.

const BLOCK = 16; // rows
const NEAR = 300; // pixels above and below what is in sight
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
    new ResizeObserver(() => this.fit()).observe(this.box);
    window.addEventListener("beforeprint", () => this.print(MOST_PRINTED / BLOCK));
    window.addEventListener("afterprint", () => this.print(0));
  }

  // Fill so many blocks at the top; of none, those in sight.
  print(count) {
    this.printed = count;
    this.draw();
  }

  // Draw what the list has room for now.
  fit() {
    if (this.width === this.box.clientWidth) this.draw(); else this.redraw();
  }

  // Draw anew, after the rows, the sides or the width have changed. A row counts as one line of
  // text tall until it has been drawn.
  redraw() {
    const { rows, parts } = this.view, sides = this.view.sides();
    this.width = this.box.clientWidth;
    const room = Math.max(48, this.width * 0.3 / sides.length);
    const head = sides.length > 1 ? HEAD_ROOM : 0; // "before" and "after" stand above
    this.lanes = sides.map(side => {
      const widest = parts.reduce((most, part) => Math.max(most, part.sides[side]?.width || 1), 1);
      const columns = Math.min(widest, MOST_LANES + 1);
      const pitch = Math.max(6, Math.min(15, room / columns));
      return { side, pitch, width: `${Math.max(head, columns * pitch + 6)}px` };
    });
    this.blocks = Array.from({ length: Math.ceil(rows.length / BLOCK) }, (_, at) => {
      const block = make("div", "block");
      block.style.height = `${HEIGHT * Math.min(BLOCK, rows.length - at * BLOCK)}px`;
      return block;
    });
    this.filled = new Set(); // numbers of blocks
    this.space.replaceChildren(...(rows.length ? this.blocks : [this.nothing()]));
    this.heads();
    this.draw();
  }

  // Fill the blocks near those in sight, or those that are printed, and empty the others.
  draw() {
    const { blocks, filled, box, printed } = this;
    for (let isDone = false; !isDone;) { // those that are filled push others away
      const top = box.scrollTop - NEAR, bottom = box.scrollTop + box.clientHeight + NEAR;
      const first = printed ? 0 : Math.max(0, this.at(top)), near = new Set();
      const isNear = at => printed ? at < printed : blocks[at].offsetTop < bottom;
      for (let at = first; at < blocks.length && isNear(at); at++) near.add(at);
      const far = [...filled].filter(at => !near.has(at)).map(at => [at, blocks[at].offsetHeight]);
      for (const [at, height] of far) {
        blocks[at].style.height = `${height}px`;
        blocks[at].replaceChildren();
        filled.delete(at);
      }
      isDone = [...near].every(at => filled.has(at));
      near.forEach(at => this.fill(at));
    }
  }

  // The number of the last block that begins above a height.
  at(height) {
    let low = 0, high = this.blocks.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.blocks[middle].offsetTop < height) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  fill(at) {
    if (this.filled.has(at)) return;
    const first = at * BLOCK, rows = this.view.rows.slice(first, first + BLOCK);
    const passing = new Map(); // by side of a part, the lanes in the block: of many, a few
    for (const side of this.view.parts.flatMap(part => part.sides)) {
      const isHere = lane => lane.from < first + BLOCK && first <= lane.to;
      passing.set(side, side.lanes.filter(isHere));
    }
    this.blocks[at].replaceChildren(...rows.map(row => this.row(row, passing)));
    this.blocks[at].style.height = "auto";
    this.filled.add(at);
  }

  // Mark the selected row, and bring it in sight.
  select() {
    const { selected } = this.view, id = selected && `row${selected.index}`;
    this.space.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", false);
    this.box.setAttribute("aria-activedescendant", id || "");
    for (let time = 0; selected && time < 2; time++) { // rows that are filled now may move it
      this.fill(Math.floor(selected.index / BLOCK));
      byId(id).setAttribute("aria-selected", true);
      byId(id).scrollIntoView({ block: "nearest" });
      this.draw();
    }
  }

  nothing() {
    return make("p", "empty", this.view.search.isOn
      ? "No op has these words in its name or type."
      : "No op lies between these ends: name others with --from and --to.");
  }

  // What the columns are, and what the symbols mean, above the list.
  heads() {
    const { view: { search, sizes }, lanes } = this;
    const cells = search.isOn ? [] : lanes.map(
      ({ side, width }) => this.cell(width, lanes.length > 1 ? SIDE_NAMES[side] : ""));
    const flows = [Flow.FULL, Flow.CHANGED, Flow.ZERO, Flow.NONE, Flow.BLOCKED, Flow.ERROR];
    const title = sizes && `under ${sizes.tiny} of the largest counts as 0`;
    byId("heads").replaceChildren(
      ...cells, make("span", "", "op"), make("span", "grow"),
      make("span", "symbols", ...flows.map(drawSymbol)),
      sizes ? make("span", { class: "largest", title }, "largest |gradient|") : "",
    );
  }

  // The room for the lanes of one side.
  cell(width, ...children) {
    const element = make("span", "lanes", ...children);
    element.style.width = width;
    return element;
  }

  row(row, passing) {
    const { view } = this, { isOn } = view.search, depth = isOn ? 0 : row.depth;
    const indent = make("span", "indent"), text = make("div", "text", ...this.cells(row));
    indent.style.width = `${Math.min(depth, DEEPEST) * INDENT}px`;
    const lanes = isOn ? [] : this.lanes.map(({ side, pitch, width }) => {
      const laid = row.part.sides[side];
      return this.cell(width, laid ? drawLanes(row, side, laid, passing.get(laid), pitch) : "");
    });
    const attributes = {
      class: `row ${row.kind}`, id: `row${row.index}`, role: "treeitem", "aria-level": depth + 1,
      "aria-setsize": view.rows.length, "aria-posinset": row.index + 1,
      "aria-selected": row === view.selected, "aria-expanded": this.canOpen(row) ? row.isOpen : "",
    };
    return make("div", attributes, ...lanes, indent, text);
  }

  canOpen({ fold, kind, line }) {
    return fold && kind !== "function" && !(line && this.view.search.isOn);
  }

  // What stands in a row, behind its lanes: of what is folded, what is in it.
  cells(row) {
    const { kind, body, fold, line, lines, isOpen } = row, { doc, sizes } = this.view;
    if (kind === "function") return [make("span", "name", "ƒ ", body.name)];
    const isGroup = kind === "group", variables = isGroup ? variablesInWords(lines) : "";
    const title = line ? line.name : variables || `${fold.name}/`;
    const words = variables || this.withoutScope(title, row);
    const cut = line ? words.lastIndexOf("/") + 1 : 0;
    const scope = cut ? make("span", "scope-of", words.slice(0, cut)) : "";
    const name = make("span", { class: "name", title }, scope,
      make("bdi", "leaf", words.slice(cut)));
    const count = line || isGroup ? "" : make("span", "count", plural(lines.length, "op"));
    const arrow = this.canOpen(row) ? make("span", "arrow", isOpen ? "▾" : "▸") : "";
    if (!line && isOpen) return [arrow, name, count];
    const { rules, isEnd } = contentsBelow(lines), isEndInside = fold && !isOpen && isEnd;
    const badges = [...(isOpen ? line.marks : rules)].map(
      rule => badge(rule, doc.rules[rule].name));
    const why = (line && this.why(line)) || (isEndInside ? "a gradient ends inside" : "");
    return [
      arrow, ...(line ? [...badges, make("span", "type", line.type)] : []), name, count,
      line?.end ? make("span", "end", line.end) : "",
      ...(line ? [make("span", "tensor", line.tensor)] : badges),
      why ? make("span", "why", why) : "", make("span", "grow"), isGroup ? "" : this.flow(lines),
      sizes ? drawBars(line && this.view.sizesOf(line), sizes, this.view.sides()) : "",
    ];
  }

  // A name without the scope around its row, which stands above it.
  withoutScope(name, { parent }) {
    const scope = this.view.search.isOn ? "" : parent.fold.name;
    return scope ? name.slice(scope.length + 1) : name;
  }

  // Why a gradient ends at a line, where it does.
  why(line) {
    const [finding] = line.findings, cause = causeBehind(line, line.sides.length - 1);
    if (line.isCause) return finding.what;
    if (cause) return `goes no further, ${cause}`;
    return finding && line.sides.some(side => side.flow >= Flow.BLOCKED) ? finding.what : "";
  }

  // What flows on, where that is not the full gradient on all sides.
  flow(lines) {
    const flows = this.view.sides().map(side => flowOf(lines, side));
    const isSame = flows.every(flow => flow === flows[0]);
    const shown = isSame ? flows.slice(0, flows[0] === Flow.FULL ? 0 : 1) : flows;
    return make("span", "flows", ...shown.flatMap((flow, at) => [
      at ? make("span", "to", "→") : "", make("span", `flow f${flow}`, FLOW_WORDS[flow]),
    ]));
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
