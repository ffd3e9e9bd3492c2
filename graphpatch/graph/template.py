"""An edit as a value: the nodes that it leaves of an op of some form, with holes for names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple, TypeVar

from graphpatch.graph.alike import MARK, RAW_MARK, Form, UnlikeError
from graphpatch.graph.blanks import Blank, Filled, Written
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.placing import append_all, rename
from graphpatch.graph.wire import encoded, piece_bytes

NODE = 1  # field of a GraphDef

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """What an edit does to an op of a form: blanks, to be filled with what is the op's own.

    `names` are of the op, which it may have touched or not, then of the nodes that it added; `ops`
    and `inputs` of these alone. Names and inputs are told by their places in `texts`. `notes` and
    `idle` are what the editor reports of one op.
    """

    texts: tuple[Blank[str], ...]
    names: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    written: Written
    notes: tuple[Blank[str], ...]
    idle: tuple[Blank[str], ...]
    renames: bool


class Edit(NamedTuple):
    """An op that is to be edited (by its index), and what it has of its own.

    Its names, and what comes into the holes of payloads: these in bytes, and others.
    """

    op: int
    template: Template
    own: Sequence[str]
    row: tuple[bytes, ...]


Nodes = tuple[tuple[str, ...], tuple[tuple[str, ...], ...], Filled, int]
"""What an edit leaves of one op: names, the inputs of what it added, where payloads are had."""


def fill(editor: Editor, body: Body, edits: Sequence[Edit]) -> bool:
    """Edit these ops, in their order; False, and nothing done, where a name is taken."""
    found, fresh = _filled(edits)
    known = set(fresh)
    if len(known) < len(fresh) or not body.by_name.keys().isdisjoint(known):
        return False
    for (op, template, own, _), (names, _, _, _) in zip(edits, found, strict=True):
        if template.renames:
            rename(body, op, names[0])
        for text in template.notes:
            editor.note(text.filled(own))
        for text in template.idle:
            editor.skipped(text.filled(own))
    at = append_all(
        body,
        list(chain.from_iterable([names[1:] for names, _, _, _ in found])),
        list(chain.from_iterable([template.ops for _, template, _, _ in edits])),
        list(chain.from_iterable([inputs for _, inputs, _, _ in found])),
    )
    _put(body, edits, found, at)
    return True


def _put(body: Body, edits: Sequence[Edit], found: Sequence[Nodes], at: int) -> None:
    """Say where the nodes of each op are written, and with what; those added begin at `at`."""
    edited, root, placed = body.edited, body.root, body.placed
    for (op, template, _, _), (_, _, filled, row) in zip(edits, found, strict=True):
        body.filled[op] = held = (filled, row, 0)
        if template.written.is_touched:
            edited[op] = held
        if not template.ops:
            continue
        new = range(at, at + len(template.ops))
        for place, added in enumerate(new, 1):
            edited[added] = (filled, row, place)
            root[added] = op
        placed[op] = [new[place - 1] if place else op for place in template.written.order]
        at = new.stop


def _filled(edits: Sequence[Edit]) -> tuple[list[Nodes], list[str]]:
    """What is left of each op; and the names that no op may have yet."""
    alike: dict[Template, list[int]] = {}
    for place, (_, template, _, _) in enumerate(edits):
        alike.setdefault(template, []).append(place)
    found: dict[int, Nodes] = {}
    fresh: list[str] = []
    for template, places in alike.items():
        owns, rows = [edits[place].own for place in places], [edits[place].row for place in places]
        columns = [text.filled_all(owns) for text in template.texts]
        named = zip(*[columns[one] for one in template.names], strict=True)
        read = [_rows([columns[one] for one in some], len(rows)) for some in template.inputs]
        filled, counted = repeat(Filled(template.written, rows)), range(len(rows))
        left = zip(named, _rows(read, len(rows)), filled, counted, strict=False)
        found.update(zip(places, left, strict=True))
        new = {one for one in template.names if not template.texts[one].is_name}
        fresh += chain.from_iterable([columns[one] for one in new])
    return [found[place] for place in range(len(edits))], fresh


def _rows(columns: Sequence[Sequence[T]], count: int) -> list[tuple[T, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def record(
    form: Form, body: Body, edit: Callable[[Node, Editor], None], editor: Editor
) -> Template:
    """What an edit does to the ops of a form; what it reports of all of them is reported.

    Raises UnlikeError where it depends on more than the form, and what the edit raises.
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
    blanks, heads = _Blanks(form), left.heads
    texts: dict[Blank[str], int] = {}

    def place(text: str) -> int:
        return texts.setdefault(blanks.text(text), len(texts))

    payloads = [b"".join(map(piece_bytes, left.payload(at))) for at in range(len(left))]
    order = tuple(left.placed.get(0, [0]))
    whole = b"".join([encoded(NODE, payloads[at]) for at in order])
    return Template(
        names=tuple(map(place, heads.names)),
        ops=tuple(heads.ops[1:]),
        inputs=tuple(tuple(map(place, read)) for read in heads.inputs[1:]),
        written=Written(tuple(map(blanks.data, payloads)), order, blanks.data(whole), is_touched),
        notes=tuple(map(blanks.text, editor.notes)),
        idle=tuple(map(blanks.text, editor.idle)),
        texts=tuple(texts),
        renames=heads.names[0] != form.name,
    )


class _Blanks:
    """Makes blanks of what has stand-ins of a form in it."""

    def __init__(self, form: Form) -> None:
        own, others = form.stand_ins()
        self.raw = {stand_in: place for place, stand_in in enumerate([*own, *others])}
        self.texts = {stand_in.decode(): place for place, stand_in in enumerate(own)}
        self.in_raw = re.compile(b"(%b)" % b"|".join(map(re.escape, self.raw)))
        self.in_text = re.compile(f"({'|'.join(map(re.escape, self.texts))})")

    def data(self, found: bytes) -> Blank[bytes]:
        """Raises UnlikeError where an op's own bytes are spelled in another way."""
        parts = self.in_raw.split(found)
        spelled = any(stand_in.hex().encode() in found for stand_in in self.raw)
        if spelled or any(map(RAW_MARK.search, parts[::2])):
            raise UnlikeError
        literals = [part.replace(b"%", b"%%") for part in parts[::2]]
        return Blank(b"%b".join(literals), tuple(self.raw[part] for part in parts[1::2]))

    def text(self, found: str) -> Blank[str]:
        """Raises UnlikeError where an op's own names are spelled in another way."""
        parts = self.in_text.split(found)
        if any(map(MARK.search, parts[::2])):
            raise UnlikeError
        literals = [part.replace("%", "%%") for part in parts[::2]]
        return Blank("%s".join(literals), tuple(self.texts[part] for part in parts[1::2]))
