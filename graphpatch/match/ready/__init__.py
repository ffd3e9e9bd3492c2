"""Ready patterns for what legacy models contain, by name: `{"pattern": "@swish"}`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from graphpatch.errors import PatternError, nearest
from graphpatch.match.ready.activations import ACTIVATION_PATTERNS
from graphpatch.match.ready.entry import PatternForm as PatternForm
from graphpatch.match.ready.entry import Ready as Ready
from graphpatch.match.ready.layers import LAYER_PATTERNS
from graphpatch.match.ready.norms import NORM_PATTERNS
from graphpatch.match.ready.training import TRAINING

READY: Mapping[str, Ready] = MappingProxyType(
    {
        entry.name: entry
        for entry in (*LAYER_PATTERNS, *NORM_PATTERNS, *ACTIVATION_PATTERNS, *TRAINING)
    }
)


def ready_pattern(name: str) -> Ready:
    """The ready pattern of this name. Raises PatternError, which names the nearest ones."""
    if name not in READY:
        found = nearest(name, READY)
        near = (
            f"; {'nearest' if found else 'legal'}: {', '.join(f'@{one}' for one in found or READY)}"
        )
        raise PatternError(f"pattern: no ready pattern is called {'@' + name!r}{near}")
    return READY[name]
