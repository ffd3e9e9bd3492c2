"""A program that uses all of the API, as a type checker sees it: `mypy --strict` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

import graphpatch
from graphpatch import tf_keras
from graphpatch.keras import BackwardAs, GradientFilter, PatchedModel, Surrogate

RULE: dict[str, Any] = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def in_any_form(graph: tf.Graph, graph_def: tf.compat.v1.GraphDef, function: Any) -> list[str]:
    """The labels of models in every form."""
    forms = [graph, graph_def, graph_def.SerializeToString(), function, Path("m.pb"), "m.pb"]
    return [graphpatch.load(form).path for form in forms]


def commands(model: graphpatch.Model, graph: tf.Graph) -> bool:
    """Every command, and what each value has."""
    rules: list[graphpatch.Rule] = graphpatch.load_rules("rules.json", emit="attr")
    result: graphpatch.Result = graphpatch.apply("rules.json", model)
    graphpatch.apply(Path("rules.json"), "model.pb")
    graphpatch.apply(rules, b"...")
    graphpatch.apply(rules[0], graph)
    graphpatch.apply([RULE, *rules], bytearray())
    graphpatch.apply({"rules": [RULE]}, model, export=graphpatch.Export(("x",), ("y",)))
    reverted: graphpatch.Reverted = graphpatch.revert(result, rule="rule 1")
    found: graphpatch.Matches = graphpatch.matches(graphpatch.pattern("a:Relu -> b:Relu"), model)
    places: list[graphpatch.Place] = list(found)
    texts: list[str] = [place.captures["a"] + place.inputs["x0"] for place in places]
    diagnosis: graphpatch.Diagnosis = graphpatch.diagnose(model, "x", ["loss"], run=True, fix=True)
    fixed: graphpatch.Result = graphpatch.apply(diagnosis.rules, model)
    split: graphpatch.Split = graphpatch.split(model, "loss", [["a", "b"], ["c"]], "x")
    split.save(Path("parts"))
    check: graphpatch.Check = graphpatch.check(rules, model)
    diff: graphpatch.Diff = graphpatch.diff(model, result.model)
    verification: graphpatch.Verification = graphpatch.verify(model, fixed, sources="x")
    document: dict[str, Any] = result.document() | reverted.document() | found.document()
    document |= diagnosis.document() | split.document() | check.document() | diff.document()
    document |= verification.document()
    ok: bool = result.ok and reverted.ok and found.ok and diagnosis.ok and split.ok
    return ok and check.ok and diff.ok and verification.ok and len(document) == len(texts)


def selected(model: graphpatch.Model) -> graphpatch.Result:
    """Selections are refined, joined and patched."""
    relus: graphpatch.Selection = graphpatch.select(model, op="Relu*").where(body="main")
    others: graphpatch.Selection = ~relus | relus & relus - relus
    counts: dict[str, int] = others.types
    names: list[str] = [node.name for node in relus]
    return relus.apply({"stop_gradient": True}, name=f"{len(names)} of {sum(counts.values())}")


def given_out(result: graphpatch.Result, graph: tf.Graph) -> list[str]:
    """A model leaves as a message, into a live graph, and as a file."""
    tf.import_graph_def(result.graph_def(), name="")
    tf.compat.v1.train.import_meta_graph(result.meta_graph_def("serve"))
    result.import_into(graph, name="patched")
    result.model.import_into(graph)
    result.save("patched.pb")
    result.model.save(Path("patched.pb"))
    graphpatch.import_model(result, name="scope")
    return graphpatch.register_gradients(graph)


def live(graph: tf.Graph) -> graphpatch.PatchedGraph:
    """Live graphs, patched and while they are built."""
    with graphpatch.building([RULE]) as building:
        tf.nn.relu(tf.constant(1.0))
    report: dict[str, Any] = building.report
    parts: graphpatch.Parts = graphpatch.gradient_in_parts(graph, "loss", "cut", "x")
    assert report
    assert parts.at_wrt
    return graphpatch.patch_graph("rules.json", graph, in_place=True)


def functions(x: tf.Tensor) -> list[Any]:
    """Functions on tensors."""
    relu = graphpatch.override_gradient(tf.nn.relu, "guided_relu")
    return [
        graphpatch.clip_gradient(x, -0.1, tf.constant(0.1)),
        graphpatch.scale_gradient(x, 0.5),
        graphpatch.reverse_gradient(x, strength=0.3),
        graphpatch.filter_gradient(x, {"clip_by_norm": 1.0}),
        graphpatch.filter_gradient(x, lambda dy: -dy),
        relu(x),
        graphpatch.straight_through(tf.round, x),
        graphpatch.surrogate(tf.sign, tf.tanh, x),
        graphpatch.backward_as(x + 1.0, x),
    ]


def layers(x: tf.Tensor) -> list[Any]:
    """Keras layers."""
    reversal = GradientFilter({"reverse": 0.3}, adjustable=True)
    outputs = [
        reversal(x),
        Surrogate("sign(x)", "tanh(x)")(x),
        BackwardAs()([x, x]),
        PatchedModel("model.pb", "x", ["y"], rules=[RULE])(x),
        tf_keras.GradientFilter("reverse")(x),
    ]
    reversal.adjust(strength=1.0)
    return outputs


def training() -> None:
    """A training graph, its gradients built anew."""
    model: graphpatch.Model = graphpatch.apply("rules.json", "training.meta").model
    graphpatch.rebuild_gradients(model, ["loss"]).save("patched.meta")
