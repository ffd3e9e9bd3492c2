"""Whether the original was given in the place of the patched model."""

from __future__ import annotations

from collections.abc import Iterator

from graphpatch.analysis.pairs import unlike_by_name
from graphpatch.analysis.soundness.fault import Fault
from graphpatch.analysis.soundness.undone import untold
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph

SWAPPED = "the arguments look swapped"


def swapped(one: Model, other: Model) -> Iterator[Fault]:
    """A fault where the second model is the first without its rules."""
    if any(map(_is_patched, other.graphs)) or not any(map(_is_patched, one.graphs)):
        return
    try:
        pairs = zip(other.graphs, one.graphs, strict=True)
        differ = any(any(untold(*pair, unlike_by_name(*pair))) for pair in pairs)
    except GraphpatchError:
        differ = True
    if not differ:
        says = (
            f"{SWAPPED}: {other.path} is {one.path} without its rules, and the "
            f"original comes first: graphpatch verify {other.path} {one.path}"
        )
        yield Fault("swapped", "", "", says)


def _is_patched(graph: Graph) -> bool:
    return any(
        provenance.entries(node) for body in graph.bodies for node in provenance.touched(body)
    )
