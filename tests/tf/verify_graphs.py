"""Models for `verify`: patched in a file beside, and changed in their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import graphpatch

GUIDED = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def patched_beside(path: Path, *rules: Any) -> Path:
    """The model in this file, patched, in a file or folder beside it."""
    target = path.with_name(f"patched_{path.name}")
    graphpatch.apply(list(rules), graphpatch.load(path)).model.save(target)
    return target


def edited(path: Path, edit: Any) -> Path:
    """The file, its GraphDef changed by `edit`, which gets its nodes by name too."""
    message = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    nodes: Mapping[str, Any] = {node.name: node for node in message.node}
    edit(message, nodes)
    path.write_bytes(message.SerializeToString())
    return path
