"""Runs take time in proportion to the graph; patterns that say too little are refused in time."""

from __future__ import annotations

import contextlib
import gc
import time

import pytest

from graphpatch.errors import GraphpatchError, MatchError
from graphpatch.graph.node import Body
from tests.graphs import node
from tests.match.pattern.searched import bindings, body

pytestmark = pytest.mark.slow

LINE = 20_000


def line(count: int) -> Body:
    """A Placeholder, so many Tanhs one after the other, a Relu."""
    tanhs = (node(f"t{k}", "Tanh", f"t{k - 1}" if k else "p") for k in range(count))
    return body(node("p", "Placeholder"), *tanhs, node("r", "Relu", f"t{count - 1}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "run"),
    [
        ("Placeholder ->+ Tanh -> Relu", LINE),
        ("Placeholder ->+ Tanh", LINE),
        ("Placeholder ->+ * -> Relu", LINE),
        ("Placeholder ->+ *", LINE + 1),
        ("Tanh ->+ Relu", 1),
    ],
)
def test_a_run_over_a_long_line(pattern: str, run: int) -> None:
    """0.1 needed 50 s for a fifth of this line."""
    long = line(LINE)
    started = time.process_time()
    (found,) = bindings(long, pattern)
    assert time.process_time() - started < 5
    assert len(found.bound[1]) == run


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern",
    [
        "* ->+ * ->+ *",
        "a:* ->+ *",
        " ->+ ".join("*" * 5),
        " ->+ ".join("*" * 8),
        "d:*? -> *? ->+ *:1",
        " -> ".join("*" * 20),
        " -> ".join("*" * 59),
        " -> ".join("*" * 300),
        "*? -> *? -> *? -> *? -> * -> *? -> *? -> *? -> *?",
        "; ".join(f"a{k}:* -> s" for k in range(30)) + "; s:AddN",
    ],
)
def test_patterns_that_say_too_little_end_in_time(pattern: str) -> None:
    """Each of these took more than ten seconds on a graph of a few thousand ops, or did not end."""
    tower = [node("a0", "Placeholder")]
    for k in range(1, 800):
        tower += [node(f"r{k}", "Relu", f"a{k - 1}"), node(f"a{k}", "AddV2", f"a{k - 1}", f"r{k}")]
    sums = node("sum", "AddN", *(f"r{k}" for k in range(1, 60)), N=59)
    graph = body(*tower, sums)
    gc.collect()
    gc.disable()  # as the command line has it
    started = time.process_time()
    with contextlib.suppress(GraphpatchError):
        bindings(graph, pattern)
    gc.enable()
    assert time.process_time() - started < 10


@pytest.mark.slow
def test_a_tensor_that_all_ops_read() -> None:
    """Neighbourhoods go up to what is read, not down to all that read it."""
    pairs = [
        (node(f"s{k}", "Sigmoid", "x"), node(f"m{k}", "Mul", "x", f"s{k}")) for k in range(LINE)
    ]
    wide = body(node("x", "Placeholder"), *(one for pair in pairs for one in pair))
    started = time.process_time()
    assert len(bindings(wide, "x:_ -> s:Sigmoid -> m:Mul; x -> m")) == LINE
    assert len(bindings(wide, "p:Placeholder -> s:Sigmoid -> m:Mul; p -> m")) == LINE
    assert time.process_time() - started < 5


def test_the_bound_is_said_with_what_to_do() -> None:
    with pytest.raises(MatchError) as error:
        bindings(line(300), "* ->+ * ->+ *")
    for said in ("more than 1,006,040 steps", "name op types instead of *", "what a run starts"):
        assert said in str(error.value)


def test_an_absent_op_has_no_run_behind_it() -> None:
    with pytest.raises(GraphpatchError, match=r"column 8: an absent op has no run behind it"):
        bindings(line(3), "!Shape ->+ Conv2D ->+ BiasAdd:0")
