"""An edit of many ops that are alike: done once, to an op that stands for them, and filled in.

Ops are of one form if their NodeDefs differ only in their names and in what they read, and these
are of the same lengths. The op that stands for a form has stand-ins of the same length where its
own names would be, so that in what the edit leaves, an op's own names take their places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from graphpatch import names
from graphpatch.errors import GraphpatchError
from graphpatch.graph.editor import Editor, append_all, rename_all
from graphpatch.graph.node import PROVENANCE, Body, Heads, Node, Uses, small_part
from graphpatch.graph.wire import encoded, message
from graphpatch.protos import GraphDef

BATCH = 1 << 10  # ops that are edited together
MOST = 24  # names that an op of a form has: its own, and those that it reads
FIRST = 0x7C0  # of the letters that stand-ins begin with, two bytes each
MARK = re.compile(b"\xdf[\x80-\x98]")
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


class Template(NamedTuple):
    """What an edit leaves of the op that stands for others.

    `whole` is the op, then the nodes that were added, as a GraphDef with stand-ins for the op's own
    names; `parts` are where each node lies in it, and `order` is that in which they are written.
    `notes` and `idle` are what the editor reports.
    """

    stand_ins: list[bytes]
    whole: bytes
    parts: list[slice]
    order: list[int]
    notes: list[str]
    idle: list[str]

    def fill(self, raw: bytes, own: Sequence[bytes]) -> bytes:
        """Return these bytes with an op's own names."""
        for stand_in, name in zip(self.stand_ins, own, strict=True):
            raw = raw.replace(stand_in, name)
        return raw


def edit_all(nodes: Sequence[Node], edit: Edit, editor: Editor) -> list[Node]:
    """Edit ops of one body as far as their form says how; return the others, in their order.

    The body must not be one whose ops are told apart by more: by v1 loops, or as a function.
    """
    forms: dict[tuple[str, bytes, tuple[int, ...]] | None, list[Node]] = {}
    are_spelled = names.are_spelled([text for node in nodes for text in (node.name, *node.inputs)])
    for node in nodes:
        is_spelled = are_spelled or names.are_spelled((node.name, *node.inputs))
        forms.setdefault(_form(node) if is_spelled else None, []).append(node)
    done: set[Node] = set()
    for form, alike in forms.items():
        template = None if form is None else _recorded(alike[0], form[1], edit, editor)
        if template is not None:
            for start in range(0, len(alike), BATCH):
                done.update(_fill(template, alike[start : start + BATCH], editor))
    return [node for node in nodes if node not in done]


def _form(node: Node) -> tuple[str, bytes, tuple[int, ...]] | None:
    """Return what ops of one form have in common; None for one that is spelled in another way."""
    body, index = node
    name, op, inputs = body.heads.names[index], body.heads.ops[index], body.heads.inputs[index]
    own, sizes = {name, *inputs}, (len(name), *map(len, inputs))
    if index in body.edited or index in body.placed or len(own) < len(sizes) or len(own) > MOST:
        return None
    if min(sizes) < 2 or max(*sizes, len(op)) >= SHORT:
        return None
    head = f"\n{chr(len(name))}{name}\x12{chr(len(op))}{op}"
    head += "".join([f"\x1a{chr(len(text))}{text}" for text in inputs])
    raw = small_part(body.payload(index))
    rest = raw[len(head) :]
    is_plain = PROVENANCE not in rest and not MARK.search(rest)
    return (op, rest, sizes) if is_plain and raw.startswith(head.encode()) else None


def _recorded(node: Node, rest: bytes, edit: Edit, editor: Editor) -> Template | None:
    """Return what the edit does to ops that are alike; None if it depends on more than the form."""
    body, texts = node.body, (node.name, *node.inputs)
    own = [chr(FIRST + place) + "." * (len(text) - 2) for place, text in enumerate(texts)]
    heads = Heads(names=own[:1], ops=[node.op], inputs=[tuple(own[1:])])
    alone = OneOp(body.label, body.library, body.source, heads)
    head = encoded(1, own[0].encode()) + encoded(2, node.op.encode())
    alone.edited[0] = [b"".join([head, *(encoded(3, text.encode()) for text in own[1:]), rest])]
    recorder = Editor(editor.graph, editor.author, own[0], known=editor.known)
    try:
        edit(Node(alone, 0), recorder)
    except (UnlikeError, GraphpatchError):
        return None  # the edit of the op itself raises the error that names it
    whole, parts = b"", list[slice]()
    for index in range(len(alone)):
        payload = small_part(alone.payload(index))
        whole += encoded(1, payload)
        parts.append(slice(len(whole) - len(payload), len(whole)))
    reports, order = (list(recorder.notes), recorder.idle), alone.placed.get(0, [0])
    template = Template([text.encode() for text in own], whole, parts, order, *reports)
    whole += "".join([text for report in reports for text in report]).encode()
    is_same = heads.ops[0] == node.op and tuple(heads.inputs[0]) == tuple(own[1:])
    if not is_same or MARK.search(template.fill(whole, [text.encode() for text in texts])):
        return None  # it reads something else, or there is a part of a name
    for report in ("carriers", "session", "tape"):
        getattr(editor, report).update(getattr(recorder, report))
    return template


def _fill(template: Template, nodes: Sequence[Node], editor: Editor) -> list[Node]:
    """Edit these ops, and return them: none where a new name is taken."""
    body, count = nodes[0].body, len(template.parts)
    rows = [[text.encode() for text in (node.name, *node.inputs)] for node in nodes]
    filled = [template.fill(template.whole, own) for own in rows]
    heads = list(message(GraphDef, b"".join(filled)).node)
    new_names = [head.name for head in heads]
    taken = body.by_name.keys() & new_names
    if len(set(new_names)) < len(heads) or not taken <= {node.name for node in nodes}:
        return []
    rename_all(body, [node.index for node in nodes], new_names[::count])
    added = append_all(body, [head for place, head in enumerate(heads) if place % count])
    for node, own, whole in zip(nodes, rows, filled, strict=True):
        members = [node.index, *range(added, added + count - 1)]
        added += count - 1
        body.edited.update(zip(members, [[whole[part]] for part in template.parts], strict=True))
        if count > 1:
            body.root.update(dict.fromkeys(members[1:], node.index))
            body.placed[node.index] = [members[place] for place in template.order]
        for text in template.notes:
            editor.note(template.fill(text.encode(), own).decode())
        for text in template.idle:
            editor.skipped(template.fill(text.encode(), own).decode())
    return list(nodes)
