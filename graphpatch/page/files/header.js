// The header: what the models are, their inputs and outputs, the verdict of each pair of ends, and
// the legend of the rules.

const FIRST_PAIRS = 3; // verdicts that are shown at first
const FIRST_ENDS = 6; // inputs, and outputs, that are shown
const NARROW = 1000; // pixels of a page that shows half of these
const VERDICTS = { flows: "flows", zero: "zeros", none: "None", error: "error" };
const NO_PAIR = "No pair of tensors was asked about: there is no input, or nothing is computed.";

class Header {
  constructor(view) {
    this.view = view;
    this.title();
    this.graphs();
    this.sides();
    this.buttons();
  }

  // Show what is said of the graph that is chosen.
  show() {
    this.ends();
    this.verdicts();
    this.legend();
    this.pictures();
  }

  title() {
    const { models } = this.view.doc;
    const titles = models.map(({ title }) => [make("span", "to", " → "), make("bdi", "", title)]);
    const words = models.map(({ path, format, ops }) => `${path}: ${format}, ${plural(ops, "op")}`);
    fill(byId("title"), { title: words.join("\n") }, titles.flat().slice(1));
  }

  graphs() {
    const { graphs } = this.view.doc, select = byId("graph");
    select.hidden = graphs.length < 2;
    graphs.forEach((graph, at) => select.append(new Option(graph.label || `graph ${at}`, at)));
    select.addEventListener("change", () => this.view.choose(Number(select.value)));
  }

  // Buttons that show both models, or one.
  sides() {
    const group = byId("sides");
    group.hidden = this.view.doc.models.length < 2;
    const choices = [["both", null], ["before", 0], ["after", 1]];
    group.append(...choices.map(([name, only]) => makeButton("", name, event => {
      for (const button of group.children) {
        button.setAttribute("aria-pressed", button === event.target);
      }
      this.view.only = only;
      this.view.show();
    })));
    group.firstChild.setAttribute("aria-pressed", true);
  }

  buttons() {
    const { view } = this, root = document.documentElement;
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const theme = () => root.dataset.theme || (scheme.matches ? "dark" : "light");
    const clicks = {
      fold: () => view.foldAll(false),
      open: () => view.foldAll(true),
      svg: () => savePicture(view, false),
      png: () => savePicture(view, true),
      help: () => view.panel.help(),
      theme: () => { root.dataset.theme = theme() === "dark" ? "light" : "dark"; },
    };
    for (const [id, does] of Object.entries(clicks)) byId(id).addEventListener("click", does);
  }

  // The model's inputs and outputs: a click leads to the line of one, where it has one.
  ends() {
    const { graph, main } = this.view, { weights } = graph;
    const most = innerWidth < NARROW ? FIRST_ENDS / 2 : FIRST_ENDS;
    const lines = new Map(main.lines.map(line => [line.name, line]));
    const groups = ["inputs", "outputs"].map(name => {
      const ends = [...graph[name]].sort((a, b) => lines.has(b.op) - lines.has(a.op));
      const shown = ends.slice(0, most), more = ends.length - shown.length;
      const count = !shown.length ? "none" : more ? `and ${number(more)} more` : "";
      const links = shown.flatMap(end => [this.end(end, lines.get(end.op)), " "]);
      const soft = words => make("span", "soft", words);
      return make("div", "", soft(`${name} `), ...links, soft(count));
    });
    byId("ends").replaceChildren(...groups, weights ? make("span", "soft", weights) : "");
  }

  end({ name, tensor, signature }, line) {
    const words = `${name} ${tensor}`, go = () => this.view.go(line);
    if (line) return makeButton({ class: "link", title: signature }, words, go);
    const hint = "not between these ends: name it with --from or --to";
    const title = [signature, hint].filter(Boolean).join("; ");
    return make("span", { class: "mono soft", title }, words);
  }

  verdicts() {
    const { doc, graph } = this.view, { pairs, pairs_left_out: leftOut } = graph;
    const note = words => make("p", "note", words);
    const notes = [...doc.notes, ...graph.notes].map(note);
    const lines = pairs.map(pair => this.verdict(pair)), hidden = lines.splice(FIRST_PAIRS);
    if (hidden.length) lines.push(moreButton(`and ${plural(hidden.length, "more pair")}`, hidden));
    if (!lines.length && !graph.notes.length) lines.push(note(NO_PAIR));
    if (leftOut) {
      lines.push(note(`${number(leftOut)} more pairs were not asked about; name --from and --to.`));
    }
    const isTwo = doc.models.length > 1; // what rules did comes first then
    byId("verdicts").replaceChildren(...(isTwo ? [...notes, ...lines] : [...lines, ...notes]));
  }

  // "gradient of Y with respect to X  None → flows  before, it ends at Round r; after, it is
  // changed by A". Where both sides are alike, that is said once.
  verdict({ from, to, sides, changed }) {
    const key = ({ connected, verdict, findings }) =>
      [connected, verdict, ...findings.map(finding => finding.op)].join("\n");
    const isTwo = sides.length > 1, isAlike = isTwo && key(sides[0]) === key(sides[1]);
    const shown = isAlike ? sides.slice(0, 1) : sides;
    const arrow = () => make("span", "to", " → ");
    const chips = shown.flatMap((side, at) => [at ? arrow() : "", this.chip(side)]);
    const parts = [];
    shown.forEach(({ verdict, findings }, at) => {
      if (verdict === "flows" || !findings.length) return;
      const when = isAlike ? " before and after," : isTwo ? ` ${SIDE_NAMES[at]},` : "";
      parts.push([`${when} it ends at `, ...this.blockers(findings)]);
    });
    if (isTwo && sides[1].verdict === "flows") {
      const rules = [...this.view.doc.rules.entries()];
      const badges = rules.filter(([, { name }]) => Object.hasOwn(changed, name))
        .map(([at, { name }]) => badge(at, name));
      const words = parts.length ? " after, it is changed by " : " changed by ";
      if (badges.length) parts.push([words, ...badges]);
      else if (isAlike) parts.push([" not changed"]);
    }
    return make(
      "p", "verdict", "gradient of ", make("bdi", "mono", to),
      " with respect to ", make("bdi", "mono", from), " ", ...chips,
      ...parts.flatMap((words, at) => [at ? ";" : "", ...words]),
    );
  }

  chip({ connected, verdict, says }) {
    const words = connected ? VERDICTS[verdict] : "None: not connected";
    return make("span", { class: `chip v-${verdict}`, title: says }, words);
  }

  // Links to the ops at which a gradient ends, the first and a button for the others.
  blockers(findings) {
    const [first, ...others] = findings.map(finding => {
      const { type, op, what } = finding, line = this.lineOf(finding);
      return makeButton({ class: "link", title: what }, `${type} ${op}`, () => {
        if (line) this.view.go(line);
      });
    });
    const hidden = others.flatMap(link => [", ", link]);
    const button = moreButton(`and ${number(others.length)} more`, hidden);
    return others.length ? [first, " ", button] : [first];
  }

  lineOf({ op, body: name }) {
    const { bodies, graph } = this.view;
    const body = bodies.slice(graph.body).find(body => body.name === name);
    const isOf = line => line.name === op || op.startsWith(`${line.name}/`);
    return body && body.lines.find(line => line.isCause && isOf(line));
  }

  // The rules, those without an op last. A click leads to the next op of one.
  legend() {
    const { doc, lines } = this.view;
    const rules = [...doc.rules.entries()].sort(([, a], [, b]) => !a.ops - !b.ops);
    byId("legend").replaceChildren(...rules.map(([at, { name, words, ops, error }]) => {
      const isMarked = line => line.marks.includes(at);
      const inView = lines.filter(isMarked).length, all = plural(ops, "op");
      const count = inView < ops ? `${number(inView)} of ${all} in view` : all;
      const next = () => this.view.next(isMarked, `no op of ${name} is in view`);
      const title = "Go to the next op of this rule";
      const button = makeButton({ class: "rule", title }, badge(at, name), next);
      button.append(
        " ", name, make("span", "words", words && words !== name ? ` ${words}` : ""), " ",
        make("span", "count", count), " ", error ? make("span", "flow f6", error) : "");
      return button;
    }));
  }

  // What a run says, and the gradients of its sources.
  pictures() {
    const { run } = this.view;
    const figures = run ? run.sources.flatMap(source => source.pictures.map(drawPicture)) : [];
    const note = run && run.note ? make("p", "note", run.note) : "";
    byId("pictures").replaceChildren(
      note, figures.length ? make("div", "pictures", ...figures) : "");
  }
}
