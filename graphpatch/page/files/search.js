// The search: the list shows the lines of all bodies that have every word in their name or op type.

class Search {
  constructor(view) {
    this.view = view;
    this.box = byId("search");
    this.hits = [];
    this.isOn = false;
    this.box.addEventListener("input", () => this.update());
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
    this.update();
  }

  // Clear it, and stay at the line that is selected.
  leave() {
    const row = this.view.selected;
    this.clear();
    if (row) this.view.go(row.line);
    this.view.list.box.focus();
  }

  update() {
    const { view } = this, words = this.box.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const isIn = (word, text) => text.toLowerCase().includes(word);
    const isHit = ({ name, type }) => words.every(word => isIn(word, name) || isIn(word, type));
    this.isOn = words.length > 0;
    this.hits = this.isOn ? view.lines.filter(isHit) : [];
    this.say(this.isOn ? plural(this.hits.length, "op") : "");
    view.selected = null;
    view.list.box.scrollTop = 0;
    view.show();
  }

  next(step) {
    const { view } = this, count = this.hits.length;
    const from = view.selected ? view.selected.index : Math.min(0, -step);
    if (!count) return;
    const at = (from + step + count) % count;
    view.select(view.rows[at], true);
    this.say(`${number(at + 1)} of ${plural(count, "op")}`);
  }
}
