"""Inputs that broke graphpatch 0.1, made anew; and what no command may do with any of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphpatch.protos import FunctionDef, GraphDef
from tests.graphs import attr, function, graphdef, node
from tests.test_shown import RAW, ran

LENGTH = 5_000  # characters of a message
COMMANDS = (
    ("ops", "MODEL"),
    ("apply", "guided.json", "MODEL", "-o", "out.pb"),
    ("apply", "stop.json", "MODEL", "-o", "out.pb"),
    ("match", "guided.json", "MODEL", "--explain"),
    ("check", "guided.json", "MODEL"),
    ("diff", "MODEL", "MODEL"),
    ("revert", "MODEL", "-o", "back.pb"),
    ("doctor", "MODEL"),
    ("doctor", "MODEL", "--fix", "fixed.json"),
    ("view", "MODEL", "-o", "page.html"),
    ("view", "MODEL", "--rules", "guided.json", "-o", "page.html"),
    ("recipes", "@reverse(at=MODEL)"),
    ("apply", "@guided_backprop", "MODEL", "--dry-run"),
    ("verify", "--no-run", "MODEL", "MODEL"),
)


def workspace(folder: Path) -> None:
    """Write the rules that the commands read."""
    patches = {"guided": {"override_gradient": "guided_relu"}, "stop": {"stop_gradient": True}}
    for name, patch in patches.items():
        rules = {"version": 1, "rules": [{"match": {"op": "Relu"}, "patch": patch}]}
        (folder / f"{name}.json").write_text(json.dumps(rules))


def check(args: Sequence[str]) -> None:
    """Run a command, and fail where it does what 0.1 did; some would not end today."""
    code, text = ran(*args)
    assert code in (0, 1), text
    assert "Traceback" not in text
    assert not RAW.search(text)
    assert max(map(len, text.splitlines()), default=0) < LENGTH


def on(model: str, command: Sequence[str]) -> list[str]:
    """A command with the model in its place."""
    return [word.replace("MODEL", model) for word in command]


X = node("x", "Placeholder", dtype=attr("float32"))


def forged(*entries: object) -> GraphDef:
    """A Relu with provenance that nobody of us wrote."""
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in entries]
    return graphdef(X, node("y", "Relu", "x", T=attr("float32"), _graphpatch=texts))


def calling(name: str, other: str) -> FunctionDef:
    """A function that calls a function."""
    return function(name, ["a"], [node("r", "Relu", "a"), node("c", other, "r:activations:0")],
        {"o": "c:o:0"})  # fmt: skip


def _constant(**tensor: Any) -> GraphDef:
    const = node("c", "Const")
    const.attr["value"].tensor.MergeFrom(type(const.attr["value"].tensor)(**tensor))
    return graphdef(X, const, node("y", "Relu", "x"))


MODELS: dict[str, GraphDef] = {
    "a control input first": graphdef(X, node("y", "Relu", "^x", "x"), node("z", "Mul", "y", "x")),
    "escapes in a name": graphdef(X, node("\x1b]0;pwned\x07\x1b[31mred\x1b[2J", "Relu", "x")),
    "a half out of range": _constant(dtype=19, half_val=[226476016]),
    "a huge constant": _constant(
        dtype=1, tensor_shape={"dim": [{"size": 1 << 40}]}, float_val=[1.0]
    ),
    "calls itself": graphdef(X, node("y", "f", "x"), functions=[calling("f", "f")]),
    "call each other": graphdef(
        X, node("y", "f", "x"), functions=[calling("f", "g"), calling("g", "f")]
    ),
    "provenance of bytes": forged(b"\xff\xfe"),
    "provenance in depth": forged(b"[" * 100_000),
    "colocated with bytes": graphdef(X, node("y", "Relu", "x", _class=[b"loc:@\xff", b"loc:@x"])),
    "not a number": graphdef(X, node("y", "LeakyRelu", "x", alpha=float("nan"))),
    "markup in a name": graphdef(X, node("</script><script>alert(1)</script>", "Relu", "x")),
    "a chain": graphdef(
        X, node("r0", "Relu", "x"), *(node(f"r{n}", "Relu", f"r{n - 1}") for n in range(1, 1_000))
    ),
}


def deep_calls(depth: int = 1_500) -> GraphDef:
    """Functions that call each other, this deep."""
    functions = [calling(f"f{n}", f"f{n + 1}") for n in range(depth)]
    last = function(f"f{depth}", ["a"], [node("r", "Relu", "a")], {"o": "r:activations:0"})
    return graphdef(X, node("y", "f0", "x"), functions=[*functions, last])


# Rules by their key: what hung, crashed, or filled the terminal.
RULES: dict[str, tuple[str, str]] = {
    "an op that is not there": ("pattern", "!Shape ->+ Conv2D ->+ BiasAdd:0"),
    "repeats": ("name_regex", "aa?{9999999999}({1,1000}|(?i){1,1000}"),
    "backtracking": ("name_regex", "(a+)+$"),
    "wildcards": ("name", "******é"),
    "scopes": ("name", "**/" * 50 + "*"),
    "anything": ("pattern", "d:*? -> *? ->+ *:1"),
    "runs": ("pattern", "* ->+ * ->+ * ->+ * ->+ *"),
    "links": ("pattern", " -> ".join("*" * 56)),
    "too many links": ("pattern", " -> ".join("*" * 1_000)),
    "a captured run": ("pattern", "a:* ->+ *"),
    "a long number": ("formula", "9" * 100_000),
    "brackets": ("formula", "(" * 100_000 + "dy" + ")" * 100_000),
}


def nested_rules(depth: int = 400) -> bytes:
    """A rules file whose match is nested this deep."""
    match = '{"not":' * depth + '{"op":"Relu"}' + "}" * depth
    patch = '"patch":{"stop_gradient":true}'
    return f'{{"version":1,"rules":[{{"match":{match},{patch}}}]}}'.encode()
