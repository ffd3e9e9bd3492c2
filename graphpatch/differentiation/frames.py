"""The ops whose place in the graph is fixed: what is fed, and the ops of v1 loops and branches."""

from __future__ import annotations

# Ops whose value comes from outside the graph: whoever feeds them, or asks for the gradient at
# them, goes by their name, so the name stays with them.
FED = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})

# Ops that TensorFlow accepts only where they stand, next to the ops they belong to.
FIXED = frozenset({"NextIteration", "RefNextIteration", "LoopCond"})
MERGES = frozenset({"Merge", "RefMerge"})
JOINS = MERGES | {"Switch", "RefSwitch"}
ENTERS = frozenset({"Enter", "RefEnter"})
EXITS = frozenset({"Exit", "RefExit"})

# Ops that leave all outputs but one dead: what reads two of them is dead, too.
SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})

# Where a loop or branch ends; ops that lead into or out of one.
ENDS = EXITS | MERGES
BOUNDARIES = ENTERS | ENDS | SWITCHES | FIXED

# The ops of v1 control flow whose gradients give on what comes; they cannot be asked apart.
FRAMES = BOUNDARIES - {"LoopCond", "_SwitchN"}
