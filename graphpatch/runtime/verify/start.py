"""TensorFlow in the process that runs a model: its start, and the settings that it runs under."""

from __future__ import annotations

import os
from typing import Any

from graphpatch.control_flow.contexts import has_tensor_arrays
from graphpatch.errors import GraphpatchError
from graphpatch.graph.model_graph import ModelGraph

ON = frozenset({"1", "true"})


def needs_control_flow_v1(graph: ModelGraph) -> bool:
    """Whether there are TensorArrays of v1 loops, and a Session differentiates them."""
    return not graph.around.is_object_based and has_tensor_arrays(graph.main)


def start(control_flow_v2: bool = True) -> None:
    """Import TensorFlow and let it look for devices. Raises GraphpatchError where it is missing.

    `control_flow_v2=False` calls `disable_control_flow_v2()`, as programs for v1 graphs do.
    """
    try:
        import tensorflow as tf

        if not control_flow_v2:
            tf.compat.v1.disable_control_flow_v2()
        with tf.Graph().as_default(), tf.compat.v1.Session():
            tf.config.list_physical_devices()
    except ImportError as error:
        raise GraphpatchError(
            "verify runs both models with TensorFlow, which is not installed here: pip install "
            "tensorflow; --no-run looks at the graphs alone (in Python: run=False)"
        ) from error


def settings() -> dict[str, Any]:
    """What decides which bits come out: the version, oneDNN, XLA, devices and threads."""
    import tensorflow as tf

    flags = os.environ.get("TF_XLA_FLAGS", "")
    return {
        "tensorflow": str(tf.__version__),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "").lower() in ON,
        "onednn_max_cpu_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "xla_flags": flags,
        "auto_clustering": bool(tf.config.optimizer.get_jit()) or "auto_jit=" in flags,
        "control_flow_v2": bool(tf.compat.v1.control_flow_v2_enabled()),
        "deterministic_ops": os.environ.get("TF_DETERMINISTIC_OPS", "0"),
        "devices": [device.device_type for device in tf.config.list_physical_devices()],
        "cores": os.cpu_count() or 1,
    }
