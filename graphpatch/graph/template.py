"""An edit as a value: the nodes that it leaves of an op of some form, with holes for names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple, TypeVar

import msgspec

from graphpatch.graph.alike import MARK, RAW_MARK, Form, UnlikeError
from graphpatch.graph.blanks import Blank, EditPayload, Filled
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.heads import NODE
from graphpatch.graph.placing import append_all, rename_all
from graphpatch.graph.wire import encoded, piece_bytes

T = TypeVar("T")


class Template(msgspec.Struct, frozen=True, eq=False):
    """What an edit does to an op of a form: blanks, to be filled with what is the op's own.

    `names` are of the op, which it may have touched or not, then of the nodes that it added; `ops`
    and `inputs` of these alone. Names and inputs are told by their places in `texts`. `notes` and
    `idle` are what the editor reports of one op.
    """

    texts: tuple[Blank[str], ...]
    names: tuple[int, ...]
    ops: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]
    written: EditPayload
    notes: tuple[Blank[str], ...]
    idle: tuple[Blank[str], ...]
    renames: bool


TemplateEdit = tuple[int, Template, tuple[str, ...], tuple[bytes, ...]]
"""An op that is to be edited (by its index), and what it has of its own.

Its names, and what comes into the holes of payloads: these in bytes, and others.
"""


class TemplatedOps(NamedTuple):
    """What one template leaves of many ops, which are told by their places among all edits.

    `names` has a column for each node, `inputs` those of each node that was added.
    """

    template: Template
    places: list[int]
    names: list[list[str]]
    inputs: list[list[tuple[str, ...]]]
    filled: Filled

    def fresh(self) -> list[list[str]]:
        """The names that no op may have yet."""
        texts, new = self.template.texts, dict(zip(self.template.names, self.names, strict=True))
        return [names for text, names in new.items() if not texts[text].is_name]


def fill(editor: Editor, body: Body, edits: Sequence[TemplateEdit]) -> bool:
    """Edit these ops, in their order; False, and nothing done, where a name is taken."""
    found = _filled(edits)
    fresh = list(chain.from_iterable([names for one in found for names in one.fresh()]))
    known = set(fresh)
    if len(known) < len(fresh) or not body.by_name.keys().isdisjoint(known):
        return False
    _rename(body, edits, found)
    if any(one.template.notes or one.template.idle for one in found):
        _tell(editor, edits)
    at = list(accumulate([len(template.ops) for _, template, _, _ in edits], initial=len(body)))
    _append(body, found, at)
    _place(body, [edit[0] for edit in edits], found, at)
    return True


def _tell(editor: Editor, edits: Sequence[TemplateEdit]) -> None:
    """Let the editor report what templates say of each op."""
    for _, template, own, _ in edits:
        for text in template.notes:
            editor.note(text.filled(own))
        for text in template.idle:
            editor.skipped(text.filled(own))


def _place(
    body: Body, ops: Sequence[int], found: Sequence[TemplatedOps], at: Sequence[int]
) -> None:
    """Say where the nodes of each op are written, and with what; those added begin at `at`."""
    placed: dict[int, list[int]] = {}
    for template, places, _, _, filled in found:
        mine, nodes = [ops[place] for place in places], [[ops[place] for place in places]]
        nodes += [[at[place] + added for place in places] for added in range(len(template.ops))]
        for number, column in enumerate(nodes):
            held = list(zip(repeat(filled), range(len(places)), repeat(number), strict=False))
            if number:
                body.root.update(zip(column, mine, strict=True))
            else:
                body.filled.update(zip(column, held, strict=True))
            if number or template.written.is_touched:
                body.edited.update(zip(column, held, strict=True))
        if template.ops:
            order = zip(*[nodes[number] for number in template.written.order], strict=True)
            placed.update(zip(mine, map(list, order), strict=True))
    in_order = placed if len(found) == 1 else {op: placed[op] for op in ops if op in placed}
    body.placed.update(in_order)


def _filled(edits: Sequence[TemplateEdit]) -> list[TemplatedOps]:
    """What is left of each op, by templates."""
    alike: dict[Template, list[int]] = {}
    for place, (_, template, _, _) in enumerate(edits):
        alike.setdefault(template, []).append(place)
    found = []
    for template, places in alike.items():
        owns, rows = [edits[place][2] for place in places], [edits[place][3] for place in places]
        columns = [text.filled_all(owns) for text in template.texts]
        read = [_rows_of([columns[one] for one in some], len(rows)) for some in template.inputs]
        names, filled = [columns[one] for one in template.names], Filled(template.written, rows)
        found.append(TemplatedOps(template, places, names, read, filled))
    return found


def _rows_of(columns: Sequence[Sequence[T]], count: int) -> list[tuple[T, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * count


def _rename(body: Body, edits: Sequence[TemplateEdit], found: Sequence[TemplatedOps]) -> None:
    """Let ops have the names that templates give them, in their order."""
    names: dict[int, str] = {}
    for one in found:
        if one.template.renames:
            names.update(zip(one.places, one.names[0], strict=True))
    places = sorted(names)
    rename_all(body, [edits[place][0] for place in places], [names[place] for place in places])


def _append(body: Body, found: Sequence[TemplatedOps], at: Sequence[int]) -> None:
    """Append the nodes that were added: those of an edit begin where `at` says it."""
    first, count = at[0], at[-1] - at[0]
    names, ops = [""] * count, [""] * count
    inputs: list[tuple[str, ...]] = [()] * count
    for one in found:
        for number, op in enumerate(one.template.ops):
            columns = one.places, one.names[number + 1], one.inputs[number]
            for place, name, read in zip(*columns, strict=True):
                new = at[place] - first + number
                names[new], ops[new], inputs[new] = name, op, read
    append_all(body, names, ops, inputs)


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
        written=EditPayload(
            tuple(map(blanks.data, payloads)), order, blanks.data(whole), is_touched
        ),
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
