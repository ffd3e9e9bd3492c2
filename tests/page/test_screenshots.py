"""Screenshots, compared with what the document says: the colours at knots, lanes and curves.

Where a row is and how far columns lie apart, the page tells; what is drawn there, the screenshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.protos import GraphDef
from tests import graphs
from tests.page.browser import Opened, browser
from tests.page.screenshot import Colour, Screenshot, colour, inks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"
TALL, HEIGHT = 1500, 26  # pixels of the page, of a row

NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = range(1, 7)
INKS = {
    "light": {"paper": "#ffffff", "none": "#8b949e", "full": "#2563eb", "changed": "#b45309",
              "bad": "#c4162a"},
    "dark": {"paper": "#14181d", "none": "#7d8793", "full": "#6ea8fe", "changed": "#f0a04b",
             "bad": "#ff7b84"},
}  # fmt: skip
LANE = {NONE: "none", ZERO: "none", FULL: "full", CHANGED: "changed"}
# In the middle of a knot: that of `none` is hollow.
KNOT = {**LANE, NONE: "paper", BLOCKED: "bad", ERROR: "bad"}

LAYOUT = """
() => {
  const boxes = (element, name) => [...element.querySelectorAll(name)].map(one => {
    const { left, top, width, height } = one.getBoundingClientRect();
    return { left, top, width, height };
  });
  return {
    rows: [...document.querySelectorAll(".row")].map(element => {
      const index = Number(element.id.slice(3)), shown = view.shown.rows[index];
      const kind = shown.kind, row = view.bodies[0].names[shown.row];
      const { top } = element.getBoundingClientRect();
      return { kind, row, index, top, lanes: boxes(element, ".lanes") };
    }),
    pitch: view.sides().map(side => view.list.pitch.get(side).of),
    at: Object.fromEntries(
      view.bodies[0].names.map((name, row) => [name, view.shown.parts[0].at[row]])),
    sides: view.shown.parts[0].sides.map(side => ({
      knots: Object.fromEntries(side.knots), lanes: side.lanes.map(lane => [lane.to, lane.column]),
    })),
    curves: boxes(document, "svg.curves"),
  };
}
"""


class Seen:
    """A page that stays open, and what it showed last: a screenshot, and where things are in it."""

    def __init__(self, chrome: Any, view: graphpatch.View, file: Path) -> None:
        view.save(file)
        self.document = view.document()
        self.body = self.document["bodies"][0]
        self.opened = Opened(chrome, file)

    def look(self, look: str, script: str = "") -> None:
        """Look at it so many pixels wide, in the light or the dark scheme, after a script."""
        width, self.scheme = look.split()
        self.inks = {name: colour(code) for name, code in INKS[self.scheme].items()}
        self.paper = self.inks.pop("paper")
        page = self.opened.page
        page.set_viewport_size({"width": int(width), "height": TALL})
        page.emulate_media(color_scheme=self.scheme)
        page.evaluate(f"{{ {script} }}")
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        self.layout = page.evaluate(LAYOUT)
        self.shot = Screenshot(page)

    def ink(self, colours: Colour) -> list[str]:
        """The inks in some pixels."""
        return inks(colours.reshape(-1, 3), self.paper, self.inks)


LOOKS = ("1200 light", "1200 dark", "400 dark", "2000 light")


def odd() -> graphpatch.View:
    """A model at whose ops a gradient is zero, is none, raises, and goes three ways."""
    graph = GraphDef(
        node=[
            graphs.node("x", "Placeholder", dtype="float32"),
            graphs.node("in/sign", "Sign", "x"),
            graphs.node("in/bad", "PreventGradient", "x"),
            graphs.node("in/step", "Round", "in/relu"),
            graphs.node("in/relu", "Relu", "x"),
            graphs.node("out/first", "AddV2", "in/sign", "in/bad"),
            graphs.node("out/y", "AddV2", "out/first", "in/step"),
        ]
    )
    return graphpatch.view(graph, sources="x", targets="out/y")


def two() -> graphpatch.View:
    """A model before and after rules."""
    return graphpatch.view(DIGITS, rules=GUIDED, sources="image", targets="logits")


MODELS: dict[str, Callable[[], graphpatch.View]] = {
    "one": lambda: graphpatch.view(DIGITS, sources="image", targets="logits"),
    "two": two,
    "odd": odd,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seen]]:
    folder = tmp_path_factory.mktemp("pages")
    with browser() as chrome:
        found = {
            name: Seen(chrome, view(), folder / f"{name}.html") for name, view in MODELS.items()
        }
        yield found
        for seen in found.values():
            seen.opened.close()


def passing(seen: Seen, number: int, index: int) -> dict[int, tuple[int, int]]:
    """The lanes that pass a row or end at it: by column the most that flows there, and how tall.

    A lane that ends is seen as far as the knot.
    """
    side, names, at = seen.body["sides"][number], seen.body["names"], seen.layout["at"]
    columns = dict(seen.layout["sides"][number]["lanes"])
    lanes: dict[int, tuple[int, int]] = {}
    for reader, edges in enumerate(side["edges"]):
        for producer, flow in zip(edges[::2], edges[1::2], strict=True):
            first, last = at[names[reader]], at[names[producer]]
            if first < index <= last:
                column, tall = columns[last], 5 if index == last else HEIGHT
                lanes[column] = max(flow, lanes.get(column, (0, 0))[0]), tall
    return lanes


def wrong(seen: Seen) -> Iterator[str]:
    """The knots and lanes that have another colour than what flows there."""
    for number, side in enumerate(seen.body["sides"]):
        pitch, laid = seen.layout["pitch"][number], seen.layout["sides"][number]
        for shown in (row for row in seen.layout["rows"] if row["kind"] == "line"):
            row, left = seen.body["names"].index(shown["row"]), shown["lanes"][number]["left"] + 2
            where = f"{shown['row']}, side {number}"

            if side["flow"][row]:
                x = left + (laid["knots"][str(shown["index"])] + 0.5) * pitch
                pixel = seen.shot.at(x, shown["top"] + HEIGHT / 2)
                want = KNOT[side["flow"][row]]
                hue = seen.paper if want == "paper" else seen.inks[want]
                if np.abs(pixel - hue).max() > 8:
                    yield f"the knot of {where} is {pixel}, and not {want}"
            for column, (flow, tall) in passing(seen, number, shown["index"]).items():
                strip = seen.shot.box(left + (column + 0.5) * pitch - 0.5, shown["top"], 1.6, tall)
                if seen.ink(strip)[:1] != [LANE[flow]]:
                    yield f"lane {column} at {where} is {seen.ink(strip)}, and not {LANE[flow]}"


FLOWS = {
    "one": {NONE, FULL, BLOCKED},
    "two": {NONE, FULL, CHANGED, BLOCKED},
    "odd": {ZERO, FULL, BLOCKED, ERROR},
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", FLOWS)
def test_knots_and_lanes_have_the_colour_of_what_flows(
    pages: dict[str, Seen], name: str, look: str
) -> None:
    seen = pages[name]
    seen.look(look)
    lines = [one["row"] for one in seen.layout["rows"] if one["kind"] == "line"]
    assert sorted(lines) == sorted(seen.body["names"])
    assert {flow for side in seen.body["sides"] for flow in side["flow"]} >= FLOWS[name]
    assert list(wrong(seen)) == []


@pytest.mark.parametrize("look", ["400 dark", "1200 light", "2000 dark"])
def test_the_plot_of_a_rule_has_both_curves(pages: dict[str, Seen], look: str) -> None:
    seen = pages["two"]
    row = seen.body["names"].index("block2/relu")
    plot = seen.document["tables"]["plots"][seen.body["plots"][row]]
    ends = plot["low"], plot["high"]
    go = f"view.go(0, view.bodies[0].rowOf[{row}])"
    seen.look(look, f"{go}; document.querySelector('.plot').scrollIntoView();")
    seen.opened.page.evaluate("view.panel.close(); view.selected = -1; view.list.draw()")
    for box, dy in zip(seen.layout["curves"], (1, -1), strict=True):
        curves = [one for one in plot["curves"] if one["dy"] == dy]
        top = 1.05 * max(1.2, *(abs(y) for one in curves for _, y in one["points"]))
        for curve in curves:
            ink = {"before": "full", "after": "changed"}[curve["side"]]
            seen_at = [
                ink in seen.ink(seen.shot.box(*_corner(box, x, y / top, *ends), 3, 3))
                for x, y in curve["points"]
            ]
            # That before is dashed, and lies below the other where both are alike.
            is_alike = curves[0]["points"] == curves[1]["points"]
            least = 0.95 if ink == "changed" else 0 if is_alike else 0.15
            assert np.mean(seen_at) >= least, (dy, curve["side"])


def _corner(
    box: Mapping[str, float], x: float, y: float, low: float, high: float
) -> tuple[float, float]:
    """One pixel up and left of a point of a plot, which is drawn in 210 x 130 units."""
    scale = box["width"] / 210
    across, down = 16 + (x - low) / (high - low) * 178, 65 - y * 55
    return box["left"] + across * scale - 1, box["top"] + down * scale - 1
