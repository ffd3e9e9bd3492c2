"""What names tell of gradients that `tf.gradients` built as ops.

It puts them into a scope, `gradients` by default, and those of the gradient of an op L into
`gradients/L_grad/...`. A scope that a program called `gradients` itself has no such names in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

GRADIENT_SCOPE = re.compile(r"((?:.*/)?gradients(?:_\d+)?)/")
SEED = re.compile(r"Fill(_\d+)?|grad_ys_\d+")
OF_AN_OP = re.compile(r"_grad(?:_\d+)?/")


def scopes_of_gradients(names: Iterable[str]) -> dict[str, int]:
    """The scopes of gradients among the names of ops, and how many ops each has."""
    found, told = Counter[str](), set[str]()
    for name in names:
        match = GRADIENT_SCOPE.match(name) if "gradients" in name else None
        if match is not None:
            found[match[1]] += 1
            if OF_AN_OP.search(name, match.end()) or SEED.fullmatch(name, match.end()):
                told.add(match[1])
    return {scope: count for scope, count in found.items() if scope in told}
