"use strict";

// The panel beside the list: all that is known of one line.

const ARRIVES = ["", "no gradient arrives", "zeros arrive", "the full gradient arrives", "a changed gradient arrives", "the gradient ends before it arrives", "tf.gradients raises before it arrives"];
const SAYS = ["", "so nothing flows on", "zeros flow on", "a gradient flows on", "a changed gradient flows on", "and goes no further", "and tf.gradients raises"];
const KEYS = [["↑ ↓", "go from line to line"], ["→ ←", "open, fold"], ["Enter", "what is known of a line"], ["/", "search by words; Enter goes to the next"], ["n N", "next, previous hit of the search"], ["b", "next op at which a gradient ends"], ["r", "next op of a rule"], ["Esc", "close"]];

// A button that copies a text; where the browser does not let a page write, it is selected instead.
function copyButton(words, text) {
  const button = makeButton("copy", words, async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = make("textarea", "", text);
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = words; }, 1200);
  });
  return button;
}

class Panel {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("panel");
  }

  close() {
    this.box.hidden = true;
  }

  fill(...parts) {
    const close = makeButton("close", "✕", () => { this.close(); this.view.list.place(); this.view.list.later(); this.view.list.box.focus(); });
    close.setAttribute("aria-label", "Close");
    this.box.replaceChildren(close, ...parts);
    this.box.hidden = false;
  }

  show(row) {
    if (!row || row.kind !== "line") { this.close(); return; }
    const { doc } = this.view, body = this.view.bodies[row.body], at = row.row, name = body.names[at];
    const title = make("h2", "", make("span", "type", doc.tables.types[body.types[at]]), " ", make("bdi", "", name));
    this.fill(title, copyButton("copy name", name), ...this.parts(body, at));
  }

  help() {
    const list = make("dl", "facts");
    for (const [key, does] of KEYS) list.append(make("dt", "mono", key), make("dd", "", does));
    this.fill(make("h2", "", "Keys"), make("p", "", "Each line is an op, from the targets back to the sources. A lane leads from an op to those that it reads: the path on which a gradient flows back."), list);
  }

  *parts(body, at) {
    const { doc } = this.view;
    yield this.flows(body, at);
    for (const place of body.findings[at] || []) yield this.finding(doc.tables.findings[place], this.flowsAfter(body, at));
    for (const mark of body.marks[at] || []) {
      const rule = doc.rules[mark];
      yield this.section("Rule", make("p", "", badge(mark, rule.name), " ", rule.name, rule.words ? ` (${rule.words})` : ""), ...this.json(rule.rule));
    }
    const own = body.plots[at], type = doc.tables.types[body.types[at]];
    const plot = doc.tables.plots[own !== undefined ? own : body.marks[at] ? -1 : doc.defaults[type]];
    if (plot) yield this.gradient(plot);
    yield this.inputs(body, at);
    if (body.carried[at]) yield this.carried(body.carried[at]);
    const facts = make("dl", "facts mono");
    for (const [key, value] of Object.entries(doc.tables.attrs[body.attrs[at]] || {})) facts.append(make("dt", "", key), make("dd", "", JSON.stringify(value)));
    yield this.section("Attrs", facts.children.length ? facts : make("p", "", "none"));
  }

  section(title, ...children) {
    return make("section", "", make("h3", "", title), ...children);
  }

  // A rule as JSON with a button that copies it; nothing where there is none.
  json(rule) {
    const text = rule ? JSON.stringify(rule, null, 2) : "";
    return text ? [make("pre", "", text), copyButton("copy rule", text)] : [];
  }

  flows(body, at) {
    const list = make("dl", "facts");
    body.sides.forEach((side, place) => {
      const name = body.sides.length > 1 ? ["before", "after"][place] : "flows back";
      const words = side.flow[at] ? `${ARRIVES[side.arrives[at]]}, ${SAYS[side.flow[at]]}` : "not there";
      list.append(make("dt", "", name), make("dd", `flow f${side.flow[at]}`, words));
    });
    const tensor = this.view.doc.tables.tensors[body.tensors[at]];
    if (tensor) list.append(make("dt", "", "gives"), make("dd", "mono", tensor));
    const sizes = this.view.sizes && body === this.view.bodies[this.view.graph.body] ? this.view.sizes.lines[at] : null;
    if (sizes) list.append(make("dt", "", "largest"), make("dd", "mono", sizes.map(sizeInWords).join(" → ")));
    return list;
  }

  // Whether a gradient that ended here flows on with the rules.
  flowsAfter(body, at) {
    return body.sides.length > 1 && [3, 4].includes(body.sides[1].flow[at]);
  }

  finding(finding, isBefore) {
    const title = finding.on_path ? "Why it ends here" : "Ends here";
    const section = this.section(isBefore ? `${title}, before` : title, make("p", "", finding.what), make("p", "", finding.consequence), make("p", "", make("b", "", "Fix: "), finding.remedy), ...this.json(finding.rule));
    section.className = "finding";
    return section;
  }

  gradient(plot) {
    const list = make("dl", "facts"), sides = Object.entries(plot.words);
    for (const [side, words] of sides) list.append(make("dt", `key ${side}`, sides.length > 1 ? side : "dx"), make("dd", "mono", words));
    return this.section("Gradient", list, drawPlot(plot));
  }

  inputs(body, at) {
    const list = make("ol", "inputs");
    list.start = 0;
    for (const input of body.inputs[at]) {
      if (typeof input === "string") { list.append(make("li", "mono", input)); continue; }
      const [row, words] = typeof input === "number" ? [input, body.names[input]] : input;
      list.append(make("li", "", makeButton("link", words, () => this.view.go(this.view.bodies.indexOf(body), row))));
    }
    return this.section("Inputs", body.inputs[at].length ? list : make("p", "", "none"));
  }

  carried(nodes) {
    const list = make("ul", "inputs");
    for (const [type, name] of nodes) list.append(make("li", "mono", `${type}  ${name}`));
    const says = nodes.some(([type]) => type.startsWith("graphpatch_"))
      ? "A function in the file has the gradient. tf.gradients in a Session uses it, TensorFlow 1.15 and later; a GradientTape needs graphpatch.register_gradients, or a SavedModel that was written with --inputs and --outputs."
      : "Ops in the graph give the gradient; every runtime uses it.";
    return this.section("Stored as", list, make("p", "", says));
  }
}
