"""Matches that share ops: which of them count, always the same, and what is said of the rest."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.match.binding import resolve
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests import graphs
from tests.match.pattern.bodies import bindings, body
from tests.patches.one_op import net

# Three convolutions in a row, and one Relu that two others read.
NODES = net("""x:Placeholder a:Conv2D(x, x) b:Conv2D(a, x) c:Conv2D(b, x) relu:Relu(c)
    left:Tanh(relu) right:Tanh(relu)""")
PAIRS = "first:Conv2D -> second:Conv2D"
FORK = "r:Relu -> t:Tanh"
THREE = ["Conv2D -> Conv2D", "Conv2D -> Conv2D -> Conv2D"]
# The pattern, `on`, other keys; the ops that are patched, match by match; what is left out.
OVERLAPS: list[tuple[Any, str, dict[str, Any], list[str], list[str]]] = [
    (PAIRS, "", {}, ["b", "c"], []),
    (PAIRS, "first second", {}, ["a b", "c"], []),
    (PAIRS, "match", {}, ["a b"],
     ["b c: it shares Conv2D 'b' with the match that ends in Conv2D 'b'"]),
    (FORK, "r", {}, ["relu"],
     ["relu right: it shares Relu 'relu' with the match that ends in Tanh 'left'"]),
    (FORK, "r t", {}, ["relu left", "right"], []),
    # Of those that start at one op the larger comes first.
    (THREE, "match", {}, ["a b c"], [
        "a b: it shares Conv2D 'a' with the match that ends in Conv2D 'c'",
        "b c: it shares Conv2D 'b' with the match that ends in Conv2D 'c'",
    ]),
    ("Conv2D -> act:Relu6? -> Relu", "act", {}, [], ["c relu: it has no 'act'"]),
    # Other keys hold for the ops that are meant.
    (PAIRS, "", {"name": "c"}, ["c"], []),
    (PAIRS, "first", {"name": "a"}, ["a"], []),
    (PAIRS, "first", {"name": "c"}, [], []),
    (PAIRS, "match", {"name": "c"}, ["b c"], []),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "on", "keys", "kept", "dropped"), OVERLAPS, ids=str)
def test_which_matches_count(
    pattern: Any, on: str, keys: dict[str, Any], kept: list[str], dropped: list[str]
) -> None:
    match = msgspec.convert({"pattern": pattern, **keys}, Match)
    found = find(graphs.opened(graphs.graphdef(*NODES)), match, on.split())
    assert [" ".join(node.name for node in one.patched) for one in found.counted] == kept
    left_out = (f"{' '.join(n.name for n in one.nodes)}: {one.reason}" for one in found.dropped)
    assert list(left_out) == dropped
    assert [node.name for node in found.nodes] == " ".join(kept).split()
    assert found.count == len(kept)


@pytest.mark.parametrize("on", [(), ("first",), ("first", "second"), ("match",)], ids=str)
def test_it_is_the_same_in_whatever_order_they_were_found(on: tuple[str, ...]) -> None:
    every = bindings(body(*NODES), PAIRS)
    expected = resolve(every, on, every[0].body)
    for seed in range(10):
        random.Random(seed).shuffle(every)
        assert resolve(every, on, every[0].body) == expected


def test_apply_reports_what_was_left_out() -> None:
    rule = {"name": "r", "match": {"pattern": FORK}, "patch": {"stop_gradient": True, "on": "r"}}
    report = graphpatch.apply([rule], graphs.graphdef(*NODES)).report
    [entry] = report["rules"][0]["matches"]
    assert entry["captures"] == {"r": "relu", "t": "left"}
    assert [note for note in report["notes"] if "left out" in note] == [
        "rule 'r': a match was left out: r is Relu 'relu', t is Tanh 'right': it shares Relu "
        "'relu' with the match that ends in Tanh 'left'"
    ]
