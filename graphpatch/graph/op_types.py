"""The op types that many rooms ask for, each set once: what is fed, holds a variable, calls.

Those of v1 loops and branches are in `control_flow`.
"""

from __future__ import annotations

PLACEHOLDER, OPTIONAL_PLACEHOLDER = "Placeholder", "PlaceholderWithDefault"

PLACEHOLDERS = frozenset({PLACEHOLDER, "PlaceholderV2"})
"""Ops whose value nobody gives where they are not fed."""

# Ops whose value comes from outside the graph: whoever feeds them, or asks for the gradient at
# them, goes by their name, so the name stays with them.
FED = PLACEHOLDERS | {OPTIONAL_PLACEHOLDER}

PIPELINES = frozenset({
    "IteratorGetNext", "IteratorGetNextSync", "QueueDequeue", "QueueDequeueV2",
    "QueueDequeueMany", "QueueDequeueManyV2", "QueueDequeueUpTo", "QueueDequeueUpToV2",
})  # fmt: skip
"""Ops that give the next values of an input pipeline: of the iterator of a dataset, of a queue."""

PARSERS = frozenset({"ParseExample", "ParseExampleV2", "ParseSingleExample"})
"""Ops that give the numbers and texts of serialized Examples."""

OLD_VARIABLE = "Variable"
RESOURCE_VARIABLE, REF_VARIABLES = "VarHandleOp", ("VariableV2", OLD_VARIABLE)

VARIABLES = (RESOURCE_VARIABLE, *REF_VARIABLES)
"""Ops that hold a variable."""

ALL_VARIABLES = (*VARIABLES, "AutoReloadVariable")
"""These, and that by which TensorFlow Serving reads one."""

CALL, STATEFUL_CALL = "PartitionedCall", "StatefulPartitionedCall"
CALLS = frozenset({CALL, STATEFUL_CALL})

GIVES_ON = frozenset({"EnsureShape", "Identity", "PreventGradient", "Snapshot", "StopGradient"})
"""Ops that give the tensor that they read on as it is."""

# Loops and branches whose bodies are functions.
LOOPS = frozenset({"While", "StatelessWhile"})
IFS = frozenset({"If", "StatelessIf"})
CASES = frozenset({"Case", "StatelessCase"})
