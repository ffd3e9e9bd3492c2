"""Real models, patched wherever a kind of patch can be put, and what `verify` says of them.

As a script, over all models: python -m tests.models.verified [--sample] [KIND...]
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpatch
from tests.models import catalogue
from tests.models.forward import Outcome, Worker, _rules

# Each kind of tests.models.forward that needs nothing registered; and one by the library.
KINDS = (
    "guided",
    "override, function",
    "filter outputs, function",
    "stop inputs",
    "straight through",
)
GUIDED = {
    "match": {"op": ["Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"]},
    "patch": {"override_gradient": "guided_relu"},
    "expect": {"min": 0},
}


@dataclass
class Verified:
    """What `verify` said of a patched model; `why` it could not be run, where it could not."""

    patched: int = 0
    compared: int = 0
    changed: int = 0
    fired: int = 0
    formulas: int = 0
    failures: list[str] = field(default_factory=list)
    why: str = ""


def verified(name: str, kind: str) -> Verified:
    """Patch a model wherever that kind can be put, and verify it."""
    path, found = catalogue.models()[name], Verified()
    model = graphpatch.load(path)
    rules: list[Any] = (
        [GUIDED]
        if kind == "guided"
        else [rule for graph in model.graphs for rule in _rules(graph, kind, Outcome())]
    )
    if not rules:
        return found
    result = graphpatch.apply(rules, model)
    found.patched = sum(len(rule["matches"]) for rule in result.report["rules"])
    if not found.patched:
        return found
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        result.model.save(target)
        done = graphpatch.verify(path, target)
    _count(done.document(), found)
    found.failures = done.failures
    found.why = "; ".join(done.not_compared)
    return found


def _count(document: dict[str, Any], found: Verified) -> None:
    for graph in document["graphs"]:
        if "forward" in graph:
            found.compared += len(graph["forward"]["compared"])
            found.changed += sum(pair["state"] == "changed" for pair in graph["gradients"])
            found.fired += len(graph["overrides"]["fired"])
            found.formulas += sum("max_error" in one for one in graph["formulas"])


def main() -> None:
    """Verify all models with each kind, and print what is not clean."""
    worker, names = Worker(), catalogue.models()
    if "--sample" in sys.argv:
        names = {name: path for name, path in names.items() if name in catalogue.sample()}
    for kind in [one for one in sys.argv[1:] if one in KINDS] or KINDS:
        total = Counter[str]()
        for name in names:
            try:
                found = worker(verified, name, kind)
            except BrokenProcessPool:
                total["aborted"] += 1
                sys.stdout.write(f"{kind}: {name}: TensorFlow aborts\n")
                continue
            except graphpatch.GraphpatchError as error:
                total["refused"] += 1
                sys.stdout.write(f"{kind}: {name}: {type(error).__name__}: {error}\n")
                continue
            total["patched" if found.patched else "not patched"] += 1
            total["compared"] += found.compared
            total["changed"] += found.changed
            total["fired"] += found.fired
            total["formulas"] += found.formulas
            if found.why:
                total["not run"] += 1
                sys.stdout.write(f"{kind}: {name}: {found.why[:150]}\n")
            if found.failures:
                total["failing"] += 1
                sys.stdout.write(f"{kind}: {name}: FAILS: {found.failures[:3]}\n")
        sys.stdout.write(f"{kind} {dict(total)}\n")


if __name__ == "__main__":
    main()
