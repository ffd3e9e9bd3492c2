"""Write the table of ready patterns into the README, between its two markers."""

from __future__ import annotations

import sys
from pathlib import Path

from graphpatch.analysis.patterns import markdown

README = Path(__file__).parent.parent / "README.md"
START, END = "<!-- patterns -->", "<!-- /patterns -->"


def with_table(text: str) -> str:
    """The README's text with the table as it is now."""
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    return f"{before}{START}\n{markdown()}\n{END}{after}"


def main() -> None:
    text = README.read_text()
    if START not in text or END not in text:
        sys.exit(f"README.md lacks the markers {START} and {END}")
    README.write_text(with_table(text))


if __name__ == "__main__":
    main()
