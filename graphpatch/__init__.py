"""Change the gradients of TensorFlow 1 graphs, in files and in memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphpatch import above

if TYPE_CHECKING:
    from graphpatch.analysis.applied import Check, check
    from graphpatch.analysis.diff import Diff, diff
    from graphpatch.analysis.matches import Matches, matches
    from graphpatch.analysis.places import Place
    from graphpatch.analysis.revert import Reverted, revert
    from graphpatch.analysis.split import Split
    from graphpatch.application import Result, apply
    from graphpatch.errors import (
        CutError,
        FleetError,
        FormulaError,
        GraphpatchError,
        MatchError,
        ModelError,
        OutputError,
        PatchError,
        PatternError,
        RulesError,
        UnsafeError,
    )
    from graphpatch.formats import Export
    from graphpatch.formats.load import load
    from graphpatch.formats.model import Model
    from graphpatch.match.pattern.build import pattern
    from graphpatch.page.view import View, view
    from graphpatch.rules import Rule, load_rules
    from graphpatch.runtime.diagnose import Diagnosis, diagnose
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
    from graphpatch.runtime.live.building import Building, building
    from graphpatch.runtime.live.patch_graph import patch_graph
    from graphpatch.runtime.live.patched import PatchedGraph
    from graphpatch.runtime.parts import Parts, gradient_in_parts
    from graphpatch.runtime.rebuild import rebuild_gradients
    from graphpatch.runtime.register import register_gradients
    from graphpatch.runtime.split import split
    from graphpatch.runtime.verify.result import Verification
    from graphpatch.runtime.verify.verification import verify
    from graphpatch.selection import Selection, select

__version__ = "0.2.0"

__all__ = [
    "Building",
    "Check",
    "CutError",
    "Diagnosis",
    "Diff",
    "Export",
    "FleetError",
    "FormulaError",
    "GraphpatchError",
    "MatchError",
    "Matches",
    "Model",
    "ModelError",
    "OutputError",
    "Parts",
    "PatchError",
    "PatchedGraph",
    "PatternError",
    "Place",
    "Result",
    "Reverted",
    "Rule",
    "RulesError",
    "Selection",
    "Split",
    "UnsafeError",
    "Verification",
    "View",
    "apply",
    "backward_as",
    "building",
    "check",
    "clip_gradient",
    "diagnose",
    "diff",
    "filter_gradient",
    "gradient_in_parts",
    "import_model",
    "load",
    "load_rules",
    "matches",
    "override_gradient",
    "patch_graph",
    "pattern",
    "rebuild_gradients",
    "register_gradients",
    "reverse_gradient",
    "revert",
    "scale_gradient",
    "select",
    "split",
    "straight_through",
    "surrogate",
    "verify",
    "view",
]

# Where each name comes from. Imported when it is asked for: a command needs few of them.
_HOMES = {
    "Building": "runtime.live.building",
    "Check": "analysis.applied",
    "CutError": "errors",
    "Diagnosis": "runtime.diagnose",
    "Diff": "analysis.diff",
    "Export": "formats",
    "FleetError": "errors",
    "FormulaError": "errors",
    "GraphpatchError": "errors",
    "MatchError": "errors",
    "Matches": "analysis.matches",
    "Model": "formats",
    "ModelError": "errors",
    "OutputError": "errors",
    "Parts": "runtime.parts",
    "PatchError": "errors",
    "PatchedGraph": "runtime.live.patched",
    "PatternError": "errors",
    "Place": "analysis.places",
    "Result": "application",
    "Reverted": "analysis.revert",
    "Rule": "rules",
    "RulesError": "errors",
    "Selection": "selection",
    "Split": "analysis.split",
    "UnsafeError": "errors",
    "Verification": "runtime.verify.result",
    "View": "page.view",
    "apply": "application",
    "backward_as": "runtime.functions.replaced",
    "building": "runtime.live.building",
    "check": "analysis.applied",
    "clip_gradient": "runtime.functions.filters",
    "diagnose": "runtime.diagnose",
    "diff": "analysis.diff",
    "filter_gradient": "runtime.functions.filters",
    "gradient_in_parts": "runtime.parts",
    "import_model": "runtime.import_model",
    "load": "formats",
    "load_rules": "rules",
    "matches": "analysis.matches",
    "override_gradient": "runtime.functions.replaced",
    "patch_graph": "runtime.live.patch_graph",
    "pattern": "match.pattern.build",
    "rebuild_gradients": "runtime.rebuild",
    "register_gradients": "runtime.register",
    "reverse_gradient": "runtime.functions.filters",
    "revert": "analysis.revert",
    "scale_gradient": "runtime.functions.filters",
    "select": "selection",
    "split": "runtime.split",
    "straight_through": "runtime.functions.replaced",
    "surrogate": "runtime.functions.replaced",
    "verify": "runtime.verify.verification",
    "view": "page.view",
}


# What rooms below call of runtime/ and page/.
above.MODULES.update(
    {
        "import_into": "graphpatch.runtime.import_model",
        "model_of": "graphpatch.runtime.taken",
        "tensorflow_class": "graphpatch.runtime.taken",
        "trace": "graphpatch.runtime.trace",
        "part_of_model": "graphpatch.page.part",
        "part_of_selection": "graphpatch.page.part",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
