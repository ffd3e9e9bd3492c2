"""What many lines of a page share, written once: op types, shapes, attrs, gradients, findings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphpatch.analysis.doctor.finding import Finding
from graphpatch.differentiation.op_shapes import Sizes, sizes_in_words
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph import attrs, provenance
from graphpatch.graph.body import Node
from graphpatch.graph.nodedef import attr_value
from graphpatch.page.plots import plot
from graphpatch.shown import one_line

LARGE_ATTR = 1 << 10  # bytes of an attr from which on it is not shown


@dataclass(eq=False)
class Table:
    """Values, each once; a line has the number of its value."""

    values: list[Any] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, value: Any) -> int:
        """The number of a value."""
        key = value if isinstance(value, str) else json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


@dataclass(eq=False)
class Tables:
    """The tables of a document."""

    types: Table = field(default_factory=Table)
    tensors: Table = field(default_factory=Table)
    attrs: Table = field(default_factory=Table)
    findings: Table = field(default_factory=Table)
    plots: Table = field(default_factory=Table)
    _plain: dict[tuple[Wiring, int], int] = field(default_factory=dict)
    _plotted: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def form(self, wiring: Wiring, index: int) -> int:
        """The number of an op's attrs, in plain values; those of one form are read once."""
        key = wiring, wiring.form(index)
        if key not in self._plain:
            self._plain[key] = self.attrs.number(_plain(Node(wiring.body, index)))
        return self._plain[key]

    def finding(self, finding: Finding, is_on_path: bool) -> int:
        """The number of what doctor says of an op; `is_on_path`: on one that was asked about."""
        told = _safe_texts(finding.document())
        return self.findings.number({**told, "on_path": is_on_path})

    def plot(self, patch: Mapping[str, Any] | None, op_type: str) -> int | None:
        """The number of the curves of an op type, before and after a patch."""
        key = (json.dumps(patch, sort_keys=True), op_type)
        if key not in self._plotted:
            found = plot(patch, op_type)
            self._plotted[key] = None if found is None else self.plots.number(found)
        return self._plotted[key]

    def defaults(self) -> dict[str, int]:
        """The number of the curves of TensorFlow's default gradient, by op type."""
        found = {one: self.plot(None, one) for one in self.types.values}
        return {one: number for one, number in found.items() if number is not None}

    def document(self) -> dict[str, list[Any]]:
        """The tables by name."""
        names = ("types", "tensors", "attrs", "findings", "plots")
        return {name: getattr(self, name).values for name in names}


def _plain(node: Node) -> dict[str, Any]:
    """The attrs of an op as plain values, large ones left out."""
    spans = node.attr_spans()
    small = {
        k: s
        for k, s in spans.items()
        if s.end - s.start < LARGE_ATTR and k != provenance.PROVENANCE_ATTR
    }
    plain = {one_line(k): _safe_texts(attrs.as_json(attr_value(s))) for k, s in small.items()}
    plain |= {
        one_line(k): "(large)" for k in spans.keys() - small.keys() - {provenance.PROVENANCE_ATTR}
    }
    return dict(sorted(plain.items()))


def _safe_texts(value: Any) -> Any:
    """Plain values whose texts are safe to show."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping):
        return {one_line(str(key)): _safe_texts(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_safe_texts(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def tensor_text(dtype: str, shape: Sizes) -> str:
    """The dtype and shape of what an op gives first: `float32 [?, 8, 8, 1]`, as far as known."""
    if shape is None:
        return dtype
    return f"{dtype} {sizes_in_words(shape)}"
