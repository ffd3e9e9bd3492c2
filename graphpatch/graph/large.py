"""What was found out about nodes of a body, large ones and many: asked often, it is found once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from graphpatch.graph.heads import LARGE, entry
from graphpatch.graph.nodedef import Payload, attr_spans, is_wide, mentions, payload_at
from graphpatch.graph.wire import Source, Span
from graphpatch.opdefs import FlatArg

MOST_ALIKE = 1 << 10  # bytes of a node up to which it is asked what others are alike
MOST_FORMS = 1 << 12  # of small nodes, whose lists of tensors are kept
MANY = 256  # tensors from which on a list of a node's tensors is kept


class Large(msgspec.Struct, eq=False):
    """Payloads, where attrs lie, and lists of tensors, of large nodes; lists of all that are alike.

    What is kept holds for one payload: a node that is edited gets another one.
    """

    # Payloads by start in the file, spans by index.
    payloads: dict[int, Payload] = msgspec.field(default_factory=dict)
    spans: dict[int, tuple[Payload, Mapping[str, Span]]] = msgspec.field(default_factory=dict)
    lists: dict[tuple[int, str], tuple[Payload, list[FlatArg]]] = msgspec.field(
        default_factory=dict
    )

    forms: dict[tuple[str, str, bytes], list[FlatArg]] = msgspec.field(default_factory=dict)

    def payload(self, source: Source, start: int) -> Payload:
        """The payload of the NodeDef of the file whose field starts at `start`."""
        data, value = source.data, start + 2
        if (size := data[start + 1]) < 0x80:  # nearly all: no calls for them
            return [data[value : value + size]]
        if start in self.payloads:
            return self.payloads[start]
        value, end = entry(source, start)
        if end - value < LARGE:
            return [data[value:end]]
        self.payloads[start] = payload = payload_at(source, start)
        return payload

    def attr_spans(self, index: int, payload: Payload) -> Mapping[str, Span]:
        """Where each attr's serialized AttrValue lies."""
        known, spans = self.spans.get(index, (None, {}))
        if known is not payload:
            spans = attr_spans(payload)
            if len(payload) > 1 or is_wide(payload):
                self.spans[index] = payload, spans
        return spans

    def attr_span(self, index: int, payload: Payload, key: str) -> Span | None:
        """Where one attr's serialized AttrValue lies; None where there is no such attr."""
        may_be = is_wide(payload) or mentions(payload, key)
        return self.attr_spans(index, payload).get(key) if may_be else None

    def tensors(
        self, index: int, payload: Payload, which: str, found: Callable[[], list[FlatArg]]
    ) -> list[FlatArg]:
        """The inputs or outputs (`which`) of a node; `found` tells them the first time."""
        known, tensors = self.lists.get((index, which), (None, []))
        if known is None or known != payload:
            tensors = found()
            if len(tensors) >= MANY:
                self.lists[index, which] = payload, tensors
        return tensors

    def alike(
        self, form: tuple[str, str, bytes], found: Callable[[], list[FlatArg]]
    ) -> list[FlatArg]:
        """The inputs or outputs of a small node, by its op type, which of both, and its attrs."""
        tensors = found()
        if len(self.forms) < MOST_FORMS:
            self.forms[form] = tensors
        return tensors
