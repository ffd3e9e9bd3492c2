"""A graph in a Session: what it gives for given feeds, as far as it can be run; op by op too.

Where no program fills an input pipeline, what it gives is fed as placeholders are.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch.errors import GraphpatchError
from graphpatch.formats.model import META, Model
from graphpatch.formats.output import regular_files
from graphpatch.graph.op_types import (
    CALLS,
    PARSERS,
    PIPELINES,
    PLACEHOLDERS,
    RESOURCE_VARIABLE,
    VARIABLES,
)
from graphpatch.graph.walk import reached
from graphpatch.opdefs import HANDLES
from graphpatch.runtime import tf
from graphpatch.runtime.values import GUESSES, Guess, Values, seeded_value

OLD = "config"  # where TensorFlow 1.13 to 1.15 look, too
Ran = tuple[dict[str, Any], dict[str, str]]
"""The values of tensors, and why others have none."""


def require_tensorflow(
    what: str, kind: type[GraphpatchError] = GraphpatchError, hint: str = ""
) -> None:
    """Import TensorFlow. Raises this kind of error where it is not there: `what` needs it."""
    try:
        with _first_lines_kept_back():
            import tensorflow  # noqa: F401
    except ModuleNotFoundError as error:
        raise kind(
            f"{what} TensorFlow, which is not installed here: pip install tensorflow{hint}"
        ) from error


@contextlib.contextmanager
def _first_lines_kept_back() -> Iterator[None]:
    """Keep from standard error what TensorFlow logs as it is imported, where nobody wants its log.

    Its first lines do not heed TF_CPP_MIN_LOG_LEVEL. Where the import fails, they are shown.
    """
    is_wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "3"
    if is_wanted or "tensorflow" in sys.modules or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as first_lines:
        os.dup2(first_lines.fileno(), 2)
        try:
            yield
        except BaseException:
            first_lines.seek(0)
            os.write(stderr, first_lines.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def nodes_in(graph_def: Any) -> Iterator[Any]:
    """Yield the NodeDefs of a GraphDef, and of the functions in its library."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def run_op_by_op(graph_def: Any) -> None:
    """Let the functions that a GraphDef calls run with Grappler off.

    A Session optimises the function of a PartitionedCall by the `config_proto` of that op, whatever
    its own settings are.
    """
    for node in (node for node in nodes_in(graph_def) if node.op in CALLS):
        config = tf.compat.v1.ConfigProto.FromString(node.attr["config_proto"].s)
        without_grappler(config)
        node.attr["config_proto"].s = config.SerializeToString()
        if OLD in node.attr:
            node.attr[OLD].s = b""


def without_grappler(config: Any) -> None:
    """Have this ConfigProto run graphs op by op."""
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0


# Ops that wait for what nobody may give, and loops whose condition may never be false; how long a
# run with such ops may take, in milliseconds. Other graphs end by themselves, however large.
ENDLESS = {
    re.compile(
        r"Dequeue|Enqueue|Barrier|Unstage|Stage$|Accumulator|Reader|Iterator|Recv|Rendezvous|Mutex"
        r"|PyFunc"
    ): 20_000,
    re.compile(r"NextIteration|While$"): 120_000,
}
TOO_SMALL = re.compile(
    "size would be negative|requires a multiple of|expected a dimension of 1, got 0"
)
NO_GRADIENT_OF_CALL = re.compile(r"No gradient defined for op: (Stateful)?PartitionedCall\b")
ASSIGNED = "value_that_graphpatch_assigns"  # the placeholders that we add, for values of variables


@dataclass(eq=False)
class GraphRun:
    """A tf.Graph, with what it is fed and what its variables hold.

    Each run ends after `limit` milliseconds; 0: it ends by itself. Variables have the values of the
    checkpoint of `model`, or of their initialisers; seeded ones where no model is given. `names`
    has the tensors that go by other names here, and `initialisers` what each Session runs first.
    """

    graph: Any
    feeds: Values = field(default_factory=dict)
    variables: Values = field(default_factory=dict)
    limit: int = field(default=20_000, kw_only=True)
    model: Model | None = field(default=None, kw_only=True)
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    initialisers: Sequence[Any] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self.prefix = None if self.model is None else checkpoint(self.model)

    def guess(self, fed: Values, guess: Guess) -> None:
        """Take what is fed, and seeded values for placeholders and input pipelines."""
        self.feeds = {**dict(seeded_feeds(self.graph, fed, guess)), **fed}
        self.variables = self._variable_values(guess)

    @cached_property
    def restored(self) -> dict[str, Any]:
        """Return the values of variables that the checkpoint has, by the name of their op."""
        if self.prefix is None:
            return {}
        values, reader = dict[str, Any](), tf.train.load_checkpoint(self.prefix)
        shapes = reader.get_variable_to_shape_map()
        for op in variables_of(self.graph):
            shared = op.get_attr("shared_name").decode(errors="backslashreplace")
            key = next((name for name in (op.name, shared) if name in shapes), None)
            shape = tf.TensorShape(op.get_attr("shape"))
            if key is not None and shape.is_compatible_with(shapes[key]):
                values[op.name] = reader.get_tensor(key)
        return values

    def _variable_values(self, guess: Guess) -> dict[str, Any]:
        """Return a value for each variable: of the checkpoint, of its initialiser, or a seeded one.

        An initialiser that reads other variables finds their seeded values: no order counts.
        """
        values, initial = dict[str, Any](), dict[str, str]()
        for op in variables_of(self.graph):
            dtype, shape = op.get_attr("dtype"), tf.TensorShape(op.get_attr("shape"))
            values[op.name] = seeded_value(op.name, dtype, shape, guess)
            is_initialised = self.model is not None and op.name not in self.restored
            for reader in op.outputs[0].consumers() if is_initialised else ():
                named = reader.name == f"{op.name}/Assign" and reader.type.startswith("Assign")
                if named and reader.inputs[0].op is op:
                    value = reader.inputs[1]
                    if value.shape.is_compatible_with(shape):
                        initial[op.name] = value.name
        values |= self.restored
        asked = sorted(set(initial.values()))
        computed = GraphRun(self.graph, variables=values).run(asked, False)[0] if asked else {}
        drawn = {name: computed[tensor] for name, tensor in initial.items() if tensor in computed}
        return {**values, **drawn}

    def tensor(self, name: str) -> Any:
        """Return the tensor that is called so here."""
        return self.graph.get_tensor_by_name(self.names.get(name, name))

    def choose(
        self, tensors: Sequence[str], fed: Values, guesses: Sequence[Guess] = GUESSES
    ) -> Ran:
        """Take the guess with which most of these tensors have elements; return what that gives.

        Large images are tried where others are too small for the windows of the model.
        """
        most, tried = -1, list[list[Any]]()
        best: tuple[Values, Values] = {}, {}
        ran: Ran = {}, {}
        for guess in guesses:
            is_too_small = any(map(TOO_SMALL.search, ran[1].values())) or self._empty(ran[0])
            if guess.image and not is_too_small:
                continue
            self.guess(fed, guess)
            shapes = [np.shape(value) for value in (*self.feeds.values(), *self.variables.values())]
            if shapes in tried:
                continue
            tried.append(shapes)
            values, reasons = self.run(tensors, False)
            count = len(values) - len(self._empty(values))
            if count > most:
                most, best, ran = count, (self.feeds, self.variables), (values, reasons)
            if most == len(tensors):
                break
        self.feeds, self.variables = best
        return ran

    def _empty(self, values: Values) -> list[str]:
        """Return the tensors without elements, of shapes that do not say so."""
        empty = [name for name, value in values.items() if not np.size(value)]
        return [name for name in empty if self.tensor(name).shape.num_elements() != 0]

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Return the values of those tensors that can be computed, and why the others cannot.

        Each try is a Session of its own, in which every random op and iterator starts anew. With
        `optimise`, as Sessions do by default; else op by op, as the graph says. C++ has no gradient
        of a call in a called function; Grappler inlines such calls, so what needs it is optimised.
        """
        wanted = {self.names.get(name, name): name for name in fetches}
        feeds = {self.names.get(name, name): value for name, value in self.feeds.items()}
        values, reasons = dict[str, Any](), dict[str, str]()
        while wanted:
            try:
                with self._session(optimise) as session:
                    arrays = session.run(list(wanted), feeds)
                values, wanted = dict(zip(wanted.values(), arrays, strict=True)), {}
            except (tf.errors.OpError, ValueError, TypeError) as error:
                computable = without_failed(self.graph, list(wanted), error, feeds)
                lost = [wanted.pop(name) for name in list(wanted) if name not in computable]
                reasons |= dict.fromkeys(lost, first_line(error))
        again = [name for name, why in reasons.items() if NO_GRADIENT_OF_CALL.search(why)]
        if again and not optimise:
            more, still = GraphRun.run(self, again, optimise=True)
            values, reasons = {**values, **more}, {**reasons, **still}
            reasons = {name: why for name, why in reasons.items() if name not in more}
        return values, reasons

    @cached_property
    def _assigns(self) -> dict[str, tuple[Any, Any]]:
        """Return for each variable a placeholder that we add, and the op that assigns it."""
        assigns = dict[str, tuple[Any, Any]]()
        with self.graph.as_default(), tf.control_dependencies(None):
            for op in variables_of(self.graph):
                value = tf.compat.v1.placeholder(op.get_attr("dtype"), name=ASSIGNED)
                if op.type == RESOURCE_VARIABLE:
                    assign = tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=value)
                else:
                    assign = tf.compat.v1.assign(op.outputs[0], value, validate_shape=False).op
                assigns[op.name] = value, assign
        return assigns

    def _session(self, optimise: bool) -> Any:
        config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
        config.operation_timeout_in_ms = self.limit
        if not optimise:
            without_grappler(config)
        session = tf.compat.v1.Session(graph=self.graph, config=config)
        try:
            session.run(self.initialisers)
            assigns = [self._assigns[name] for name in self.variables]
            fed = zip((value for value, _ in assigns), self.variables.values(), strict=True)
            session.run([op for _, op in assigns], dict(fed))
            fill_tables(self.graph, session)
        except BaseException:
            session.close()
            raise
        return session


def placeholders(graph: Any) -> Iterator[Any]:
    """Yield the tensors of the placeholders, without those that graphpatch added."""
    for op in graph.get_operations():
        if op.type in PLACEHOLDERS and not op.name.startswith(ASSIGNED):
            yield op.outputs[0]


def variables_of(graph: Any) -> list[Any]:
    """Return the ops that are variables."""
    return [op for op in graph.get_operations() if op.type in VARIABLES]


def checkpoint(model: Model) -> str | None:
    """Return where the values of a model's variables lie, if they are there.

    Raises ModelError where a link in the model's folder leads out of it.
    """
    path = Path(model.path)
    if model.file:
        list(regular_files(path))  # raises for what it does not follow
    prefix = path / "variables" / "variables" if model.file else path.with_suffix("")
    is_there = prefix.with_name(f"{prefix.name}.index").is_file()
    return str(prefix) if is_there and (model.file or model.container is META) else None


def without_failed(
    graph: Any, wanted: list[str], error: Any, fed: Container[str] = ()
) -> list[str]:
    """Return the tensors that do not need the op that failed; none where that is not known."""
    dead = re.search(r"Retval\[(\d+)\]", str(error))
    if dead:  # a Session fetches in the order of the names
        lost_name = sorted(set(wanted))[int(dead[1])]
        return [name for name in wanted if name != lost_name]
    named = re.search(r"(?i)node '?\{?\{?(?:node )?([^'} ]+)", str(error))
    op = getattr(error, "op", None)
    failed = op.name if op is not None else named[1] if named else ""
    try:
        lost = waiting_ops([graph.get_operation_by_name(failed)], fed)
    except (KeyError, ValueError):
        return []
    others = [n for n in wanted if n in fed or graph.get_tensor_by_name(n).op not in lost]
    return others if len(others) < len(wanted) else []


def first_line(error: Exception) -> str:
    """Return what TensorFlow says, in a line; of a failing op not where it stands."""
    text = re.sub(r"\(?\d\) [A-Z_]+: ", "", str(error))
    own = re.search(r"Node: '[^']*'\n(?:\d+ root error.*\n)?\s*(.+)", text)
    lines = [line for line in text.splitlines() if line.strip() and "Graph execution" not in line]
    says = own[1] if own else lines[0] if lines else "no message"
    return f"{type(error).__name__}: {says.strip()}"


def waiting_ops(ops: Iterable[Any], fed: Container[str] = (), control: bool = True) -> set[Any]:
    """Return these ops and all that wait for them; who reads a fed tensor does not wait for its op.

    Without `control`, only what is computed from their tensors.
    """

    def readers(op: Any) -> list[Any]:
        computed = [output for output in op.outputs if output.name not in fed]
        readers = [reader for output in computed for reader in output.consumers()]
        return readers + (op._control_outputs if control else [])

    return set(reached(ops, readers))


def ops_before(ops: Sequence[Any], control: bool = True) -> list[Any]:
    """Return these ops and all that they wait for, each behind those that it reads.

    Without `control`, only what they are computed from.
    """
    order, met, todo = list[Any](), set[Any](), [(op, False) for op in ops]
    while todo:
        op, is_done = todo.pop()
        if is_done:
            order.append(op)
        elif op not in met:
            met.add(op)
            read = [*(op.control_inputs if control else ()), *(t.op for t in op.inputs)]
            todo += [(op, True), *((before, False) for before in reversed(read))]
    return order


SPARSE_COUNTS = {"ParseExampleV2": "num_sparse", "ParseSingleExample": "num_sparse"}
FILLS_TABLES = frozenset({
    "InitializeTable", "InitializeTableV2", "LookupTableImport", "LookupTableImportV2",
})  # fmt: skip
ENTRY_MAKERS = frozenset("Cast ConcatV2 Const Identity NoOp Pack Range Reshape".split())


def seeded_feeds(graph: Any, fed: Container[str], guess: Guess) -> Iterator[tuple[str, Any]]:
    """Yield what a program would feed, with seeded values; a handle or a variant has none in numpy.

    That is placeholders, and what iterators, queues and parsers of Examples give. Not of a
    OneShotIterator, which needs no program, nor of a parser of Examples that are given.
    """
    ops, size = graph.get_operations(), guess.size
    fed_tensors = [output for op in ops for output in op.outputs if output.name in fed]
    parsed = waiting_ops(reader for tensor in fed_tensors for reader in tensor.consumers())
    for op in ops:
        is_next = op.type in PIPELINES and op.inputs[0].op.type != "OneShotIterator"
        is_parser = op.type in PARSERS and op not in parsed
        is_placeholder = op.type in PLACEHOLDERS and not op.name.startswith(ASSIGNED)
        for output in op.outputs if is_next or is_parser or is_placeholder else ():
            if output.dtype.base_dtype.name not in HANDLES:
                yield output.name, seeded_value(output.name, output.dtype, output.shape, guess)
        if is_parser:  # the indices and shapes of the sparse tensors: one value in each row
            count = op.get_attr(SPARSE_COUNTS.get(op.type, "Nsparse"))
            for indices, shape in zip(op.outputs, op.outputs[2 * count : 3 * count], strict=False):
                rows, rank = np.arange(size, dtype=np.int64), indices.shape[1]
                yield indices.name, np.stack([rows, *[rows * 0] * (rank - 1)], axis=1)
                yield shape.name, np.array([size, *[1] * (rank - 1)], np.int64)


def fill_tables(graph: Any, session: Any) -> None:
    """Put the entries into tables that constants tell, as a program does that loads the model.

    Other tables stay empty, and so do those whose entries TensorFlow refuses; it names them where
    they are read.
    """
    for op in graph.get_operations():
        if op.type in FILLS_TABLES:
            entries = ops_before([*op.control_inputs, *(read.op for read in op.inputs[1:])])
            if all(read.type in ENTRY_MAKERS for read in entries):
                with contextlib.suppress(tf.errors.OpError):
                    session.run(op)
