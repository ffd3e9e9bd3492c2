"""A body as the model has it: without what rules did, in this run or in an earlier one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import cached_property

from graphpatch import names
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.nodedef import Payload, mentions
from graphpatch.graph.record import NodeRecord

ADDED = "\0"  # begins the names of ops that a rule added, which no tensor name can
CACHE = "model"


class ModelBody(Body):
    """Names, op types and inputs of the model's ops, each with the index that it has in `now`.

    What rules added is not there, or reads nothing and is read by nothing. Clones are there: the
    gradient flows through them. `seen` is how many nodes `now` had when it was looked at, and
    `is_undone` whether rules had done something then.
    """

    now: weakref.ref[Body] | None = None
    seen: int = 0
    is_undone: bool = False

    def __iter__(self) -> Iterator[Node]:
        return (Node(self, index) for index in range(len(self)) if self.is_there(index))

    @cached_property
    def by_type(self) -> dict[str, list[int]]:
        """The indices of the ops of each op type."""
        found: dict[str, list[int]] = {}
        for node in self:
            found.setdefault(node.op, []).append(node.index)
        return found

    def payload(self, index: int) -> Payload:
        """The serialized NodeDef as it is now; of an op that a rule put into a function, before."""
        now = self.body_now()
        if index >= len(self) or self.heads.ops[index] == now.heads.ops[index]:
            return now.payload(index)
        record = now.record(index)
        return now.payload(index) if record is None else [b"".join(record.original)]

    def record(self, index: int) -> NodeRecord | None:
        """What rules did to a node."""
        return self.body_now().record(index)

    def body_now(self) -> Body:
        """The body with what rules did."""
        now = self.now() if self.now is not None else None
        assert now is not None, "it is asked while the graph is there"
        return now

    def is_there(self, index: int) -> bool:
        """Whether an op is one of the model, or a clone of one."""
        return self.heads.names[index][:1] != ADDED


def as_model(body: Body) -> Body:
    """The body without what rules did; itself as long as they did nothing.

    It is kept, as rules do not change the model: to be asked before the first rule edits the body
    makes it cheap.
    """
    kept = body.__dict__.get(CACHE)
    if kept is None or not _still_holds(kept, body):
        kept = body.__dict__[CACHE] = _made(body)
    return kept if body.edited or kept.is_undone else body


def op_type_in_model(node: Node) -> str:
    """The op type of the model's op of this name, whatever a rule put in its place.

    Of an op that a rule added under a name of its own, that op's type.
    """
    model = as_model(node.body)
    index = model.by_name.get(node.name)
    return node.op if index is None else model.heads.ops[index]


def _still_holds(kept: ModelBody, body: Body) -> bool:
    """Whether nothing was added since but what is not the model's, and nothing dropped."""
    if len(body) < kept.seen or any(_may_be_clone(body, n) for n in range(kept.seen, len(body))):
        return False
    kept.seen = len(body)
    return True


def _may_be_clone(body: Body, index: int) -> bool:
    edited = body.edited.get(index)
    if isinstance(edited, list) and not mentions(edited, '"of":'):
        return False  # as all that templates write
    record = body.record(index)
    return record is not None and bool(record.clone_of)


def _made(body: Body) -> ModelBody:
    heads = body.heads.copy()
    model = ModelBody(
        body.label,
        body.library,
        body.source,
        heads,
        {**body.ret, **body.returns},
        body.signature,
        edited=body.edited,
        is_ours=body.is_ours,
        now=weakref.ref(body),
        seen=len(body),
    )
    touched = list(provenance.touched(body))
    model.is_undone = bool(touched)
    for node in touched:
        was = provenance.original(node)
        if was is not None:
            heads.names[node.index], heads.ops[node.index] = was.name, was.op
            heads.inputs[node.index] = tuple(was.input)
        elif not provenance.clone_of(node):
            heads.names[node.index], heads.inputs[node.index] = f"{ADDED}{node.index}", ()
    now = {node.name: heads.names[node.index] for node in touched}
    for node in touched:
        if provenance.clone_of(node):  # reads ops by the names that they have now
            heads.inputs[node.index] = tuple(_as_model_reads(text, now) for text in node.inputs)
    return model


def _as_model_reads(text: str, was: dict[str, str]) -> str:
    op = names.op_of(text)
    if was.get(op, op) == op or was[op].startswith(ADDED):
        return text
    return text.replace(op, was[op], 1)
