"""An edit of many ops that are alike: done once, to an op that stands for them, and filled in.

A NodeDef is a name, the names that it reads, and the rest: its op type, attrs and device. Ops with
the same rest, and names of the same lengths, are of one form. The op that stands for a form has
stand-ins of the same length where its own names would be, so that what the edit leaves of it
becomes a format, with holes where an op's own names come in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from graphpatch import names
from graphpatch.errors import GraphpatchError
from graphpatch.graph.editor import Editor, append_all, rename_all
from graphpatch.graph.node import PROVENANCE, Body, Heads, Node, Uses, behind_inputs, head_bytes
from graphpatch.graph.wire import piece_bytes

MOST = 24  # names that an op of a form has: its own, and those that it reads
FIRST = 0x7C0  # of the letters that stand-ins begin with, two bytes each
MARK = re.compile(b"(\xdf[\x80-\x98]\\.*)")
SHORT = 0x80  # bytes of a name from which on its length takes two

Edit = Callable[[Node, Editor], None]


class UnlikeError(Exception):
    """An edit asked an op that stands for others what its form does not say."""


class OneOp(Body, eq=False):
    """A body of one op, which stands for the ops of its form; what is around it is not known."""

    @cached_property
    def readers(self) -> dict[str, Uses]:
        """Raises UnlikeError: ops of one form have other readers each."""
        raise UnlikeError

    def producer(self, tensor: str) -> Node | None:
        """Raise UnlikeError: ops of one form read other ops each."""
        raise UnlikeError


class Blank(NamedTuple):
    """Bytes with holes: a format, and which name of an op comes into each hole."""

    format: bytes
    places: tuple[int, ...]

    @classmethod
    def of(cls, whole: bytes, stand_ins: Sequence[bytes]) -> Blank:
        """Raise UnlikeError where there is a stand-in other than these."""
        parts = MARK.split(whole)
        if any(part not in stand_ins for part in parts[1::2]):
            raise UnlikeError
        literals = (part.replace(b"%", b"%%") for part in parts[::2])
        return cls(b"%b".join(literals), tuple(stand_ins.index(part) for part in parts[1::2]))

    def fill(self, rows: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Return the bytes for each op, by the names that it has and reads."""
        if not self.places:
            return [self.format % ()] * len(rows)
        values = map(itemgetter(*self.places), rows)
        return list(values if self.format == b"%b" else map(self.format.__mod__, values))

    def texts(self, rows: Sequence[Sequence[bytes]]) -> list[str]:
        """Return the same as text."""
        return list(map(bytes.decode, self.fill(rows)))


class Template(NamedTuple):
    """What an edit leaves of an op of a form: the op, then the nodes that it added.

    Each has a name and a payload; those added an op type and inputs. `order` is that in which they
    are written; `notes` and `idle` are what the editor reports of an op.
    """

    names: list[Blank]
    payloads: list[Blank]
    ops: list[str]
    inputs: list[list[Blank]]
    order: list[int]
    notes: list[Blank]
    idle: list[Blank]


def edit_all(nodes: Sequence[Node], edit: Edit, editor: Editor) -> list[Node]:
    """Edit ops of one body as far as their form says how; return the others, in their order.

    The body must not be one whose ops are told apart by more: by v1 loops, or as a function.
    """
    forms: dict[Hashable, list[Node]] = {}
    plain_rest: dict[bytes, bool] = {}
    texts = list(chain.from_iterable((node.name, *node.inputs) for node in nodes))
    are_spelled = names.are_spelled(texts)  # most are: looked at as one text
    for node in nodes:
        is_spelled = are_spelled or names.are_spelled((node.name, *node.inputs))
        forms.setdefault(_form(node, plain_rest) if is_spelled else None, []).append(node)
    others = set(forms.pop(None, ()))
    for alike in forms.values():
        template = _recorded(alike[0], edit, editor)
        others.update(alike if template is None else _fill(template, alike, editor))
    return [node for node in nodes if node in others]


def _form(node: Node, plain_rest: dict[bytes, bool]) -> Hashable:
    """Return what ops of one form have in common; None for one that is spelled in another way.

    `plain_rest` keeps which rests of a NodeDef have nothing that reads as a stand-in or a record.
    """
    body, index = node
    name, op, inputs = body.heads.names[index], body.heads.ops[index], body.heads.inputs[index]
    own = (name, *inputs)
    if index in body.edited or index in body.placed or len(set(own)) < len(own) or len(own) > MOST:
        return None
    sizes = tuple(map(len, own))
    if min(sizes) < 2 or max(sizes) >= SHORT:
        return None
    rest = behind_inputs(body.payload(index), name, op, inputs)
    if rest is None:
        return None
    if rest not in plain_rest:
        plain_rest[rest] = PROVENANCE not in rest and not MARK.search(rest)
    return (op, rest, sizes) if plain_rest[rest] else None


def _recorded(node: Node, edit: Edit, editor: Editor) -> Template | None:
    """Return what the edit does to ops that are alike; None if it depends on more than the form."""
    body, texts = node.body, (node.name, *node.inputs)
    rest = behind_inputs(body.payload(node.index), node.name, node.op, node.inputs)
    assert rest is not None, "it has a form"
    own = [chr(FIRST + place) + "." * (len(text) - 2) for place, text in enumerate(texts)]
    heads = Heads(names=own[:1], ops=[node.op], inputs=[tuple(own[1:])])
    alone = OneOp(body.label, body.library, body.source, heads)
    alone.edited[0] = [head_bytes(own[0], node.op, own[1:]) + rest]
    stand_ins = [text.encode() for text in own]

    def blanks(wholes: Sequence[str]) -> list[Blank]:
        return [Blank.of(whole.encode(), stand_ins) for whole in wholes]

    recorder = Editor(editor.graph, editor.author, own[0], known=editor.known)
    try:
        edit(Node(alone, 0), recorder)
        if heads.ops[0] != node.op or tuple(heads.inputs[0]) != tuple(own[1:]):
            return None
        payloads = [b"".join(map(piece_bytes, alone.payload(at))) for at in range(len(alone))]
        template = Template(
            blanks(heads.names),
            [Blank.of(payload, stand_ins) for payload in payloads],
            heads.ops[1:],
            [blanks(read) for read in heads.inputs[1:]],
            alone.placed.get(0, [0]),
            blanks(list(recorder.notes)),
            blanks(recorder.idle),
        )
    except (UnlikeError, GraphpatchError):
        return None  # the edit of the op itself raises the error that names it
    for report in ("carriers", "session", "tape"):
        getattr(editor, report).update(getattr(recorder, report))
    return template


def _fill(template: Template, nodes: Sequence[Node], editor: Editor) -> list[Node]:
    """Edit these ops; return those of which a new name is taken, which are left as they are."""
    if not nodes:
        return []
    body, old_names = nodes[0].body, [node.name for node in nodes]
    rows = [tuple(map(str.encode, (node.name, *node.inputs))) for node in nodes]
    new_names, *added_names = [blank.texts(rows) for blank in template.names]
    fresh = [column for column in (new_names, *added_names) if column != old_names]
    counts = Counter(chain.from_iterable(fresh))
    taken = {text for text, count in counts.items() if count > 1} | (counts.keys() & body.by_name)
    if taken:
        odd = {node for node, *new in zip(nodes, *fresh, strict=True) if not taken.isdisjoint(new)}
        return [*odd, *_fill(template, [node for node in nodes if node not in odd], editor)]
    if new_names != old_names:
        rename_all(body, [node.index for node in nodes], new_names)
    inputs = []
    for read in template.inputs:
        columns = [blank.texts(rows) for blank in read]
        inputs.append(list(zip(*columns, strict=True)) if columns else [()] * len(rows))
    first = append_all(
        body,
        list(chain.from_iterable(zip(*added_names, strict=True))),
        template.ops * len(nodes),
        list(chain.from_iterable(zip(*inputs, strict=True))),
    )
    # Column by column: the ops, then the first node that was added for each, and so on.
    indices, count = [node.index for node in nodes], len(added_names)
    members = [indices, *(range(first + k, len(body), count) for k in range(count))]
    for column, payload in zip(members, template.payloads, strict=True):
        body.edited.update(zip(column, ([raw] for raw in payload.fill(rows)), strict=True))
    for column in members[1:]:
        body.root.update(zip(column, indices, strict=True))
    if count:
        orders = zip(*[members[place] for place in template.order], strict=True)
        body.placed.update(zip(indices, map(list, orders), strict=True))
    for report, texts in ((editor.note, template.notes), (editor.skipped, template.idle)):
        for text in chain.from_iterable(zip(*[blank.texts(rows) for blank in texts], strict=True)):
            report(text)
    return []
