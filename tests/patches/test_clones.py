"""backward_as, without TensorFlow: what is cloned, and what is shared."""

from __future__ import annotations

from typing import Any

import pytest

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.node import Body
from graphpatch.patches.backward_as import MOST_AGAIN
from tests import graphs
from tests.graphs import function, graphdef
from tests.patches.one_op import applied, assert_has, main_of, net

NOISY = "x:Placeholder u:Placeholder n:Mul(x,u)"
SPLIT = f"{NOISY} axis:Placeholder(dtype=int32) p:Unpack(n, num=2) y:Tanh(p:1)"
DRAWN = f"{NOISY} s:Shape(n) r:RandomUniform(s, T=int32, dtype=float32) z:Mul(n,r)"


def clean(op: str = "n", **keys: Any) -> dict[str, Any]:
    patch = {key: keys.pop(key) for key in ("input", "until") if key in keys}
    return {"match": {"name": op}, "patch": {"backward_as": patch}, **keys}


def cloned(body: Body) -> set[str]:
    """The originals that have clones."""
    return {name for op in body if (name := provenance.clone_of(op))}


# The graph, the keys of the rule, what has clones, some ops of the patched graph.
CLONED: dict[str, tuple[str, dict[str, Any], set[str], str]] = {
    "what lies between": (f"{NOISY} t:Tanh(n) z:Sqrt(t)", {}, {"t", "z"},
        "t/clean:Tanh(n/clean/BroadcastTo) n/clean/BroadcastTo:BroadcastTo(x,n/clean/Shape)"
        " z/clean:Sqrt(t/clean) z:Select(z/true,z/stop,z/clean) z/forward:Sqrt(t)"),
    "an op that keeps its shape is just left out": (
        "x:Placeholder n:Round(x) z:Tanh(n)", {}, {"z"}, "z/clean:Tanh(x)"),
    "the noisy op itself as the end": (f"{NOISY} y:Tanh(n)", {"until": "n"}, set(),
        "n:Select(n/true,n/stop,n/repeat/BroadcastTo) n/repeat/Shape:Shape(n/stop)"
        " n/repeat/BroadcastTo:BroadcastTo(x,n/repeat/Shape)"),
    "what is not behind the noise is shared": (
        f"{NOISY} w:Placeholder m:Mul(n,w) z:AddV2(m,x)", {}, {"m", "z"},
        "m/clean:Mul(n/clean/BroadcastTo,w) z/clean:AddV2(m/clean,x)"),
    "random numbers of a noisy shape are drawn once": (
        DRAWN, {}, {"z"}, "z/clean:Mul(n/clean/BroadcastTo,r)"),
    "control inputs are those of the original": (
        f"{NOISY} t:LeakyRelu(n,^u)", {}, {"t"}, "t/clean:LeakyRelu(n/clean/BroadcastTo,^u)"),
    "several outputs": (SPLIT, {"until": ["p:1", "p"]}, {"p"},
        "p:IdentityN(p/join_0,p/join_1) p/join_1:Select(p/true_1,p/stop_1,p/clean:1) y:Tanh(p:1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLONED)
def test_what_is_cloned(name: str) -> None:
    nodes, keys, clones, ops = CLONED[name]
    model, again = (applied(clean(**keys), nodes).model for _ in range(2))
    body = model.graphs[0].main
    assert cloned(body) == clones
    assert_has(body, ops)
    assert graphs.written(model.graphs[0]) == graphs.written(again.graphs[0])


def test_in_a_function_up_to_its_outputs() -> None:
    inner = function("f", ["a"], net("n:Round(a) t:Tanh(n:y:0)"), {"out": "t:y:0"})
    result = applied(clean(), "x:Placeholder call:f(x)", functions=[inner])
    body = result.model.graphs[0].functions["f"]
    assert body.node("t/clean").inputs == ("a",)
    assert body.node("t").inputs[0] == "t/clean:y:0"
    assert body.ret == {"out": body.node("t").tensor(0)}
    assert result.report["rules"][0]["emit"] == "function"
    assert any("takes its gradient at noisy values" in note for note in result.report["notes"])


def test_no_rule_reaches_what_is_behind_it() -> None:
    model = applied(clean(), f"{NOISY} t:Tanh(n) z:Sqrt(t)").model
    behind = {op.name for op in model.graphs[0].main if provenance.shadow(op)}
    assert behind == {"n", "t", "z/forward"}
    stop = {"match": {"name": "t"}, "patch": {"stop_gradient": True}}
    with pytest.raises(PatchError, match="no gradient reaches Tanh 't' any more"):
        graphpatch.apply([stop], model)
    graphpatch.apply([{**stop, "match": {"name": "t/clean"}}], model)


def test_a_function_with_a_state_between() -> None:
    nodes = "s:Shape(a) r:RandomUniform(s:output:0,T=int32,dtype=float32) m:Mul(a,r:output:0)"
    inner = function("f", ["a"], net(nodes), {"out": "m:z:0"})
    with pytest.raises(PatchError, match="f 'call' has a state, and must not run twice"):
        applied(clean(), f"{NOISY} call:f(n)", functions=[inner])
    inner = function("f", ["a"], net("m:Tanh(a)"), {"out": "m:y:0"})
    assert cloned(main_of(applied(clean(), f"{NOISY} call:f(n)", functions=[inner]))) == {"call"}


RELUS = " ".join(f"r{n}:Relu(x)" for n in range(20))
SUM = f"s:AddN({','.join(f'r{n}' for n in range(20))}, N=20)"


@pytest.mark.parametrize("wide", ["", f"wide:AddN({','.join(['x'] * 6_000)}, N=6000)"])
def test_rules_that_would_double_the_path_each_time_are_refused(wide: str) -> None:
    """Twenty rules on one path were a million clones; an op beside it let them be 22,000."""
    model = graphdef(*net(f"x:Placeholder {wide} {RELUS} {SUM}"))
    rules = [clean(f"r{n}") for n in range(20)]
    with pytest.raises(PatchError, match=r"\d{1,3} of the \d{1,3} ops .* by earlier rules.* to on"):
        graphpatch.apply(rules, model)
    graphpatch.apply(rules[:4], model)
    graphpatch.apply([clean("r*")], model)


def test_four_rules_on_a_long_path_are_not_refused() -> None:
    """How much may be cloned again grows with the path."""
    relus = " ".join(f"r{n}:Relu({f'r{n - 1}' if n else 'n'})" for n in range(300))
    rules = [clean(name) for name in ("n", "r1", "r2", "r3")]
    main = main_of(graphpatch.apply(rules, graphdef(*net(f"{NOISY} {relus}"))))
    assert len(main) > MOST_AGAIN
