"""The library of gradients: a table, each line a named formula."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graphpatch.errors import RulesError, did_you_mean
from graphpatch.gradients.library.activations import ACTIVATIONS
from graphpatch.gradients.library.attribution import ATTRIBUTION
from graphpatch.gradients.library.differences import DIFFERENCES
from graphpatch.gradients.library.entry import Entry as Entry
from graphpatch.gradients.library.entry import Parameter as Parameter
from graphpatch.gradients.library.filters import FILTERS
from graphpatch.gradients.library.norms import NORMS
from graphpatch.gradients.library.products import PRODUCTS
from graphpatch.gradients.library.quantization import QUANTIZATION
from graphpatch.gradients.library.relevance import RELEVANCE
from graphpatch.gradients.library.spikes import SPIKES
from graphpatch.gradients.library.steps import STEPS

TABLES = (
    *(FILTERS, NORMS, ACTIVATIONS, STEPS, SPIKES, ATTRIBUTION, RELEVANCE, DIFFERENCES),
    *(QUANTIZATION, PRODUCTS),
)

LIBRARY: Mapping[str, Entry] = MappingProxyType(
    {entry.name: entry for table in TABLES for entry in table}
)


def named(name: str, op_type: str | None = None) -> Entry:
    """The gradient of this name; for an op type, that of its family which is meant for it.

    Raises RulesError, with the nearest names, where there is none.
    """
    if name not in LIBRARY:
        near = did_you_mean(name, LIBRARY) or f"; the library has: {', '.join(LIBRARY)}"
        raise RulesError(f"no gradient of the library is called {name!r}{near}")
    entry = LIBRARY[name]
    return LIBRARY[entry.by_op_type.get(op_type or "", name)]
