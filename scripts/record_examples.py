"""Run the console examples of README.md and docs again and write down what they print now.

    python scripts/record_examples.py                   every page
    python scripts/record_examples.py docs/doctor.md    these pages

Look at the difference before you commit it: tests/test_docs.py holds the
pages to what the commands print, and this script makes the pages agree.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.examples import pages, ran  # noqa: E402
from tests.pinned import PINNED  # noqa: E402

os.environ.update(PINNED)  # as tests run them

BLOCK = re.compile(r"(?<=```console\n)(.*?)(?=```)", re.S)


def recorded(page: str) -> str:
    """Return the text of a page with what its commands print now, in the order of the page."""
    return BLOCK.sub(lambda found: _again(found[0]), page)


def _again(block: str) -> str:
    command = block.partition("\n")[0]
    run = ran(block)
    return "\n".join(filter(None, [command, (run.stdout + run.stderr).strip()])) + "\n"


def main() -> None:
    """Record the pages that are named, or all."""
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        before = path.read_text()
        after = recorded(before)
        if after != before:
            path.write_text(after)
            print(f"changed: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
