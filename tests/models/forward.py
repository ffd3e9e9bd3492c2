"""What a real model answers before and after it is patched wherever that can be done.

TensorFlow itself aborts on some graphs, so all this runs in a process of its own: see `Worker`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.errors import PatchError
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.record import Author
from graphpatch.patches.editing import Report, RuleEditor
from graphpatch.patches.target import Target
from graphpatch.rules import rules_from
from graphpatch.runtime.verify import process
from tests import forked
from tests.models import catalogue, sessions
from tests.pinned import PINNED

CLIP = {"clip": {"min": -0.1, "max": 0.1}}
KEY = {"registered": "Key"}

# Each way to patch, as the rest of a rule.
KINDS: dict[str, Mapping[str, Any]] = {
    "override": {"patch": {"override_gradient": KEY}},
    "override, function": {"patch": {"override_gradient": "zero"}, "emit": "function"},
    "filter outputs": {"patch": {"filter_gradient": KEY}},
    "filter inputs": {"patch": {"filter_gradient": KEY, "at": "inputs"}},
    "filter outputs, function": {"patch": {"filter_gradient": CLIP}},
    "filter inputs, function": {"patch": {"filter_gradient": CLIP, "at": "inputs"}},
    "filter outputs, construction": {"patch": {"filter_gradient": {"scale": 0.5}}},
    "stop outputs": {"patch": {"stop_gradient": True}},
    "stop inputs": {"patch": {"stop_gradient": True, "at": "inputs"}},
    "straight through": {"patch": {"straight_through": True}},
    "surrogate": {"patch": {"surrogate_gradient": "sum(x * x)"}},
    "surrogate, function": {"patch": {"surrogate_gradient": "sum(x * x)"}, "emit": "function"},
}

# With a construction behind it, an op is not rewritten together with its reader: x / sqrt(y) stays
# what it says, where the optimiser would make x * rsqrt(y) of it, other in its last bits.
NOT_OPTIMISED_ACROSS = {"surrogate", "filter outputs, construction"}

# So many kinds of each model are run.
SAMPLE = 2


def kinds_of(name: str) -> list[str]:
    """The kinds that are run of a model."""
    return catalogue.drawn(KINDS, name, SAMPLE)


@dataclass
class Outcome:
    """How many ops were patched, how many read and give floats, and what then differs."""

    patched: int = 0
    floats: int = 0
    compared: int = 0
    differing: list[str] = field(default_factory=list)


class Worker:
    """A process with a TensorFlow of its own, started again where TensorFlow has aborted it."""

    def __init__(self) -> None:
        self.pool = self._started()

    def __call__(self, ask: Callable[..., Any], *args: object, timeout: float | None = None) -> Any:
        """The answer; or BrokenProcessPool, or TimeoutError after so many seconds."""
        try:
            return self.pool.submit(ask, *args).result(timeout)
        except (BrokenProcessPool, TimeoutError):
            for running in list(self.pool._processes.values()):
                running.kill()
            self.pool = self._started()
            raise

    def _started(self) -> ProcessPoolExecutor:
        os.environ.update(PINNED)  # before TensorFlow is imported: kernels of one order
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tensorflow"])
        command = [*forked.python("tensorflow"), "-c", process.WORKER_PROGRAM]
        return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare, initargs=(command,))


def _prepare(command: list[str]) -> None:
    """Chat less, and verify in processes that have TensorFlow already."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    process.command = lambda: command


def why_not(name: str) -> str:
    """TensorFlow's reason why the model does not run as it is; nothing where it does."""
    reason = catalogue.refusal(catalogue.models()[name])
    if reason:
        return reason
    found = plans(name)
    return "" if any(plan for plan, _ in found) else "; ".join({reason for _, reason in found})


@functools.lru_cache(maxsize=2)
def plans(name: str) -> list[tuple[sessions.Plan | None, str]]:
    """For each GraphDef of a model: how it is run without optimisers, and how with them."""
    graphs = [catalogue.imported(one) for one in catalogue.graph_defs(catalogue.models()[name])]
    return [sessions.plan(graph, optimise) for graph in graphs for optimise in (False, True)]


def compare(name: str, kind: str) -> Outcome:
    """Patch a model wherever that kind can be put, and compare what it answers."""
    path, outcome = catalogue.models()[name], Outcome()
    model = graphpatch.load(path)
    rules = [rule for graph in model.graphs for rule in _rules(graph, kind, outcome)]
    if not rules:
        return outcome
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        result = graphpatch.apply(rules, model)
        outcome.patched = sum(len(rule["matches"]) for rule in result.report["rules"])
        result.model.save(target)
        after = catalogue.graph_defs(target)
    for place, (plan, _) in enumerate(plans(name)):
        if plan is not None:
            same = sessions.same
            if plan.optimise and kind in NOT_OPTIMISED_ACROSS:
                same = sessions.close
            _compare(plan, catalogue.imported(after[place // 2]), outcome, same)
    return outcome


def _compare(plan: sessions.Plan, graph: Any, outcome: Outcome, same: sessions.Test) -> None:
    fetches = list(plan.expected)
    timeout = sessions.PATIENCE * sessions.TIMEOUT
    found, reason = sessions.run(graph, fetches, plan.feeds, plan.variables, plan.optimise, timeout)
    outcome.compared += len(fetches)
    how = "optimised" if plan.optimise else "plain"
    for tensor, value in plan.expected.items():
        if tensor not in found:
            outcome.differing.append(f"{tensor} ({how}): {reason}")
        elif not same(value, found[tensor]):
            outcome.differing.append(f"{tensor} ({how}): {value} and {found[tensor]}")


def _rules(graph: ModelGraph, kind: str, outcome: Outcome) -> list[dict[str, Any]]:
    """One rule a body, for all of its float ops that take this kind of patch."""
    rest, accepted = KINDS[kind], defaultdict(list)
    rule = rules_from([{"match": {}, **rest}])[0]
    scratch = graph.copy()
    editor = RuleEditor(scratch, Author("trial", "trial"), report=Report())
    for body in scratch.bodies:
        for node in list(body):
            carries = [arg for arg in node.outputs or () if arg.dtype in FLOATS and not arg.is_ref]
            if not carries or node.op == "Const":
                continue
            outcome.floats += any(arg.dtype in FLOATS for arg in node.arguments or ())
            name, idle = node.name, len(editor.report.idle)
            try:
                rule.patch.check([Target.of(node)])
                rule.patch.rewrite(Target.of(node), editor)
            except PatchError:
                continue
            if len(editor.report.idle) == idle:
                accepted[body.label].append(name)
    return [{"match": {"name": ops, "body": body}, **rest} for body, ops in accepted.items()]


FLOATS = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}
