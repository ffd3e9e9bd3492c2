"""`"on": "match"` where the pattern leaves open which tensor is x0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.matches import match_only
from graphpatch.errors import PatchError
from graphpatch.match.spec import Match
from tests.graphs import saved
from tests.patches.one_op import applied, as_one, net

A_FIRST = "a:Placeholder b:Placeholder m:MatMul(a,b)"
B_FIRST = "b:Placeholder a:Placeholder m:MatMul(a,b)"
PRODUCT = "a:Placeholder b:Placeholder m:Mul(a,b)"
GATED = "a:Placeholder b:Placeholder p:Tanh(a) q:Tanh(b) m:Mul(p,q)"


def formula(text: Any) -> dict[str, Any]:
    return {"override_gradient": {"formula": text}}


@pytest.mark.parametrize("nodes", [A_FIRST, B_FIRST])
def test_x_could_be_either_input_whatever_the_order_of_the_file(nodes: str) -> None:
    with pytest.raises(PatchError) as raised:
        applied(as_one("x:_ -> m:MatMul", formula(["dy * x0", "dy"])), nodes)
    assert "it is not clear which tensor is x0, a or b" in str(raised.value)
    assert 'write the input slot into the pattern, as in "x:_ -> m:MatMul:' in str(raised.value)
    for slot, first in ((0, "a"), (1, "b")):
        rule = as_one(f"x:_ -> m:MatMul:{slot}", formula(["dy * x", "dy"]))
        [entry] = applied(rule, nodes).report["rules"][0]["matches"]
        assert (entry["inputs"]["x0"], entry["tensors"]) == (first, {"x": first})
    for pattern in ("x:_ -> m:MatMul", "x:_ -> m:MatMul:0"):  # filled up with null it would pass
        with pytest.raises(PatchError, match="has 3 formulas, and the op has 2 inputs"):
            applied(as_one(pattern, formula(["dy * x0", None, None])), nodes)


CLEAR: list[tuple[str, Any]] = [
    *(
        ("x:_ -> m:Mul; s:_ -> m", formula(text))
        for text in ("dy", ["dy", "dy"], ["dy * x1", "dy * x0"], ["dy * x1 + x0", "dy*x + x1"])
    ),
    ("x:_ -> m:Mul:0", {"surrogate_gradient": "x0 - x1"}),
]
UNCLEAR: list[tuple[str, Any]] = [
    *(
        (pattern, formula(text))
        for text in ("dy * x", ["dy", None], ["dy * x0", "dy * x0"], ["dy * x1", "dy"])
        for pattern in ("x:_ -> m:Mul", "x:_ -> m:Mul; s:_ -> m")
    ),
    ("x:_ -> m:Mul", {"surrogate_gradient": "x0 - x1"}),
    ("x:_ -> m:Mul", {"override_gradient": {"registered": "Mine"}}),  # no formula tells
]


@pytest.mark.parametrize(("pattern", "patch"), CLEAR)
def test_a_gradient_that_treats_them_alike_needs_no_slot(pattern: str, patch: Any) -> None:
    assert applied(as_one(pattern, patch), PRODUCT)


@pytest.mark.parametrize(("pattern", "patch"), UNCLEAR)
def test_one_that_does_not_needs_it(pattern: str, patch: Any) -> None:
    with pytest.raises(PatchError, match="it is not clear which tensor is x0"):
        applied(as_one(pattern, patch), PRODUCT)


def test_ops_that_can_be_swapped_leave_it_open_too() -> None:
    """Which Tanh is first says the file alone."""
    patch = formula(["dy * x0", "dy"])
    with pytest.raises(PatchError, match="which tensor is x0, a or b"):
        applied(as_one("p:Tanh -> m:Mul; q:Tanh -> m", patch), GATED)
    assert applied(as_one("p:Tanh -> m:Mul:0; q:Tanh -> m:1", patch), GATED)


def test_a_name_that_is_read_elsewhere_too_is_clear() -> None:
    """Two names may be one tensor, where each has an input of its own."""
    rule = as_one("x:_ -> m:Mul; k:_ -> m -> d:Sub:0; k -> d:1", formula(["dy * x1", None]))
    [_, last] = applied(rule, f"{PRODUCT} d:Sub(m,b)").report["rules"][0]["matches"]
    assert last["inputs"] == {"x0": "a", "x1": "b"}


def test_match_says_what_x0_is_and_where_the_pattern_leaves_it_open(tmp_path: Path) -> None:
    model = graphpatch.load(saved(tmp_path, *net(A_FIRST)))
    [entry] = match_only(Match(pattern="s:_ -> m:MatMul:1"), model).matches
    assert entry["tensors"] == {"s": "b"}
    assert entry["inputs"] == {"x0": "b", "x1": "a"}
    [note] = match_only(Match(pattern="s:_ -> m:MatMul"), model).notes
    assert note.startswith("the pattern leaves open which tensor is x0: in the match that ends in ")
    assert "it could be a or b; where that matters, write the input slot" in note
    assert note.endswith("as in x:_ -> m:MatMul:0")
    for clear in ("s:_ -> m:MatMul:1", "MatMul", "s:_ -> m:MatMul:0; t:_ -> m:1"):
        assert match_only(Match(pattern=clear), model).notes == ()
