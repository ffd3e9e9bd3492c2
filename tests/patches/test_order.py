"""`"on": "match"` where the pattern leaves open which tensor is x0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.matches import match_only
from graphpatch.errors import PatchError
from graphpatch.match.spec import Match
from tests.graphs import graphdef, node
from tests.patches.one_op import patched_match

T = {"T": "float32"}
A = node("a", "Placeholder", dtype="float32")
B = node("b", "Placeholder", dtype="float32")
PRODUCT = node("m", "MatMul", "a", "b", **T)
GATED = (
    A,
    B,
    node("p", "Tanh", "a", **T),
    node("q", "Tanh", "b", **T),
    node("m", "Mul", "p", "q", **T),
)


def overridden(
    pattern: str, gradient: Any, *nodes: Any, kind: str = "override_gradient"
) -> graphpatch.Result:
    return patched_match(pattern, {kind: gradient}, *nodes)


@pytest.mark.parametrize("nodes", [(A, B, PRODUCT), (B, A, PRODUCT)], ids=["a first", "b first"])
def test_x_could_be_either_input_whatever_the_order_of_the_file(nodes: Any) -> None:
    with pytest.raises(PatchError) as raised:
        overridden("x:_ -> m:MatMul", {"formula": ["dy * x0", "dy"]}, *nodes)
    assert "it is not clear which tensor is x0, a or b" in str(raised.value)
    assert 'write the input slot into the pattern, as in "x:_ -> m:MatMul:' in str(raised.value)
    assert "the match reads 2: x0 = x (" in str(raised.value)


@pytest.mark.parametrize("nodes", [(A, B, PRODUCT), (B, A, PRODUCT)], ids=["a first", "b first"])
@pytest.mark.parametrize(("slot", "first"), [(0, "a"), (1, "b")])
def test_with_the_slot_it_is_clear(nodes: Any, slot: int, first: str) -> None:
    found = overridden(f"x:_ -> m:MatMul:{slot}", {"formula": ["dy * x", "dy"]}, *nodes)
    [entry] = found.report["rules"][0]["matches"]
    assert entry["inputs"]["x0"] == first
    assert entry["tensors"] == {"x": first}


@pytest.mark.parametrize("nodes", [(A, B, PRODUCT), (B, A, PRODUCT)], ids=["a first", "b first"])
def test_a_list_that_is_longer_than_the_inputs_is_refused(nodes: Any) -> None:
    """Filled up with null it would pass by the question which tensor is x0."""
    for pattern in ("x:_ -> m:MatMul", "x:_ -> m:MatMul:0"):
        with pytest.raises(PatchError, match="has 3 formulas, and the op has 2 inputs"):
            overridden(pattern, {"formula": ["dy * x0", None, None]}, *nodes)


ALIKE: list[Any] = [
    "dy",
    ["dy", "dy"],
    ["dy * x1", "dy * x0"],
    ["dy * x1 + x0", "dy*x + x1"],
]
DIFFERENT: list[Any] = ["dy * x", ["dy", None], ["dy * x0", "dy * x0"], ["dy * x1", "dy"]]


@pytest.mark.parametrize("formula", ALIKE)
def test_a_formula_that_treats_them_alike_needs_no_slot(formula: Any) -> None:
    product = node("m", "Mul", "a", "b", **T)
    assert overridden("x:_ -> m:Mul; s:_ -> m", {"formula": formula}, A, B, product)


@pytest.mark.parametrize("formula", DIFFERENT)
@pytest.mark.parametrize("pattern", ["x:_ -> m:Mul", "x:_ -> m:Mul; s:_ -> m"])
def test_one_that_does_not_needs_it(formula: Any, pattern: str) -> None:
    product = node("m", "Mul", "a", "b", **T)
    with pytest.raises(PatchError, match="it is not clear"):
        overridden(pattern, {"formula": formula}, A, B, product)


def test_of_a_gradient_that_no_formula_tells_it_is_never_known() -> None:
    product = node("m", "Mul", "a", "b", **T)
    with pytest.raises(PatchError, match="it is not clear which tensor is x0"):
        overridden("x:_ -> m:Mul", {"registered": "Mine"}, A, B, product)


def test_ops_that_can_be_swapped_leave_it_open_too() -> None:
    """Which Tanh is first says the file alone."""
    with pytest.raises(PatchError, match="which tensor is x0, a or b"):
        overridden("p:Tanh -> m:Mul; q:Tanh -> m", {"formula": ["dy * x0", "dy"]}, *GATED)
    pattern = "p:Tanh -> m:Mul:0; q:Tanh -> m:1"
    assert overridden(pattern, {"formula": ["dy * x0", "dy"]}, *GATED)


def test_a_surrogate() -> None:
    product = node("m", "Mul", "a", "b", **T)
    many = {"kind": "surrogate_gradient"}
    with pytest.raises(PatchError, match="it is not clear"):
        overridden("x:_ -> m:Mul", "x0 - x1", A, B, product, **many)
    assert overridden("x:_ -> m:Mul:0", "x0 - x1", A, B, product, **many)


def test_the_error_that_counts_the_inputs_says_which_they_are() -> None:
    with pytest.raises(PatchError, match=r"the match reads 2: x0 = s \(b\), x1 = a$"):
        overridden("s:_ -> m:MatMul:1", {"formula": ["dy"]}, A, B, PRODUCT)


def test_match_says_what_x0_is(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(graphdef(A, B, PRODUCT).SerializeToString())
    [entry] = match_only(Match(pattern="s:_ -> m:MatMul:1"), graphpatch.load(path)).matches
    assert entry["tensors"] == {"s": "b"}
    assert entry["inputs"] == {"x0": "b", "x1": "a"}


def test_match_says_where_the_pattern_leaves_it_open(tmp_path: Path) -> None:
    path = tmp_path / "model.pb"
    path.write_bytes(graphdef(A, B, PRODUCT).SerializeToString())
    model = graphpatch.load(path)
    [note] = match_only(Match(pattern="s:_ -> m:MatMul"), model).notes
    assert note.startswith("the pattern leaves open which tensor is x0: in the match that ends in ")
    assert "it could be a or b; where that matters, write the input slot" in note
    assert note.endswith("as in x:_ -> m:MatMul:0")
    for clear in ("s:_ -> m:MatMul:1", "MatMul", "s:_ -> m:MatMul:0; t:_ -> m:1"):
        assert match_only(Match(pattern=clear), model).notes == ()


def test_a_name_that_is_read_elsewhere_too_is_clear() -> None:
    """Two names may be one tensor, where each has an input of its own."""
    nodes = (A, B, node("m", "Mul", "a", "b", **T), node("d", "Sub", "m", "b", **T))
    pattern = "x:_ -> m:Mul; k:_ -> m -> d:Sub:0; k -> d:1"
    found = overridden(pattern, {"formula": ["dy * x1", None]}, *nodes)
    assert found.report["rules"][0]["matches"][-1]["inputs"] == {"x0": "a", "x1": "b"}
