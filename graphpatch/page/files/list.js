"use strict";

// The list: of all rows those in sight are in the page, at their place in a tall, empty box.

const MORE = 12; // rows above and below those in sight
const DEEPEST = 8; // functions in each other that are set in
const MOST_PRINTED = 4000;

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// What is left out where fewer are shown than there are.
const andMore = (found, shown) => found.length > shown ? ` and ${(found.length - shown).toLocaleString("en")} more` : "";

const letter = number => String.fromCharCode(65 + number % 26) + (number >= 26 ? Math.floor(number / 26) : "");

function badge(number, name) {
  const found = make("span", `badge c${number % 8}`, letter(number));
  found.title = name;
  return found;
}

// A name, its scope paler than what is behind it.
function named(name, end) {
  const cut = name.lastIndexOf("/") + 1;
  const found = make("span", "name", make("span", "scope-of", name.slice(0, cut)), make("bdi", "leaf", name.slice(cut) + end));
  found.title = name;
  return found;
}

class List {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("list");
    this.space = document.getElementById("space");
    this.box.addEventListener("scroll", () => this.later());
    window.addEventListener("resize", () => this.later());
    window.addEventListener("beforeprint", () => this.draw(true));
    window.addEventListener("afterprint", () => this.draw());
    this.asked = false;
  }

  later() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  draw(isPrinted = false) {
    const rows = this.view.shown.rows;
    const first = isPrinted ? 0 : Math.max(0, Math.floor(this.box.scrollTop / HEIGHT) - MORE);
    const last = isPrinted ? Math.min(rows.length, MOST_PRINTED) : Math.min(rows.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / HEIGHT) + MORE);
    this.space.style.height = `${(isPrinted ? last : rows.length) * HEIGHT}px`;
    this.measure(rows.slice(first, last));
    this.space.className = this.view.sides().length > 1 ? "two" : "";
    const drawn = [];
    for (let index = first; index < last; index++) {
      const element = this.row(rows[index]);
      element.style.transform = `translateY(${index * HEIGHT}px)`;
      drawn.push(element);
    }
    if (!rows.length) drawn.push(make("p", "empty", "No op lies between these ends: name others with --from and --to."));
    this.space.replaceChildren(...drawn);
    this.heads();
    const selected = this.view.selected;
    if (selected >= first && selected < last) this.box.setAttribute("aria-activedescendant", `row${selected}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  // How far columns lie apart, so that lanes take no more than a part of the width.
  measure(rows) {
    const sides = this.view.sides();
    const room = Math.max(60, this.box.clientWidth * (this.box.clientWidth < 600 ? 0.3 : 0.4)) / sides.length;
    const wide = new Map();
    for (const row of rows) for (const side of sides) {
      if (row.part.sides[side]) wide.set(side, Math.max(wide.get(side) || 1, row.part.sides[side].width));
    }
    this.pitch = new Map(), this.most = new Map(), this.width = new Map();
    for (const side of sides) {
      const columns = Math.max(wide.get(side) || 1, sides.length > 1 ? 3 : 1);
      const pitch = Math.max(7, Math.min(15, room / columns));
      const most = Math.max(2, Math.floor(room / pitch));
      this.pitch.set(side, pitch), this.most.set(side, most);
      this.width.set(side, Math.min(columns, most) * pitch + 4);
    }
  }

  // What the columns are, above them.
  heads() {
    const sides = this.view.sides(), heads = document.getElementById("heads");
    const cells = sides.map(side => {
      const cell = make("span", "lanes", sides.length > 1 ? ["before", "after"][side] : "");
      cell.style.width = `${this.width.get(side)}px`;
      return cell;
    });
    heads.replaceChildren(...cells, make("span", "", "op"), make("span", "grow"));
    if (this.view.sizes) heads.append(make("span", "", "largest |gradient|"));
    heads.append(make("span", "", "what flows back"));
  }

  lanes(row) {
    const body = this.view.doc.bodies[row.part.body];
    return this.view.sides().map(side => {
      const cell = make("span", "lanes");
      cell.style.width = `${this.width.get(side) || 0}px`;
      const known = body.sides[side];
      if (!known) return cell;
      const flow = row.kind === "function" ? 0 : flowOf(known, row.row, row.last, this.view.bodies[row.part.body]);
      cell.append(drawLanes(row, side, flow, this.pitch.get(side), this.most.get(side)));
      return cell;
    });
  }

  row(row) {
    const element = make("div", `row ${row.kind}`);
    element.id = `row${row.index}`;
    element.setAttribute("role", "treeitem");
    if (row.part.depth) { element.classList.add("inner"); element.style.left = `${Math.min(row.part.depth, DEEPEST) * 12}px`; }
    element.setAttribute("aria-level", row.part.depth + 1 + this.depth(row));
    element.setAttribute("aria-setsize", this.view.shown.rows.length);
    element.setAttribute("aria-posinset", row.index + 1);
    element.setAttribute("aria-selected", row.index === this.view.selected);
    if (row.kind !== "function" && this.view.search.within(row.body, row.row, row.kind === "scope" ? row.row - 1 : row.last)) element.classList.add("hit");
    element.append(...this.lanes(row));
    if (row.kind === "line") this.fillLine(element, row);
    else if (row.kind === "function") element.append(make("span", "name", "ƒ ", this.view.doc.bodies[row.body].name));
    else this.fillScope(element, row);
    return element;
  }

  depth(row) {
    return row.fold >= 0 ? this.view.doc.bodies[row.body].folds[row.fold][2] : 0;
  }

  fillScope(element, row) {
    const body = this.view.bodies[row.body], fold = body.folds[row.fold], isOpen = row.kind === "scope";
    element.setAttribute("aria-expanded", isOpen);
    const inside = holds(body, row.row, row.last, this.view.places.inside);
    element.append(make("span", "arrow", isOpen ? "▾" : "▸"), named(fold[3], "/"));
    element.append(make("span", "count", `${(row.last - row.row + 1).toLocaleString("en")} ops`));
    if (isOpen) return;
    inside.rules.forEach(rule => element.append(badge(rule, this.view.doc.rules[rule].name)));
    element.append(make("span", "grow"));
    if (inside.onPath) element.append(make("span", "flow f5", "ends inside"));
    else element.append(this.flow(body, row));
  }

  fillLine(element, row) {
    const body = this.view.bodies[row.body], name = body.names[row.row];
    const isOpen = this.view.shown.inside.has(row.path);
    if (body.calls[row.row]) {
      element.setAttribute("aria-expanded", isOpen);
      element.append(make("span", "arrow", isOpen ? "▾" : "▸"));
    }
    const inside = this.view.places.called(row.body, row.row);
    const marks = new Set([...body.marks[row.row] || [], ...isOpen ? [] : inside.rules]);
    for (const mark of marks) element.append(badge(mark, this.view.doc.rules[mark].name));
    element.append(make("span", "type", this.view.doc.tables.types[body.types[row.row]]), named(name, ""));
    const end = body.ends[row.row];
    if (end) element.append(make("span", "end", end));
    element.append(make("span", "tensor", this.view.doc.tables.tensors[body.tensors[row.row]]), make("span", "grow"));
    if (body.onPath.has(row.row)) element.append(make("span", "why", this.view.doc.tables.findings[body.findings[row.row][0]].what));
    else if (inside.onPath && !isOpen) element.append(make("span", "why", "a gradient ends inside"));
    const bars = this.view.sizes && row.body === this.view.graph.body ? drawBars(this.view.sizes, row.row, this.view.sides()) : null;
    if (bars) element.append(bars);
    else if (this.view.sizes) element.append(make("span", "bars none-run"));
    element.append(this.flow(body, row));
  }

  flow(body, row) {
    const found = make("span", "flows");
    const flows = this.view.sides().map(side => body.sides[side] ? flowOf(body.sides[side], row.row, row.last, body) : 0);
    const isSame = flows.every(flow => flow === flows[0]);
    (isSame ? flows.slice(0, 1) : flows).forEach((flow, place) => {
      if (place) found.append(make("span", "to", "→"));
      found.append(make("span", `flow f${flow}`, WORDS[flow] || "not there"));
    });
    return found;
  }

  scrollTo(index) {
    const top = index * HEIGHT, box = this.box;
    if (top < box.scrollTop + HEIGHT) box.scrollTop = Math.max(0, top - 2 * HEIGHT);
    else if (top + 2 * HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + 3 * HEIGHT - box.clientHeight;
  }
}
