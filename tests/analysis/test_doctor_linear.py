"""What `doctor` does grows with the graph, not with its square."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor.survey import survey
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.body import Node
from tests.graphs import graphdef, node

GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def looked(folder: Path, count: int, rules: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often an attr is read of a chain of so many Relus, while doctor is asked."""
    chain = [node(f"r{k}", "Relu", f"r{k - 1}" if k else "x", T="float32") for k in range(count)]
    path = folder / f"{count}.pb"
    message = graphdef(node("x", "Placeholder", dtype="float32"), *chain)
    path.write_bytes(message.SerializeToString())
    model = graphpatch.load(path)
    model = graphpatch.apply(rules, model).model if rules else model
    found: Counter[str] = Counter()
    before = Node.attr
    with monkeypatch.context() as patch:
        patch.setattr(Node, "attr", lambda one, key: found.update([key]) or before(one, key))
        [seen] = survey(model, ["x"], [f"r{count - 1}"])
    assert seen.diagnoses[0].verdict == "flows"
    return found.total()


@pytest.mark.parametrize("rules", [[], [GUIDED]], ids=["as it is", "patched"])
def test_a_chain_of_activations(
    tmp_path: Path, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = looked(tmp_path, 100, rules, monkeypatch)
    large = looked(tmp_path, 400, rules, monkeypatch)
    assert large < 4.5 * small


def asked_readers(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often it is asked who reads an op, of so many Relus that all read one tensor."""
    wide = [node(f"r{k}", "Relu", "x", T="float32") for k in range(count)]
    path = folder / f"wide{count}.pb"
    message = graphdef(node("x", "Placeholder", dtype="float32"), *wide)
    path.write_bytes(message.SerializeToString())
    found: Counter[int] = Counter()
    before = Wiring.readers
    with monkeypatch.context() as patch:
        patch.setattr(
            Wiring, "readers", lambda one, index: found.update([index]) or before(one, index)
        )
        [seen] = survey(graphpatch.load(path))
    assert [one.verdict for one in seen.diagnoses] == ["flows"] * count
    assert [one.target for one in seen.diagnoses] == [f"r{k}:0" for k in range(count)]
    return found.total()


def test_many_outputs_of_one_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = asked_readers(tmp_path, 100, monkeypatch)
    assert asked_readers(tmp_path, 400, monkeypatch) < 4.5 * small
