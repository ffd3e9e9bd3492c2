"use strict";

// The search: the lines of all bodies whose name or op type has what was typed.

class Search {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("search");
    this.said = document.getElementById("found");
    this.hits = new Map(); // by body, the rows in their order
    this.count = 0;
    this.box.addEventListener("input", () => this.look());
    this.box.addEventListener("keydown", event => {
      if (event.key === "Enter") { this.next(event.shiftKey ? -1 : 1); event.preventDefault(); }
      if (event.key === "Escape") { this.box.value = ""; this.look(); view.list.box.focus(); event.stopPropagation(); }
    });
  }

  say(words) {
    this.said.textContent = words;
  }

  look() {
    const wanted = this.box.value.trim().toLowerCase();
    this.hits = new Map();
    this.count = 0;
    const types = this.view.doc.tables.types.map(type => type.toLowerCase().includes(wanted));
    for (const number of wanted ? this.view.places.places.keys() : []) {
      const body = this.view.bodies[number], found = [];
      for (let row = 0; row < body.names.length; row++) {
        if (types[body.types[row]] || body.names[row].toLowerCase().includes(wanted)) found.push(row);
      }
      this.hits.set(number, found);
      this.count += found.length;
    }
    this.say(wanted ? `${this.count.toLocaleString("en")} found` : "");
    this.view.list.draw();
  }

  // How many lines between two rows of a body are found.
  within(body, first, last) {
    const rows = this.hits.get(body);
    return rows ? before(rows, last + 1) - before(rows, first) : 0;
  }

  next(step) {
    if (!this.count) return;
    this.view.next((body, row) => this.within(body, row, row) > 0, step);
    const { body, row } = this.view.shown.rows[this.view.selected];
    let place = 1;
    for (const [number, rows] of this.hits) for (const one of rows) {
      if (this.view.places.places.get(number)[one] < this.view.places.places.get(body)[row]) place++;
    }
    this.say(`${place.toLocaleString("en")} of ${this.count.toLocaleString("en")} found`);
  }
}
