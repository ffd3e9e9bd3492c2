"""A body as columns: arrays over all of its links, for questions about all of them at once."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import msgspec

from graphpatch import names
from graphpatch.graph.body import Body

if TYPE_CHECKING:
    import numpy as np

    Column = np.ndarray[Any, np.dtype[np.int64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Links(msgspec.Struct, frozen=True):
    """The links of a body: who reads (by index) which op in which slot of NodeDef.input.

    What a function reads of its arguments is not among them.
    """

    body: Body
    source: Column
    reader: Column
    slot: Column
    control: Flags

    def are(self, types: Collection[str]) -> Flags:
        """Which ops of the body have one of these op types."""
        import numpy as np

        found = np.zeros(len(self.body), np.bool_)
        for op in types:
            found[self.body.by_type.get(op, [])] = True
        return found


def links(body: Body) -> Links:
    """The links of a body as it is now."""
    import numpy as np

    inputs, by_name = body.heads.inputs, body.by_name
    counts = np.fromiter(map(len, inputs), np.int64, len(inputs))
    texts = list(chain.from_iterable(inputs))
    # Most inputs are an op's output 0, spelled as its name: no call in Python for them.
    source = np.fromiter(map(by_name.get, texts, repeat(-1)), np.int64, len(texts))
    control = np.zeros(len(texts), np.bool_)
    for place in np.flatnonzero(source < 0).tolist():
        source[place] = by_name.get(names.op_of(texts[place]), -1)
        control[place] = texts[place][:1] == "^"
    reader = np.repeat(np.arange(len(inputs)), counts)
    slot = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts)
    there = source >= 0
    return Links(body, source[there], reader[there], slot[there], control[there])


def order_of(body: Body) -> list[int]:
    """Of each op a number that is greater than those of the ops it reads, control inputs apart.

    Ops in loops, and those that depend on them, all have the greatest number. Linear in the size
    of the body.
    """
    op_names, inputs, readers = body.heads.names, body.heads.inputs, body.readers
    by_name = body.by_name
    waits = [
        sum(not text.startswith("^") and names.op_of(text) in by_name for text in one)
        for one in inputs
    ]
    order = [len(body)] * len(body)
    ready = [index for index, count in enumerate(waits) if not count]
    for number, index in enumerate(ready):
        order[index] = number
        for reader, slot in readers.get(op_names[index], ()):
            if not inputs[reader][slot].startswith("^"):
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
    return order
