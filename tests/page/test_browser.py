"""The page in Chromium: what it shows, what keys do, and that it says nothing in the console."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.compat.proto.graph_pb2 import GraphDef

import graphpatch
from tests import graphs
from tests.models.catalogue import every_model, models, sample
from tests.page.browser import Opened, browser

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


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


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


def test_what_is_seen_at_first(chrome: Any, digits: Path) -> None:
    opened = Opened(chrome, digits)
    rows = opened.rows()
    assert any("Identity" in row and "logits" in row and "target" in row for row in rows)
    assert any("Round, a step function" in row and "ends here" in row for row in rows)
    assert "None → flows" in opened.page.inner_text("#verdicts").replace("\n", " ")
    assert "guided backprop" in opened.page.inner_text("#legend")
    # Two lanes a row, and the knot where it ends has a form of its own.
    assert opened.page.locator(".row svg .knot.f5 .cross").count() == 1
    assert opened.page.locator("#heads").inner_text().split()[:2] == ["before", "after"]
    opened.close()


def test_keys_go_from_line_to_line_fold_and_show(chrome: Any, digits: Path) -> None:
    opened = Opened(chrome, digits)
    opened.press("Home", "ArrowDown")
    assert "classifier/" in opened.selected()
    before = len(opened.rows())
    opened.press("ArrowLeft")
    assert len(opened.rows()) == before - 2
    opened.press("ArrowRight")
    assert len(opened.rows()) == before
    opened.press("b", "Enter")
    assert "quantize/Round" in opened.selected()
    panel = opened.page.inner_text("#panel")
    for text in ("WHY IT ENDS HERE", "straight_through", "before", "after", "float32"):
        assert text in panel
    assert opened.page.locator("#panel svg.curves").count() == 1
    opened.press("Escape")
    assert not opened.page.is_visible("#panel")
    opened.press("End")
    assert "image" in opened.selected()
    opened.close()


def test_the_search_opens_what_is_folded(chrome: Any, digits: Path) -> None:
    opened = Opened(chrome, digits)
    opened.page.click("#fold")
    assert not any("block2/relu" in row for row in opened.rows())
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("RELU")
    assert opened.page.inner_text("#found") == "3 found"
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Enter")
    assert "block2/relu" in opened.selected()
    opened.close()


def test_a_rule_leads_from_op_to_op(chrome: Any, digits: Path) -> None:
    opened = Opened(chrome, digits)
    seen = []
    for _ in range(4):
        opened.page.click("#legend .rule:nth-child(2)")
        seen.append(opened.selected())
    assert [text.count("relu") > 0 for text in seen] == [True] * 4
    assert seen[3] == seen[0]
    opened.close()


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (2000, "light")])
def test_no_row_is_wider_than_the_page(chrome: Any, digits: Path, width: int, scheme: str) -> None:
    opened = Opened(chrome, digits, width, color_scheme=scheme)
    wide, paper = opened.page.evaluate(
        "[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
    )
    assert wide <= width
    assert opened.page.evaluate("document.getElementById('list').scrollWidth") <= width
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    opened.page.click("#theme")
    changed = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert changed != paper
    opened.close()


def test_names_are_text(chrome: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pb"
    model.write_bytes(chain(HOSTILE).SerializeToString())
    graphpatch.view(model).save(tmp_path / "page.html")
    opened = Opened(chrome, tmp_path / "page.html")
    rows = opened.rows()
    assert any(SCRIPT in row for row in rows)
    assert any(r"line\nfeed\u202eright to left" in row for row in rows)
    assert any("characters left out" in row for row in rows)
    assert opened.page.locator("img").count() == 0
    opened.press("End", "Enter", "Home", "Enter", *["ArrowDown"] * 7)
    opened.close()


def test_a_function_opens_to_its_body(chrome: Any, tmp_path: Path) -> None:
    function = graphs.function(
        "inner", ["a"], [graphs.node("step", "Round", "a", T="float32")], {"y": "step:y:0"}
    )
    graph = chain(["before"])
    graph.node.append(graphs.node("call", "inner", "before"))
    graph.library.function.append(function)
    graphpatch.view(graph).save(tmp_path / "page.html")
    opened = Opened(chrome, tmp_path / "page.html")
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
    opened.press("ArrowLeft")
    assert not any("step" in row for row in opened.rows())
    opened.close()


def test_search_keys_and_legend_reach_functions_in_functions(chrome: Any, tmp_path: Path) -> None:
    inner = graphs.function(
        "inner", ["a"], [graphs.node("step", "Round", "a", T="float32")], {"y": "step:y:0"}
    )
    outer = graphs.function(
        "outer", ["b"], [graphs.node("deep/call", "inner", "b")], {"y": "deep/call:y:0"}
    )
    graph = chain(["scope/before"])
    graph.node.append(graphs.node("scope/call", "outer", "scope/before"))
    graph.library.function.extend([inner, outer])
    rule = {"name": "pass", "match": {"op": "Round"}, "patch": {"straight_through": True}}
    graphpatch.view(graph, rules=rule).save(tmp_path / "page.html")
    opened = Opened(chrome, tmp_path / "page.html")
    page = opened.page
    assert "1 op" in page.inner_text("#legend")
    assert any("Round" in row for row in opened.rows())  # open at first, as a rule is there

    def search() -> None:
        page.keyboard.press("/")
        page.keyboard.type("ROUND")
        assert page.inner_text("#found") == "1 found"
        page.keyboard.press("Enter")
        assert page.inner_text("#found") == "1 of 1 found"

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
        page.evaluate("view.shown.inside.clear(); view.keep(() => {})")
        assert not any("Round" in row for row in opened.rows())
    opened.close()


@pytest.mark.slow
def test_100_000_lines_open_in_seconds_and_scroll(chrome: Any, tmp_path: Path) -> None:
    graph = chain([f"tower/block{n // 10}/op{n}" for n in range(100_000)])
    view = graphpatch.view(graph)
    view.save(tmp_path / "page.html")
    begun = time.monotonic()
    opened = Opened(chrome, tmp_path / "page.html")
    opened.page.click("#open")
    assert time.monotonic() - begun < 15  # of a busy machine
    opened.press("End")
    opened.page.wait_for_timeout(50)
    assert "source" in opened.selected()
    assert len(opened.rows()) < 100
    opened.press("PageUp", "Home")
    assert "tower/" in opened.selected()
    opened.close()


def test_what_is_printed_has_every_line(chrome: Any, digits: Path) -> None:
    opened = Opened(chrome, digits)
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.page.emulate_media(media="print")
    assert sum("block" in row for row in opened.rows()) > 8
    assert len(opened.page.pdf()) > 10_000
    opened.close()


@pytest.mark.parametrize("name", every_model())
@pytest.mark.slow
def test_the_page_of_a_real_model_says_nothing(chrome: Any, name: str, tmp_path: Path) -> None:
    if name not in sample():
        pytest.skip("scripts/view_models.py opens the pages of all models")
    graphpatch.view(models()[name]).save(tmp_path / "page.html")
    opened = Opened(chrome, tmp_path / "page.html")
    opened.page.click("#open")
    opened.press("b", "Enter", "End", "Enter")
    opened.close()
