"""What a training graph differentiates: the loss, the variables, and who reads their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.check import OF_AN_OP, SEED, scopes_of_gradients
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import data_uses, reached, upstream
from graphpatch.patches.freeze import VARIABLE_READS, updates
from graphpatch.shown import short


@dataclass(frozen=True, slots=True)
class GradientScope:
    """What one call of `tf.gradients` built.

    `variables` are in the scope by their names alone: moving averages of a gradient have its name.
    """

    name: str
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def holds(self, name: str) -> bool:
        """Return whether an op is one of those that `tf.gradients` built."""
        if not name.startswith(f"{self.name}/"):
            return False
        return not any(
            name == variable or name.startswith(f"{variable}/") for variable in self.variables
        )

    def forward_of(self, body: Body, name: str) -> str:
        """Return the op whose gradient an op of the scope computes: L of `gradients/L_grad/...`."""
        rest = name.removeprefix(f"{self.name}/")
        names = [rest[: match.start()] for match in OF_AN_OP.finditer(rest)]
        existing = [forward_name for forward_name in names if forward_name in body.by_name]
        return existing[-1] if existing else ""

    def seeds(self, body: Body) -> Iterator[Node]:
        """Yield what the gradients start from: ones, or what was given as `grad_ys`."""
        for name, index in body.by_name.items():
            head, _, last = name.rpartition("/")
            if head == self.name and SEED.fullmatch(last):
                node = Node(body, index)
                if node.op in {"Fill", "Identity"}:
                    yield node


def gradient_scopes(body: Body) -> list[GradientScope]:
    """Return each scope of gradients, in the order of the file.

    Gradients of gradients have the name of the first ones inside of their own scope, once.
    """
    variables = [body.heads.names[index] for op in VARIABLES for index in body.by_type.get(op, ())]
    scopes = [
        GradientScope(name, tuple(held for held in variables if held.startswith(f"{name}/")))
        for name in scopes_of_gradients(body.heads.names)
    ]
    whole = [scope for scope in scopes if any(True for _ in scope.seeds(body))]
    return [
        scope
        for scope in scopes
        if not any(outer is not scope and outer.holds(f"{scope.name}/") for outer in whole)
    ]


MOST_NAMED = 8  # names in a message
INTEGERS = {"int32", "int64"}  # the dtypes of the indices of a sparse gradient


@dataclass(frozen=True, slots=True)
class BuiltGradient:
    """The gradient of one variable: its values, and where it is sparse its indices."""

    variable: str
    values: str
    indices: str = ""


@dataclass(frozen=True, slots=True)
class GradientSection:
    """What one call of `tf.gradients` built: the scope of its ops, the losses, the gradients.

    `upstream` has the tensors that were given as `grad_ys`, or nothing; `after` the ops that all
    of it waits for, as in `with tf.control_dependencies(...)`.
    """

    scope: GradientScope
    losses: tuple[str, ...]
    upstream: tuple[str, ...]
    gradients: tuple[BuiltGradient, ...]
    after: tuple[str, ...]

    def __str__(self) -> str:
        of = ", ".join(self.losses)
        wrt = short([built.variable for built in self.gradients], MOST_NAMED)
        return f"{self.scope}: the gradients of {of} by {wrt} were built anew"

    def holds(self, name: str) -> bool:
        """Return whether an op is one of the section."""
        return self.scope.holds(name)


def gradient_sections(body: Body, losses: Sequence[str] = ()) -> list[GradientSection]:
    """Return each call of `tf.gradients` whose results update variables, in the order of the file.

    `losses` are those of the only call, where the user names them. Raises PatchError where there
    is no such call, or where the file does not tell its loss or the variable that a gradient
    belongs to; the message lists what was found.
    """
    for text in losses:
        if names.op_of(text) not in body.by_name:
            raise PatchError(f"--loss: there is no tensor {text}")
    scopes = gradient_scopes(body)
    read_outside = {scope: _read_outside(body, scope) for scope in scopes}
    candidates = [_Section(body, scope, read_outside).built(losses) for scope in scopes]
    sections = [section for section in candidates if section is not None]
    if losses and len(sections) > 1:
        listed = ", ".join(section.scope.name for section in sections)
        raise PatchError(f"--loss names one loss, and the gradients of several are there: {listed}")
    if not sections:
        where = ", ".join(repr(scope.name) for scope in scopes[:MOST_NAMED]) or "none"
        raise PatchError(
            f"found no gradients that update a variable (scopes of tf.gradients: {where}); there "
            f"is nothing to build anew"
        )
    return sections


def _read_outside(body: Body, scope: GradientScope) -> set[str]:
    """Return the tensors of a scope that ops outside of it read."""
    inside = f"{scope}/"
    return {
        str(names.parse(text))
        for name, inputs in zip(body.heads.names, body.heads.inputs, strict=True)
        if not scope.holds(name)
        for text in inputs
        if text.startswith(inside) and scope.holds(names.op_of(text))
    }


class _Section:
    """One scope of gradients, the ops that change variables, and the gradients these read.

    `marks` are the ops that the loss is computed from, once it is known.
    """

    def __init__(
        self, body: Body, scope: GradientScope, read_outside: Mapping[GradientScope, set[str]]
    ) -> None:
        self.body, self.scope, self.scopes = body, scope, list(read_outside)
        self.read_outside = read_outside[scope]
        self.others = set[str]().union(*(t for key, t in read_outside.items() if key != scope))
        self.updates = [pair for pair in updates(body) if not scope.holds(pair[0].name)]
        self.marks: Sequence[int] | None = None

    def built(self, asked: Sequence[str]) -> GradientSection | None:
        """Return what the call built; None where no update of a variable reads its gradients."""
        if not any(self._reached(node) for node, _ in self.updates):
            return None
        losses, upstreams = (tuple(asked), ()) if asked else self._losses()
        marks = self.marks = upstream(self.body, map(names.parse, losses))
        for name, index in self.body.by_name.items():
            holding = [scope for scope in self.scopes if scope.holds(name)] if marks[index] else []
            if holding:
                raise PatchError(
                    f"{self.scope}: its loss is computed from gradients that were built before "
                    f"({holding[0]}, {name!r}), and the file does not tell by which tensors these "
                    f"were taken, so they cannot be built anew; patch where the graph is built, "
                    f"with graphpatch.building"
                )
        gradients: dict[str, BuiltGradient] = {}
        for node, variable in self.updates:
            if marks[variable.index] and (reached := self._reached(node)):
                gradients[variable.name] = self._gradient_of(node, variable, reached)
        if not gradients:
            raise PatchError(
                f"{self.scope}: none of the variables that its gradients update is read by the "
                f"loss {', '.join(losses)}"
            )
        built = tuple(gradients.values())
        return GradientSection(self.scope, losses, upstreams, built, self._after())

    def _after(self) -> tuple[str, ...]:
        """Return the ops, none of them gradients, that the seeds and what they read wait for."""
        seeds = list(self.scope.seeds(self.body))
        read = {name for seed in seeds for name in map(names.op_of, seed.data_inputs)}
        nodes = [*seeds, *map(self.body.node, sorted(filter(self.scope.holds, read)))]
        waits = {text[1:]: None for node in nodes for text in node.inputs if text[:1] == "^"}
        return tuple(op for op in waits if not any(scope.holds(op) for scope in self.scopes))

    def _losses(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the tensors that are differentiated, and their upstream gradients."""
        losses, upstreams = dict[str, None](), list[str]()
        for node in self.scope.seeds(self.body):
            read = {self.body.heads.names[index] for index, *_ in data_uses(self.body, node.name)}
            first = {self.scope.forward_of(self.body, name) for name in read}
            losses |= dict.fromkeys(filter(None, sorted(first)))
            upstreams += [] if node.op == "Fill" else node.data_inputs[:1]
        if not losses or (upstreams and len(upstreams) != len(losses)):
            listed = ", ".join(losses) or "none"
            raise PatchError(
                f"{self.scope}: the file does not tell which loss these gradients are of "
                f"(candidates: {listed}); give it: --loss TENSOR"
            )
        return tuple(losses), tuple(upstreams)

    def _reached(self, node: Node) -> list[str]:
        """Return the gradients that an update is computed from, in the order in which they are met.

        Through whatever lies between: clipping, schedules, averages and sums that other variables
        hold. Not through the variables of the loss, nor by conditions.
        """
        texts_reached, visited, waiting = dict[str, None](), {node.index}, [*node.data_inputs[1:]]
        while waiting:
            text = str(names.parse(waiting.pop(0)))
            producer = self.body.producer(text)
            if text in self.read_outside:
                texts_reached[text] = None
            elif text not in self.others and producer is not None and producer.index not in visited:
                visited.add(producer.index)
                if producer.op not in VARIABLES:
                    waiting += [] if self._dtype(text) == "bool" else producer.data_inputs
                elif self.marks is not None and not self.marks[producer.index]:
                    for update, variable in self.updates:
                        if variable.index == producer.index:
                            waiting += update.data_inputs[1:]
        return list(texts_reached)

    def _gradient_of(self, node: Node, variable: Node, reached: list[str]) -> BuiltGradient:
        """Return which of the gradients that an update reads is that of its variable."""
        indices = [text for text in reached if self._dtype(text) in INTEGERS]  # of a sparse one
        floats = [text for text in reached if text not in indices]
        if len(floats) > 1:
            floats = [text for text in floats if self._is_of(text, variable)]
        if len(floats) != 1:
            raise PatchError(
                f"{node} reads {len(reached)} gradients, and the file does not tell which of them "
                f"is that of {variable.name!r}: {', '.join(reached[:MOST_NAMED])}"
            )
        if len(indices) > 1:
            of = self._forward_of(floats[0])
            indices = [text for text in indices if self._forward_of(text) == of]
        return BuiltGradient(variable.tensor(0), floats[0], indices[0] if indices else "")

    def _forward_of(self, text: str) -> str:
        return self.scope.forward_of(self.body, names.op_of(text))

    def _dtype(self, text: str) -> str | None:
        tensor = names.parse(text)
        flat = self.body.node(tensor.op).outputs
        return flat[tensor.index].dtype if flat and tensor.index < len(flat) else None

    def _is_of(self, text: str, variable: Node) -> bool:
        """Return whether a gradient belongs to ops that read this variable: their names tell."""
        forward = self._forward_of(text)
        if forward:
            return variable.name in _variables_read(self.body, forward)
        # It is the sum of several gradients, some of which may have been sparse.
        terms = [
            term
            for term in self.body.node(names.op_of(text)).data_inputs
            if self.scope.holds(names.op_of(term)) and self._dtype(term) not in INTEGERS
        ]
        return bool(terms) and all(self._is_of(term, variable) for term in terms)


def _variables_read(body: Body, name: str) -> set[str]:
    """Return the variables that an op reads, directly or through what hands their values on."""

    def read_by(op: str) -> set[str]:
        node = body.node(op)
        is_passed = node.op not in VARIABLES and (op == name or node.op in VARIABLE_READS)
        read = node.data_inputs if is_passed else ()
        return set(map(names.op_of, read)) & body.by_name.keys()

    return {op for op in reached([name], read_by) if body.node(op).op in VARIABLES}
