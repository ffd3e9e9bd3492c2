"""Every real model is patched in every way that it takes, and reverted: the same bytes again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

import graphpatch
from graphpatch.analysis.revert import revert
from graphpatch.differentiation.flow import carries
from graphpatch.errors import GraphpatchError
from graphpatch.formats.foreign import is_text
from graphpatch.graph.node import Body, Node
from tests.models import catalogue

MOST = 4  # ops of a body that each patch is tried on, and bodies
PATCHES: list[dict[str, Any]] = [
    {"override_gradient": {"registered": "Mine"}},
    {"override_gradient": {"formula": "dy * 2"}},
    {"override_gradient": "default"},
    {"filter_gradient": {"clip": {"min": -1, "max": 1}}},
    {"filter_gradient": {"scale": 0.5}, "at": "inputs"},
    {"stop_gradient": True},
    {"stop_gradient": True, "at": "inputs"},
    {"straight_through": True},
    {"straight_through": {"input": 1}},
    {"surrogate_gradient": "tanh(4 * x)"},
    {"backward_as": {"input": 0}},
]


@pytest.mark.parametrize("name", catalogue.every_model())
def test_reverted_it_is_the_original(name: str, tmp_path: Path) -> None:
    path = catalogue.models()[name]
    patched, rules = patched_in_every_way(graphpatch.load(path))
    if not rules:
        pytest.skip("no op of it takes a patch")
    out, back = tmp_path / f"patched{path.suffix}", tmp_path / f"back{path.suffix}"
    patched.save(out)
    found = revert(graphpatch.load(out))
    assert sorted(found.report["rules"]) == sorted(rules)
    found.model.save(back)
    assert_same(back, path)


def assert_same(back: Path, path: Path) -> None:
    """Assert that a file, or each file of a folder, is the same; of text, as protobuf prints it."""
    if path.is_dir():
        found = sorted(one.relative_to(path) for one in path.rglob("*"))
        assert sorted(one.relative_to(back) for one in back.rglob("*")) == found
        for one in found:
            if (path / one).is_file():
                assert (back / one).read_bytes() == (path / one).read_bytes()
    elif is_text(path.read_bytes()[:4096]):
        message = graphpatch.load(path).container.message()
        text_format.Parse(path.read_text(), message)
        assert back.read_text() == text_format.MessageToString(message)
    else:
        assert back.read_bytes() == path.read_bytes()


def patched_in_every_way(model: graphpatch.Model) -> tuple[graphpatch.Model, list[str]]:
    """The model with each patch on some op of each of its bodies, and the rules that were applied.

    Each op is patched once; what it refuses is left out.
    """
    used: set[tuple[str, str]] = set()
    rules: list[str] = []
    for patch in PATCHES:
        chosen = []
        for body in bodies(model):
            untried = (name for name in candidates(body) if (body.label, name) not in used)
            matches = ({"body": body.label, "name": name} for name in untried)
            accepted = (one for one in matches if is_taken({"match": one, "patch": patch}, model))
            chosen += list(islice(accepted, 1))
        if chosen:
            used |= {(match["body"], match["name"]) for match in chosen}
            rules.append(str(patch))
            every = {"name": str(patch), "match": {"any": chosen}, "patch": patch}
            model = graphpatch.apply([every], model).model
    return model, rules


def bodies(model: graphpatch.Model) -> list[Body]:
    """The first bodies of a model, one of each label."""
    found = {body.label: body for graph in model.graphs for body in graph.bodies}
    return [body for body in found.values() if not body.is_ours][:MOST]


def candidates(body: Body) -> list[str]:
    """Some ops of a body that a gradient may come to, of as many op types as there are."""
    firsts = (Node(body, index) for indices in body.by_type.values() for index in indices[:2])
    reached = (node for node in firsts if any(map(carries, node.outputs or ())))
    return [node.name for node in islice((node for node in reached if node.data_inputs), MOST)]


def is_taken(rule: dict[str, Any], model: graphpatch.Model) -> bool:
    try:
        graphpatch.apply([rule], model)
    except GraphpatchError:
        return False
    return True
