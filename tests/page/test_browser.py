"""The page in Chromium: what it shows, what keys do, and that it says nothing in the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.page.gradient_sizes import pictures
from graphpatch.protos import GraphDef
from scripts import view_models
from tests import graphs
from tests.models.catalogue import every_model, models, sample
from tests.page.browser import Opened, browser
from tests.patches.one_op import net

ROOT = Path(__file__).parent.parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"
SCRIPT = "<script>alert(1)</script>"
HOSTILE = [
    SCRIPT,
    "\"quoted' & </script><img src=x onerror=alert(2)>",
    "line\nfeed\u202eright to left",
    "\u05e9\u05dc\u05d5\u05dd/\u0645\u0631\u062d\u0628\u0627",
    "__proto__",
    "long" * 250_000,
]


INNER = graphs.function("inner", ["a"], net("step:Round(a)"), {"y": "step:y:0"})


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


Show = Callable[..., Opened]


@pytest.fixture
def show(chrome: Any, tmp_path: Path) -> Iterator[Show]:
    """Open a view, or the page in a file; it must say nothing until the end of the test."""
    pages = list[Opened]()

    def show(page: graphpatch.View | Path, width: int = 1200, **options: Any) -> Opened:
        path = page if isinstance(page, Path) else tmp_path / "page.html"
        if not isinstance(page, Path):
            page.save(path)
        pages.append(Opened(chrome, path, width, **options))
        return pages[-1]

    yield show
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "digits.html"
    graphpatch.view(DIGITS, rules=GUIDED).save(path)
    return path


def chain(names: list[str]) -> GraphDef:
    """A placeholder, and a Relu of each name, one reading the other."""
    read = zip(names, ["x", *names], strict=False)
    relus = (graphs.node(name, "Relu", one) for name, one in read)
    return GraphDef(node=[graphs.node("x", "Placeholder", dtype="float32"), *relus])


def test_what_is_seen_at_first(show: Show, digits: Path) -> None:
    opened = show(digits)
    rows = opened.rows()
    assert any("Identity" in row and "logits" in row and "target" in row for row in rows)
    assert any("Round, a step function" in row and "ends here" in row for row in rows)
    assert "None → flows" in opened.page.inner_text("#verdicts").replace("\n", " ")
    assert "guided backprop" in opened.page.inner_text("#legend")
    # Two lanes a row, and the knot where it ends has a form of its own.
    assert opened.page.locator(".row svg .knot.f5 .cross").count() == 1
    assert opened.page.locator("#heads").inner_text().split()[:2] == ["before", "after"]
    assert opened.page.locator("#heads .symbol").count() == 6
    # A name stands without the scope around it.
    at = next(n for n, row in enumerate(rows) if "dense/" in row)
    assert rows[at].startswith("▾dense/")
    assert any(row.startswith("BRelurelu") for row in rows[at + 1 : at + 3])
    # What is in order says nothing at its right; what is changed says so.
    assert not any(row.endswith("full") for row in rows)
    assert any(row.endswith("full→changed") for row in rows)
    # A rule leads from op to op.
    chosen = []
    for _ in range(4):
        opened.page.click("#legend .rule:nth-child(2)")
        chosen.append(opened.selected())
    assert all("relu" in text for text in chosen)
    assert chosen[3] == chosen[0]


def test_notes_on_rules_come_before_verdicts_in_whole_lines(show: Show) -> None:
    graph = chain([f"long_{number}" * 30 for number in range(4)])
    guided = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    view = graphpatch.view(graph, rules=[guided], sources="x", targets="long_0" * 30)
    opened = show(view, width=300)
    box = opened.page.locator("#verdicts")
    assert box.inner_text().startswith("rules touch 3 ops")
    heights = box.evaluate("box => [...box.children].map(line => line.offsetHeight)")
    seen, whole = box.evaluate("box => [box.clientHeight, box.scrollHeight]")
    assert (seen < whole, {height % 24 for height in (seen, *heights)}) == (True, {0})


def test_keys_go_from_line_to_line_fold_and_show(show: Show, digits: Path) -> None:
    opened = show(digits)
    for key in ("Home", "ArrowDown"):  # keys work on arrival
        opened.page.keyboard.press(key)
    assert "classifier/" in opened.selected()
    before = len(opened.rows())
    opened.press("ArrowLeft")
    assert len(opened.rows()) == before - 2
    opened.press("ArrowRight")
    assert len(opened.rows()) == before
    opened.press("b", "Enter")
    assert "Round" in opened.selected()
    panel = opened.page.inner_text("#panel")
    for text in ("WHY IT ENDS HERE", "straight_through", "before", "after", "float32"):
        assert text in panel
    assert opened.page.locator("#panel svg.curves").count() == 1
    opened.press("Escape")
    assert not opened.page.is_visible("#panel")
    opened.press("?")
    assert "next op at which a gradient ends" in opened.page.inner_text("#panel")
    opened.press("Escape")
    opened.press("End")
    assert "image" in opened.selected()


def test_the_search_shows_the_lines_with_all_words(show: Show, digits: Path) -> None:
    opened = show(digits)
    page = opened.page
    page.click("#fold")
    assert not any("relu" in row for row in opened.rows())
    page.keyboard.press("/")
    page.keyboard.type("RELU")
    assert page.inner_text("#found") == "3 ops"
    assert len(opened.rows()) == 3
    page.keyboard.type(" block2")
    assert page.inner_text("#found") == "1 op"
    page.keyboard.press("Enter")
    assert "block2/relu" in opened.selected()
    assert page.inner_text("#found") == "1 of 1 op"
    page.keyboard.press("Escape")
    assert "relu" in opened.selected()
    assert len(opened.rows()) > 3
    page.keyboard.press("/")
    page.keyboard.type("no such op")
    assert "No op has these words" in page.inner_text("#list")


def test_a_link_leads_to_an_op(show: Show, digits: Path) -> None:
    opened = show(digits)
    opened.page.goto(f"{digits.resolve().as_uri()}#op=block2%2Frelu")
    opened.page.reload()
    assert "relu" in opened.selected()
    assert "block2/relu" in opened.page.inner_text("#panel h2")
    opened.press("End")
    assert opened.page.evaluate("location.hash") == "#op=image"
    opened.page.evaluate("location.hash = 'op=nowhere'")
    opened.page.wait_for_timeout(50)
    assert opened.page.inner_text("#found") == "no op nowhere is in view"


def test_names_and_rules_are_copied(show: Show, digits: Path) -> None:
    opened = show(digits, permissions=["clipboard-read", "clipboard-write"])
    opened.press("b")
    copied = []
    for button in ("copy name", "copy rule"):
        opened.page.click(f"text={button}")
        opened.page.wait_for_timeout(50)
        copied.append(opened.page.evaluate("navigator.clipboard.readText()"))
    assert copied[0] == "quantize/Round"
    assert '"straight_through": true' in copied[1]


@pytest.mark.parametrize(("button", "begins"), [("#svg", b"<svg"), ("#png", b"\x89PNG")])
def test_the_list_is_saved_as_a_picture(
    show: Show, digits: Path, tmp_path: Path, button: str, begins: bytes
) -> None:
    opened = show(digits)
    with opened.page.expect_download() as download:
        opened.page.click(button)
    path = tmp_path / "picture"
    download.value.save_as(path)
    content = path.read_bytes()
    assert content.startswith(begins)
    if button == "#svg":
        assert b"FusedBatchNormV3" in content
        assert content.count(b"<circle") > 10


def test_a_picture_has_the_lines_of_a_text_as_they_are_drawn(show: Show) -> None:
    opened = show(graphpatch.view(DIGITS, targets="logits"), width=420)
    why = opened.page.locator(".row .why").first
    assert why.evaluate("one => one.getBoundingClientRect().height") > 25  # it is wrapped
    lines = opened.page.evaluate(
        "[...textOf(...(e => [e, 0, 0, e.getBoundingClientRect()])("
        "document.querySelector('.row .why')))].map(one => one.textContent)"
    )
    assert len(lines) > 1
    assert "".join(lines).split() == why.inner_text().split()


def test_variables_are_one_line_without_lanes(show: Show) -> None:
    graph = GraphDef(node=net("".join(
        f"layer{n}/w:VariableV2 layer{n}/relu:Relu({f'layer{n - 1}/sum' if n else 'layer0/w'})"
        f" layer{n}/sum:AddV2(layer{n}/relu,layer{n}/w) " for n in range(12)
    )))  # fmt: skip
    opened = show(graphpatch.view(graph))
    assert "12 variables: each gets a gradient" in opened.rows()[-1]
    assert opened.page.evaluate("view.root.sides[0].width") <= 2
    assert not any("VariableV2" in row for row in opened.rows())
    opened.press("End", "Enter")
    assert sum("VariableV2" in row for row in opened.rows()) > 3


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (2000, "light")])
def test_no_row_is_wider_than_the_page(show: Show, digits: Path, width: int, scheme: str) -> None:
    opened = show(digits, width, color_scheme=scheme)
    wide, paper = opened.page.evaluate(
        "[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
    )
    assert wide <= width
    assert opened.page.evaluate("document.getElementById('list').scrollWidth") <= width
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    opened.page.click("#theme")
    changed = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert changed != paper


def test_names_are_text(show: Show, tmp_path: Path) -> None:
    model = tmp_path / "model.pb"
    model.write_bytes(chain(HOSTILE).SerializeToString())
    opened = show(graphpatch.view(model))
    rows = opened.rows()
    assert any(SCRIPT in row for row in rows)
    assert any(r"line\nfeed\u202eright to left" in row for row in rows)
    assert any("characters left out" in row for row in rows)
    assert opened.page.locator("img").count() == 0
    opened.press("End", "Enter", "Home", "Enter", *["ArrowDown"] * 7)


def test_without_a_source_b_goes_where_a_gradient_ends(show: Show) -> None:
    graph = GraphDef(node=net("seven:Const step:Round(seven)"))
    opened = show(graphpatch.view(graph, targets="step"))
    told = opened.page.inner_text("#verdicts")
    assert told == "it has no placeholder and no variable: name a source with --from"
    opened.press("b")
    assert "Round" in opened.selected()


def test_a_line_where_a_gradient_ends_names_the_op_that_is_the_cause(show: Show) -> None:
    """Or why it ends there, where no pair that was asked about leads through it."""
    ops = "gate:Cast(spike,SrcT=bool) step:Round(x) y:AddV2(gate,gate) sum:AddV2(step,x)"
    graph = GraphDef(node=net(f"x:Placeholder spike:Greater(x,x) {ops}"))
    opened = show(graphpatch.view(graph, sources="x", targets=["y", "sum"]))
    rows = opened.page.inner_text("#list")
    assert "goes no further, because of Greater spike" in rows, rows
    assert "Round, a step function" in rows, rows


def test_a_function_opens_to_its_body(show: Show) -> None:
    ops = net("x:Placeholder before:Relu(x) call:inner(before)")
    graph = graphs.graphdef(*ops, functions=[INNER])
    opened = show(graphpatch.view(graph))
    rows = opened.rows()  # open at first, as a gradient ends inside
    assert any("Round" in row and "ends here" in row for row in rows)
    opened.press("Home", "ArrowLeft")
    rows = opened.rows()
    assert not any("step" in row for row in rows)
    assert "a gradient ends inside" in rows[0]
    opened.press("ArrowRight")
    rows = opened.rows()
    assert any("ƒ inner" in row for row in rows)
    assert any("Round" in row and "ends here" in row for row in rows)
    opened.press("ArrowDown", "ArrowDown", "ArrowLeft")
    assert opened.selected() == "ƒ inner"  # and once more leads to the call
    opened.press("ArrowLeft", "ArrowLeft")
    assert not any("step" in row for row in opened.rows())


def test_a_rule_that_matches_nothing_is_explained(show: Show) -> None:
    rule = {"name": "typo", "match": {"op": "ReLU"}, "patch": {"stop_gradient": True}}
    said = show(graphpatch.view(DIGITS, rules=rule)).page.text_content("#legend")
    assert "0 ops rule 'typo': matched nothing" in said
    assert "nearest: Relu" in said


def test_search_keys_and_legend_reach_functions_in_functions(show: Show) -> None:
    outer = graphs.function("outer", ["b"], net("deep/call:inner(b)"), {"y": "deep/call:y:0"})
    ops = net("x:Placeholder scope/before:Relu(x) scope/call:outer(scope/before)")
    graph = graphs.graphdef(*ops, functions=[INNER, outer])
    rule = {"name": "pass", "match": {"op": "Round"}, "patch": {"straight_through": True}}
    opened = show(graphpatch.view(graph, rules=rule))
    page = opened.page
    assert "1 op" in page.inner_text("#legend")
    assert any("Round" in row for row in opened.rows())  # open at first, as a rule is there

    def search() -> None:
        page.keyboard.press("/")
        page.keyboard.type("ROUND")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")

    # What an op of a function reads leads to its line: an argument, and an op by its output.
    page.set_viewport_size({"width": 400, "height": 600})
    opened.press("End", "Home", "r")
    page.click("#panel .inputs .link")
    assert "argument" in opened.selected()
    page.set_viewport_size({"width": 1200, "height": 800})

    for go in (
        search,
        lambda: opened.press("b"),
        lambda: opened.press("r"),
        lambda: page.click("#legend .rule"),
    ):
        go()
        assert "Round" in opened.selected()
        assert "step" in opened.selected()
        assert [row.count("ƒ") for row in opened.rows()].count(1) == 2
        # Away from it, and what is around it closed again.
        opened.press("Home", "End")
        page.click("#fold")
        page.evaluate("view.rows.filter(row => row.line).forEach(row => view.fold(row, false))")
        assert not any("Round" in row for row in opened.rows())


def test_values_of_a_run_are_bars_and_pictures(show: Show) -> None:
    view = graphpatch.view(DIGITS, rules=GUIDED, sources="image", targets="logits")
    names = view.document()["bodies"][0]["names"]
    sizes = {
        "logits": [1.0, 1.0],
        "classifier/BiasAdd": [1e-3, 1.0],
        "dense/relu": ["NaN", 0.0],
        "image": [None, "inf"],
    }
    image = np.zeros((1, 8, 8, 1))
    image[0, 3, 4] = 1
    answers = [(None, None, ""), (1.0, image, "")]
    lines = {names.index(name): both for name, both in sizes.items()}
    run = {
        "note": "run: by hand",
        "sizes": {"lines": lines, "least": 1e-3, "most": 1.0, "tiny": 1e-12},
        "sources": [
            {"name": "image:0", "pictures": pictures("image:0", image, answers)},
            {"name": "w:0", "pictures": pictures("w:0", None, [(1, np.arange(64.0), "")])},
        ],
    }
    view.document()["run"] = {"graphs": [run]}
    opened = show(view)
    bars = opened.page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.row')].map(row => "
        "[row.querySelector('.name').title, row.querySelector('svg.bars')]).filter(one => one[1])"
        ".map(([name, svg]) => [name, [svg.getAttribute('aria-label'), "
        "[...svg.querySelectorAll('rect')].map(one => +one.getAttribute('width')), "
        "[...svg.querySelectorAll('text')].map(one => one.textContent)]]))"
    )
    assert {name: one[0].partition(": ")[2] for name, one in bars.items()} == {
        "logits": "before 1.00, after 1.00",
        "classifier/BiasAdd": "before 0.00100, after 1.00",
        "dense/relu": "before NaN, after 0",
        "image": "before None, after inf",
    }
    assert bars["logits"][1] == [84, 84]  # the longest, on a logarithmic scale
    assert bars["classifier/BiasAdd"][1][0] < 10
    assert bars["dense/relu"][1:] == [[], ["NaN", "0"]]
    assert bars["image"][2] == ["inf"]
    lefts = "[...document.querySelectorAll('.row .bars')].map(bar => bar.getBoundingClientRect().x)"
    assert len(set(opened.page.evaluate(lefts))) == 1  # also beside "full -> changed"
    assert (
        opened.page.get_attribute(".largest", "title") == "under 1e-12 of the largest counts as 0"
    )
    heats = opened.page.locator("#pictures svg.heat")
    assert [heats.nth(n).get_attribute("viewBox") for n in (0, 1)] == ["0 0 8 8"] * 2
    # The one pixel that has a gradient is where it was, in the darkest ink; all others have none.
    cells = heats.nth(1).locator("path")
    assert cells.get_attribute("d") == "M4 3h1v1h-1z"
    assert cells.get_attribute("fill-opacity") == "1"
    assert opened.page.locator("#pictures svg.histogram rect").count() == 32
    assert "None" in opened.page.inner_text("#pictures .nothing")


@pytest.mark.slow
def test_100_000_lines_open_and_scroll(show: Show) -> None:
    graph = chain([f"tower/block{n // 10}/op{n}" for n in range(100_000)])
    view = graphpatch.view(graph)
    opened = show(view)
    opened.page.click("#open")
    opened.press("End")
    opened.page.wait_for_timeout(50)
    assert "source" in opened.selected()
    assert len(opened.rows()) < 100
    opened.press("PageUp", "Home")
    assert "tower/" in opened.selected()


def test_what_is_printed_has_every_line(show: Show, digits: Path) -> None:
    opened = show(digits)
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    assert len(opened.rows()) > 30
    assert len(opened.page.pdf()) > 10_000


def test_the_pages_of_a_folder_are_tried(
    chrome: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    (models / "saved").mkdir(parents=True)
    (models / "digits.pb").write_bytes(DIGITS.read_bytes())
    (models / "saved" / "saved_model.pb").write_bytes(b"no model")
    counts = view_models.tried(view_models.models(models), models, tmp_path / "pages", chrome)
    assert counts == {"shown": 1, "lines": 26, "refused": 1, "with faults": 0}
    assert capsys.readouterr().out.startswith("saved: refused: ")
    assert (tmp_path / "pages" / "digits.pb.html").exists()


@pytest.mark.parametrize("name", every_model())
@pytest.mark.slow
def test_the_page_of_a_real_model_says_nothing(show: Show, name: str) -> None:
    if name not in sample():
        pytest.skip("scripts/view_models.py opens the pages of all models")
    try:
        opened = show(graphpatch.view(models()[name]))
    except graphpatch.ModelError as error:
        if "the page would be empty; inputs: " not in str(error):
            raise
        return
    opened.page.click("#open")
    opened.press("b", "Enter", "End", "Enter")


@pytest.mark.parametrize("width", [420, 800, 1000])
def test_no_text_of_a_row_is_cut_or_hidden_beside_the_panel(show: Show, width: int) -> None:
    long = f"tower/a_layer_of_many_words/{'CTCBeamSearchDecoder' * 3}"
    ops = ("FakeQuantWithMinMaxVarsPerChannel", "Round", "TensorArrayGatherV3", "Relu")
    names = [f"{long}_{n}" if n % 3 else f"n{n}" for n in range(60)]
    read = zip(names, ["x", *names], strict=False)
    nodes = [graphs.node(name, ops[n % 4], one) for n, (name, one) in enumerate(read)]
    graph = GraphDef(node=[graphs.node("x", "Placeholder", dtype="float32"), *nodes])
    opened = show(graphpatch.view(graph, sources="x", targets=names[-1]), width)
    opened.press("b", "b", "End", "PageUp", "PageUp")
    rows = opened.page.evaluate("""[...document.querySelectorAll('.row')].map(row => ({
      box: [row.getBoundingClientRect().top, row.getBoundingClientRect().bottom],
      text: row.querySelector('.text').offsetHeight,
      cut: [row, ...row.querySelectorAll('*')].filter(part => part.clientWidth
        && !part.matches('.tensor, svg *') && part.scrollWidth > part.clientWidth + 1)
        .map(part => part.textContent),
    }))""")
    assert [row["cut"] for row in rows if row["cut"]] == []
    heights = [row["box"][1] - row["box"][0] for row in rows]
    assert max(heights) > 26  # some take more than a line
    assert heights == [row["text"] for row in rows]  # all of a text is seen, and nothing is empty
    assert [a["box"][1] for a in rows[:-1]] == [b["box"][0] for b in rows[1:]]
    assert opened.selected()


def test_a_reason_beside_the_panel_leaves_room_for_the_name(show: Show) -> None:
    """In deep scopes the name was a column of single letters."""
    array = "n:Const(dtype=int32) h:TensorArrayV3(n,dtype=float32) f:TensorArrayWriteV3(h,n,x,h:1)"
    scope = "outer/middle/inner/TensorArrayStack"
    name = f"{scope}/the_name_of_what_it_reads"
    read = f"{name}:TensorArrayReadV3(h,n,f,dtype=float32) {scope}/relu:Relu({name})"
    text = f"x:Placeholder {array} {read} y:AddV2({name},{scope}/relu)"
    opened = show(graphpatch.view(GraphDef(node=net(text)), sources="x", targets="y"), 880)
    opened.press("b")
    heights = opened.page.evaluate("""['.type', '.name'].map(part =>
      document.querySelector(`.row[aria-selected=true] ${part}`).offsetHeight)""")
    assert "the_name_of_what_it_reads" in opened.selected()
    assert heights == [18, 18]
