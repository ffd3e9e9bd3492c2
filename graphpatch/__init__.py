"""Change what flows back through TensorFlow 1 style graphs, in their files."""

from graphpatch.apply import Result, apply
from graphpatch.errors import GraphpatchError
from graphpatch.formats import Model, load
from graphpatch.match.pattern.build import pattern
from graphpatch.rules import Rule, load_rules
from graphpatch.runtime.import_model import import_model
from graphpatch.runtime.parts import Parts, gradient_in_parts
from graphpatch.runtime.register import register_gradients
from graphpatch.selection import Selection, select

__version__ = "0.1.0"

__all__ = [
    "GraphpatchError",
    "Model",
    "Parts",
    "Result",
    "Rule",
    "Selection",
    "apply",
    "gradient_in_parts",
    "import_model",
    "load",
    "load_rules",
    "pattern",
    "register_gradients",
    "select",
]
