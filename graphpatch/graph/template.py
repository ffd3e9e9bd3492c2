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
from graphpatch.graph.node import Body, Heads, Node, Uses, behind_inputs, head_bytes
from graphpatch.graph.record import PROVENANCE_ATTR
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
        """Raises UnlikeError: ops of one form read other ops each."""
        raise UnlikeError


class Blank(NamedTuple):
    """Bytes with holes: a format, and whose name comes into each hole."""

    format: bytes
    places: tuple[int, ...]

    @classmethod
    def of(cls, whole: bytes | str, own: Sequence[bytes]) -> Blank:
        """Raises UnlikeError where there is a stand-in other than those of the form."""
        parts = MARK.split(whole.encode() if isinstance(whole, str) else whole)
        if any(part not in own for part in parts[1::2]):
            raise UnlikeError
        literals = (part.replace(b"%", b"%%") for part in parts[::2])
        return cls(b"%b".join(literals), tuple(own.index(part) for part in parts[1::2]))

    def fill(self, rows: Sequence[Sequence[bytes]]) -> list[bytes]:
        """The bytes for each op, by the names that are its own."""
        if not self.places:
            return [self.format % ()] * len(rows)
        taken = map(itemgetter(*self.places), rows)
        return list(taken if self.format == b"%b" else map(self.format.__mod__, taken))

    def texts(self, rows: Sequence[Sequence[bytes]]) -> list[str]:
        """The same as text."""
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
    for node in nodes:
        forms.setdefault(_form(node), []).append(node)
    left = dict.fromkeys(forms.pop(None, ()))
    for alike in forms.values():
        template = _recorded(alike[0], edit, editor)
        left.update(dict.fromkeys(alike if template is None else _fill(template, alike, editor)))
    return [node for node in nodes if node in left]


def _form(node: Node) -> Hashable:
    """What ops of one form have in common; None for an op that is spelled in another way."""
    body, index = node
    name, op, inputs = node.name, node.op, node.inputs
    own = _own(node)
    if index in body.edited or index in body.placed or len(set(own)) < len(own) or len(own) > MOST:
        return None
    sizes = tuple(map(len, own))
    if min(sizes) < 2 or max(sizes) >= SHORT or not names.are_spelled(own):
        return None
    rest = behind_inputs(body.payload(index), name, op, inputs)
    if rest is None or PROVENANCE_ATTR.encode() in rest or MARK.search(rest):
        return None
    return op, rest, sizes


def _recorded(node: Node, edit: Edit, editor: Editor) -> Template | None:
    """What the edit does to ops that are alike; None where it depends on more than their form."""
    own = [chr(FIRST + place) + "." * (len(text) - 2) for place, text in enumerate(_own(node))]
    rest = behind_inputs(node.body.payload(node.index), node.name, node.op, node.inputs)
    assert rest is not None, "it has a form"
    heads = Heads(names=own[:1], ops=[node.op], inputs=[tuple(own[1:])])
    alone = OneOp(node.body.label, node.body.library, node.body.source, heads)
    alone.edited[0] = [head_bytes(own[0], node.op, own[1:]) + rest]
    mine = Editor(editor.graph, editor.author, own[0], known=editor.known)
    try:
        edit(Node(alone, 0), mine)
        if heads.ops[0] != node.op or tuple(heads.inputs[0]) != tuple(own[1:]):
            return None
        texts = [text.encode() for text in own]
        payloads = [b"".join(map(piece_bytes, alone.payload(at))) for at in range(len(alone))]
        template = Template(
            [Blank.of(text, texts) for text in heads.names],
            [Blank.of(payload, texts) for payload in payloads],
            heads.ops[1:],
            [[Blank.of(text, texts) for text in read] for read in heads.inputs[1:]],
            alone.placed.get(0, [0]),
            [Blank.of(text, texts) for text in mine.notes],
            [Blank.of(text, texts) for text in mine.idle],
        )
    except (UnlikeError, GraphpatchError):
        return None  # the edit of the op itself raises the error that names it
    for name in ("carriers", "session", "tape"):
        getattr(editor, name).update(getattr(mine, name))
    return template


def _own(node: Node) -> tuple[str, ...]:
    return node.name, *node.inputs


def _fill(template: Template, nodes: Sequence[Node], editor: Editor) -> list[Node]:
    """Edit these ops; return those of which a new name is taken, which are left as they are."""
    if not nodes:
        return []
    body, now = nodes[0].body, [node.name for node in nodes]
    rows = [tuple(map(str.encode, _own(node))) for node in nodes]
    columns = [text.texts(rows) for text in template.names]
    fresh = [column for column in columns if column != now]
    counts = Counter(chain.from_iterable(fresh))
    taken = {text for text, count in counts.items() if count > 1} | (counts.keys() & body.by_name)
    if taken:
        odd = {node for node, *new in zip(nodes, *fresh, strict=True) if not taken.isdisjoint(new)}
        return [*odd, *_fill(template, [node for node in nodes if node not in odd], editor)]
    if columns[0] != now:
        rename_all(body, [node.index for node in nodes], columns[0])
    inputs = [[text.texts(rows) for text in read] for read in template.inputs]
    read = [list(zip(*texts, strict=True)) if texts else [()] * len(rows) for texts in inputs]
    names_in_turn = list(chain.from_iterable(zip(*columns[1:], strict=True)))
    read_in_turn = list(chain.from_iterable(zip(*read, strict=True)))
    first = append_all(body, names_in_turn, template.ops * len(nodes), read_in_turn)
    added = range(1, len(columns))
    payloads = zip(*[payload.fill(rows) for payload in template.payloads], strict=True)
    for (_, index), written in zip(nodes, payloads, strict=True):
        body.edited[index] = [written[0]]
        if added:
            group = [index, *range(first, first + len(added))]
            first += len(added)
            for place in added:
                body.edited[group[place]] = [written[place]]
                body.root[group[place]] = index
            body.placed[index] = [group[place] for place in template.order]
    for report, said in ((editor.note, template.notes), (editor.skipped, template.idle)):
        for text in chain.from_iterable(zip(*[one.texts(rows) for one in said], strict=True)):
            report(text)
    return []
