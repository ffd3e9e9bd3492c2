"""The op types that many rooms ask for, each set once."""

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

# What follows are those of v1 loops and branches.
ENTER, SWITCH = "Enter", "Switch"
ENTERS = frozenset({ENTER, "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})
MERGES = frozenset({"Merge", "RefMerge"})
SWITCHES = frozenset({SWITCH, "RefSwitch"})
NEXTS = frozenset({"NextIteration", "RefNextIteration"})
LOOP_COND = "LoopCond"
TENSOR_ARRAY = "TensorArrayV3"

# Ops whose gradients give on what comes; they cannot be asked apart.
CONTROL_FLOW = ENTERS | EXITS | MERGES | SWITCHES | NEXTS

# Ops that TensorFlow accepts only where they stand, next to the ops they belong to.
FIXED = NEXTS | {LOOP_COND}

# Where a branch begins, and where it ends.
BRANCHES = SWITCHES | MERGES

# Where a loop or branch ends.
ENDS = EXITS | MERGES

# Ops that leave all outputs but one dead: what reads two of them is dead, too.
ALL_SWITCHES = SWITCHES | {"_SwitchN"}

# Ops that lead into, round or out of a loop or branch.
BOUNDARIES = ENTERS | ENDS | ALL_SWITCHES | FIXED
