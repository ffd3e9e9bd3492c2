"""Where noise-free paths end."""

from __future__ import annotations

import pytest

from graphpatch.patches.shape_checks import comes_from_constant
from tests import graphs
from tests.graphs import const, graphdef, node

NODES = (
    const("c"),
    node("same", "Identity", "c"),
    node("again", "Identity", "same"),
    node("entered", "Enter", "again", frame_name="f", is_constant=True),
    node("x", "Placeholder"),
    node("fed", "Identity", "x"),
    node("sum", "AddV2", "c", "c"),
)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("c", True), ("same", True), ("again", True), ("entered", True), ("x", False), ("fed", False),
     ("sum", False)],
)  # fmt: skip
def test_a_constant_is_one_through_identities(name: str, is_one: bool) -> None:
    main = graphs.opened(graphdef(*NODES)).main
    assert comes_from_constant(main.node(name)) == is_one
    assert not comes_from_constant(None)
