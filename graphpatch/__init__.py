"""Change what flows back through TensorFlow 1 style graphs, in their files."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphpatch.application import Result, apply
    from graphpatch.errors import GraphpatchError
    from graphpatch.formats.load import load
    from graphpatch.formats.model import Model
    from graphpatch.match.pattern.build import pattern
    from graphpatch.rules import Rule, load_rules
    from graphpatch.runtime.import_model import import_model
    from graphpatch.runtime.live.building import Building, building
    from graphpatch.runtime.live.patch_graph import patch_graph
    from graphpatch.runtime.live.patched import PatchedGraph
    from graphpatch.runtime.parts import Parts, gradient_in_parts
    from graphpatch.runtime.register import register_gradients
    from graphpatch.runtime.verify.result import Verification
    from graphpatch.runtime.verify.verification import verify
    from graphpatch.selection import Selection, select

__version__ = "0.1.0"

__all__ = [
    "Building",
    "GraphpatchError",
    "Model",
    "Parts",
    "PatchedGraph",
    "Result",
    "Rule",
    "Selection",
    "Verification",
    "apply",
    "building",
    "gradient_in_parts",
    "import_model",
    "load",
    "load_rules",
    "patch_graph",
    "pattern",
    "register_gradients",
    "select",
    "verify",
]

# Where each name comes from. Imported when it is asked for: a command needs few of them.
_HOMES = {
    "Building": "runtime.live.building",
    "GraphpatchError": "errors",
    "Model": "formats",
    "Parts": "runtime.parts",
    "PatchedGraph": "runtime.live.patched",
    "Result": "application",
    "Rule": "rules",
    "Selection": "selection",
    "Verification": "runtime.verify.result",
    "apply": "application",
    "building": "runtime.live.building",
    "gradient_in_parts": "runtime.parts",
    "import_model": "runtime.import_model",
    "load": "formats",
    "load_rules": "rules",
    "patch_graph": "runtime.live.patch_graph",
    "pattern": "match.pattern.build",
    "register_gradients": "runtime.register",
    "select": "selection",
    "verify": "runtime.verify.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
