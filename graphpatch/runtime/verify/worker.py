"""What runs in the process of a model: questions come by standard input, answers go by output."""

from __future__ import annotations

import importlib
import os
import pickle
import runpy
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.errors import GraphpatchError


def main() -> None:
    """Answer questions until there are no more."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what ops print must not come between answers
    worker = Worker()
    while True:
        try:
            method, arguments = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(worker.answer(method, arguments), answers, protocol=5)
        answers.flush()


class Worker:
    """One model, once it was opened."""

    def __init__(self) -> None:
        self.side: Any = None

    def answer(self, method: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """What a method of the model, or of this, gives; what it raises."""
        try:
            asked = self if hasattr(self, method) else self.side
            return "done", getattr(asked, method)(*arguments)
        except GraphpatchError as error:
            return "refused", error
        except Exception:
            return "failed", traceback.format_exc()

    def begin(self, imports: Sequence[str], control_flow_v2: bool) -> dict[str, Any]:
        """Import TensorFlow, and what the user names; the settings under which models run."""
        from graphpatch.runtime.verify.start import settings, start

        start(control_flow_v2)
        for name in imports:
            _run_import(name)
        return settings()

    def open(self, file: str, path: str, place: int) -> None:
        """Read the model from a file; `path` is what the user calls it."""
        from graphpatch.formats import load
        from graphpatch.runtime.verify.side_graph import GraphSide
        from graphpatch.runtime.verify.side_saved import SavedSide

        model = load(file)
        graph = model.graphs[place]
        kind = SavedSide if graph.around.is_object_based else GraphSide
        self.side = kind(model, graph, replace(model, path=path))

    def sizes(
        self, names: Sequence[str], target: str, dy: Any, whole: Sequence[str]
    ) -> dict[str, tuple[float | None, Any, str]]:
        """The largest |gradient| of the target by each tensor, and of some the `whole` gradient.

        None for no gradient, with what TensorFlow says where it raises.
        """
        found, _ = self.side.gradients(names, target, dy)
        return {
            name: (
                largest_size(one.value) if one.kind == "tensor" else None,
                one.value if name in whole else None,
                one.says,
            )
            for name, one in found.items()
        }


def largest_size(values: Any) -> float:
    """The largest size of an element; NaN where there is one."""
    sizes = np.abs(np.asarray(values))
    return float(sizes.max()) if sizes.size else 0.0


def _run_import(name: str) -> None:
    """Run a module or file of the user's, which registers gradients or loads libraries of ops."""
    try:
        if name.endswith(".py"):
            runpy.run_path(name, run_name=Path(name).stem)
        else:
            importlib.import_module(name)
    except Exception as error:
        says = f"{type(error).__name__}: {error}"
        raise GraphpatchError(f"cannot import {name}: {says}") from error
