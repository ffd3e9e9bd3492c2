// What clicks on rows do, and keys.

class Keys {
  constructor(view) {
    this.view = view;
    const { box } = view.list, search = view.search.box;
    box.addEventListener("click", event => this.click(event.target));
    box.addEventListener("keydown", event => { if (this.press(event)) event.preventDefault(); });
    document.addEventListener("keydown", event => {
      if (document.activeElement !== search && "/?".includes(event.key)) {
        if (event.key === "/") search.focus(); else view.panel.help();
        event.preventDefault();
      }
      if (event.key === "Escape") view.panel.close();
    });
  }

  click(target) {
    const { view } = this, element = target.closest(".row");
    if (!element) return;
    const row = view.rows[Number(element.id.slice(3))];
    if (target.closest(".arrow")) view.fold(row, !row.isOpen);
    else view.toggle(row);
  }

  // Do what a key in the list is for; return whether it is for anything.
  press({ key, ctrlKey, metaKey, altKey }) {
    if (ctrlKey || metaKey || altKey) return false;
    const { view } = this, { rows, selected: row } = view;
    const page = Math.max(1, Math.floor(view.list.box.clientHeight / HEIGHT) - 1);
    const move = step => () => {
      const index = (row ? row.index : -1) + step;
      view.select(rows[Math.max(0, Math.min(index, rows.length - 1))], false);
    };
    const keys = {
      ArrowDown: move(1),
      ArrowUp: move(-1),
      PageDown: move(page),
      PageUp: move(-page),
      Home: move(-Infinity),
      End: move(Infinity),
      n: () => view.search.next(1),
      N: () => view.search.next(-1),
      b: () => view.next(line => view.isEnd(line), "no gradient ends on the path"),
      r: () => view.next(line => line.marks.length, "no op of a rule is in view"),
    };
    const onRow = {
      ArrowRight: () => view.fold(row, true),
      ArrowLeft: () => this.close(row),
      Enter: () => view.toggle(row),
      " ": () => view.toggle(row),
    };
    const does = keys[key] || (row && onRow[key]);
    if (does) does();
    return Boolean(does);
  }

  // Close what a row holds; go from one that holds nothing, or is closed, to what holds it.
  close(row) {
    const { view } = this, { parent } = row;
    if (row.isOpen && row.kind !== "function") view.fold(row, false);
    else if (view.rows[parent.index] === parent) view.select(parent, false);
  }
}
