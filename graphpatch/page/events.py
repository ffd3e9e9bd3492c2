"""A model for TensorBoard: its graph with ops coloured by rule, and the sizes of gradients.

TensorBoard colours ops by device or by cluster. So the rule at an op stands as its device and its
cluster in the event file, which is for looking at alone.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphpatch.errors import OutputError
from graphpatch.formats import Model
from graphpatch.formats.destination import reported
from graphpatch.graph.attrs import as_json
from graphpatch.graph.node import Node, attr_value
from graphpatch.page.view import View
from graphpatch.protos import AttrValue, Event, GraphDef, NodeDef, Summary
from graphpatch.shown import one_line

CLUSTER = "_XlaCluster"
SMALL_ATTR = 1 << 10  # bytes of an attr that is written; weights are not
TAG = "largest gradient on the way back"


def write_events(view: View, folder: Path) -> list[Path]:
    """Write an event file for each model of a page, in a folder of its own, and return them.

    Raises OutputError where they cannot be written.
    """
    document = view.document()
    written = []
    for number, model in enumerate(view.models):
        role = document["models"][number]["role"]
        path = folder / role / f"events.out.tfevents.{int(time.time())}.graphpatch"
        if path.parent.is_file():
            raise OutputError(f"{path.parent} is a file, and TensorBoard reads folders")
        with reported(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for event in _events(document, model, number):
                    file.write(_record(event.SerializeToString()))
        written.append(path)
    return written


def _record(data: bytes) -> bytes:
    """Frame an event as TensorFlow's record files do: length, checksum, data, checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    """Return the masked CRC-32C of record files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


CRC_TABLE = list(range(256))  # of the Castagnoli polynomial
for _ in range(8):
    CRC_TABLE = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in CRC_TABLE]


def _events(document: Mapping[str, Any], model: Model, number: int) -> Iterator[Event]:
    now = time.time()
    yield Event(wall_time=now, file_version="brain.Event:2")
    graph, graph_document = model.graphs[0], document["graphs"][0]
    body = document["bodies"][graph_document["body"]]
    names, marked = body["names"], body["marks"].items()
    rules = {names[row]: document["rules"][marks[0]]["name"] for row, marks in marked}
    # A rule adds nodes below the name of the op that it is for.
    owners = ((node, rules.get(node.name.rpartition("/")[0], "")) for node in graph.main)
    nodes = [_event_node(node, rules.get(node.name, owner)) for node, owner in owners]
    yield Event(wall_time=now, graph_def=GraphDef(node=nodes).SerializeToString())
    ran = document["run"]["graphs"][0]["sizes"] if document["run"] else None
    for row, sizes in ran["lines"].items() if ran else ():
        if isinstance(sizes[number], float):
            summary = Summary(value=[Summary.Value(tag=TAG, simple_value=sizes[number])])
            yield Event(wall_time=now, step=row, summary=summary)


def _event_node(node: Node, rule: str) -> NodeDef:
    """Return a node without weights, the rule at it as its device and its cluster."""
    event_node = NodeDef(name=node.name, op=node.op, input=node.inputs)
    for key, span in node.attr_spans().items():
        if span.end - span.start < SMALL_ATTR and not key.startswith("_"):
            value = attr_value(span)
            event_node.attr[key].CopyFrom(
                AttrValue(s=repr(as_json(value)).encode()) if value.HasField("tensor") else value
            )
    if rule:
        event_node.device = f"/rule: {one_line(rule)}"
        event_node.attr[CLUSTER].s = one_line(rule).encode()
    return event_node
