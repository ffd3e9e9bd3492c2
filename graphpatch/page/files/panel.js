// The panel beside the list: all that is known of one line, or what the keys do.

const ARRIVES = ["", "no gradient arrives", "zeros arrive", "the full gradient arrives"];
const FLOWS_ON = [
  "", "so nothing flows on", "zeros flow on", "a gradient flows on", "a changed gradient flows on",
  "and goes no further", "and tf.gradients raises",
];
const ABOUT_LINES = "Each line is an op, from the targets back to the sources. A lane leads from an"
  + " op to those that it reads: the path on which a gradient flows back.";
const KEYS = {
  "↑ ↓": "go from line to line",
  "→ ←": "open, fold",
  Enter: "what is known of a line",
  "/": "search by words; Enter goes to the next",
  "n N": "next, previous hit of the search",
  b: "next op at which a gradient ends",
  r: "next op of a rule",
  Esc: "close",
};
// How the gradient of an op is stored, by the nodes that rules added.
const STANDS_IN = "It stands in for the optimizer's op, and leaves the variable as it is;"
  + " the gradient is not changed.";
const IN_FUNCTION = "A function in the file has the gradient. tf.gradients in a Session uses it,"
  + " TensorFlow 1.15 and later; a GradientTape needs graphpatch.register_gradients, or a"
  + " SavedModel that was written with --inputs and --outputs.";
const IN_OPS = "Ops in the graph give the gradient; every runtime uses it.";

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
  for (const [name, what, ofName = "", ofWhat = ""] of entries) {
    list.append(make("dt", ofName, name), make("dd", ofWhat, what));
  }
  return list;
}

const section = (title, ...children) => make("section", "", make("h3", "", title), ...children);
const paragraph = (...children) => make("p", "", ...children);

// A rule as JSON with a button that copies it; nothing where there is none.
function ruleText(rule) {
  const text = rule ? JSON.stringify(rule, null, 2) : "";
  return text ? [make("pre", "", text), copyButton("copy rule", text)] : [];
}

class Panel {
  constructor(view) {
    this.view = view;
    this.box = byId("panel");
  }

  close() {
    this.box.hidden = true;
  }

  fill(...parts) {
    const close = () => { this.close(); this.view.list.box.focus(); };
    this.box.replaceChildren(
      makeButton({ class: "close", "aria-label": "Close" }, "✕", close), ...parts);
    this.box.hidden = false;
  }

  help() {
    const keys = Object.entries(KEYS).map(([key, does]) => [key, does, "mono"]);
    this.fill(make("h2", "", "Keys"), paragraph(ABOUT_LINES), facts(keys));
  }

  show({ line } = {}) {
    if (!line) { this.close(); return; }
    const { type, name, marks, findings, plot, inputs, carried } = line;
    const attrs = Object.entries(line.attrs).map(([key, value]) => [key, JSON.stringify(value)]);
    this.fill(
      make("h2", "", make("span", "type", type), " ", make("bdi", "", name)),
      copyButton("copy name", name),
      this.flows(line),
      ...findings.map(finding => this.finding(finding, line)),
      plot ? this.gradient(plot) : "",
      ...marks.map(mark => this.rule(this.view.doc.rules[mark], mark)),
      section("Inputs", inputs.length ? this.inputs(line) : paragraph("none")),
      carried ? this.carried(carried) : "",
      section("Attrs", attrs.length ? facts(attrs, "mono") : paragraph("none")),
    );
  }

  flows(line) {
    const names = line.sides.length > 1 ? SIDE_NAMES : ["flows back"];
    const entries = line.sides.map(({ flow, arrives }, side) => {
      const words = [ARRIVES[arrives], FLOWS_ON[flow], causeBehind(line, side)];
      const text = flow ? words.filter(Boolean).join(", ") : FLOW_WORDS[Flow.ABSENT];
      return [names[side], text, "", `flow f${flow}`];
    });
    if (line.tensor) entries.push(["gives", line.tensor, "", "mono"]);
    const sizes = (this.view.sizesOf(line) || []).map(sizeInWords).join(" → ");
    if (sizes) entries.push(["largest", sizes, "", "mono"]);
    return facts(entries);
  }

  // Doctor's words; of what ends before rules and flows on after them, that it was so before.
  finding(finding, { sides }) {
    const [goesOn, isBefore] = sides.map(side => isFlowing(side.flow));
    const comes = sides.some(side => side.arrives > Flow.NONE);
    const ends = finding.on_path ? "Why it ends here" : "Ends here";
    const words = !comes ? "Nothing could flow on" : goesOn ? "One path ends here" : ends;
    return make(
      "section", "finding", make("h3", "", `${words}${isBefore && !goesOn ? ", before" : ""}`),
      paragraph(finding.what), paragraph(finding.consequence),
      paragraph(make("b", "", "Fix: "), finding.remedy), ...ruleText(finding.rule),
    );
  }

  rule({ name, words, rule }, mark) {
    const title = paragraph(badge(mark, name), " ", name, words ? ` (${words})` : "");
    return section("Rule", title, ...ruleText(rule));
  }

  gradient(plot) {
    const sides = Object.entries(plot.words);
    const entries = sides.map(
      ([side, words]) => [sides.length > 1 ? side : "dx", words, `key ${side}`, "mono"]);
    return section("Gradient", facts(entries), drawPlot(plot));
  }

  // What an op reads: a link where that has a line, of which an output that is not 0 is named.
  inputs({ inputs, body }) {
    const items = inputs.map(input => {
      if (typeof input === "string") return make("li", "mono", input);
      const [at, words] = [input].flat(), line = body.byNumber[at];
      return make("li", "", makeButton("link", words || line.name, () => this.view.go(line)));
    });
    return make("ol", { class: "inputs", start: 0 }, ...items);
  }

  carried(nodes) {
    const items = nodes.map(([type, name]) => make("li", "mono", `${type}  ${name}`));
    const isOf = test => nodes.some(([type]) => test(type));
    const words = isOf(type => ["NoOp", "RefIdentity"].includes(type)) ? STANDS_IN
      : isOf(type => type.startsWith("graphpatch_")) ? IN_FUNCTION : IN_OPS;
    return section("Stored as", make("ul", "inputs", ...items), paragraph(words));
  }
}
