"""An edit of many ops that are alike: done once, to an op that stands for them, and filled in.

Ops are of one form if their NodeDefs differ only in their names and in what they read, and these
are of the same lengths: a Relu `r07` of `x07`, and a Relu `r08` of `x12`. The op that stands for
them, alone in a body, has stand-ins of the same lengths for names: a Relu `A..` of `B..`. Where the
edit leaves an Identity `A..` of `A../forward`, `r08` is an Identity of `r08/forward`, and so on. An
edit that asks who reads the op, or what it reads, has no template: it is done op by op.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from graphpatch import names
from graphpatch.errors import GraphpatchError
from graphpatch.graph.editor import append_all, rename_all
from graphpatch.graph.node import PROVENANCE, Body, Heads, Node, Payload, Uses
from graphpatch.graph.wire import encoded

BATCH = 1 << 10  # ops that are edited together
MOST = 24  # names that an op of a form has: its own, and those that it reads
FIRST, MARKED = 0x7C0, 2  # the first letter that stand-ins begin with, and its bytes
MARK = re.compile(b"(\xdf[\x80-\x98]\\.*)")

Edit = Callable[[Node], list[str]]
"""Edits an op, and returns what is to be said of it."""
Form = tuple[str, bytes, tuple[int, ...]]
AlikeOp = tuple[Node, list[bytes]]
"""An op, its name and those that it reads."""


class UnlikeError(Exception):
    """An edit asked an op that stands for others what its form does not say."""


class OneOp(Body, eq=False):
    """A body of one op, which stands for the ops of its form; what is around it is not known."""

    @property
    def readers(self) -> dict[str, Uses]:
        """Raise UnlikeError: ops of one form have other readers each."""
        raise UnlikeError

    def producer(self, tensor: str) -> Node | None:
        """Raise UnlikeError: ops of one form read other ops each."""
        raise UnlikeError


class Template(NamedTuple):
    """What an edit leaves of the op that stands for others, whose own names are stand-ins.

    `heads` and `payloads` are of the op, then of the nodes that were added; the payload is empty
    where the op stays as it is. `order` is that in which they are written, `said` what is to be
    said of the op.
    """

    stand_ins: list[bytes]
    heads: Heads
    payloads: list[bytes]
    order: list[int]
    said: list[str]

    def fill(self, whole: bytes, rows: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Return these bytes for each op, with its own names; UnlikeError for a part of a name."""
        parts = MARK.split(whole)
        if not {*parts[1::2]} <= {*self.stand_ins}:
            raise UnlikeError
        if len(parts) == 1:
            return [whole] * len(rows)
        blank = b"%b".join([part.replace(b"%", b"%%") for part in parts[::2]])
        own = itemgetter(*map(self.stand_ins.index, parts[1::2]))
        return [blank % own(row) for row in rows]

    def texts(self, whole: str, rows: Sequence[Sequence[bytes]]) -> list[str]:
        """Return a text for each op, as `fill` does."""
        return [raw.decode() for raw in self.fill(whole.encode(), rows)]


def edit_all(nodes: Sequence[Node], edit: Edit, said: list[str]) -> set[Node]:
    """Edit ops of one body as far as their form says how; return the others.

    What is to be said of those goes to `said`. The body must not be one whose ops are told apart by
    more: by v1 loops, or as a function.
    """
    forms: dict[Form | None, list[AlikeOp]] = {}
    texts = [(node.name, *node.inputs) for node in nodes]
    are_spelled = names.are_spelled([*chain.from_iterable(texts)])
    for node, own in zip(nodes, texts, strict=True):
        is_spelled = are_spelled or names.are_spelled(own)
        alike_op = node, [text.encode() for text in own]
        forms.setdefault(_form(*alike_op) if is_spelled else None, []).append(alike_op)
    others: list[AlikeOp] = []
    for form, alike in forms.items():
        template = None if form is None else _recorded(alike[0], form, edit)
        for start in range(0, len(alike), BATCH):
            batch = alike[start : start + BATCH]
            if template is None or not _fill(template, batch):
                others += batch
                continue
            reasons = [
                template.texts(reason, [own for _, own in batch]) for reason in template.said
            ]
            said += chain.from_iterable(zip(*reasons, strict=True))
    return {node for node, _ in others}


def _form(node: Node, own: list[bytes]) -> Form | None:
    """Return what ops of one form have in common; None for one that is spelled in another way.

    It is the op type, the NodeDef behind its head, and the lengths of the op's own names.
    """
    body, index = node
    op, payload, sizes = body.heads.ops[index], body.payload(index), tuple(map(len, own))
    head = _head(op, own)
    if index in body.edited or index in body.placed or payload.large:
        return None
    if not payload.small.startswith(head) or len({*own}) < len(own) or min(sizes) < MARKED:
        return None
    return (op, payload.small[len(head) :], sizes) if len(own) <= MOST else None


def _head(op: str, own: Sequence[bytes]) -> bytes:
    """Return how the NodeDef of an op begins: its name, its type, and what it reads."""
    name, *read = own
    head = (encoded(1, name), encoded(2, op.encode()), *[encoded(3, text) for text in read])
    return b"".join(head)


def _recorded(alike: AlikeOp, form: Form, edit: Edit) -> Template | None:
    """Return what the edit does to ops that are alike; None if it depends on more than the form."""
    body, (op, rest, sizes) = alike[0].body, form
    if PROVENANCE in rest or MARK.search(rest):
        return None
    own = [chr(FIRST + place) + "." * (size - MARKED) for place, size in enumerate(sizes)]
    heads = Heads(names=own[:1], ops=[op], inputs=[tuple(own[1:])])
    alone = OneOp(body.label, body.library, body.source, heads)
    stand_ins = [text.encode() for text in own]
    untouched = Payload(_head(op, stand_ins) + rest)
    alone.edited[0] = untouched
    try:
        said = edit(Node(alone, 0))
        payloads = [alone.payload(index).small for index in range(len(alone))]
        if alone.edited[0] is untouched:
            payloads[0] = b""
        order = alone.placed.get(0, [0])
        template = Template(stand_ins, heads, payloads, order, said)
        wholes = [*heads.names, *chain.from_iterable(heads.inputs), *said]
        for whole in (*payloads, *(text.encode() for text in wholes)):
            template.fill(whole, [])
    except (UnlikeError, GraphpatchError):
        return None  # the edit of the op itself raises the error that names it
    is_head_left = heads.ops[0] == op and tuple(heads.inputs[0]) == tuple(own[1:])
    return template if is_head_left else None


def _fill(template: Template, batch: Sequence[AlikeOp]) -> bool:
    """Edit these ops column by column; return False, without an edit, where a new name is taken."""
    body, heads = batch[0][0].body, template.heads
    indices, rows = [node.index for node, _ in batch], [own for _, own in batch]
    new_names, *added_names = (template.texts(name, rows) for name in heads.names)
    fresh = {*new_names}.union(*added_names)
    taken, old_names = body.by_name.keys() & fresh, {body.heads.names[index] for index in indices}
    if len(fresh) < len(rows) * len(heads.names) or not taken <= old_names:
        return False
    rename_all(body, indices, new_names)
    inputs = []
    for read in heads.inputs[1:]:
        columns = [template.texts(text, rows) for text in read]
        inputs.append(list(zip(*columns, strict=True)) if read else [()] * len(rows))
    added = (added_names, [[op] * len(rows) for op in heads.ops[1:]], inputs)
    first = append_all(body, *([*chain.from_iterable(zip(*part, strict=True))] for part in added))
    step = len(added_names)
    members = [indices, *(range(first + place, len(body), step) for place in range(step))]
    for column, payload in zip(members, template.payloads, strict=True):
        if payload:
            filled = template.fill(payload, rows)
            body.edited.update(zip(column, map(Payload, filled), strict=True))
    for column in members[1:]:
        body.root.update(zip(column, indices, strict=True))
    if step:
        orders = zip(*[members[place] for place in template.order], strict=True)
        body.placed.update(zip(indices, map(list, orders), strict=True))
    return True
