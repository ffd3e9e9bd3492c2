"""The op types of v1 loops and branches, each set once."""

from __future__ import annotations

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
