"""What a training graph differentiates: the loss, the variables, and who reads their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.check import OF_AN_OP, SEED, scopes_of_gradients
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import VARIABLES
from graphpatch.graph.walk import data_uses, upstream
from graphpatch.patches.freeze import VARIABLE_READS, updates
from graphpatch.table import short


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


@dataclass(frozen=True, slots=True)
class BuiltGradient:
    """The gradient of one variable: its values, and where it is sparse its indices."""

    variable: str
    values: str
    indices: str = ""


@dataclass(frozen=True, slots=True)
class GradientSection:
    """What one call of `tf.gradients` built: the scope of its ops, the losses, the gradients.

    `upstream` has the tensors that were given as `grad_ys`, or nothing.
    """

    scope: GradientScope
    losses: tuple[str, ...]
    upstream: tuple[str, ...]
    gradients: tuple[BuiltGradient, ...]

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
    outputs_by_scope = {scope: _given_out(body, scope) for scope in scopes}
    candidates = [_section(body, scope, outputs_by_scope, losses) for scope in scopes]
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


def _section(
    body: Body,
    scope: GradientScope,
    outputs_by_scope: Mapping[GradientScope, set[str]],
    asked: Sequence[str],
) -> GradientSection | None:
    """One scope; None where no update of a variable reads its gradients."""
    updates = _UpdateOps(body, scope, outputs_by_scope)
    if not any(updates.reached(node) for node, _ in updates.all):
        return None
    losses, upstreams = (tuple(asked), ()) if asked else _losses(body, scope)
    updates.marks = upstream(body, map(names.parse, losses))
    _refuse_gradients_in(body, updates.marks, outputs_by_scope, scope)
    gradients: dict[str, BuiltGradient] = {}
    for node, variable in updates.all:
        if updates.marks[variable.index] and (reached := updates.reached(node)):
            gradients[variable.name] = _gradient_of_update(node, variable, reached, scope)
    if not gradients:
        raise PatchError(
            f"{scope}: none of the variables that its gradients update is read by the loss "
            f"{', '.join(losses)}"
        )
    return GradientSection(scope, losses, upstreams, tuple(gradients.values()))


def _refuse_gradients_in(
    body: Body, marks: Sequence[int], scopes: Iterable[GradientScope], of: GradientScope
) -> None:
    """Raise PatchError for a loss that is computed from gradients, as of a gradient penalty."""
    for name, index in body.by_name.items():
        if marks[index] and (holding := [scope for scope in scopes if scope.holds(name)]):
            raise PatchError(
                f"{of}: its loss is computed from gradients that were built before ({holding[0]}, "
                f"{name!r}), and the file does not tell by which tensors these were taken, so "
                f"they cannot be built anew; patch where the graph is built, with "
                f"graphpatch.building"
            )


def _given_out(body: Body, scope: GradientScope) -> set[str]:
    """Return the tensors of a scope that ops outside of it read."""
    inside = f"{scope}/"
    return {
        str(names.parse(text))
        for name, inputs in zip(body.heads.names, body.heads.inputs, strict=True)
        if not scope.holds(name)
        for text in inputs
        if text.startswith(inside) and scope.holds(names.op_of(text))
    }


class _UpdateOps:
    """The ops that change variables, and which gradients of a scope they are computed from.

    `marks` are the ops that the loss is computed from, where it is known.
    """

    def __init__(
        self, body: Body, scope: GradientScope, outputs_by_scope: Mapping[GradientScope, set[str]]
    ) -> None:
        self.body, self.given = body, outputs_by_scope[scope]
        self.others = set[str]().union(
            *(outputs for key, outputs in outputs_by_scope.items() if key != scope)
        )
        self.all = [pair for pair in updates(body) if not scope.holds(pair[0].name)]
        self.marks: Sequence[int] | None = None

    def reached(self, node: Node) -> list[str]:
        """Return the gradients that an update is computed from, in the order in which they are met.

        Through whatever lies between: clipping, schedules, averages and sums that other variables
        hold. Not through the variables of the loss, nor by conditions.
        """
        texts_reached, visited, waiting = dict[str, None](), {node.index}, [*node.data_inputs[1:]]
        while waiting:
            text = str(names.parse(waiting.pop(0)))
            producer = self.body.producer(text)
            if text in self.given:
                texts_reached[text] = None
            elif text not in self.others and producer is not None and producer.index not in visited:
                visited.add(producer.index)
                waiting += self._before(producer, text)
        return list(texts_reached)

    def _before(self, producer: Node, text: str) -> list[str]:
        if producer.op not in VARIABLES:
            return [] if _dtype_read(self.body, text) == "bool" else list(producer.data_inputs)
        if self.marks is None or self.marks[producer.index]:
            return []
        updates = [node for node, variable in self.all if variable.index == producer.index]
        return [text for node in updates for text in node.data_inputs[1:]]


def _gradient_of_update(
    node: Node, variable: Node, reached: list[str], scope: GradientScope
) -> BuiltGradient:
    """Return which of the gradients that an update reads is that of its variable."""
    floats = [text for text in reached if not _is_index(node.body, text)]
    if len(floats) > 1:
        floats = [text for text in floats if _is_gradient_of(node.body, text, variable, scope)]
    if len(floats) != 1:
        raise PatchError(
            f"{node} reads {len(reached)} gradients, and the file does not tell which of them is "
            f"that of {variable.name!r}: {', '.join(reached[:MOST_NAMED])}"
        )
    values = floats[0]
    of = scope.forward_of(node.body, names.op_of(values))
    indices = [text for text in reached if _is_index(node.body, text)]
    if len(indices) > 1:
        indices = [t for t in indices if scope.forward_of(node.body, names.op_of(t)) == of]
    return BuiltGradient(variable.tensor(0), values, indices[0] if indices else "")


def _is_index(body: Body, text: str) -> bool:
    """Return whether a tensor holds integers: the indices of a sparse gradient."""
    return _dtype_read(body, text) in {"int32", "int64"}


def _dtype_read(body: Body, text: str) -> str | None:
    tensor = names.parse(text)
    flat = body.node(tensor.op).outputs
    return flat[tensor.index].dtype if flat and tensor.index < len(flat) else None


def _is_gradient_of(body: Body, text: str, variable: Node, scope: GradientScope) -> bool:
    """Return whether a gradient belongs to ops that read this variable: their names tell them."""
    name = names.op_of(text)
    forward = scope.forward_of(body, name)
    if forward:
        return variable.name in _variables_read(body, forward)
    node = body.node(name)  # the sum of several gradients, some of which may have been sparse
    terms = [
        term
        for term in node.data_inputs
        if scope.holds(names.op_of(term)) and not _is_index(body, term)
    ]
    return bool(terms) and all(_is_gradient_of(body, term, variable, scope) for term in terms)


def _variables_read(body: Body, name: str) -> set[str]:
    """Return the variables that an op reads, directly or through what hands their values on."""
    variables, waiting, visited = set[str](), [name], set[str]()
    while waiting:
        node = body.node(waiting.pop())
        if node.op in VARIABLES:
            variables.add(node.name)
            continue
        if node.name == name or node.op in VARIABLE_READS:
            read = {names.op_of(text) for text in node.data_inputs} & body.by_name.keys()
            waiting += read - visited
            visited |= read
    return variables


def _losses(body: Body, scope: GradientScope) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tensors that are differentiated, and what was given as their upstream gradients."""
    losses, upstream = dict[str, str](), []
    for node in scope.seeds(body):
        read = {body.heads.names[index] for index, _, _ in data_uses(body, node.name)}
        first = {scope.forward_of(body, name) for name in read}
        upstreams = [] if node.op == "Fill" else list(node.data_inputs[:1])
        losses |= dict.fromkeys(filter(None, sorted(first)), "")
        upstream += upstreams
    if not losses or (upstream and len(upstream) != len(losses)):
        listed = ", ".join(losses) or "none"
        raise PatchError(
            f"{scope}: the file does not tell which loss these gradients are of (candidates: "
            f"{listed}); give it: --loss TENSOR"
        )
    return tuple(losses), tuple(upstream)
