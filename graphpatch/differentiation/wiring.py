"""Who gives and who reads each tensor of a body, by the op's index and the number of its output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import msgspec

from graphpatch import names
from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation.flow import TRAINABLE, gradient_type
from graphpatch.errors import ModelError
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ALL_SWITCHES, ENTERS, RESOURCE_VARIABLE
from graphpatch.graph.walk import tensor_named
from graphpatch.opdefs import DTYPE_NAMES, FlatArg, is_ref, tensor_index

# (index of the op, output); an argument of a function is an op with the index -1 - its place.
Tensor = tuple[int, int]
Use = tuple[int, int]  # one of the outputs of an op, and the index of an op that reads it
T = TypeVar("T")


class OnDemand(dict[int, T]):
    """What is found of each op; to get what is known already takes no call in Python."""

    def __init__(self, find: Callable[[int], T]) -> None:
        self.find = find

    def __missing__(self, index: int) -> T:
        self[index] = value = self.find(index)
        return value


class Form(msgspec.Struct, eq=False, dict=True):
    """What ops of one type and with the same attrs have in common, which is read once.

    `outputs` is what they give, nothing of an unknown op type; `dtypes` has the dtypes of these by
    number, None where the NodeDef does not tell.
    `carrying` are the numbers of those behind which TensorFlow looks for ops to differentiate.
    """

    outputs: list[FlatArg]
    node: Node | None = None  # one of them; None for an argument of a function

    def __post_init__(self) -> None:
        self.dtypes = {number: arg.dtype for number, arg in enumerate(self.outputs)}
        self.carrying = {number for number, dtype in self.dtypes.items() if dtype in TRAINABLE}

    @cached_property
    def gradient_type(self) -> str:
        """Return the op type whose gradient TensorFlow takes for them."""
        return gradient_type(self.node) if self.node is not None else ""


class Wiring(msgspec.Struct, eq=False, dict=True):
    """A body, its tensors as pairs of numbers. Made on demand, for the ops that are asked about.

    `inputs` gives the tensors that an op reads, slot by slot; `form` what it has in common with
    ops like it; `tensors` what it gives as pairs of numbers, of an unknown op type the first.
    """

    body: Body

    def __post_init__(self) -> None:
        self.handle_origins: dict[Tensor, Tensor] = {}  # as `handle_origin` finds them
        self.argument_names = list(self.body.arguments)
        self.arguments = {name: -1 - place for place, name in enumerate(self.argument_names)}
        forms = OnDemand(self._form)
        for place, number in enumerate(self.body.arguments.values()):
            forms[-1 - place] = Form([FlatArg("", 0, DTYPE_NAMES.get(number), is_ref(number))])
        self.form: Callable[[int], Form] = forms.__getitem__
        self.inputs: Callable[[int], list[Tensor]] = OnDemand(self._inputs).__getitem__
        self.tensors: Callable[[int], list[Tensor]] = OnDemand(self._tensors).__getitem__
        self._forms: dict[tuple[str, bytes | int], Form] = {}

    def node(self, index: int) -> Node | None:
        """Return the op; None for an argument."""
        return Node(self.body, index) if index >= 0 else None

    def name(self, index: int) -> str:
        """Return the name of an op or argument."""
        return self.body.heads.names[index] if index >= 0 else self.argument_names[-1 - index]

    def _inputs(self, index: int) -> list[Tensor]:
        by_name, texts = self.body.by_name, self.body.heads.inputs[index] if index >= 0 else ()
        # Most inputs are spelled as an op's name: no call for them.
        return [
            (by_name[text], 0) if ":" not in text and text in by_name else self.tensor(text)
            for text in texts
            if text[:1] != "^"
        ]

    def tensor(self, text: str) -> Tensor:
        """Return the tensor that an input spells."""
        name = names.parse(text)
        index = self.body.by_name.get(name.op)
        if index is None:
            if name.op not in self.arguments:
                raise ModelError(f"{self.body.label}: no op gives {text!r}, which another op reads")
            return self.arguments[name.op], 0
        if not name.arg:
            return index, name.index
        place = tensor_index(self.form(index).outputs, name.arg, name.index)
        if place is None:
            raise ModelError(f"{Node(self.body, index)} has no output {name}")
        return index, place

    def named(self, texts: Iterable[str]) -> list[Tensor]:
        """Return the tensors that a user means by these names; names of none are left out."""
        tensors = (tensor_named(self.body, text) for text in texts)
        return [self.tensor(str(name)) for name in tensors if name is not None]

    def depending_on(self, tensors: Iterable[Tensor], by_gradients: bool = False) -> set[int]:
        """Return the ops that depend on tensors, and those of these; or where gradients flow back.

        `by_gradients` follows outputs that carry gradients alone, as TensorFlow does also the other
        outputs of the first ops.
        """
        form, uses, tensors = self.form, self.uses, {*tensors}
        first = {index for index, _ in tensors}
        reads = ((index, use) for index in first for use in uses.get(index, ()))
        behind = {reader for index, (output, reader) in reads if (index, output) in tensors}
        depending = set(first) if by_gradients else behind
        todo = list(depending)
        for index in todo:
            readers = uses.get(index, ())
            carrying = form(index).carrying if by_gradients and readers else None
            for output, reader in readers:
                if reader not in depending and (carrying is None or output in carrying):
                    depending.add(reader)
                    todo.append(reader)
        return depending | first

    def _form(self, index: int) -> Form:
        key = self.body.heads.ops[index], self.body.form(index)
        form = self._forms.get(key)
        if form is None:
            node = Node(self.body, index)
            try:
                outputs = node.outputs or []
            except ModelError:  # its attrs do not tell them
                outputs = []
            form = self._forms[key] = Form(outputs, node)
        return form

    def _tensors(self, index: int) -> list[Tensor]:
        count = len(self.form(index).outputs)
        return [(index, output) for output in range(count)] if count > 1 else [(index, 0)]

    def dtype(self, tensor: Tensor) -> str | None:
        """Return the dtype of a tensor; None where the NodeDef does not tell."""
        return self.form(tensor[0]).dtypes.get(tensor[1])

    def trainable(self, tensor: Tensor) -> bool:
        """Return whether TensorFlow looks behind this tensor for ops to differentiate."""
        return tensor[1] in self.form(tensor[0]).carrying

    def readers(self, index: int) -> Sequence[Use]:
        """Return who reads an op, by which of its outputs."""
        return self.uses.get(index, ())

    @cached_property
    def in_control_flow(self) -> frozenset[int]:
        """Return the ops in v1 loops and branches: no Session fetches what they give."""
        return inside_control_flow(self.body)

    @cached_property
    def uses(self) -> Mapping[int, Sequence[Use]]:
        """Return the uses of all ops, which one pass finds sooner than a look at each."""
        uses: dict[int, list[Use]] = defaultdict(list)
        for reader, tensors in enumerate(map(self.inputs, range(len(self.body)))):
            for producer, output in tensors:
                uses[producer].append((output, reader))
        return dict(uses)

    def spelled(self, tensor: Tensor) -> str:
        """Return the tensor's name, as TensorFlow prints it: `op:0`."""
        return f"{self.name(tensor[0])}:{tensor[1]}"

    @cached_property
    def returned(self) -> list[Tensor]:
        """Return the tensors that a function gives back, in the order of its signature."""
        signature = self.body.signature
        args = signature.output_arg if signature is not None else ()
        return [self.tensor(self.body.ret[arg.name]) for arg in args]


PASSING = frozenset({"Identity", "RefIdentity", *ENTERS, *ALL_SWITCHES})


def handle_origin(wiring: Wiring, tensor: Tensor) -> Tensor:
    """Return what gives a handle, before loops and branches; each is looked for once."""
    known, passed = wiring.handle_origins, dict[Tensor, None]()
    while tensor not in known and tensor not in passed:
        passed[tensor] = None
        node = wiring.node(tensor[0])
        inputs = wiring.inputs(tensor[0])
        if node is None or node.op not in PASSING or not inputs:
            break
        tensor = inputs[0]
    origin = known.get(tensor, tensor)
    known.update(dict.fromkeys(passed, origin))
    return origin


def holds_no_number(wiring: Wiring, tensor: Tensor) -> bool:
    """Return whether a handle is of a table, an iterator or the like: of all but a variable.

    Not where it is not told: of an argument of a function, or where a call gives it.
    """
    if wiring.dtype(tensor) != "resource":
        return False
    index, _ = handle_origin(wiring, tensor)
    node = wiring.node(index)
    if node is None or node.op == RESOURCE_VARIABLE or wiring.inputs(index):
        return False
    return node.op != "_Arg" or node.attr("_handle_shapes") is None  # an argument of a main graph
