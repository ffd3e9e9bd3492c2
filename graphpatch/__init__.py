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
    from graphpatch.runtime.functions.filters import (
        clip_gradient,
        filter_gradient,
        reverse_gradient,
        scale_gradient,
    )
    from graphpatch.runtime.functions.replaced import (
        backward_as,
        override_gradient,
        straight_through,
        surrogate,
    )
    from graphpatch.runtime.import_model import import_model
    from graphpatch.runtime.parts import Parts, gradient_in_parts
    from graphpatch.runtime.rebuild import rebuild_gradients
    from graphpatch.runtime.register import register_gradients
    from graphpatch.runtime.verify.result import Verification
    from graphpatch.runtime.verify.verification import verify
    from graphpatch.selection import Selection, select

__version__ = "0.1.0"

__all__ = [
    "GraphpatchError",
    "Model",
    "Parts",
    "Result",
    "Rule",
    "Selection",
    "Verification",
    "apply",
    "backward_as",
    "clip_gradient",
    "filter_gradient",
    "gradient_in_parts",
    "import_model",
    "load",
    "load_rules",
    "override_gradient",
    "pattern",
    "rebuild_gradients",
    "register_gradients",
    "reverse_gradient",
    "scale_gradient",
    "select",
    "straight_through",
    "surrogate",
    "verify",
]

# Where each name comes from. Imported when it is asked for: a command needs few of them.
_HOMES = {
    "GraphpatchError": "errors",
    "Model": "formats",
    "Parts": "runtime.parts",
    "Result": "application",
    "Rule": "rules",
    "Selection": "selection",
    "Verification": "runtime.verify.result",
    "apply": "application",
    "backward_as": "runtime.functions.replaced",
    "clip_gradient": "runtime.functions.filters",
    "filter_gradient": "runtime.functions.filters",
    "gradient_in_parts": "runtime.parts",
    "import_model": "runtime.import_model",
    "load": "formats",
    "load_rules": "rules",
    "override_gradient": "runtime.functions.replaced",
    "pattern": "match.pattern.build",
    "rebuild_gradients": "runtime.rebuild",
    "register_gradients": "runtime.register",
    "reverse_gradient": "runtime.functions.filters",
    "scale_gradient": "runtime.functions.filters",
    "select": "selection",
    "straight_through": "runtime.functions.replaced",
    "surrogate": "runtime.functions.replaced",
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
