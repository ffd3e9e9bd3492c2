"""What tf.gradients gives for each pair of a real model, and what `doctor` foretells.

TensorFlow itself aborts on some graphs, so this runs in a process of its own: see `forward.Worker`.
The agreement over all real models, as a figure: python scripts/doctor_agreement.py
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import fix, survey
from graphpatch.errors import ModelError
from graphpatch.graph.op_types import FED
from graphpatch.opdefs import DIFFERENTIABLE
from graphpatch.runtime.doctor_run import run_pairs
from tests.models import catalogue

PARAMETERS = frozenset({"Const", "Variable", "VariableV2"})
MOST = 3
LIGHT = 1 << 20  # weights of a model whose gradients are run, too


@dataclass
class Agreement:
    """How many pairs were compared, how often each verdict came, and where the two differ."""

    pairs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    foretold: Counter[str] = field(default_factory=Counter)  # and of these, by verdict, that came
    unasked: int = 0  # pairs for which there was no time
    apart: int = 0  # pairs that no tensor connects

    @property
    def agreeing(self) -> int:
        """The pairs of which doctor foretold what TensorFlow did."""
        return self.pairs - len(self.differing)


def sources(model: graphpatch.Model) -> list[str]:
    """By what is differentiated where a model has no placeholder: its first parameters."""
    main = model.graphs[0].main
    if any(main.by_type.get(op) for op in FED):
        return []
    parameters = (node for node in main if node.op in PARAMETERS and node.outputs)
    dtypes = {node.name: {arg.dtype for arg in node.outputs or ()} for node in parameters}
    return [name for name, found in dtypes.items() if found <= set(DIFFERENTIABLE)][:MOST]


def compare(name: str, control_flow_v2: bool = True, seconds: float = float("inf")) -> Agreement:
    """Ask both about every pair of a placeholder and an output of a model, for so long."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()
    found, end = Agreement(), time.monotonic() + seconds
    path = catalogue.models()[name]
    try:
        model = graphpatch.load(path)
        seen = survey(model, sources(model), control_flow_v2=control_flow_v2)
    except ModelError as error:
        found.refused.append(str(error))
        return found
    message = catalogue.read(path)
    metas = message.meta_graphs if hasattr(message, "meta_graphs") else [message]
    for meta, graph in zip(metas, seen, strict=True):
        try:
            compare_pairs(meta, graph.diagnoses, found, end)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            found.refused.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return found


def compare_pairs(
    meta: Any, diagnoses: Sequence[PairDiagnosis], found: Agreement, end: float = float("inf")
) -> None:
    """Ask TensorFlow about these pairs of a message's graph, until so late.

    Raises what TensorFlow does where it refuses to import the message.
    """
    by_target: dict[str, list[PairDiagnosis]] = {}
    for pair in diagnoses:
        by_target.setdefault(pair.target, []).append(pair)
    asked = AskedPair(meta) if diagnoses else None
    for some in by_target.values():
        if asked is None or time.monotonic() > end:
            found.unasked += len(some)
        else:
            _compare(asked, some, found)


def _compare(asked: AskedPair, some: Sequence[PairDiagnosis], found: Agreement) -> None:
    """The pairs of one target. What seems to differ is asked again, alone in a new graph."""
    verdicts = asked.of(some[0].target, [one.source for one in some])
    for foretold, (verdict, says) in zip(some, verdicts, strict=True):
        if not agree(foretold, verdict, says):
            verdict, says = asked.anew(foretold.target, foretold.source)
        found.pairs += 1
        found.apart += not foretold.connected
        found.verdicts[verdict] += 1
        if agree(foretold, verdict, says):
            found.foretold[verdict] += 1
        else:
            mine = f"{foretold.verdict} {foretold.says}"
            pair = f"{foretold.source} -> {foretold.target}"
            found.differing.append(f"{pair}: {verdict} {says}; doctor: {mine}")


class AskedPair:
    """A graph that is asked about many pairs: what gradients leave in it, no later one reads.

    tf.gradients looks from the sources on and from the targets back, so ops added since are never
    between them. After an error the control-flow context in which it came is left.
    """

    def __init__(self, meta: Any) -> None:
        self.meta, self.graph = meta, imported(meta)

    def of(self, target: str, sources: Sequence[str]) -> list[tuple[str, str]]:
        """What tf.gradients gives for each source: asked at once, and alone where that raises."""
        try:
            found = gradients(self.graph, target, sources)
        except Exception as error:  # whatever a gradient function raises is the answer
            self.graph._set_control_flow_context(None)
            if len(sources) == 1:
                return [("error", f"{type(error).__name__}: {error}")]
            return [answer for source in sources for answer in self.of(target, [source])]
        return [("flows" if one else "none", "") for one in found]

    def anew(self, target: str, source: str) -> tuple[str, str]:
        """What it gives in the graph imported anew."""
        self.graph = imported(self.meta)
        return self.of(target, [source])[0]


def gradients(graph: Any, target: str, sources: Sequence[str]) -> list[bool]:
    """For which sources tf.gradients gives a tensor."""
    import tensorflow as tf

    with graph.as_default():
        ends = [graph.get_tensor_by_name(name) for name in sources]
        found = tf.gradients(graph.get_tensor_by_name(target), ends)
    return [one is not None for one in found]


def agree(foretold: PairDiagnosis, verdict: str, says: str) -> bool:
    """Whether TensorFlow does what was foretold, and raises it in the same words of the same op."""
    if verdict != "error":
        return {"zero": "flows"}.get(foretold.verdict, foretold.verdict) == verdict
    kind, _, text = foretold.says.partition(":")
    words = [word for word in text.split() if word.startswith("'")]
    return foretold.verdict == "error" and says.startswith(kind) and all(w in says for w in words)


def imported(meta: Any) -> Any:
    """The tf.Graph of a message, with the control-flow contexts that it holds."""
    import tensorflow as tf

    if not hasattr(meta, "graph_def") or meta.object_graph_def.nodes:
        return catalogue.imported(getattr(meta, "graph_def", meta))
    if not {"while_context", "cond_context"} & set(meta.collection_def):
        return catalogue.imported(meta.graph_def)
    with tf.Graph().as_default() as graph:
        tf.compat.v1.train.import_meta_graph(meta)
    return graph


@dataclass
class AfterFix:
    """What --fix does: how many rules and pairs, how many flow then, and which do not.

    Of `ran`, some pairs of each model without many weights, the gradient was run on small seeded
    values: `zero` are those for which it is exactly zero, `idle` those that do not run, with
    TensorFlow's reason.
    """

    rules: int = 0
    pairs: int = 0
    ran: int = 0
    failing: list[str] = field(default_factory=list)
    zero: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    left: int = 0


def after_fix(name: str) -> AfterFix:
    """Apply what `doctor --fix` writes, save, and ask TensorFlow about the pairs that it fixes."""
    path, found = catalogue.models()[name], AfterFix()
    if catalogue.refusal(path):
        return found
    model = graphpatch.load(path)
    try:
        fixed = fix(model, sources(model), ())
    except ModelError:
        return found
    found.rules, found.pairs, found.left = len(fixed.rules), len(fixed.flowing), len(fixed.left)
    if not fixed.rules:
        return found
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        graphpatch.apply(fixed.rules, model).model.save(target)
        message, saved = catalogue.read(target), graphpatch.load(target)
        most = MOST if _weights(saved) < LIGHT else 0
        some = [(one.source, one.target) for one in fixed.flowing[:most]]
        runs = [run_pairs(saved, place, some) for place in range(len(saved.graphs))]
    metas = message.meta_graphs if hasattr(message, "meta_graphs") else [message]
    asked = [AskedPair(meta) for meta in metas]
    for pair in fixed.flowing:
        verdicts = [one.of(pair.target, [pair.source])[0] for one in asked]
        if ("flows", "") not in verdicts:
            found.failing.append(f"{pair.source} -> {pair.target}: {verdicts}")
    for (source, target_name), *results in zip(some, *runs, strict=True):
        _count(found, f"{source} -> {target_name}", results)
    return found


def _weights(model: graphpatch.Model) -> int:
    """How many numbers the variables of a model hold."""
    shapes = [
        [dim.size for dim in value.shape.dim]
        for graph in model.graphs
        for node in graph.main
        if node.op in PARAMETERS and (value := node.attr("shape")) is not None
    ]
    return sum(math.prod(shape) for shape in shapes)


def _count(found: AfterFix, pair: str, results: Sequence[dict[str, Any]]) -> None:
    """The best of what a pair gives in each graph of a model."""
    best = min(results, key=lambda one: (not one["ran"], one["zero"]))
    text = f"{pair}: {best['says']}"
    found.ran += best["ran"]
    found.idle += [text] * (not best["ran"])
    found.zero += [text] * best["zero"]
