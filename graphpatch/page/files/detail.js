"use strict";

// The panel beside the list: all that is known of one line.

class Panel {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("panel");
  }

  close() {
    this.box.hidden = true;
  }

  show(row) {
    if (!row || row.kind !== "line") { this.close(); return; }
    const view = this.view, body = view.bodies[row.body], at = row.row;
    const close = make("button", "close", "✕");
    close.type = "button";
    close.setAttribute("aria-label", "Close");
    close.addEventListener("click", () => { this.close(); view.list.later(); view.list.box.focus(); });
    const title = make("h2", "", make("span", "type", view.doc.tables.types[body.types[at]]), " ", make("bdi", "", body.names[at]));
    this.box.replaceChildren(close, title, ...this.parts(body, at));
    this.box.hidden = false;
  }

  *parts(body, at) {
    yield this.flows(body, at);
    for (const number of body.findings[at] || []) yield this.finding(this.view.doc.tables.findings[number]);
    for (const mark of body.marks[at] || []) yield this.rule(mark);
    const plot = this.plot(body, at);
    if (plot) yield plot;
    yield this.inputs(body, at);
    if (body.carried[at]) yield this.carried(body.carried[at]);
    yield this.attrs(body, at);
  }

  section(title, ...children) {
    return make("section", "", make("h3", "", title), ...children);
  }

  flows(body, at) {
    const list = make("dl", "facts");
    body.sides.forEach((side, number) => {
      const name = body.sides.length > 1 ? ["before", "after"][number] : "flows back";
      const words = side.flow[at] ? `${ARRIVES[side.arrives[at]]}, ${SAYS[side.flow[at]]}` : "not there";
      list.append(make("dt", "", name), make("dd", `flow f${side.flow[at]}`, words));
    });
    const tensor = this.view.doc.tables.tensors[body.tensors[at]];
    if (tensor) list.append(make("dt", "", "gives"), make("dd", "mono", tensor));
    const sizes = this.view.sizes && body === this.view.bodies[this.view.graph.body] ? this.view.sizes.lines[at] : null;
    if (sizes) list.append(make("dt", "", "largest"), make("dd", "mono", sizes.map(sizeInWords).join(" → ")));
    return list;
  }

  finding(finding) {
    const found = this.section(finding.on_path ? "Why it ends here" : "Ends here", make("p", "", finding.what), make("p", "", finding.consequence), make("p", "", make("b", "", "Fix: "), finding.remedy));
    found.className = "finding";
    if (finding.rule) found.append(make("pre", "", JSON.stringify(finding.rule, null, 2)));
    return found;
  }

  rule(mark) {
    const rule = this.view.doc.rules[mark];
    const found = this.section("Rule", make("p", "", badge(mark, rule.name), " ", rule.name, rule.words ? ` (${rule.words})` : ""));
    if (rule.rule) found.append(make("pre", "", JSON.stringify(rule.rule, null, 2)));
    return found;
  }

  plot(body, at) {
    const own = body.plots[at], type = this.view.doc.tables.types[body.types[at]];
    const number = own !== undefined ? own : (body.marks[at] ? undefined : this.view.doc.defaults[type]);
    if (number === undefined) return null;
    const plot = this.view.doc.tables.plots[number], list = make("dl", "facts");
    for (const [side, words] of Object.entries(plot.words)) {
      const name = Object.keys(plot.words).length > 1 ? side : "dx";
      list.append(make("dt", `key ${side}`, name), make("dd", "mono", words));
    }
    return this.section("Gradient", list, drawPlot(plot));
  }

  inputs(body, at) {
    const list = make("ol", "inputs");
    list.start = 0;
    for (const input of body.inputs[at]) {
      if (typeof input === "string") { list.append(make("li", "mono", input)); continue; }
      const [row, words] = typeof input === "number" ? [input, body.names[input]] : input;
      const link = make("button", "link", words);
      link.type = "button";
      link.addEventListener("click", () => this.view.go(this.view.bodies.indexOf(body), row));
      list.append(make("li", "", link));
    }
    return this.section("Inputs", body.inputs[at].length ? list : make("p", "", "none"));
  }

  carried(nodes) {
    const list = make("ul", "inputs");
    for (const [type, name] of nodes) list.append(make("li", "mono", `${type}  ${name}`));
    const call = nodes.some(([type]) => type.startsWith("graphpatch_"));
    const says = call
      ? "A function in the file has the gradient. tf.gradients in a Session uses it, TensorFlow 1.15 and later; a GradientTape needs graphpatch.register_gradients, or a SavedModel that was written with --inputs and --outputs."
      : "Ops in the graph give the gradient; every runtime uses it.";
    return this.section("Stored as", list, make("p", "", says));
  }

  attrs(body, at) {
    const attrs = this.view.doc.tables.attrs[body.attrs[at]];
    const list = make("dl", "facts mono");
    for (const [key, value] of Object.entries(attrs || {})) list.append(make("dt", "", key), make("dd", "", JSON.stringify(value)));
    return this.section("Attrs", list.children.length ? list : make("p", "", "none"));
  }
}

const ARRIVES = ["", "no gradient arrives", "zeros arrive", "the full gradient arrives", "a changed gradient arrives", "the gradient ends before it arrives", "tf.gradients raises before it arrives"];
const SAYS = ["", "so nothing flows on", "zeros flow on", "a gradient flows on", "a changed gradient flows on", "and goes no further", "and tf.gradients raises"];
