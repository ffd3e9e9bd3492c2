"""What the page draws, compared with what its document says: knots, lanes, curves, and colours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from tests import graphs
from tests.page.browser import Opened, browser
from tests.patches.one_op import net

ROOT = Path(__file__).parent.parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"
NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = range(1, 7)
INKS = {
    "light": {"none": "#8b949e", "full": "#2563eb", "changed": "#b45309", "bad": "#c4162a"},
    "dark": {"none": "#7d8793", "full": "#6ea8fe", "changed": "#f0a04b", "bad": "#ff7b84"},
}
INK = {NONE: "none", ZERO: "none", FULL: "full", CHANGED: "changed", BLOCKED: "bad", ERROR: "bad"}
# Of each line its op, and of each side the colours of its knot, and of lanes that come from above.
DRAWN = """
() => {
  const rows = [...document.querySelectorAll(".row")];
  const lines = rows.map(row => [row, view.rows[Number(row.id.slice(3))]]);
  const inks = marks => [...marks].map(mark => getComputedStyle(mark).stroke);
  const fromAbove = path => /^M[\\d.]+ 0[VC]/.test(path.getAttribute("d"));
  return lines.filter(([, shown]) => shown.kind === "line").map(([row, shown]) => [
    shown.line.name, Number(row.id.slice(3)),
    [...row.querySelectorAll(".lanes")].map(cell => [
      inks(cell.querySelectorAll(".knot")),
      inks([...cell.querySelectorAll("path.lane")].filter(fromAbove)),
    ]),
  ]);
}
"""
CURVES = """
() => [...document.querySelectorAll("svg.curves")].map(picture =>
  Object.fromEntries([...picture.querySelectorAll("path.curve")].map(path =>
    [path.classList[1], [path.getAttribute("d"), getComputedStyle(path).stroke]])))
"""


def ink(flow: int, scheme: str) -> str:
    """The colour in which it is drawn that this flows, as a browser spells it."""
    code = INKS[scheme][INK[flow]]
    return f"rgb({', '.join(str(int(code[at : at + 2], 16)) for at in (1, 3, 5))})"


# A graph at whose ops a gradient is zero, is none, raises, and goes three ways.
ODD = """x:Placeholder in/sign:Sign(x) in/bad:PreventGradient(x) in/relu:Relu(x)
    in/step:Round(in/relu) out/first:AddV2(in/sign,in/bad) out/y:AddV2(out/first,in/step)"""
ENDS = {"sources": "image", "targets": "logits"}
MODELS: dict[str, tuple[Callable[[], graphpatch.View], set[int]]] = {
    "one": (lambda: graphpatch.view(DIGITS, **ENDS), {NONE, FULL, BLOCKED}),
    "two": (lambda: graphpatch.view(DIGITS, rules=GUIDED, **ENDS), {NONE, FULL, CHANGED, BLOCKED}),
    "odd": (
        lambda: graphpatch.view(graphs.graphdef(*net(ODD)), sources="x", targets="out/y"),
        {ZERO, FULL, BLOCKED, ERROR},
    ),
}


Shown = dict[str, tuple[dict[str, Any], Any]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """The documents and the open pages of the models."""
    with browser() as chrome:
        found: Shown = {}
        for name, (make, _) in MODELS.items():
            view, file = make(), tmp_path_factory.mktemp("page") / "page.html"
            view.save(file)
            page = Opened(chrome, file).page
            page.set_viewport_size({"width": 1200, "height": 1500})
            found[name] = view.document(), page
        yield found


@pytest.mark.parametrize("scheme", INKS)
@pytest.mark.parametrize("name", MODELS)
def test_knots_and_lanes_have_the_colour_of_what_flows(
    shown: Shown, name: str, scheme: str
) -> None:
    document, page = shown[name]
    page.emulate_media(color_scheme=scheme)
    body, drawn = document["bodies"][0], page.evaluate(DRAWN)
    at = {op: index for op, index, _ in drawn}
    assert sorted(at) == sorted(body["names"])
    assert {flow for side in body["sides"] for flow in side["flow"]} >= MODELS[name][1]
    for op, index, cells in drawn:
        for side, (knots, lanes) in zip(body["sides"], cells, strict=True):
            flow = side["flow"][body["names"].index(op)]
            assert knots == ([ink(flow, scheme)] if flow else []), op
            passing: dict[int, int] = {}  # by producer, the most that flows there
            for reader, edges in enumerate(side["edges"]):
                for producer, flows in zip(edges[::2], edges[1::2], strict=True):
                    if at[body["names"][reader]] < index <= at[body["names"][producer]]:
                        passing[producer] = max(flows, passing.get(producer, 0))
            assert sorted(lanes) == sorted(ink(flows, scheme) for flows in passing.values()), op


@pytest.mark.parametrize("scheme", INKS)
def test_the_plot_of_a_rule_has_both_curves(shown: Shown, scheme: str) -> None:
    document, page = shown["two"]
    page.emulate_media(color_scheme=scheme)
    row = document["bodies"][0]["names"].index("block2/relu")
    plot = document["tables"]["plots"][document["bodies"][0]["plots"][row]]
    page.evaluate("view.go(view.main.lines.find(line => line.name === 'block2/relu'))")
    for drawn, dy in zip(page.evaluate(CURVES), (1, -1), strict=True):
        curves = {one["side"]: one["points"] for one in plot["curves"] if one["dy"] == dy}
        top = 1.05 * max(1.2, *(abs(y) for points in curves.values() for _, y in points))
        assert drawn.keys() == curves.keys() == {"before", "after"}
        for side, points in curves.items():
            path, colour = drawn[side]
            assert colour == ink({"before": FULL, "after": CHANGED}[side], scheme)
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", path)]
            x = [16 + (x - plot["low"]) / (plot["high"] - plot["low"]) * 178 for x, _ in points]
            assert numbers[::2] == pytest.approx(x, abs=0.06)
            assert numbers[1::2] == pytest.approx([65 - y / top * 55 for _, y in points], abs=0.06)
