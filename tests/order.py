"""Which files run first: the longest, so that no processor waits for the other at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# As pytest -m "" --durations=60 has them. A file that is not here comes after these.
LONGEST = (
    "robustness/test_fuzz.py",
    "models/test_override_map.py",
    "test_wheel.py",
    "models/test_doctor.py",
    "models/test_verify.py",
    "tf/test_matrix.py",
    "models/test_zoo.py",
    "models/test_backward_as.py",
    "tf/test_gradient_table.py",
    "fleet/test_cluster.py",
    "test_docs.py",
    "page/test_browser.py",
    "tf/test_saved_model_out.py",
    "tf/test_verify.py",
    "tf/test_places.py",
    "tf/test_linear.py",
    "tf/test_keras_layers.py",
    "cli/test_bad_output.py",
)
PLACES = {HERE / name: place for place, name in enumerate(LONGEST)}


def longest_first(items: list[Any]) -> None:
    """Sort collected tests by their files; the tests of a file stay in their order."""
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))
