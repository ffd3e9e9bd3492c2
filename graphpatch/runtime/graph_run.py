"""A graph in a Session: what it gives for given feeds, as far as it can be run; op by op too."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphpatch.graph.op_types import CALLS, PLACEHOLDERS, RESOURCE_VARIABLE, VARIABLES
from graphpatch.runtime.pipelines import fill_tables, next_values
from graphpatch.runtime.values import Values, seeded_value
from graphpatch.runtime.waiting import waiting_ops

OLD = "config"  # where TensorFlow 1.13 to 1.15 look, too


def run_op_by_op(graph_def: Any) -> bool:
    """Let the functions that a GraphDef calls run with Grappler off; whether it calls any.

    A Session optimises the function of a PartitionedCall by the `config_proto` of that op, whatever
    its own settings are.
    """
    bodies = graph_def.node, *(one.node_def for one in graph_def.library.function)
    calls = [node for nodes in bodies for node in nodes if node.op in CALLS]
    for node in calls:
        config = _config(node)
        without_grappler(config)
        node.attr["config_proto"].s = config.SerializeToString()
        if OLD in node.attr:
            node.attr[OLD].s = b""
    return bool(calls)


def without_grappler(config: Any) -> None:
    """Have this ConfigProto run graphs op by op."""
    import tensorflow as tf

    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0


def _config(node: Any) -> Any:
    import tensorflow as tf

    return tf.compat.v1.ConfigProto.FromString(node.attr["config_proto"].s)


TIMEOUT = 20_000  # milliseconds, where a run may never end
# Ops that wait for what nobody may give, and loops whose condition may never be false. Graphs
# without them end by themselves, and large ones may take longer than that.
ENDLESS = re.compile(
    r"Dequeue|Enqueue|Barrier|Unstage|Stage$|Accumulator|Reader|Iterator|Recv|Rendezvous|Mutex"
    r"|NextIteration|While$|PyFunc"
)
NO_GRADIENT_OF_CALL = re.compile(r"No gradient defined for op: (Stateful)?PartitionedCall\b")
ASSIGNED = "value_that_graphpatch_assigns"  # the placeholders that we add, for values of variables


@dataclass(eq=False)
class GraphRun:
    """A tf.Graph, with what it is fed and what its variables hold.

    Each run `is_limited` to TIMEOUT, unless it is known to end by itself.
    """

    graph: Any
    feeds: Values = field(default_factory=dict)
    variables: Values = field(default_factory=dict)
    is_limited: bool = field(default=True, kw_only=True)
    _assigns: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # what is fed, and the op

    def run(self, fetches: Sequence[str], optimise: bool) -> tuple[dict[str, Any], dict[str, str]]:
        """The values of those tensors that can be computed, and why the others cannot.

        Each try is a Session of its own, in which every random op and iterator starts anew. With
        `optimise`, as Sessions do by default; else op by op, as the graph says.
        """
        import tensorflow as tf

        wanted, reasons = list(fetches), dict[str, str]()
        while wanted:
            with self._session(optimise) as session:
                try:
                    values = session.run(wanted, dict(self.feeds))
                    return dict(zip(wanted, values, strict=True)), reasons
                except (tf.errors.OpError, ValueError, TypeError) as error:
                    kept = without_failed(self.graph, wanted, error, self.feeds)
                    lost = [name for name in wanted if name not in kept]
                    reasons |= dict.fromkeys(lost, first_line(error))
                    wanted = kept
        return {}, reasons

    def evaluate(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The values of tensors that were added to the graph; TensorFlow's error where it fails.

        C++ has no gradient of a call in a called function. By default Grappler inlines such calls,
        so gradients that need this are run as Sessions do by default.
        """
        import tensorflow as tf

        try:
            return self._evaluated(tensors, optimise=False)
        except tf.errors.NotFoundError as error:
            if not NO_GRADIENT_OF_CALL.search(str(error)):
                raise
            return self._evaluated(tensors, optimise=True)

    def _evaluated(self, tensors: Mapping[str, Any], optimise: bool) -> dict[str, Any]:
        with self._session(optimise) as session:
            found: dict[str, Any] = session.run(dict(tensors), dict(self.feeds))
        return found

    def _session(self, optimise: bool) -> Any:
        import tensorflow as tf

        session = tf.compat.v1.Session(graph=self.graph, config=self._config(optimise))
        try:
            self._assign(session)
            fill_tables(self.graph, session)
        except BaseException:
            session.close()
            raise
        return session

    def _config(self, optimise: bool) -> Any:
        import tensorflow as tf

        limit = TIMEOUT if self.is_limited else 0
        config = tf.compat.v1.ConfigProto(operation_timeout_in_ms=limit, allow_soft_placement=True)
        if not optimise:
            without_grappler(config)
        return config

    def _assign(self, session: Any) -> None:
        """Give the variables their values."""
        fed = {}
        for name, value in self.variables.items():
            if name not in self._assigns:
                self._assigns[name] = assignment(self.graph, name)
            fed[self._assigns[name][0]] = value
        session.run([self._assigns[name][1] for name in self.variables], fed)


def may_be_endless(op_types: Iterable[str]) -> bool:
    """Whether an op of a graph, or of its functions, may wait or repeat for ever."""
    return any(map(ENDLESS.search, op_types))


def seeded_feeds(graph: Any, size: int, whole: tuple[int, ...], given: Values) -> dict[str, Any]:
    """What is fed: what is given, and seeded values for placeholders and input pipelines."""
    found = {
        one.name: seeded_value(one.name, one.dtype, one.shape, size, whole)
        for one in placeholders(graph)
    }
    return {**found, **dict(next_values(graph, given, size, whole)), **given}


def placeholders(graph: Any) -> Iterator[Any]:
    """The tensors of the placeholders, without those that graphpatch added."""
    for op in graph.get_operations():
        if op.type in PLACEHOLDERS and not op.name.startswith(ASSIGNED):
            yield op.outputs[0]


def variables_of(graph: Any) -> Iterator[Any]:
    """The ops that are variables."""
    return (op for op in graph.get_operations() if op.type in VARIABLES)


def seeded_variable(op: Any, size: int, whole: tuple[int, ...]) -> Any:
    """A seeded value for a variable."""
    import tensorflow as tf

    shape = tf.TensorShape(op.get_attr("shape"))
    return seeded_value(op.name, op.get_attr("dtype"), shape, size, whole)


def assignment(graph: Any, name: str) -> tuple[Any, Any]:
    """A placeholder for the value of a variable, and the op that assigns it; both are added."""
    import tensorflow as tf

    op = graph.get_operation_by_name(name)
    with graph.as_default(), tf.control_dependencies(None):
        given = tf.compat.v1.placeholder(op.get_attr("dtype"), name=ASSIGNED)
        if op.type == RESOURCE_VARIABLE:
            return given, tf.raw_ops.AssignVariableOp(resource=op.outputs[0], value=given)
        return given, tf.compat.v1.assign(op.outputs[0], given, validate_shape=False).op


def without_failed(
    graph: Any, wanted: list[str], error: Any, fed: Container[str] = ()
) -> list[str]:
    """The tensors that do not need the op that failed; none where that is not known."""
    dead = re.search(r"Retval\[(\d+)\]", str(error))
    if dead:
        return [name for place, name in enumerate(wanted) if place != int(dead[1])]
    named = re.search(r"(?i)node '?\{?\{?(?:node )?([^'} ]+)", str(error))
    op = getattr(error, "op", None)
    failed = op.name if op is not None else named[1] if named else ""
    try:
        lost = waiting_ops([graph.get_operation_by_name(failed)], fed)
    except (KeyError, ValueError):
        return []
    kept = [name for name in wanted if name in fed or graph.get_tensor_by_name(name).op not in lost]
    return kept if len(kept) < len(wanted) else []


def first_line(error: Exception) -> str:
    """What TensorFlow says, in a line: of a failing op what it says itself, not where it stands."""
    text = re.sub(r"\(?\d\) [A-Z_]+: ", "", str(error))
    told = re.search(r"Node: '[^']*'\n(?:\d+ root error.*\n)?\s*(.+)", text)
    lines = [line for line in text.splitlines() if line.strip() and "Graph execution" not in line]
    says = told[1] if told else lines[0] if lines else ""
    return f"{type(error).__name__}: {says.strip()}"
