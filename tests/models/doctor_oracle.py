"""What tf.gradients gives for each pair of a real model, and what `doctor` foretells.

TensorFlow itself aborts on some graphs, so this runs in a process of its own: see `forward.Worker`.
As a script it prints the agreement over all real models: python -m tests.models.doctor_oracle
"""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.analysis.doctor.diagnosis import Diagnosis
from graphpatch.analysis.doctor.fix import fix
from graphpatch.analysis.doctor.survey import survey
from graphpatch.dtypes import DIFFERENTIABLE
from graphpatch.errors import ModelError
from graphpatch.graph.body import Node
from graphpatch.patches.flow import FED
from tests.models import catalogue

PARAMETERS = frozenset({"Const", "Variable", "VariableV2"})
MOST = 3


@dataclass
class Agreement:
    """How many pairs were compared, how often each verdict came, and where the two differ."""

    pairs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def agreeing(self) -> int:
        """The pairs of which doctor foretold what TensorFlow did."""
        return self.pairs - len(self.differing)


def sources(model: graphpatch.Model) -> list[str]:
    """By what is differentiated where a model has no placeholder: its first parameters."""
    main = model.graphs[0].main
    if any(main.by_type.get(op) for op in FED):
        return []
    found = [node for node in main if node.op in PARAMETERS and _is_float(node)]
    return [node.name for node in found[:MOST]]


def _is_float(node: Node) -> bool:
    return bool(node.outputs) and all(arg.dtype in DIFFERENTIABLE for arg in node.outputs or ())


def compare(name: str, control_flow_v2: bool = True) -> Agreement:
    """Ask both about every pair of a placeholder and an output of a model."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    (tf1.enable_control_flow_v2 if control_flow_v2 else tf1.disable_control_flow_v2)()
    found = Agreement()
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
        _compare(meta, graph.diagnoses, found)
    return found


def _compare(meta: Any, diagnoses: Any, found: Agreement) -> None:
    import tensorflow as tf

    graph = None
    for foretold in diagnoses:
        if graph is None:
            try:
                graph = imported(meta)
            except (ValueError, TypeError, tf.errors.OpError) as error:
                found.refused.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
                return
        verdict, says = ask(graph, foretold.source, foretold.target)
        found.pairs += 1
        found.verdicts[verdict] += 1
        if not agree(foretold, verdict, says):
            mine = f"{foretold.verdict} {foretold.says}"
            pair = f"{foretold.source} -> {foretold.target}"
            found.differing.append(f"{pair}: {verdict} {says}; doctor: {mine}")
        if verdict == "error":
            graph = None  # what was built until then stays in the graph


def agree(foretold: Diagnosis, verdict: str, says: str) -> bool:
    """Whether TensorFlow does what was foretold, and raises it in the same words of the same op."""
    if verdict != "error":
        return {"zero": "flows"}.get(foretold.verdict, foretold.verdict) == verdict
    kind, _, text = foretold.says.partition(":")
    words = [word for word in text.split() if word.startswith("'")]
    return foretold.verdict == "error" and says.startswith(kind) and all(w in says for w in words)


def ask(graph: Any, source: str, target: str) -> tuple[str, str]:
    """What tf.gradients gives: flows, none, or error and what is raised."""
    import tensorflow as tf

    with graph.as_default():
        ends = [graph.get_tensor_by_name(name) for name in (target, source)]
        try:
            [found] = tf.gradients(ends[0], [ends[1]])
        except Exception as error:  # whatever a gradient function raises is the answer
            return "error", f"{type(error).__name__}: {error}"
    return ("none" if found is None else "flows"), ""


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
class Mended:
    """What --fix does: how many rules, which pairs should flow then, and which don't."""

    rules: int = 0
    pairs: int = 0
    failing: list[str] = field(default_factory=list)
    left: int = 0


def mend(name: str) -> Mended:
    """Apply what `doctor --fix` writes, save, and ask TensorFlow about the pairs that it mends."""
    path, found = catalogue.models()[name], Mended()
    if catalogue.refusal(path):
        return found
    model = graphpatch.load(path)
    try:
        fixed = fix(model, sources(model), ())
    except ModelError:
        return found
    found.rules, found.pairs, found.left = len(fixed.rules), len(fixed.mended), len(fixed.left)
    if not fixed.rules:
        return found
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        graphpatch.apply(fixed.rules, model).model.save(target)
        message = catalogue.read(target)
    metas = message.meta_graphs if hasattr(message, "meta_graphs") else [message]
    for pair in fixed.mended:
        verdicts = [ask(imported(meta), pair.source, pair.target) for meta in metas]
        if ("flows", "") not in verdicts:
            found.failing.append(f"{pair.source} -> {pair.target}: {verdicts}")
    return found


def main() -> None:
    """Print the agreement over all models, and each disagreement."""
    from tests.models.forward import Worker

    worker, total = Worker(), Agreement()
    for name in catalogue.models():
        try:
            found = worker(compare, name)
        except BrokenProcessPool:
            print(f"{name}: TensorFlow aborts", flush=True)  # noqa: T201
            continue
        total.pairs += found.pairs
        total.verdicts += found.verdicts
        total.differing += [f"{name}: {text}" for text in found.differing]
        total.refused += [f"{name}: {text}" for text in found.refused]
    print(*total.differing, *total.refused, sep="\n")  # noqa: T201
    models = len(catalogue.models())
    print(f"{total.agreeing} of {total.pairs} pairs of {models} models: {total.verdicts}")  # noqa: T201


if __name__ == "__main__":
    main()
