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
      if (event.key === "Escape") view.panel.leave();
    });
  }

  click(target) {
    const { view } = this, element = target.closest(".row");
    if (!element) return;
    const row = view.shown.rows[Number(element.id.slice(3))];
    view.selected = row.index;
    const isCall = target.closest(".arrow") && row.line;
    if (isCall) view.toggleCall(row, !view.shown.inside.has(row.path));
    else view.toggle(row);
  }

  // Do what a key in the list is for; return whether it is for anything.
  press({ key, ctrlKey, metaKey, altKey }) {
    if (ctrlKey || metaKey || altKey) return false;
    const { view } = this, row = view.shown.rows[view.selected];
    const page = Math.max(1, Math.floor(view.list.box.clientHeight / HEIGHT) - 1);
    const move = step => () => view.select(view.selected + step, false);
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
      ArrowRight: () => this.openRow(row),
      ArrowLeft: () => this.closeRow(row),
      Enter: () => view.toggle(row),
      " ": () => view.toggle(row),
    };
    const does = keys[key] || (row && onRow[key]);
    if (does) does();
    return Boolean(does);
  }

  openRow(row) {
    if (row.line) this.view.toggleCall(row, true);
    else if (row.fold && !row.fold.isOpen) this.view.toggle(row);
  }

  // Close a scope or a call; go from a line that is neither to the scope around it.
  closeRow(row) {
    const { view } = this, { rows, inside } = view.shown;
    if (row.fold && row.fold.isOpen) view.toggle(row);
    else if (row.line && inside.has(row.path)) view.toggleCall(row, false);
    else {
      const isScope = above => above.fold && above.kind !== "folded" && isAround(above, row);
      const scope = rows.slice(0, row.index).reverse().find(isScope);
      if (scope) view.select(scope.index, false);
    }
  }
}
