"""A graph with a gradient in parts, taken apart: two graphs or more, and how they are run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from graphpatch import names
from graphpatch.analysis.cuts import in_frames
from graphpatch.errors import CutError, OutputError, check_path
from graphpatch.formats.destination import JSON_MARK, marked, refuse_inputs
from graphpatch.formats.output import writing_folder
from graphpatch.graph.functions import Extract, Fed, StaticShape, called_by_op
from graphpatch.graph.graph import Graph, ModelGraph
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import ALL_VARIABLES, OPTIONAL_PLACEHOLDER, PLACEHOLDERS
from graphpatch.graph.walk import reached, readers_of
from graphpatch.graph.wire import Piece
from graphpatch.opdefs import HANDLES

PARTS = "parts.json"


@dataclass(frozen=True, eq=False)
class PartRun:
    """One run of a part (counted from 0): what it fetches, and which ops it needs."""

    part: int
    fetch: tuple[str, ...]
    indices: frozenset[int]


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """The parts of a graph that holds the gradient of `loss` in parts; of `model`, a path.

    `stages` are the tensors of `wrt`, then of each cut, with the names of the gradients at them: a
    part lies between two of them, the last between the last cut and the loss. `tensors` has dtype
    and shape of each tensor that is fed or fetched, as TensorFlow infers them.

    `save` writes the parts; `document` is what parts.json tells of them: for each run, by tensor
    name, what to feed and to fetch, and of every tensor its dtype and shape. Raises CutError where
    a part cannot be run again for its gradient.

    Example:
        >>> parts = graphpatch.split("model.pb", "loss", "features", "x")
        >>> [run.part for run in parts.runs]
        [0, 1, 0]
    """

    model: str
    graph: ModelGraph
    loss: str
    stages: Sequence[Mapping[str, str]]
    tensors: Mapping[str, tuple[str, StaticShape]]

    def __post_init__(self) -> None:
        _ = self.handed

    @property
    def ok(self) -> bool:
        """Return True: `split` raises where a gradient cannot be split."""
        return True

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a graph for each part, and parts.json, into a new folder, whole or not at all.

        A folder of parts that were written before is replaced.

        Raises:
            OutputError: The folder holds other things or the model, or cannot be written.
            ModelError: The file of the model was changed meanwhile.
            TypeError: `folder` is not a path.

        Example:
            >>> graphpatch.split("model.pb", "loss", "features", "x").save("parts")
        """
        check_path("folder", folder, "the path of a folder to write")
        with self.writing(Path(folder)):
            pass

    def writing(self, folder: Path) -> AbstractContextManager[Path]:
        """Write the parts as `save` does, and give the folder, which takes its name at the end."""
        refuse_folder(folder, self.model)
        text = json.dumps({**self.document(), **JSON_MARK}, indent=2) + "\n"
        return writing_folder(folder, {**self.files(), PARTS: [marked(text.encode())]})

    def __repr__(self) -> str:
        cuts = " | ".join(map(", ".join, self.stages[1:]))
        parts = f"{len(self.extracts)} parts cut at {cuts}"
        return f"<Split: {self.model}, gradient of {self.loss} in {parts}>"

    def files(self) -> dict[str, list[Piece]]:
        """Return the GraphDef of each part, by the name of its file."""
        return {_part_file(k): extract.pieces() for k, extract in enumerate(self.extracts)}

    def document(self) -> dict[str, Any]:
        """Return what parts.json says: the runs in their order, what to feed and what to fetch."""
        steps = [self._step(place, run) for place, run in enumerate(self.runs)]
        at_wrt, *at_cuts = self.stages
        parts = []
        for part, extract in enumerate(self.extracts):
            nodes = extract.part.nodes
            variables = [node.name for node in nodes if node.op in ALL_VARIABLES]
            count = len(nodes) + len(extract.fed)
            parts.append({"file": _part_file(part), "nodes": count, "variables": variables})
        named = {
            value for step in steps for key in ("feed", "fetch") for value in step[key].values()
        }
        tensors = {}
        for name in sorted(named):
            dtype, shape = self.tensors[name]
            tensors[name] = {"dtype": dtype, "shape": None if shape is None else list(shape)}
        return {
            "version": 1,
            "model": self.model,
            "loss": self.loss,
            "wrt": list(at_wrt),
            "cuts": list(map(list, at_cuts)),
            "parts": parts,
            "steps": steps,
            "inputs": sorted(named.difference(*(step["fetch"].values() for step in steps))),
            "gradients": dict(at_wrt),
            "tensors": tensors,
        }

    @cached_property
    def runs(self) -> list[PartRun]:
        """Return the runs in their order: forward to the loss, and back."""
        last = len(self.stages) - 1
        gradients = [(k, tuple(stage.values())) for k, stage in enumerate(self.stages)]
        fetched = [(k, tuple(self.stages[k + 1])) for k in range(last)]
        fetched.append((last, (self.loss, *gradients.pop()[1])))
        return [
            PartRun(k, fetch, frozenset(self._extract(k, fetch).part.indices))
            for k, fetch in [*fetched, *reversed(gradients)]
        ]

    @cached_property
    def extracts(self) -> list[Extract]:
        """Return the graph of each part."""
        fetched: list[list[str]] = [[] for _ in self.stages]
        for run in self.runs:
            fetched[run.part] += run.fetch
        return [self._extract(k, tuple(tensors)) for k, tensors in enumerate(fetched)]

    @cached_property
    def handed(self) -> dict[str, int]:
        """Return the tensors that several runs must share, with the first run that has them."""
        main = self.graph.main
        called, frames = called_by_op(main), in_frames(main)
        handed, done = dict[str, int](), set[int]()
        for place, run in enumerate(self.runs):
            later = frozenset().union(*(later_run.indices for later_run in self.runs[place + 1 :]))
            for index in sorted(run.indices & later - done):
                done.add(index)
                node = Node(main, index)
                if must_be_handed_on(self.graph, node, called.get(index, ()), index in frames):
                    for output in range(len(node.outputs or ())):
                        tensor = names.TensorName(node.name, output)
                        if any(reader in later for reader, _ in readers_of(main, tensor)):
                            handed[tensor.full] = place
        return handed

    def _extract(self, part: int, fetch: tuple[str, ...]) -> Extract:
        fed = tuple(Fed(name, *self.tensors[name]) for name in self._given_by_others(part))
        return Extract(self.graph, fed, fetch)

    def _given_by_others(self, part: int) -> list[str]:
        """Return the tensors that a part has from others: its cut, and the gradient there."""
        before = self.stages[part] if part else ()
        behind = [
            gradient for stage in self.stages[part + 1 : part + 2] for gradient in stage.values()
        ]
        return [*before, *behind]

    def _step(self, place: int, run: PartRun) -> dict[str, Any]:
        """Return a run as parts.json has it: tensors of the part's graph, and their values."""
        main, stand_ins = self.graph.main, self.extracts[run.part].placeholders()
        feed: dict[str, str] = {}
        for name in self._given_by_others(run.part):
            readers = readers_of(main, names.parse(name))
            if name in run.fetch or any(index in run.indices for index, _ in readers):
                feed[f"{stand_ins[name]}:0"] = name
        nodes = [Node(main, index) for index in sorted(run.indices)]
        feed |= {f"{n.name}:0": f"{n.name}:0" for n in nodes if n.op in PLACEHOLDERS}
        fetch = {f"{stand_ins[name]}:0" if name in stand_ins else name: name for name in run.fetch}
        for tensor, first in self.handed.items():
            if main.by_name[names.op_of(tensor)] in run.indices:
                (fetch if first == place else feed)[tensor] = tensor
        optional = [f"{node.name}:0" for node in nodes if node.op == OPTIONAL_PLACEHOLDER]
        return {"part": _part_file(run.part), "feed": feed, "fetch": fetch, "may_feed": optional}


def is_part(name: str) -> bool:
    """Return whether a file of this name belongs to a folder of parts."""
    return name == PARTS or re.fullmatch(r"part\d+\.pb", name) is not None


def _part_file(part: int) -> str:
    return f"part{part + 1}.pb"


def refuse_folder(path: Path, model: str) -> None:
    """Raise OutputError where a folder is not new, and holds no parts that were written before."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path} is not a folder, and the parts are several files")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir() and any(path.iterdir()) and not (path / PARTS).exists():
        raise OutputError(f"{path} is a folder of other things; name one that is not there yet")
    refuse_inputs(path, {"the model itself": model})


# Stateful ops that give the same as long as nobody assigns to what they stand for.
READING_OPS = re.compile(
    f"{'|'.join(ALL_VARIABLES)}|TemporaryVariable|ReadVariableOp|VariableShape"
    "|ResourceGather(Nd)?|VarIsInitializedOp|IsVariableInitialized|Lookup.*|.*HashTable.*"
    "|TensorArray.*|Stack.*|Assert|Print.*|_Arg|_Retval|.*Dataset.*|.*Queue(V2)?"
    "|(OneShot|Anonymous)?Iterator(V[23]|FromStringHandle(V2)?)?"
)
WRITING_OPS = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)[A-Z]?|Restore|DestroyResource")
UNFETCHABLE = {*HANDLES, None}


def changes_each_run(node: Node) -> bool:
    """Return whether it gives something else, or changes something, each time it is run."""
    known = node.opdef
    if known is None:
        return False
    is_stateful = known.stateful or any(arg.is_ref for arg in node.arguments or ())
    if WRITING_OPS.match(node.op) and is_stateful:
        return True
    return known.stateful and not READING_OPS.fullmatch(node.op)


def must_be_handed_on(graph: Graph, node: Node, called: Collection[str], in_frame: bool) -> bool:
    """Return whether a later run must be handed what an op gives; else the op may run again.

    `called` are the functions that it calls. Raises CutError for what can neither be run again
    nor handed on.
    """
    inside = _changing(graph, called)
    if inside is not None:
        raise CutError(
            f"{node} calls a function with {inside}, which would not do the same in each of the "
            f"runs that the parts take; inline the function into the main graph first"
        )
    if called or not changes_each_run(node):
        return False
    outputs = node.outputs or []
    if WRITING_OPS.match(node.op) or any(arg.dtype in UNFETCHABLE for arg in outputs) or in_frame:
        where = " inside a v1 loop or branch" if in_frame else ""
        raise CutError(
            f"{node}{where} would be run once in each of the runs that the parts take, and what "
            f"it does is not the same each time; cut where only the last part needs it"
        )
    return bool(outputs)


def _changing(graph: Graph, functions: Iterable[str]) -> Node | None:
    """Return an op of these functions, or of those that they call, that changes from run to run."""
    bodies = graph.functions

    def called_in(name: str) -> dict[int, list[str]]:
        return called_by_op(bodies[name]) if name in bodies else {}

    for name in reached(functions, lambda name: chain.from_iterable(called_in(name).values())):
        called = called_in(name)
        for node in bodies.get(name, ()):
            if node.index not in called and changes_each_run(node):
                return node
    return None
