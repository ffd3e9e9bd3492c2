"""An edit as a value: the nodes that it leaves of an op of some form, with holes for names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphpatch.graph.alike import MARK, RAW_MARK, Form, UnlikeError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.placing import append, rename
from graphpatch.graph.wire import piece_bytes


class Left(NamedTuple):
    """A node that an edit leaves: formats, to be filled with what the op has of its own."""

    name: str
    op: str
    inputs: tuple[str, ...]
    payload: bytes


@dataclass(frozen=True, slots=True)
class Template:
    """What an edit does to an op of a form.

    `left` has the op, then the nodes that were added; `is_touched`: the op itself was edited.
    `order` is that in which they are written, by their places in `left`. `notes` and `idle` are
    what the editor reports of one op.
    """

    left: tuple[Left, ...]
    is_touched: bool
    order: tuple[int, ...]
    notes: tuple[str, ...]
    idle: tuple[str, ...]

    def fill(
        self,
        editor: Editor,
        body: Body,
        index: int,
        own: Sequence[str],
        values: Mapping[int, bytes],
    ) -> bool:
        """Edit an op of the form so; False, and nothing done, where a name is taken."""
        texts = {str(place): text for place, text in enumerate(own)}
        data = {b"%d" % place: text.encode() for place, text in enumerate(own)}
        for place, value in values.items():
            data[b"%d" % place] = value
        fresh = [one.name % texts for one in self.left]
        if any(name in body.by_name for name in fresh if name != own[0]):
            return False
        if fresh[0] != own[0]:
            rename(body, index, fresh[0])
        if self.is_touched:
            body.edited[index] = [self.left[0].payload % data]
        added = [index]
        for one, name in zip(self.left[1:], fresh[1:], strict=True):
            node = append(body, name, one.op, tuple([text % texts for text in one.inputs]))
            body.edited[node.index] = [one.payload % data]
            body.root[node.index] = index
            added.append(node.index)
        if self.order:
            body.placed[index] = [added[place] for place in self.order]
        editor.notes.update(dict.fromkeys([text % texts for text in self.notes]))
        editor.idle.extend([text % texts for text in self.idle])
        return True


def record(
    form: Form, body: Body, edit: Callable[[Node, Editor], None], editor: Editor
) -> Template:
    """What an edit does to the ops of a form; what it reports of all of them is reported.

    Raises UnlikeError where it hangs on more than the form, and what the edit raises.
    """
    node = form.node(body)
    before = node.body.payload(0)
    mine = Editor(editor.graph, editor.author, form.name, known=editor.known)
    edit(node, mine)
    left = node.body
    if left.heads.inputs[0] != form.inputs or left.heads.ops[0] != form.op:
        raise UnlikeError
    fill = _Formats(tuple(form.stand_ins()))
    nodes = [
        Left(
            fill.text(left.heads.names[place]),
            left.heads.ops[place],
            tuple(map(fill.text, left.heads.inputs[place])),
            fill.data(b"".join(map(piece_bytes, left.payload(place)))),
        )
        for place in range(len(left))
    ]
    notes, idle = (tuple(map(fill.text, found)) for found in (mine.notes, mine.idle))
    for name in ("carriers", "session", "tape"):
        getattr(editor, name).update(getattr(mine, name))
    is_touched = left.payload(0) is not before
    return Template(tuple(nodes), is_touched, tuple(left.placed.get(0, ())), notes, idle)


@dataclass(frozen=True, slots=True)
class _Formats:
    """Makes formats of what has stand-ins in it."""

    stand_ins: tuple[tuple[int, bytes], ...]

    def data(self, found: bytes) -> bytes:
        found = found.replace(b"%", b"%%")
        for place, stand_in in self.stand_ins:
            if stand_in.hex().encode() in found:
                raise UnlikeError
            found = found.replace(stand_in, b"%%(%d)b" % place)
        if RAW_MARK.search(found):
            raise UnlikeError
        return found

    def text(self, found: str) -> str:
        found = found.replace("%", "%%")
        for place, stand_in in self.stand_ins:
            found = found.replace(stand_in.decode(errors="replace"), f"%({place})s")
        if MARK.search(found):
            raise UnlikeError
        return found
