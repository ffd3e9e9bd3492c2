"""Write what the code knows into the pages of the reference, between their markers.

    python scripts/reference.py

It names the pages that it changed. tests/test_reference.py fails while a page is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the package of this checkout, whichever is installed

from pages import commands, formulas, gradients, outputs, patterns, rules  # noqa: E402

# For each page: what stands between `<!-- NAME -->` and `<!-- /NAME -->`.
PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "commands": {"commands": commands.sections},
    "formulas": {
        "operators": formulas.operators,
        "functions": formulas.functions,
        "constants": formulas.constants,
    },
    "gradients": {"table": gradients.table},
    "json": {"commands": outputs.table},
    "patterns": {"patterns": patterns.table},
    "rules": {name: partial(rules.table, name) for name in rules.TABLES},
}


def page(name: str) -> Path:
    """Return the file of a page of the reference."""
    return ROOT / "docs" / "reference" / f"{name}.md"


def gradient_page(name: str) -> Path:
    """Return the file of the page of a gradient."""
    return ROOT / "docs" / "reference" / "gradients" / f"{name}.md"


def with_tables(name: str, text: str) -> str:
    """Return a page's text with the tables as they are now. Exits where a marker is missing."""
    for part, table in PAGES[name].items():
        start, end = f"<!-- {part} -->", f"<!-- /{part} -->"
        if start not in text or end not in text:
            sys.exit(f"{page(name)} lacks the markers {start} and {end}")
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{table()}\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the pages, and remove those of gradients that are no more."""
    texts = {page(name): with_tables(name, page(name).read_text()) for name in PAGES}
    texts |= {gradient_page(name): text for name, text in gradients.pages().items()}
    for path in {*gradient_page("").parent.glob("*.md")} - texts.keys():
        path.unlink()
        print(f"removed: {path.relative_to(ROOT)}")
    for path, text in texts.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"changed: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
