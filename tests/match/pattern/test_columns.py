"""The links of a body as columns, against its inputs read one after the other."""

from __future__ import annotations

import random

from graphpatch import names
from graphpatch.match.pattern.columns import links
from tests import graphs
from tests.graphs import graphdef, node


def test_the_links_are_those_of_the_inputs() -> None:
    drawn = random.Random(7)
    spelled = ("{}", "{}:0", "{}:1", "^{}")
    nodes = [node("n0", "Split")]
    for count in range(1, 60):
        reads = [
            drawn.choice(spelled).format(f"n{drawn.randrange(count)}")
            for _ in range(drawn.randrange(4))
        ]
        nodes.append(node(f"n{count}", drawn.choice(["Relu", "Add"]), *reads))
    main = graphs.opened(graphdef(*nodes)).main
    columns = links(main)
    assert list(
        zip(columns.source, columns.reader, columns.slot, columns.control, strict=True)
    ) == [
        (main.by_name[names.op_of(text)], reader, slot, text[0] == "^")
        for reader, one in enumerate(nodes)
        for slot, text in enumerate(one.input)
    ]
    assert columns.are(["Relu"]).tolist() == [one.op == "Relu" for one in nodes]


def test_what_is_not_in_the_body_is_no_link() -> None:
    body = node("a", "Relu", "argument"), node("b", "Relu", "a:0")
    main = graphs.opened(graphdef(*body)).main
    columns = links(main)
    assert (columns.source.tolist(), columns.reader.tolist(), columns.slot.tolist()) == (
        [0],
        [1],
        [0],
    )
