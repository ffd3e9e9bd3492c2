"""The process that runs one model: messages come by standard input, answers go by output."""

from __future__ import annotations

import importlib
import os
import pickle
import re
import runpy
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.analysis.interface import refuse_unknown_ends
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.formats import Model, load
from graphpatch.formats.container import meta_around
from graphpatch.formats.model import MESSAGE
from graphpatch.formats.output import refuse_odd_files
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.op_types import CALLS
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import OpKey, op_of
from graphpatch.runtime.graph_run import (
    GraphRun,
    first_line,
    may_be_endless,
    require_tensorflow,
    seeded_feeds,
    variables_of,
)
from graphpatch.runtime.tf_gradients import (
    GradientAnswer,
    RaisedError,
    gradients_or_raised,
    recorded,
)
from graphpatch.runtime.values import GUESSES, Values, full_tensor_name, seeded_value
from graphpatch.runtime.verify import session
from graphpatch.runtime.verify.formulas import FormulaCheck, check_formulas

WITHOUT_RUN = "; run=False (verify --no-run) looks at the graphs alone"
DEAD = "does not have value"  # what TensorFlow says of a tensor in a branch that is not taken
Answers = tuple[dict[str, GradientAnswer], set[OpKey]]  # and the ops that were asked for theirs
Ends = tuple[list[str], list[str], list[str]]  # sources, targets, and which targets are trained
Branches = tuple[dict[str, tuple[bool, bool]], dict[str, int]]  # taken, and hidden by where
Ran = tuple[dict[str, Any], dict[str, str]]  # values, and why there are no others


def main() -> None:
    """Answer messages until there are no more."""
    messages, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what ops print must not come between answers
    worker = Worker()
    while True:
        try:
            method, arguments = pickle.load(messages)
        except EOFError:
            return
        pickle.dump(worker.answer(method, arguments), answers, protocol=5)
        answers.flush()


class Worker:
    """One model, once it was opened."""

    def __init__(self) -> None:
        self.model: SessionModel | LoadedModel | None = None

    def answer(self, method: str, arguments: Sequence[Any]) -> tuple[str, Any]:
        """Return what a method of this or of the model returns, or raises."""
        try:
            target = self if hasattr(self, method) else self.model
            return "done", getattr(target, method)(*arguments)
        except GraphpatchError as error:
            return "refused", error
        except Exception:
            return "failed", traceback.format_exc()

    def begin(self, imports: Sequence[str], control_flow_v2: bool) -> dict[str, Any]:
        """Import TensorFlow, and what the user names; return the settings under which models run.

        `control_flow_v2=False` calls `disable_control_flow_v2()`, as programs for v1 graphs do.
        """
        tf = require_tensorflow("models are run by", hint=WITHOUT_RUN)
        if not control_flow_v2:
            tf.compat.v1.disable_control_flow_v2()
        with tf.Graph().as_default(), tf.compat.v1.Session():
            devices = [device.device_type for device in tf.config.list_physical_devices()]
        for name in imports:
            try:
                if name.endswith(".py"):
                    runpy.run_path(name, run_name=Path(name).stem)
                else:
                    importlib.import_module(name)
            except Exception as error:
                says = f"{type(error).__name__}: {error}"
                raise GraphpatchError(f"cannot import {name}: {says}") from error
        flags = os.environ.get("TF_XLA_FLAGS", "")
        return {
            "tensorflow": str(tf.__version__),
            "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in {"1", "true"},
            "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
            "xla_flags": flags,
            "auto_clustering": bool(tf.config.optimizer.get_jit()) or "auto_jit=" in flags,
            "control_flow_v2": bool(tf.compat.v1.control_flow_v2_enabled()),
            "deterministic_ops": os.environ.get("TF_DETERMINISTIC_OPS", "0"),
            "devices": devices,
            "cores": os.cpu_count() or 1,
        }

    def open(self, file: str, path: str, index: int) -> set[str]:
        """Read the model from a file; return the keys under which gradients are registered then.

        `path` is what the user calls the model.
        """
        from tensorflow.python.framework import ops

        model = load(file)
        graph = model.graphs[index]
        kind = LoadedModel if graph.around.is_object_based else SessionModel
        self.model = kind(model, graph, replace(model, path=path))
        return set(ops.gradient_registry.list())

    def sizes(
        self, names: Sequence[str], target: str, dy: Any, whole: Sequence[str]
    ) -> dict[str, tuple[float | None, Any, str]]:
        """Return the largest |gradient| of the target with respect to each tensor, NaN above all.

        With it come the gradient itself of the tensors in `whole`, and what TensorFlow raises; the
        size of no gradient is None.
        """
        assert self.model is not None
        sizes = {}
        for name, answer in self.model.gradients(names, target, dy)[0].items():
            size = None
            if answer.kind == "tensor":
                absolute = np.abs(np.asarray(answer.value))
                size = float(absolute.max()) if absolute.size else 0.0
            says = answer.says if answer.kind == "error" else ""
            sizes[name] = size, answer.value if name in whole else None, says
        return sizes


class SessionModel:
    """A graph in a Session, with what it is fed. `named` is the model as the user names it."""

    def __init__(self, model: Model, graph: ModelGraph, named: Model) -> None:
        self.model, self.graph = model, graph
        self.prefix = session.checkpoint(named)
        self.tf_graph = session.seeded_graph(model, graph)
        self.is_limited = may_be_endless(op for body in graph.bodies for op in body.by_type)
        self.running = self._run_of(self.tf_graph, {}, {})
        self._branches: session.BranchWatch | None = None

    def _run_of(self, tf_graph: Any, feeds: Values, variables: Values) -> GraphRun:
        return GraphRun(tf_graph, feeds, variables, is_limited=self.is_limited)

    def _full_names(self, names: Iterable[str], are_sources: bool = False) -> list[str]:
        """Return tensors as TensorFlow spells them; ModelError for one that is not there."""
        names = list(names)
        ends = (names, []) if are_sources else ([], names)
        refuse_unknown_ends(self.model.path, [self.graph], *ends)
        return list(map(full_tensor_name, names))

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return what can be compared, and which of it comes after a write to a variable.

        That is outputs, those of signatures, `more`, and the targets that are asked for.
        """
        signatures = meta_around(self.graph).signature_def.values()
        signed = (info.name for item in signatures for info in item.outputs.values() if info.name)
        asked = [*signed, *more, *self._full_names(targets)]
        names = dict.fromkeys([*session.result_tensors(self.tf_graph), *asked])
        # An import adds Exits that freezing pruned; what is compared is what the file has.
        present = self.there([name for name in names if op_of(name) in self.graph.main.by_name])
        return present, session.writing(self.tf_graph, present)

    def there(self, names: Sequence[str]) -> list[str]:
        """Return those of these tensors that exist and can be fetched."""
        return list(session.fetchable(self.tf_graph, names))

    def choose(self, tensors: Sequence[str], feed: Values) -> tuple[Values, Values]:
        """Return what to feed, and what variables hold: the guess with which most of it runs."""
        named = dict(zip(self._full_names(feed, True), feed.values(), strict=True))
        restored = session.restored_values(self.tf_graph, self.prefix)
        most, tried = -1, list[list[str]]()
        for size, whole in GUESSES:
            feeds = seeded_feeds(self.tf_graph, size, whole, named)
            variables = session.initial_values(self.tf_graph, restored, size, whole)
            shapes = [str(np.shape(value)) for value in (*feeds.values(), *variables.values())]
            if shapes in tried:
                continue
            tried.append(shapes)
            running = self._run_of(self.tf_graph, feeds, variables)
            count = len(running.run(tensors, False)[0])
            if count > most:
                self.running, most = running, count
            if count == len(tensors):
                break
        return self.running.feeds, self.running.variables

    def values(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        names = {op.name for op in variables_of(self.tf_graph)}
        shared = {name: value for name, value in variables.items() if name in names}
        own = session.restored_values(self.tf_graph, self.prefix)
        self.running.variables = {**shared, **own}

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.running.feeds = feeds

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Return the values of those tensors that can be computed, and why the others cannot.

        With `optimise` calls have TensorFlow optimise their functions as the model says.
        """
        running = self.running
        if optimise and any(CALLS & body.by_type.keys() for body in self.graph.bodies):
            graph = session.seeded_graph(self.model, self.graph, optimise=True)
            running = self._run_of(graph, running.feeds, running.variables)
        return running.run(fetches, optimise)

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answers:
        """Return the gradient of a target, weighted by dy, with respect to each source."""
        return session_gradients(self.running, sources, target, dy)

    def ends(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        patched: Sequence[str],
        read: Sequence[str],
        compared: Sequence[str],
    ) -> Ends:
        """Return between which tensors gradients are taken.

        Where nobody names them, the first targets are computed from the `patched` ops, and to each
        of these and of those that rules `read` comes a source, if that can be.
        """
        graph, feeds = self.tf_graph, self.running.feeds
        xs = self._full_names(sources, True) or session.default_sources(
            graph, feeds, [*patched, *read]
        )
        if targets:
            return xs, self._full_names(targets), []
        ys = session.default_targets(graph, compared, patched)
        ops = session.trained(graph, self.graph.main)
        return xs, ys, [name for name in ys if graph.get_tensor_by_name(name).op in ops]

    def formulas(self) -> list[FormulaCheck]:
        """Return each formula that the graph carries, compared with numpy."""
        return check_formulas(self.graph, self.running)

    def branches(self) -> Branches:
        """Return for each op that takes branches whether the values that are fed take each of them.

        Then how many stand where nobody can look, by where that is.
        """
        watch = self._branches = self._branches or session.BranchWatch(self.tf_graph)
        inside = session.branches_in_functions(self.graph)
        hidden = {"v1 loops or branches": watch.hidden, "functions": inside}
        return watch.taken(self.running), hidden

    def steer(self, names: Sequence[str], upwards: bool) -> dict[str, Any]:
        """Return what to feed right at these ops, so that they take the branches not yet taken."""
        watch = self._branches = self._branches or session.BranchWatch(self.tf_graph)
        return watch.steered(self.running, names, upwards)

    def probed(
        self, places: Sequence[OpKey], sources: Sequence[str], targets: Mapping[str, Any]
    ) -> set[OpKey]:
        """Return those of these ops whose gradient functions run.

        They are in functions that TensorFlow differentiates in C++. `targets` have their dy.
        """
        graph = session.seeded_graph(self.model, self.graph, places)
        running = self._run_of(graph, self.running.feeds, self.running.variables)
        since = os.fstat(session.STDERR).st_size
        for target, dy in targets.items():
            session_gradients(running, sources, target, dy)
        size = os.fstat(session.STDERR).st_size - since
        said = os.pread(session.STDERR, size, since).decode(errors="replace")
        return {places[int(number)] for number in re.findall(rf"{session.FIRED}(\d+);", said)}


def session_gradients(running: GraphRun, sources: Sequence[str], target: str, dy: Any) -> Answers:
    """Take the gradient of a target, weighted by dy, with respect to each source, and run it."""
    import tensorflow as tf

    with running.graph.as_default(), recorded() as asked:
        upstream = tf.constant(dy, running.graph.get_tensor_by_name(target).dtype)
        try:
            built = gradients_or_raised(running.graph, target, sources, upstream, dense=True)
        except RaisedError as error:
            return dict.fromkeys(sources, GradientAnswer("error", says=str(error))), asked
    answers = dict.fromkeys(sources, GradientAnswer("none"))
    tensors = {name: dx for name, dx in zip(sources, built, strict=True) if dx is not None}
    return {**answers, **_values_run(running, tensors)}, asked


def _values_run(running: GraphRun, tensors: Mapping[str, Any]) -> dict[str, GradientAnswer]:
    """Run all at once; where that fails, each alone.

    Where it takes too long, all fail: each alone might take as long again. In a branch that is not
    taken there is no gradient.
    """
    import tensorflow as tf

    try:
        values = running.evaluate(tensors) if tensors else {}
    except Exception as error:  # what TensorFlow raises there is told
        if len(tensors) == 1 or isinstance(error, tf.errors.DeadlineExceededError):
            dead = isinstance(error, tf.errors.InvalidArgumentError) and DEAD in str(error)
            failed = GradientAnswer("error", says=f"running it fails: {first_line(error)}")
            return dict.fromkeys(tensors, GradientAnswer("none") if dead else failed)
        answers: dict[str, GradientAnswer] = {}
        for name, tensor in tensors.items():
            answers |= _values_run(running, {name: tensor})
        return answers
    return {name: GradientAnswer("tensor", np.asarray(value)) for name, value in values.items()}


class LoadedModel:
    """A TF2 SavedModel as tf.saved_model.load gives it; tensors are called `signature:name`.

    Its ops are in functions, where nobody can look. Each run loads it anew where it has random ops,
    which else would draw on.
    """

    def __init__(self, model: Model, graph: ModelGraph, named: Model) -> None:
        import tensorflow as tf

        self.graph, self.feeds = graph, dict[str, Any]()
        self._loaded: Any = None
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name, "model")
        if not tf.executing_eagerly():
            raise ModelError("TensorFlow does not execute eagerly, which a TF2 SavedModel needs")
        self.is_random = self._write_seeded(model)
        try:
            signatures = self.signatures()
        except Exception as error:  # whatever the loader says is the reason
            raise ModelError(f"tf.saved_model.load raises {first_line(error)}") from error
        self.inputs, self.outputs = dict[str, Any](), dict[str, Any]()
        for key, function in signatures.items():
            takes, gives = function.structured_input_signature[1], function.structured_outputs
            self.inputs |= {f"{key}:{name}": spec for name, spec in takes.items()}
            self.outputs |= {f"{key}:{name}": spec for name, spec in gives.items()}

    def _write_seeded(self, model: Model) -> bool:
        """Write the model, its random ops seeded, beside its variables; whether it has such ops."""
        from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

        message = SavedModel.FromString(b"".join(map(piece_bytes, model.pieces())))
        draws = False
        for meta, graph in zip(message.meta_graphs, model.graphs, strict=True):
            draws |= session.set_seeds(meta.graph_def, graph)
            for node in meta.object_graph_def.nodes:  # of an optimiser, which loaders may not know
                node.ClearField("slot_variables")
        self.folder.mkdir()
        (self.folder / MESSAGE).write_bytes(message.SerializeToString())
        if not model.in_memory:
            refuse_odd_files(Path(model.path))
            for path in Path(model.path).iterdir():
                if path.name not in {MESSAGE, "saved_model.pbtxt", "fingerprint.pb"}:
                    (self.folder / path.name).symlink_to(path.resolve())
        return draws

    def signatures(self) -> Mapping[str, Any]:
        """Return the functions of the model that have names for their inputs and outputs."""
        import tensorflow as tf

        if self._loaded is None or self.is_random:
            self._loaded = tf.saved_model.load(str(self.folder))
        signatures: Mapping[str, Any] = self._loaded.signatures
        return signatures

    def _checked(self, names: Sequence[str]) -> list[str]:
        legal = [*self.inputs, *self.outputs]
        for name in names:
            if name not in legal:
                listed = ", ".join(legal)
                raise ModelError(f"no input or output is named {name!r}; there are: {listed}")
        return list(names)

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the outputs of signatures; none comes after a write that could be left out."""
        self._checked(targets)
        return list(self.outputs), []

    def there(self, names: Sequence[str]) -> list[str]:
        """Return those of these outputs that there are."""
        return [name for name in names if name in self.outputs]

    def choose(self, tensors: Sequence[str], feed: Values) -> tuple[Values, Values]:
        """Return what to feed: the guess at unknown shapes with which most of it runs."""
        short = {full: f"{full.partition(':')[2]}:0" for full in self.inputs}
        self._checked([name for name in feed if name not in short.values()])
        best, most = self.feeds, -1
        for size, whole in GUESSES:
            self.feeds = {}
            for full, spec in self.inputs.items():
                value = feed.get(full, feed.get(short[full]))
                if value is None:
                    value = seeded_value(full, spec.dtype, spec.shape, size, whole)
                self.feeds[full] = value
            count = len(self.run(tensors, False)[0])
            if count > most:
                best, most = self.feeds, count
            if count == len(tensors):
                break
        self.feeds = best
        return best, {}

    def values(self, variables: Values) -> None:
        """Do nothing: variables have the values of the model's own checkpoint."""

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.feeds = dict(feeds)

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Return the values of those outputs that can be computed, and why the others cannot."""
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        functions = self.signatures()
        for key in dict.fromkeys(map(op_of, fetches)):
            wanted = [name for name in fetches if op_of(name) == key]
            try:
                with _optimised(optimise):
                    results = functions[key](**self._arguments(key, functions[key]))
            except Exception as error:  # whatever TensorFlow says is the reason
                reasons |= dict.fromkeys(wanted, first_line(error))
                continue
            values |= {name: np.asarray(results[name.removeprefix(f"{key}:")]) for name in wanted}
        return values, reasons

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answers:
        """Return the gradient of a target, weighted by dy, as a tape gives it."""
        import tensorflow as tf

        key = op_of(target)
        near = [name for name in sources if op_of(name) == key]
        function = self.signatures()[key]
        answers = dict.fromkeys(sources, GradientAnswer("none"))
        with recorded() as asked:
            try:
                arguments = self._arguments(key, function)
                with tf.GradientTape() as tape:
                    xs = [arguments[name.removeprefix(f"{key}:")] for name in near]
                    tape.watch(xs)
                    y = function(**arguments)[target.removeprefix(f"{key}:")]
                built = tape.gradient(y, xs, output_gradients=tf.constant(dy, y.dtype))
            except Exception as error:  # whatever a gradient function raises is the answer
                failed = GradientAnswer("error", says=f"a tape raises {first_line(error)}")
                return dict.fromkeys(sources, failed), asked
        for name, dx in zip(near, built, strict=True):
            if dx is not None:
                answers[name] = GradientAnswer("tensor", np.asarray(tf.convert_to_tensor(dx)))
        return answers, asked

    def _arguments(self, key: str, function: Any) -> dict[str, Any]:
        import tensorflow as tf

        specs = function.structured_input_signature[1]
        return {name: tf.constant(self.feeds[f"{key}:{name}"], specs[name].dtype) for name in specs}

    def ends(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        patched: Sequence[str],
        read: Sequence[str],
        compared: Sequence[str],
    ) -> Ends:
        """Return the inputs and outputs between which gradients are taken."""

        def floats(specs: Mapping[str, Any], names: Iterable[str]) -> list[str]:
            dtypes = {name: specs[name].dtype for name in names}
            return [name for name, dtype in dtypes.items() if dtype.is_floating or dtype.is_complex]

        xs = self._checked(sources) or floats(self.inputs, self.inputs)
        return xs, self._checked(targets) or floats(self.outputs, compared), []

    def formulas(self) -> list[FormulaCheck]:
        """Return each formula that the graph carries, compared with numpy."""
        return check_formulas(self.graph, None)

    def branches(self) -> Branches:
        """Return how many ops that take branches stand in functions."""
        return {}, {"functions": session.branches_in_functions(self.graph)}


@contextmanager
def _optimised(optimise: bool) -> Iterator[None]:
    """Run functions as TensorFlow optimises them, or op by op."""
    import tensorflow as tf

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimise})
    try:
        yield
    finally:
        was = before.get("disable_meta_optimizer", False)
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": was})
