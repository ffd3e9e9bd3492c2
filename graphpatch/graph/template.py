"""An edit as a value: the nodes that it leaves of an op of some form, with holes for names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graphpatch.graph.alike import MARK, MOST, RAW_MARK, VARYING, Form, UnlikeError
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.nodedef import Payload
from graphpatch.graph.placing import append_all, rename
from graphpatch.graph.wire import piece_bytes

PLACES = tuple(map(str, range(MOST + len(VARYING))))
RAW = tuple(place.encode() for place in PLACES)


@dataclass(frozen=True, slots=True)
class Template:
    """What an edit does to an op of a form: formats, to be filled with what is the op's own.

    `names` and `payloads` are of the op, which it may have touched or not, then of the nodes that
    it added; `ops` and `inputs` of these alone. Names and inputs are told by their places in
    `texts`. `order` is that in which the nodes are written, by their places in `names`. `notes` and
    `idle` are what the editor reports of one op.
    """

    texts: tuple[str, ...]
    names: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    payloads: tuple[bytes, ...]
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
        named = dict(zip(PLACES, own, strict=False))
        texts = [text % named for text in self.texts]
        new = [texts[place] for place in self.names]
        known, name = body.by_name, own[0]
        for one in new:
            if one in known and one != name:
                return False
        raw = {key: named[place].encode() for key, place in zip(RAW, named, strict=False)}
        for place, value in values.items():
            raw[RAW[place]] = value
        if new[0] != name:
            rename(body, index, new[0])
        payloads: list[Payload] = [[payload % raw] for payload in self.payloads]
        if self.is_touched:
            body.edited[index] = payloads[0]
        inputs = [tuple([texts[place] for place in read]) for read in self.inputs]
        first = append_all(body, new[1:], self.ops, inputs)
        for at in range(first, first + len(inputs)):
            body.edited[at] = payloads[at - first + 1]
            body.root[at] = index
        if self.order:
            body.placed[index] = [first + at - 1 if at else index for at in self.order]
        if self.notes or self.idle:
            editor.notes.update(dict.fromkeys([text % named for text in self.notes]))
            editor.idle.extend([text % named for text in self.idle])
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
    if node.inputs != form.inputs or node.op != form.op:
        raise UnlikeError
    for name in ("carriers", "session", "tape"):
        getattr(editor, name).update(getattr(mine, name))
    return _template(form, node.body, node.body.payload(0) is not before, mine)


def _template(form: Form, left: Body, is_touched: bool, editor: Editor) -> Template:
    """The body that an edit left of the op that stands for a form, as a template."""
    fill, heads = _Formats(tuple(form.stand_ins())), left.heads
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(fill.text(text), len(texts))

    every = range(len(left))
    return Template(
        names=tuple(place(heads.names[at]) for at in every),
        ops=tuple(heads.ops[1:]),
        inputs=tuple(tuple(map(place, read)) for read in heads.inputs[1:]),
        payloads=tuple(fill.data(b"".join(map(piece_bytes, left.payload(at)))) for at in every),
        is_touched=is_touched,
        order=tuple(left.placed.get(0, ())),
        notes=tuple(map(fill.text, editor.notes)),
        idle=tuple(map(fill.text, editor.idle)),
        texts=tuple(texts),
    )


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
