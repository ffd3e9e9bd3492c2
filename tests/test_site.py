"""The site of the documentation: each page has a place in its navigation, once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.examples import ROOT


def test_every_page_has_a_place_in_the_navigation() -> None:
    settings = (ROOT / "scripts/pages/mkdocs.yml").read_text()
    named = re.findall(r"^ +- ([\w./-]+\.md)$", settings.partition("\nnav:\n")[2], re.M)
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    found = [str(path) for path in pages if path.parent != Path("reference/gradients")]
    assert Counter(named) == Counter(found)
