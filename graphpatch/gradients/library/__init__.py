"""The library of gradients: a table, each line a named formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from graphpatch.errors import RulesError, nearest
from graphpatch.gradients.library.activations import ACTIVATION_GRADIENTS
from graphpatch.gradients.library.differences import DIFFERENCES
from graphpatch.gradients.library.entry import Entry as Entry
from graphpatch.gradients.library.entry import Parameter as Parameter
from graphpatch.gradients.library.filters import FILTERS, NORM_GRADIENTS, QUANTIZATION
from graphpatch.gradients.library.relevance import PRODUCT_GRADIENTS, RELEVANCE
from graphpatch.gradients.library.surrogates import SPIKES, STEPS

TABLES = (
    *(FILTERS, NORM_GRADIENTS, ACTIVATION_GRADIENTS, STEPS, SPIKES),
    *(RELEVANCE, DIFFERENCES, QUANTIZATION, PRODUCT_GRADIENTS),
)

LIBRARY: Mapping[str, Entry] = MappingProxyType(
    {entry.name: entry for table in TABLES for entry in table}
)

NEAREST_GRADIENTS = 3  # names that an error tells


def library_entry(name: str, op_type: str | None = None) -> Entry:
    """Return the gradient of this name; for an op type, that of its family which is meant for it.

    Raises RulesError, with the nearest names, where there is none.
    """
    if name not in LIBRARY:
        raise RulesError(f"no gradient of the library is called {name!r}{alike(name, LIBRARY)}")
    entry = LIBRARY[name]
    return LIBRARY[entry.by_op_type.get(op_type or "", name)]


def alike(name: str, legal: Iterable[str]) -> str:
    """Return the names nearest to one, and where all are listed."""
    names = nearest(name, legal)
    near = f"nearest: {', '.join(names[:NEAREST_GRADIENTS])}; " if names else ""
    return f"; {near}`graphpatch gradients` lists all"
