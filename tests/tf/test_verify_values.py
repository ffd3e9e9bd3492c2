"""How far apart `verify` says that values are, beside NaN and infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphpatch.runtime.values import distance

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(("before", "after", "apart"), [
    ([1.0, -4.0], [1.0, -3.0], (1.0, 0.25)),
    ([NAN, -4.0], [NAN, -3.0], (1.0, 0.25)),
    ([INF, -4.0], [INF, -3.0], (1.0, 0.25)),
    ([INF, -INF, NAN], [INF, -INF, NAN], (0.0, 0.0)),
    ([INF, 1.0], [-INF, 1.0], (INF, INF)),
    ([NAN, 1.0], [0.0, 1.0], (INF, INF)),
    ([0.0, 1.0], [0.0, NAN], (INF, INF)),
    ([0.0], [1e-9], (1e-9, INF)),
    ([0.0], [0.0], (0.0, 0.0)),
    ([], [], (0.0, 0.0)),
    ([1 + 1j, complex(NAN, 0)], [1 + 2j, complex(NAN, 0)], (1.0, 2**-0.5)),
])  # fmt: skip
def test_elements_that_are_not_finite_hide_none(before: Any, after: Any, apart: Any) -> None:
    assert distance(np.array(before), np.array(after)) == pytest.approx(apart)
