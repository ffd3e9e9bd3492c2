"""The document of a page: everything that it draws, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.analysis.doctor.diagnosis import Doctor, PairDiagnosis
from graphpatch.analysis.doctor.finding import Finding
from graphpatch.analysis.doctor.survey import doctors
from graphpatch.differentiation.gradient_reach import GradientReach
from graphpatch.differentiation.replay import GradientReplay
from graphpatch.differentiation.wiring import Tensor, Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.graph.body import Body
from graphpatch.graph.calls import called_functions
from graphpatch.graph.provenance import name_in_model
from graphpatch.page.body_flow import body_flow
from graphpatch.page.body_lines import BodyLines, body_document, lines
from graphpatch.page.changed import rules_between
from graphpatch.page.gradient_ends import GradientEnds, ends_of, pairs, tensors
from graphpatch.page.rule_marks import RuleMarks
from graphpatch.page.sides import BodySide, body_side
from graphpatch.page.tables import Tables
from graphpatch.shown import one_line
from graphpatch.table import plural, short

DOCUMENT_VERSION = 1


@dataclass(eq=False)
class BuiltDocument:
    """A document, and the lines of the main graphs that it has, for what runs them."""

    document: dict[str, Any]
    ends: list[GradientEnds] = field(default_factory=list)
    mains: list[BodyLines] = field(default_factory=list)


def built_document(
    models: Sequence[Model], marks: RuleMarks, sources: Sequence[str], targets: Sequence[str]
) -> BuiltDocument:
    """The document of a model, or of one before and one after.

    Raises ModelError for a broken graph, and where no tensor leads from the ends that are named to
    each other.
    """
    asked = [doctors(model) for model in models]
    tables = Tables()
    found = BuiltDocument({})
    graphs, bodies = [], list[dict[str, Any]]()
    for place, both in enumerate(zip(*asked, strict=True)):
        one = _Graph(both, marks, place, _ends(both[0], sources, targets), tables)
        if sources or targets:
            one.refuse_apart(models[0].path)
        graphs.append(one.document(bodies))
        found.ends.append(one.ends)
        found.mains.append(one.main)
    found.document = {
        "graphpatch": graphpatch.__version__,
        "document": DOCUMENT_VERSION,
        "models": list(_model_documents(models, marks)),
        "rules": marks.document(),
        "graphs": graphs,
        "bodies": bodies,
        "run": None,
        "notes": [],
        "defaults": tables.defaults(),  # before the tables, to which it adds
        "tables": tables.document(),
    }
    return found


def _model_documents(models: Sequence[Model], marks: RuleMarks) -> Iterator[dict[str, Any]]:
    """What the page says of each model."""
    roles = ["model"] if len(models) == 1 else ["before", "after"]
    titles = _titles([str(model.path) for model in models], marks)
    for model, role, title in zip(models, roles, titles, strict=True):
        path, ops = one_line(str(model.path)), model.node_count
        told = {"path": path, "format": model.format, "ops": ops, "role": role}
        yield {**told, "title": one_line(title)}


def _titles(paths: Sequence[str], marks: RuleMarks) -> list[str]:
    """What to call each model: the last part of its path; the last two where these are alike."""
    parts = [Path(path).parts[-2:] or (path,) for path in paths]
    if len(set(paths)) == len(paths):
        are_alike = len({part[-1] for part in parts}) < len(parts)
        return [str(Path(*part)) if are_alike else part[-1] for part in parts]
    name = parts[0][-1]
    if marks.is_taken_off:
        return [f"{name} without its rules", name]
    return [name, f"with {plural(len(marks.written), 'rule')}" if marks.are_given else name]


def _ends(asked: Doctor, sources: Sequence[str], targets: Sequence[str]) -> GradientEnds:
    return ends_of(asked.session.graph, _wiring(asked), sources, targets)


def _wiring(doctor: Doctor) -> Any:
    return doctor.session.wiring(doctor.session.graph.main)


class _Graph:
    """One graph of each model: its ends, its bodies, and what doctor says of its pairs."""

    def __init__(
        self,
        both: Sequence[Doctor],
        marks: RuleMarks,
        place: int,
        chosen: GradientEnds,
        tables: Tables,
    ) -> None:
        self.both, self.marks, self.place, self.ends, self.tables = (
            both,
            marks,
            place,
            chosen,
            tables,
        )
        self.backs = [self._back(doctor) for doctor in both]
        asked = [pairs(doctor, chosen, back) for doctor, back in zip(both, self.backs, strict=True)]
        self.pairs, self.left_out = [found for found, _ in asked], asked[0][1]
        self.main = lines([self._main(number) for number in range(len(both))], marks.is_applied)
        self.functions = self._functions()

    def refuse_apart(self, path: str) -> None:
        """Raise ModelError where no tensor leads from any source to any target."""
        asked = self.pairs[0]
        if asked and not self.left_out and not any(one.connected for one in asked):
            pair = asked[0]
            more = "name tensors with --from and --to of which one is computed from the other"
            raise ModelError(
                f"{path}: no tensor leads from {pair.source} to {pair.target}, so nothing can flow "
                f"back; {pair.says or more}"
            )

    def document(self, bodies: list[dict[str, Any]]) -> dict[str, Any]:
        """The graph as the page reads it; its bodies are added to `bodies`."""
        graph = self.both[0].session.graph
        first = len(bodies)
        numbers = {name: first + 1 + place for place, name in enumerate(self.functions)}
        bodies += [self._body(one, numbers) for one in (self.main, *self.functions.values())]
        return {
            "label": one_line(graph.around.tags),
            "from": [one_line(one) for one in self.ends.sources],
            "to": [one_line(one) for one in self.ends.targets],
            "pairs": list(self._pairs()),
            "pairs_left_out": self.left_out,
            "body": first,
            "notes": list(self._notes()),
        }

    def _back(self, doctor: Doctor) -> GradientReach:
        """The way back in the main graph; of a TF2 SavedModel as a tape differentiates it."""
        graph, answers = doctor.session.graph, self._answers(doctor)
        return answers.backward(graph.main, *self._tensors(answers.wiring(graph.main)))

    def _answers(self, doctor: Doctor) -> GradientReplay:
        return doctor.tape if self._is_taped else doctor.session

    def _tensors(self, wiring: Wiring) -> tuple[list[Tensor], list[Tensor]]:
        return tensors(wiring, self.ends.sources), tensors(wiring, self.ends.targets)

    def _main(self, number: int) -> BodySide:
        """The lines of the main graph of one model."""
        back, answers = self.backs[number], self._answers(self.both[number])
        found = body_flow(answers, back, self._tensors(back.wiring))
        return body_side(found, self._rules("main", number))

    def _function(self, doctor: Doctor, number: int, name: str) -> BodySide:
        answers: GradientReplay = doctor.tape
        body = answers.graph.functions[name]
        wiring = answers.wiring(body)
        both = [(index, 0) for index in wiring.arguments.values()], wiring.returned
        back = answers.inside(name) or answers.backward(body, *both)
        return body_side(body_flow(answers, back, both), self._rules(name, number))

    def _rules(self, label: str, number: int) -> dict[str, tuple[str, ...]]:
        """The rules at the ops of a body: of the model after, or of the only one."""
        is_last = number == len(self.both) - 1
        return self.marks.of_body(self.place, label) if is_last else {}

    def _functions(self) -> dict[str, BodyLines]:
        """The lines of the functions that lines call, those that graphpatch added left out."""
        found: dict[str, BodyLines] = {}
        todo = [self.main] if any(one.tape.graph.functions for one in self.both) else []
        while todo:
            heads = todo.pop().heads
            for name in (name for one in heads if one.node for name in called_functions(one.node)):
                sides = [] if name in found else list(self._sides(name))
                if sides:
                    found[name] = lines(sides, self.marks.is_applied)
                    todo.append(found[name])
        return found

    def _sides(self, name: str) -> Iterator[BodySide]:
        """The lines of a function in each model that has it."""
        for number, doctor in enumerate(self.both):
            body = doctor.tape.graph.functions.get(name)
            if body is not None and not _is_ours(body):
                yield self._function(doctor, number, name)

    def _body(self, found: BodyLines, numbers: Mapping[str, int]) -> dict[str, Any]:
        label = found.sides[0].body.label
        told: dict[str, list[Finding]] = {}
        for one in (pair for some in self.pairs for pair in some):
            for finding in self._blocking(one) if self._is_blocked(one) else ():
                if finding.node.body.label == label:
                    told.setdefault(name_in_model(finding.node), []).append(finding)
        return body_document(found, self.tables, self.marks.written, told, numbers)

    def _is_blocked(self, one: PairDiagnosis) -> bool:
        """Whether nothing flows as this graph is differentiated: in a Session, or on a tape."""
        return (one.tape if self._is_taped else one.verdict) != "flows"

    def _blocking(self, one: PairDiagnosis) -> Sequence[Finding]:
        """What blocks as this graph is differentiated."""
        return one.findings if self._is_taped else one.of_session

    @property
    def _is_taped(self) -> bool:
        return self.both[0].session.graph.around.is_object_based

    def _pairs(self) -> Iterator[dict[str, Any]]:
        for several in zip(*self.pairs, strict=False):
            yield {
                "from": one_line(several[0].source),
                "to": one_line(several[0].target),
                "sides": [self._verdict(one) for one in several],
                "changed": self._changed(several[-1]),
            }

    def _verdict(self, one: PairDiagnosis) -> dict[str, Any]:
        """What is said of a pair; what blocks on a tape alone apart, for who differentiates so."""
        blocking = self._blocking(one)
        return {
            "verdict": one.verdict,
            "tape": one.tape,
            "connected": one.connected,
            "says": one_line(one.says),
            "findings": list(map(_op_blamed, blocking)),
            "on_tape": [_op_blamed(f) for f in one.findings if f not in blocking],
        }

    def _changed(self, pair: PairDiagnosis) -> dict[str, int]:
        """The rules that change what flows between two ends, each with the number of its ops."""
        if not self.marks.is_applied or not self.marks.written:
            return {}
        last = self.main.sides[-1]
        (source,), (target,) = (
            tensors(last.flowing.wiring, [name]) for name in (pair.source, pair.target)
        )
        ends = last.key(source[0]), last.key(target[0])
        return dict(rules_between(self.main, self.functions, *ends))

    def _notes(self) -> Iterator[str]:
        shown = set(self.main.rows)
        missing = [op for op in self.marks.of_body(self.place, "main") if op not in shown]
        if missing:
            are, have = ("is", "has") if len(missing) == 1 else ("are", "have")
            yield (
                f"{len(missing)} of the ops that rules touch {are} not between the two ends, and "
                f"{have} no line: {short(list(map(one_line, missing)))}"
            )
        if not self.ends.sources:
            yield "it has no placeholder and no variable: name a source with --from"


def _is_ours(body: Body) -> bool:
    return body.is_ours or body.label.startswith("graphpatch_")


def _op_blamed(finding: Finding) -> dict[str, str]:
    node = finding.node
    return {
        "op": one_line(node.name),
        "type": one_line(node.op),
        "body": one_line(node.body.label),
        "what": one_line(finding.what),
    }
