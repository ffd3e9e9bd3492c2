"""Matches that share ops: which of them count, always the same, and what is said of the rest."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import graphpatch
from graphpatch.match.pattern.overlaps import resolve
from graphpatch.match.select import MatchedOps, find
from graphpatch.match.spec import Match
from tests import graphs
from tests.graphs import node
from tests.match.pattern.searched import bindings, body

# Three convolutions in a row, and one Relu that two others read.
NODES = [
    node("x", "Placeholder"),
    node("a", "Conv2D", "x", "x"),
    node("b", "Conv2D", "a", "x"),
    node("c", "Conv2D", "b", "x"),
    node("relu", "Relu", "c"),
    node("left", "Tanh", "relu"),
    node("right", "Tanh", "relu"),
]
PAIRS = "first:Conv2D -> second:Conv2D"
FORK = "r:Relu -> t:Tanh"


def selected(pattern: Any, *on: str, **keys: Any) -> MatchedOps:
    match = msgspec.convert({"pattern": pattern, **keys}, Match)
    return find(graphs.opened(graphs.graphdef(*NODES)), match, on)


def kept(found: MatchedOps) -> list[str]:
    return [" ".join(node.name for node in one.patched) for one in found.kept]


def dropped(found: MatchedOps) -> list[str]:
    return [f"{' '.join(node.name for node in one.nodes)}: {one.reason}" for one in found.dropped]


def test_matches_that_end_in_other_ops_all_count() -> None:
    found = selected(PAIRS)
    assert kept(found) == ["b", "c"]
    assert dropped(found) == []
    assert [node.name for node in found.nodes] == ["b", "c"]


def test_an_op_that_two_matches_mean_is_patched_once() -> None:
    found = selected(FORK, "r")
    assert kept(found) == ["relu"]
    assert dropped(found) == [
        "relu right: it shares Relu 'relu' with the match that ends in Tanh 'left'"
    ]
    assert found.count == 1


def test_a_match_brings_the_ops_that_are_new() -> None:
    found = selected(PAIRS, "first", "second")
    assert kept(found) == ["a b", "c"]
    assert [node.name for node in found.nodes] == ["a", "b", "c"]
    found = selected(FORK, "r", "t")
    assert kept(found) == ["relu left", "right"]


def test_as_one_op_they_share_none() -> None:
    found = selected(PAIRS, "match")
    assert kept(found) == ["a b"]
    assert dropped(found) == ["b c: it shares Conv2D 'b' with the match that ends in Conv2D 'b'"]


def test_of_those_that_start_at_one_op_the_larger_comes_first() -> None:
    found = selected(["Conv2D -> Conv2D", "Conv2D -> Conv2D -> Conv2D"], "match")
    assert kept(found) == ["a b c"]
    assert dropped(found)[0].startswith("a b: it shares Conv2D 'a'")


def test_an_op_that_is_missing_is_said_to_be() -> None:
    found = selected("Conv2D -> act:Relu6? -> Relu", "act")
    assert kept(found) == []
    assert dropped(found) == ["c relu: it has no 'act'"]


def test_other_keys_hold_for_the_ops_that_are_meant() -> None:
    assert kept(selected(PAIRS, name="c")) == ["c"]
    assert kept(selected(PAIRS, "first", name="a")) == ["a"]
    assert kept(selected(PAIRS, "first", name="c")) == []
    assert kept(selected(PAIRS, "match", name="c")) == ["b c"]


@pytest.mark.parametrize("on", [(), ("first",), ("first", "second"), ("match",)], ids=str)
def test_it_is_the_same_in_whatever_order_they_were_found(on: tuple[str, ...]) -> None:
    every = bindings(body(*NODES), PAIRS)
    expected = resolve(every, on, every[0].body)
    for seed in range(10):
        random.Random(seed).shuffle(every)
        assert resolve(every, on, every[0].body) == expected


def test_apply_reports_what_was_left_out(tmp_path: Any) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(graphs.graphdef(*NODES).SerializeToString())
    rule = {"name": "r", "match": {"pattern": FORK}, "patch": {"stop_gradient": True, "on": "r"}}
    report = graphpatch.apply([rule], path).report
    assert report["rules"][0]["matches"] == [
        {
            "body": "main",
            "op": "relu",
            "type": "Relu",
            "captures": {"r": "relu", "t": "left"},
        }
    ]
    assert [note for note in report["notes"] if "left out" in note] == [
        "rule 'r': a match was left out: r is Relu 'relu', t is Tanh 'right': it shares Relu "
        "'relu' with the match that ends in Tanh 'left'"
    ]
