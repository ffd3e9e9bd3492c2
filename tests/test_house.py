"""The figures of docs/ARCHITECTURE.md are those of the package, but for its size."""

from __future__ import annotations

import re
import sys

from tests.examples import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import house

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
GROWING = ("modules", "lines", "lines of a module, median")
ROW = re.compile(r"^\| ([^|]+) \|(?: [\d,]+ \|){2} ([\d,]+) \|$", re.M)


def test_the_figures_of_names_are_those_of_the_package() -> None:
    now = house.counts(house.texts_now())
    told = {name: int(count.replace(",", "")) for name, count in ROW.findall(PAGE)}
    assert told.keys() == now.keys()
    assert {key: told[key] for key in now if key not in GROWING} == {
        key: count for key, count in now.items() if key not in GROWING
    }
