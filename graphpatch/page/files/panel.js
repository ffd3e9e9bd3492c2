"use strict";

// The panel beside the list: all that is known of one line.

const ARRIVES = ["", "no gradient arrives", "zeros arrive", "the full gradient arrives", "a changed gradient arrives"];
const SAYS = ["", "so nothing flows on", "zeros flow on", "a gradient flows on", "a changed gradient flows on", "and goes no further", "and tf.gradients raises"];
const KEYS = [["↑ ↓", "go from line to line"], ["→ ←", "open, fold"], ["Enter", "what is known of a line"], ["/", "search by words; Enter goes to the next"], ["n N", "next, previous hit of the search"], ["b", "next op at which a gradient ends"], ["r", "next op of a rule"], ["Esc", "close"]];

// A button that copies a text, also where the browser does not let a page of a file write.
function copyButton(words, text) {
  const button = makeButton("copy", words, () => {
    const field = make("textarea", "", text);
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.textContent = "copied";
    setTimeout(() => { button.textContent = words; }, 1200);
  });
  return button;
}

// A list of names and what they are: texts or elements; of each what, and its class.
function facts(entries, className = "") {
  const list = make("dl", `facts ${className}`);
  for (const [name, what, ofName = "", ofWhat = ""] of entries) list.append(make("dt", ofName, name), make("dd", ofWhat, what));
  return list;
}

const section = (title, ...children) => make("section", "", make("h3", "", title), ...children);

// A rule as JSON with a button that copies it; nothing where there is none.
function ruleText(rule) {
  const text = rule ? JSON.stringify(rule, null, 2) : "";
  return text ? [make("pre", "", text), copyButton("copy rule", text)] : [];
}

class Panel {
  constructor(view) {
    this.view = view;
    this.box = document.getElementById("panel");
  }

  close() {
    this.box.hidden = true;
  }

  // Close it, and give the list the room.
  leave() {
    this.close();
    this.view.list.place();
    this.view.list.draw();
  }

  fill(...parts) {
    const close = makeButton("close", "✕", () => { this.leave(); this.view.list.box.focus(); });
    close.setAttribute("aria-label", "Close");
    this.box.replaceChildren(close, ...parts);
    this.box.hidden = false;
  }

  help() {
    this.fill(make("h2", "", "Keys"), make("p", "", "Each line is an op, from the targets back to the sources. A lane leads from an op to those that it reads: the path on which a gradient flows back."), facts(KEYS.map(([key, does]) => [key, does, "mono"])));
  }

  show(row) {
    if (!row || row.kind !== "line") { this.close(); return; }
    const { doc } = this.view, { tables } = doc, { body, name } = this.view.line(row), at = row.row;
    const type = tables.types[body.types[at]], marks = body.marks[at] || [];
    const plot = tables.plots[at in body.plots ? body.plots[at] : marks.length ? -1 : doc.defaults[type]];
    const attrs = Object.entries(tables.attrs[body.attrs[at]] || {});
    this.fill(
      make("h2", "", make("span", "type", type), " ", make("bdi", "", name)),
      copyButton("copy name", name),
      this.flows(body, at),
      ...(body.findings[at] || []).map(place => this.finding(tables.findings[place], body, at)),
      plot ? this.gradient(plot) : "",
      ...marks.map(mark => this.rule(doc.rules[mark], mark)),
      section("Inputs", body.inputs[at].length ? this.inputs(body, at) : make("p", "", "none")),
      at in body.carried ? this.carried(body.carried[at]) : "",
      section("Attrs", attrs.length ? facts(attrs.map(([key, value]) => [key, JSON.stringify(value)]), "mono") : make("p", "", "none")),
    );
  }

  flows(body, at) {
    const { sizes, bodies, graph, doc } = this.view, names = body.sides.length > 1 ? ["before", "after"] : ["flows back"];
    const entries = body.sides.map((side, place) => {
      const flow = side.flow[at], cause = causeBehind(body, side, at, doc.tables.types);
      const words = [ARRIVES[side.arrives[at]], SAYS[flow], ...(cause ? [cause] : [])].join(", ");
      return [names[place], flow ? words : "not there", "", `flow f${flow}`];
    });
    const tensor = doc.tables.tensors[body.tensors[at]];
    if (tensor) entries.push(["gives", tensor, "", "mono"]);
    const known = sizes && body === bodies[graph.body] ? sizes.lines[at] : null;
    if (known) entries.push(["largest", known.map(sizeInWords).join(" → "), "", "mono"]);
    return facts(entries);
  }

  // Doctor's words; of what ends before rules and flows on after them, that it was so before.
  finding(finding, body, at) {
    const [goesOn, isBefore] = body.sides.map(side => [Flow.FULL, Flow.CHANGED].includes(side.flow[at]));
    const comes = body.sides.some(side => side.arrives[at] > Flow.NONE);
    const words = !comes ? "Nothing could flow on" : goesOn ? "One path ends here" : finding.on_path ? "Why it ends here" : "Ends here";
    const title = `${words}${isBefore && !goesOn ? ", before" : ""}`;
    const element = section(title, make("p", "", finding.what), make("p", "", finding.consequence), make("p", "", make("b", "", "Fix: "), finding.remedy), ...ruleText(finding.rule));
    element.className = "finding";
    return element;
  }

  rule(rule, place) {
    return section("Rule", make("p", "", badge(place, rule.name), " ", rule.name, rule.words ? ` (${rule.words})` : ""), ...ruleText(rule.rule));
  }

  gradient(plot) {
    const sides = Object.entries(plot.words);
    return section("Gradient", facts(sides.map(([side, words]) => [sides.length > 1 ? side : "dx", words, `key ${side}`, "mono"])), drawPlot(plot));
  }

  inputs(body, at) {
    const list = make("ol", "inputs", ...body.inputs[at].map(input => {
      if (typeof input === "string") return make("li", "mono", input);
      const [row, words] = typeof input === "number" ? [input, body.names[input]] : input;
      return make("li", "", makeButton("link", words, () => this.view.go(this.view.bodies.indexOf(body), row)));
    }));
    list.start = 0;
    return list;
  }

  carried(nodes) {
    const list = make("ul", "inputs", ...nodes.map(([type, name]) => make("li", "mono", `${type}  ${name}`)));
    if (nodes.some(([type]) => ["NoOp", "RefIdentity"].includes(type))) return section("Stored as", list, make("p", "", "It stands in for the optimizer's op, and leaves the variable as it is; the gradient is not changed."));
    const says = nodes.some(([type]) => type.startsWith("graphpatch_"))
      ? "A function in the file has the gradient. tf.gradients in a Session uses it, TensorFlow 1.15 and later; a GradientTape needs graphpatch.register_gradients, or a SavedModel that was written with --inputs and --outputs."
      : "Ops in the graph give the gradient; every runtime uses it.";
    return section("Stored as", list, make("p", "", says));
  }
}
