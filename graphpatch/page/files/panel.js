"use strict";

// The panel beside the list: all that is known of one line.

const ARRIVES = ["", "no gradient arrives", "zeros arrive", "the full gradient arrives"];
const SAYS = ["", "so nothing flows on", "zeros flow on", "a gradient flows on", "a changed gradient flows on", "and goes no further", "and tf.gradients raises"];
const KEYS = [["↑ ↓", "go from line to line"], ["→ ←", "open, fold"], ["Enter", "what is known of a line"], ["/", "search by words; Enter goes to the next"], ["n N", "next, previous hit of the search"], ["b", "next op at which a gradient ends"], ["r", "next op of a rule"], ["Esc", "close"]];

// A button that copies a text.
function copyButton(words, text) {
  const button = makeButton("copy", words, async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch { // not even there in a page that came over plain HTTP
      button.textContent = "the browser does not allow it";
    }
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

  show({ line } = {}) {
    if (!line) { this.close(); return; }
    const { rules } = this.view.doc, { type, name, marks, inputs, carried } = line, attrs = Object.entries(line.attrs);
    this.fill(
      make("h2", "", make("span", "type", type), " ", make("bdi", "", name)),
      copyButton("copy name", name),
      this.flows(line),
      ...line.findings.map(finding => this.finding(finding, line)),
      line.plot ? this.gradient(line.plot) : "",
      ...marks.map(mark => this.rule(rules[mark], mark)),
      section("Inputs", inputs.length ? this.inputs(line) : make("p", "", "none")),
      carried ? this.carried(carried) : "",
      section("Attrs", attrs.length ? facts(attrs.map(([key, value]) => [key, JSON.stringify(value)]), "mono") : make("p", "", "none")),
    );
  }

  flows(line) {
    const names = line.sides.length > 1 ? ["before", "after"] : ["flows back"];
    const entries = line.sides.map(({ flow, arrives }, side) => {
      const words = [ARRIVES[arrives], SAYS[flow], causeBehind(line, side)].filter(Boolean).join(", ");
      return [names[side], flow ? words : "not there", "", `flow f${flow}`];
    });
    if (line.tensor) entries.push(["gives", line.tensor, "", "mono"]);
    if (line.sizes) entries.push(["largest", line.sizes.map(sizeInWords).join(" → "), "", "mono"]);
    return facts(entries);
  }

  // Doctor's words; of what ends before rules and flows on after them, that it was so before.
  finding(finding, { sides }) {
    const [goesOn, isBefore] = sides.map(side => isFlowing(side.flow));
    const comes = sides.some(side => side.arrives > Flow.NONE);
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

  inputs({ inputs, body }) {
    const list = make("ol", "inputs", ...inputs.map(input => {
      const [line, words] = typeof input === "string" ? [null, input] : [body.byNumber[[input].flat()[0]], input[1]];
      return line ? make("li", "", makeButton("link", words || line.name, () => this.view.go(line))) : make("li", "mono", words);
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
