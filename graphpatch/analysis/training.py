"""What a training graph differentiates: the loss, the variables, and who reads their gradients.

`tf.gradients` puts its ops into a scope, `gradients` by default, and names those of the op L there
`gradients/L_grad/...`. Nothing else in a file tells which loss they are the gradients of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.topology import upstream

SCOPE = re.compile(r"((?:.*/)?gradients(?:_\d+)?)/")
SEED = re.compile(r"Fill(_\d+)?|grad_ys_\d+")
OF_AN_OP = re.compile(r"_grad(?:_\d+)?/")
VARIABLES = frozenset({"Variable", "VariableV2", "VarHandleOp"})
# What hands a variable's value, or its reference, to the op that computes with it.
READS = frozenset(
    {"Identity", "ReadVariableOp", "Enter", "RefEnter", "Cast", "Switch", "RefSwitch"}
)
MOST = 8  # names in a message


@dataclass(frozen=True, slots=True)
class Built:
    """The gradient of one variable: its values, and where it is sparse its indices."""

    variable: str
    values: str
    indices: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """What one call of `tf.gradients` built: the scope of its ops, the losses, the gradients.

    `upstream` has the tensors that were given as `grad_ys`, or nothing.
    """

    scope: str
    losses: tuple[str, ...]
    upstream: tuple[str, ...]
    gradients: tuple[Built, ...]

    def __str__(self) -> str:
        of = ", ".join(self.losses)
        wrt = ", ".join(built.variable for built in self.gradients[:MOST])
        more = f" and {len(self.gradients) - MOST} more" if len(self.gradients) > MOST else ""
        return f"{self.scope}: the gradients of {of} by {wrt}{more} were built anew"

    def holds(self, name: str) -> bool:
        """Whether an op is one of the section."""
        return name.startswith(f"{self.scope}/")


def sections(body: Body, losses: Sequence[str] = ()) -> list[Section]:
    """Each call of `tf.gradients` whose results update variables, in the order of the file.

    `losses` are those of the only call, where the user names them. Raises PatchError where there
    is no such call, or where the file does not tell its loss or the variable that a gradient
    belongs to; the message lists what was found.
    """
    for text in losses:
        if names.op_of(text) not in body.by_name:
            raise PatchError(f"--loss: there is no tensor {text}")
    scopes = dict.fromkeys(
        match[1] for name in body.heads.names if (match := SCOPE.match(name)) is not None
    )
    found = [_section(body, scope, losses) for scope in scopes]
    kept = [section for section in found if section is not None]
    if losses and len(kept) > 1:
        listed = ", ".join(section.scope for section in kept)
        raise PatchError(f"--loss names one loss, and the gradients of several are there: {listed}")
    if not kept:
        where = ", ".join(map(repr, list(scopes)[:MOST])) or "none"
        raise PatchError(
            f"found no gradients that update a variable (scopes of tf.gradients: {where}); there "
            f"is nothing to build anew"
        )
    return kept


def _section(body: Body, scope: str, asked: Sequence[str]) -> Section | None:
    """One scope; None where no update of a variable reads its gradients."""
    inside = f"{scope}/"
    given = _given_out(body, inside)
    updates = [
        (node, variable, reached)
        for node, variable in _updates(body, inside)
        if (reached := _reached(node, given, inside))
    ]
    if not updates:
        return None
    losses, upstreams = (tuple(asked), ()) if asked else _losses(body, scope)
    marks = upstream(body, map(names.parse, losses))
    gradients: dict[str, Built] = {}
    for node, variable, reached in updates:
        if marks[variable.index]:
            gradients[variable.name] = _built(node, variable, reached, inside)
    if not gradients:
        raise PatchError(
            f"{scope}: none of the variables that its gradients update is read by the loss "
            f"{', '.join(losses)}"
        )
    return Section(scope, losses, upstreams, tuple(gradients.values()))


def _given_out(body: Body, inside: str) -> set[str]:
    """The tensors of a section that ops outside of it read."""
    return {
        str(names.parse(text))
        for name, inputs in zip(body.heads.names, body.heads.inputs, strict=True)
        if not name.startswith(inside)
        for text in inputs
        if text.startswith(inside)
    }


def _updates(body: Body, inside: str) -> Iterator[tuple[Node, Node]]:
    """The ops that change a variable: input 0 is the variable itself, not a value of it."""
    for node in body:
        data = node.data_inputs
        if len(data) > 1 and not node.name.startswith(inside) and node.op not in READS:
            variable = body.producer(data[0])
            if variable is not None and variable.op in VARIABLES and _changes(node):
                yield node, variable


def _changes(node: Node) -> bool:
    """Whether an op writes the variable that its input 0 is."""
    return bool(re.search(r"Apply|Assign|Scatter", node.op))


def _reached(node: Node, given: set[str], inside: str) -> list[str]:
    """The gradients that an update is computed from, in the order in which they are met.

    Through whatever lies between: clipping, averaging, schedules. Not through variables.
    """
    body, found = node.body, dict[str, None]()
    seen = {node.index}
    waiting = list(node.data_inputs[1:])
    while waiting:
        text = str(names.parse(waiting.pop(0)))
        if text in given:
            found[text] = None
            continue
        producer = body.producer(text)
        if producer is None or producer.index in seen or producer.op in VARIABLES:
            continue
        seen.add(producer.index)
        if not producer.name.startswith(inside):
            waiting += producer.data_inputs
    return list(found)


def _built(node: Node, variable: Node, reached: list[str], inside: str) -> Built:
    """Which of the gradients that an update reads is that of its variable."""
    floats = [text for text in reached if not _is_index(node.body, text)]
    if len(floats) > 1:
        floats = [text for text in floats if _is_of(node.body, text, variable, inside)]
    if len(floats) != 1:
        raise PatchError(
            f"{node} reads {len(reached)} gradients, and the file does not tell which of them is "
            f"that of {variable.name!r}: {', '.join(reached[:MOST])}"
        )
    values = floats[0]
    of = _forward_of(node.body, names.op_of(values), inside)
    indices = [text for text in reached if _is_index(node.body, text)]
    if len(indices) > 1:
        indices = [t for t in indices if _forward_of(node.body, names.op_of(t), inside) == of]
    return Built(variable.tensor(0), values, indices[0] if indices else "")


def _is_index(body: Body, text: str) -> bool:
    """Whether a tensor holds integers: the indices of a sparse gradient."""
    tensor = names.parse(text)
    flat = body.node(tensor.op).outputs
    dtype = flat[tensor.index].dtype if flat and tensor.index < len(flat) else None
    return dtype in {"int32", "int64"}


def _is_of(body: Body, text: str, variable: Node, inside: str) -> bool:
    """Whether a gradient belongs to ops that read this variable: their names tell them."""
    name = names.op_of(text)
    forward = _forward_of(body, name, inside)
    if forward:
        return variable.name in _variables(body, forward)
    node = body.node(name)  # the sum of several gradients, some of which may have been sparse
    terms = [
        one
        for one in node.data_inputs
        if names.op_of(one).startswith(inside) and not _is_index(body, one)
    ]
    return bool(terms) and all(_is_of(body, one, variable, inside) for one in terms)


def _variables(body: Body, name: str) -> set[str]:
    """The variables that an op reads, directly or through what hands their values on."""
    found, waiting, seen = set[str](), [name], set[str]()
    while waiting:
        node = body.node(waiting.pop())
        if node.op in VARIABLES:
            found.add(node.name)
            continue
        if node.name == name or node.op in READS:
            read = {names.op_of(text) for text in node.data_inputs} & body.by_name.keys()
            waiting += read - seen
            seen |= read
    return found


def _forward_of(body: Body, name: str, inside: str) -> str:
    """The op whose gradient an op of a section computes: L of `gradients/L_grad/...`."""
    rest = name.removeprefix(inside)
    found = [rest[: match.start()] for match in OF_AN_OP.finditer(rest)]
    there = [one for one in found if one in body.by_name]
    return there[-1] if there else ""


def _losses(body: Body, scope: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tensors that are differentiated, and what was given as their upstream gradients."""
    inside = f"{scope}/"
    losses, given = dict[str, str](), []
    for node in _seeds(body, scope):
        read = {names.op_of(text) for text in _readers(body, node)}
        first = {_forward_of(body, name, inside) for name in read}
        upstreams = [] if node.op == "Fill" else list(node.data_inputs[:1])
        losses |= dict.fromkeys(filter(None, sorted(first)), "")
        given += upstreams
    if not losses or (given and len(given) != len(losses)):
        listed = ", ".join(losses) or "none"
        raise PatchError(
            f"{scope}: the file does not tell which loss these gradients are of (candidates: "
            f"{listed}); give it: --loss TENSOR"
        )
    return tuple(losses), tuple(given)


def _seeds(body: Body, scope: str) -> Iterable[Node]:
    """What the gradients of a section start from: ones, or what was given as `grad_ys`."""
    for node in body:
        head, _, last = node.name.rpartition("/")
        if head == scope and SEED.fullmatch(last) and node.op in {"Fill", "Identity"}:
            yield node


def _readers(body: Body, node: Node) -> Iterator[str]:
    for index, slot in body.readers.get(node.name, ()):
        if not body.heads.inputs[index][slot].startswith("^"):
            yield body.heads.names[index]
