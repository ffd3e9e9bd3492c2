"""`doctor` in Python: every pair that was asked about, with what running it gave, and the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpatch.analysis.doctor.causes import rule_for
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis as Pair
from graphpatch.analysis.doctor.survey import FixResult, GraphDiagnosis, applied, survey
from graphpatch.analysis.doctor.survey import fix as fixed_by_rules
from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.application import page_part
from graphpatch.errors import tensor_names
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.model import Model
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Node
from graphpatch.shown import beside, html_table, plural

if TYPE_CHECKING:  # it imports numpy
    from graphpatch.runtime.doctor_run import NotFinite

VERDICT_WORDS = {
    "flows": "the gradient flows",
    "zero": "the gradient is there, and is zero",
    "none": "the gradient is None",
    "error": "tf.gradients raises",
}


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What the gradients of a model are, pair by pair, and why.

    `seen` has each graph of the model with its pairs and notes; `ran` for each graph what running
    its pairs gave, where they were run, and `not_finite` where NaN starts, for targets in which it
    was looked for; `fixed` the rules that fix what blocks, where these were
    asked for; `loaded` is the model. `rules` and `pairs` are short ways to them.

    Example:
        >>> found = graphpatch.diagnose("model.pb", "x", ["loss", "bits_loss"])
        >>> [(pair.target, pair.verdict) for pair in found.pairs]
        [('loss:0', 'flows'), ('bits_loss:0', 'none')]
    """

    model: str
    seen: tuple[GraphDiagnosis, ...]
    ran: tuple[list[dict[str, Any]], ...] = ()
    not_finite: tuple[list[NotFinite], ...] = ()
    fixed: FixResult | None = None
    loaded: Model | None = field(default=None, compare=False)

    @property
    def pairs(self) -> list[Pair]:
        """Return the pairs of all graphs."""
        return [pair for graph in self.seen for pair in graph.diagnoses]

    @property
    def rules(self) -> list[dict[str, Any]]:
        """Return the rules that fix what blocks, and take NaN out, for `apply` or a rules file."""
        starts = [start.rule for graph in self.not_finite for start in graph if start.rule]
        finite = [rule for number, rule in enumerate(starts) if rule not in starts[:number]]
        return [*(self.fixed.rules if self.fixed is not None else ()), *finite]

    @property
    def ok(self) -> bool:
        """Return whether the gradient of every pair flows, and where run, is finite and not zero.

        False too where there is no pair. Of several pairs those count that tensors connect.
        """
        results = list(self._results())
        counted = [result for result in results if result[0].connected] or results
        return bool(counted) and all(_pair_flows(*result) for result in counted)

    def document(self, rules: str | None = None) -> dict[str, Any]:
        """Return what `doctor --json` prints; the rules were written to the file `rules`."""
        graphs = [item.document() for item in self.seen]
        for graph, results in zip(graphs, self.ran, strict=False):
            for pair, result in zip(graph["pairs"], results, strict=True):
                pair["run"] = result
        for graph, starts in zip(graphs, self.not_finite, strict=False):
            graph["not_finite"] = [start.document() for start in starts]
        document: dict[str, Any] = {"model": self.model, "graphs": graphs}
        if self.fixed is not None:
            document["fix"] = {
                "rules": self.rules,
                "file": rules if self.rules or self.fixed.needs_contexts else None,
                "mended": [[item.source, item.target] for item in self.fixed.flowing],
                "left": [item.document() for item in self.fixed.left],
            }
        return document

    def __repr__(self) -> str:
        flow = sum(_pair_flows(*result) for result in self._results())
        fixed = f", {plural(len(self.rules), 'rule')}" if self.fixed or self.rules else ""
        return f"<Diagnosis: {self.model}, {flow} of {len(self.pairs)} pairs flow{fixed}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                pair.source,
                pair.target,
                VERDICT_WORDS[pair.verdict],
                result["says"] if result else "",
                "; ".join(
                    f"{finding.node.op} {finding.node.name}: {finding.what}"
                    for finding in pair.findings
                ),
            )
            for pair, result in self._results()
        ]
        table = html_table(repr(self)[1:-1], ("by", "of", "verdict", "run", "blocked by"), rows)
        if self.loaded is None or not self.pairs:
            return table
        sources = list(dict.fromkeys(pair.source for pair in self.pairs))
        targets = list(dict.fromkeys(pair.target for pair in self.pairs))
        return beside(table, page_part(self.loaded, None, sources, targets))

    def _results(self) -> Iterator[tuple[Pair, dict[str, Any] | None]]:
        """Yield each pair with what running it gave."""
        for place, graph in enumerate(self.seen):
            results = self.ran[place] if self.ran else [None] * len(graph.diagnoses)
            yield from zip(graph.diagnoses, results, strict=True)


def _pair_flows(pair: Pair, result: dict[str, Any] | None) -> bool:
    is_right = result is None or (result["ran"] and result["finite"] and not result["zero"])
    return pair.verdict == "flows" and is_right


def diagnose(
    model: ModelLike,
    sources: str | Sequence[str] = (),
    targets: str | Sequence[str] = (),
    *,
    run: bool = False,
    feed: str | Path | Mapping[str, Any] | None = None,
    fix: bool = False,
    every: bool = True,
    allow_unsafe_ops: bool = False,
    control_flow_v2: bool = True,
) -> Diagnosis:
    """Say why gradients of a model are None, zero or an error, and find rules that fix it.

    Forward nothing changes. Backward, the answer is that of `tf.gradients`, from a table of what
    TensorFlow's gradient functions give; `run` runs them.

    Args:
        model: What `load` takes.
        sources: Gradients by these tensors. Default: by all placeholders, and by
            the floats that iterators, queues and parsers of Examples give.
        targets: Gradients of these tensors. Default: of what is computed and read by no op,
            and of the floats that signatures give.
        run: Run the gradients too, on seeded inputs; this needs TensorFlow. Where they are NaN or
            infinite, `not_finite` names the op at which that starts.
        feed: Arrays by tensor name to run with, each of the dtype and shape of its tensor, or the
            path of a .npz file of them; variables have their values from the checkpoint then, and
            each target is searched for NaN.
        fix: Find the rules that make more pairs flow.
        every: False leaves out, of several default targets, those that cannot be a loss.
        allow_unsafe_ops: Run ops too that touch files, the network or Python.
        control_flow_v2: False answers as TensorFlow does after `disable_control_flow_v2()`.

    Raises:
        ModelError: The model cannot be read or is broken, or has no tensor of such a name.
        UnsafeError: It would do more than compute when it runs.
        TypeError: `model` is not a model, or one of the ends is not a name.

    Example:
        >>> found = graphpatch.diagnose("model.pb", "x", "bits_loss", fix=True)
        >>> graphpatch.apply(found.rules, "model.pb").save("fixed.pb")
        >>> graphpatch.diagnose("fixed.pb", "x", "bits_loss").ok
        True
    """
    loaded = model_from("model", model)
    ends = tensor_names("sources", sources), tensor_names("targets", targets)
    if feed is not None and not run:
        raise TypeError("feed is what the gradients are run with; give run=True too")
    surveyed = tuple(survey(loaded, *ends, control_flow_v2, every))
    diagnosis = Diagnosis(loaded.path, surveyed, loaded=loaded)
    if run:
        for graph in surveyed:
            targets = [diagnosed.target for diagnosed in graph.diagnoses]
            refuse_unsafe(graph.graph, allow_unsafe_ops, targets)
        diagnosis = _run(diagnosis, loaded, control_flow_v2, feed)
    if not fix:
        return diagnosis
    return replace(diagnosis, fixed=fixed_by_rules(loaded, *ends, control_flow_v2, every))


def _run(
    diagnosis: Diagnosis,
    model: Model,
    control_flow_v2: bool,
    feed: str | Path | Mapping[str, Any] | None,
) -> Diagnosis:
    """Run the pairs of each graph; look where NaN starts, for all targets that are fed or have it.

    TensorFlow is imported here, and not before what is fed was read.
    """
    from graphpatch.runtime.doctor_run import first_not_finite, run_pairs
    from graphpatch.runtime.tf_gradients import control_flow
    from graphpatch.runtime.values import fed_values

    fed = fed_values(feed)
    ran, not_finite = [], []
    for place, graph in enumerate(diagnosis.seen):
        pairs = graph.diagnoses
        asked = [(pair.source, pair.target) for pair in pairs]
        results = run_pairs(model, place, asked, control_flow_v2, None if feed is None else fed)
        sources: dict[str, list[str]] = {}
        for pair, result in zip(pairs, results, strict=True):
            if feed is not None or not result["finite"]:
                sources.setdefault(pair.target, []).append(pair.source)
        with control_flow(control_flow_v2):
            starts = [first_not_finite(model, place, *ends, fed) for ends in sources.items()]
        ran.append(results)
        not_finite.append([_with_rule(start, model, graph.graph) for start in starts])
    return replace(diagnosis, ran=tuple(ran), not_finite=tuple(not_finite))


def _with_rule(start: NotFinite, model: Model, graph: ModelGraph) -> NotFinite:
    """Add the rule that takes NaN out of the gradient, if it can be applied."""
    if start.phase != "backward" or start.slot is None:
        return start
    body = graph.body(start.body)
    patch = {"filter_gradient": "finite", "at": f"input:{start.slot}"}
    rule = rule_for(Node(body, body.by_name[start.op]), "finite", patch)
    if isinstance(applied(model, [rule]), str):
        return replace(start, remedy="no rule can be put there; put one on the op that it reads")
    return replace(start, remedy=f"0 in the place of NaN: {json.dumps(patch)}", rule=rule)
