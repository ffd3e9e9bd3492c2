"""Write the library of gradients and the ready patterns into the README, between their markers."""

from __future__ import annotations

import sys
from pathlib import Path

from graphpatch.analysis import gradients, patterns

README = Path(__file__).parent.parent / "README.md"
TABLES = {"gradients": gradients.markdown, "patterns": patterns.markdown}


def with_tables(text: str) -> str:
    """The README's text with the tables as they are now. Exits where a marker is missing."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if start not in text or end not in text:
            sys.exit(f"README.md lacks the markers {start} and {end}")
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{table()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
