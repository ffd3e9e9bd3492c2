"""Change the gradients of TensorFlow 1 graphs, in files and in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpatch import later

if TYPE_CHECKING:
    from graphpatch.analysis.applied import Check as Check
    from graphpatch.analysis.applied import check as check
    from graphpatch.analysis.diff import Diff as Diff
    from graphpatch.analysis.diff import diff as diff
    from graphpatch.analysis.matches import Matches as Matches
    from graphpatch.analysis.matches import Place as Place
    from graphpatch.analysis.matches import matches as matches
    from graphpatch.analysis.revert import Reverted as Reverted
    from graphpatch.analysis.revert import revert as revert
    from graphpatch.analysis.split_parts import Split as Split
    from graphpatch.application import Result as Result
    from graphpatch.application import apply as apply
    from graphpatch.errors import CutError as CutError
    from graphpatch.errors import FleetError as FleetError
    from graphpatch.errors import ForeignError as ForeignError
    from graphpatch.errors import FormulaError as FormulaError
    from graphpatch.errors import GraphpatchError as GraphpatchError
    from graphpatch.errors import MatchError as MatchError
    from graphpatch.errors import ModelError as ModelError
    from graphpatch.errors import OutputError as OutputError
    from graphpatch.errors import PatchError as PatchError
    from graphpatch.errors import PatternError as PatternError
    from graphpatch.errors import RulesError as RulesError
    from graphpatch.errors import UnsafeError as UnsafeError
    from graphpatch.formats import Export as Export
    from graphpatch.formats.load import load as load
    from graphpatch.formats.model import Model as Model
    from graphpatch.match.syntax import pattern as pattern
    from graphpatch.page.view import View as View
    from graphpatch.page.view import view as view
    from graphpatch.rules import Rule as Rule
    from graphpatch.rules import load_rules as load_rules
    from graphpatch.runtime.building import Building as Building
    from graphpatch.runtime.building import building as building
    from graphpatch.runtime.diagnose import Diagnosis as Diagnosis
    from graphpatch.runtime.diagnose import diagnose as diagnose
    from graphpatch.runtime.functions import backward_as as backward_as
    from graphpatch.runtime.functions import clip_gradient as clip_gradient
    from graphpatch.runtime.functions import filter_gradient as filter_gradient
    from graphpatch.runtime.functions import override_gradient as override_gradient
    from graphpatch.runtime.functions import reverse_gradient as reverse_gradient
    from graphpatch.runtime.functions import scale_gradient as scale_gradient
    from graphpatch.runtime.functions import straight_through as straight_through
    from graphpatch.runtime.functions import surrogate as surrogate
    from graphpatch.runtime.parts import Parts as Parts
    from graphpatch.runtime.parts import gradient_in_parts as gradient_in_parts
    from graphpatch.runtime.parts import split as split
    from graphpatch.runtime.patch_graph import PatchedGraph as PatchedGraph
    from graphpatch.runtime.patch_graph import patch_graph as patch_graph
    from graphpatch.runtime.rebuild import rebuild_gradients as rebuild_gradients
    from graphpatch.runtime.register import import_model as import_model
    from graphpatch.runtime.register import register_gradients as register_gradients
    from graphpatch.runtime.verify.compare import Verification as Verification
    from graphpatch.runtime.verify.compare import verify as verify
    from graphpatch.selection import Selection as Selection
    from graphpatch.selection import select as select

__version__ = "0.3.0"

# Where each name comes from. Imported when it is asked for: a command needs few of them.
_EXPORTS = {
    "analysis.applied": "Check check",
    "analysis.diff": "Diff diff",
    "analysis.matches": "Matches Place matches",
    "analysis.revert": "Reverted revert",
    "analysis.split_parts": "Split",
    "application": "Result apply",
    "errors": "CutError FleetError ForeignError FormulaError GraphpatchError MatchError ModelError"
    " OutputError PatchError PatternError RulesError UnsafeError",
    "formats": "Export Model load",
    "match.syntax": "pattern",
    "page.view": "View view",
    "rules": "Rule load_rules",
    "runtime.diagnose": "Diagnosis diagnose",
    "runtime.functions": "backward_as clip_gradient filter_gradient override_gradient"
    " reverse_gradient scale_gradient straight_through surrogate",
    "runtime.building": "Building building",
    "runtime.patch_graph": "PatchedGraph patch_graph",
    "runtime.parts": "Parts gradient_in_parts split",
    "runtime.rebuild": "rebuild_gradients",
    "runtime.register": "import_model register_gradients",
    "runtime.verify.compare": "Verification verify",
    "selection": "Selection select",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}

__all__ = sorted(_HOMES)


# What earlier rooms call of runtime/ and page/.
later.MODULES.update(
    {
        "import_into": "graphpatch.runtime.register",
        "model_of": "graphpatch.runtime.imported",
        "tensorflow_class": "graphpatch.runtime.imported",
        "trace": "graphpatch.runtime.gradient_functions",
        "part_of_model": "graphpatch.page.notebook",
        "part_of_selection": "graphpatch.page.notebook",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(later.imported(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
