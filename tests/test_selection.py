"""Selecting ops from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch import Selection, pattern, select
from graphpatch.errors import MatchError, PatternError, RulesError
from graphpatch.formats import Model
from graphpatch.match.spec import Edge, Match, Pattern
from tests import graphs


def names(selection: Selection) -> list[str]:
    return [node.name for node in selection]


def test_keys_are_those_of_a_rules_file(model: Model) -> None:
    assert names(select(model)) == [node.name for body in model.graphs[0].bodies for node in body]
    relus = select(model, op="Relu")
    assert relus.types == {"Relu": len(relus)} == {"Relu": 2}
    assert names(select(model, not_={"op": "Relu"})) == names(~relus)


def test_it_is_refined_joined_and_inverted(model: Model) -> None:
    main, relus = select(model, body="main"), select(model, op="Relu")
    assert names(relus.where(body="main")) == names(relus & main)
    assert names(relus.where(lambda node: node.body.is_main)) == names(relus & main)
    assert (relus | ~relus).ops == select(model).ops
    assert not relus & ~relus
    assert (main - relus).ops | (main & relus).ops == main.ops
    assert names(main | relus) == [n.name for n in select(model) if n in [*main, *relus]]


def test_it_prints_what_it_is(model: Model) -> None:
    first, *rest = str(select(model, op="Relu*", body="main")).split("\n")
    assert first == f"2 ops of {model.path}"
    assert [line.strip() for line in rest] == ["Relu 'relu'", "Relu6 'tower/relu6'"]
    assert str(select(model, op="Elu")) == f"0 ops of {model.path}"
    assert repr(select(model, op="Relu")) == f"<Selection: 2 ops of {model.path} (Relu: 2)>"
    many = graphs.graphdef(*(graphs.node(f"n{k}", "Placeholder") for k in range(30)))
    lines = str(select(many)).split("\n")
    assert (lines[0][:6], len(lines), lines[-1]) == ("30 ops", 22, "  and 10 more")


def test_patching_it_is_applying_a_rule_to_just_these_ops(model: Model, tmp_path: Path) -> None:
    relus, patch = select(model, op="Relu"), {"override_gradient": "guided_relu"}
    rule = relus.rule(patch, name="guided", emit="function")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"version": 1, "rules": [rule]}))
    report = graphpatch.apply(graphpatch.load_rules(rules), model).report
    assert report == graphpatch.apply([rule], model).report
    assert report == relus.apply(patch, name="guided", emit="function").report
    matches = [(one["body"], one["op"]) for one in report["rules"][0]["matches"]]
    assert matches == [(node.body.label, node.name) for node in relus]


PATTERNS: dict[str, tuple[Any, list[str]]] = {
    "a text": ("Mul -> Relu", ["relu"]),
    "with more of its ops": (pattern("Mul -> act:*", act={"attr": {"T": "float32"}}), ["relu"]),
    "closed": (pattern("Mul -> Relu -> Relu6", closed=True), ["tower/relu6"]),
    "values": (Pattern(nodes={"a": Match(op="Mul"), "b": Match()}, edges=(Edge("a", "b"),)),
               ["relu"]),
    "as JSON": ({"nodes": {"a": {"op": "Mul"}, "b": {}}, "edges": [["a", "b"]]}, ["relu"]),
    "one of several": (["Mul -> Relu", pattern("Relu6 -> *")], ["relu", "round"]),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "found"), PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_is_built_in_python(model: Model, wanted: Any, found: list[str]) -> None:
    assert names(select(model, pattern=wanted, body="main")) == found
    if found:
        rule = {"match": {"pattern": wanted, "body": "main"}, "patch": {"stop_gradient": True}}
        report = graphpatch.apply([rule], model).report
        assert [one["op"] for one in report["rules"][0]["matches"]] == found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pattern("act:Relu", atc={}), "no op is called 'atc'; nearest: act\n  act:Relu"),
        (lambda: pattern("Relu ->"), "column 8: an op type or a capture is expected"),
        (lambda: pattern("Relu", closed=["act"]), "pattern.closed: no node is called 'act'"),
        (lambda: pattern("a:Relu", a={"ops": 1}), "pattern, node 'a': "),
    ],
)
def test_a_bad_pattern_in_python_is_one_message(make: Any, message: str) -> None:
    with pytest.raises(PatternError) as raised:
        make()
    assert message in str(raised.value)


STOP = {"stop_gradient": True}
OTHER = graphs.graphdef(graphs.node("relu", "Relu", "relu"))
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda m: select(m, op="Elu").apply(STOP), MatchError, "nothing is selected"),
    (lambda m: select(m, ops="Relu"), RulesError, "unknown key 'ops'; nearest: op"),
    (lambda m: select(m) | select(graphs.sample()), MatchError, "two models"),
    (lambda m: select(m) & {"relu"}, TypeError, "joined with a selection"),
    (lambda m: select(m, upstream_of="reluu"), MatchError, "is called 'reluu'; nearest: relu"),
    (  # ops that have gone since
        lambda m: graphpatch.apply([select(m, op="Relu").rule(STOP)], OTHER),
        *(MatchError, "matched 1, expected 2"),
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(model: Model, call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(model)
