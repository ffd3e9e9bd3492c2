"""Print the lowest versions that setup.cfg allows, as pip takes them: `click==8.1`.

lower_bounds.py [EXTRA...]    of install_requires, and of these extras
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lowest(requirements: str) -> list[str]:
    """Return the requirements, each at its lower bound. Raises ValueError where one has none."""
    found = []
    for line in filter(None, map(str.strip, requirements.splitlines())):
        bound = re.fullmatch(r"([\w.\-]+)>=([\w.]+)(?:,.*)?", line)
        if bound is None:
            raise ValueError(f"setup.cfg: expected NAME>=VERSION, found {line!r}")
        found.append(f"{bound[1]}=={bound[2]}")
    return found


def main(extras: list[str]) -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    told = [metadata["options"]["install_requires"]]
    told += [metadata["options.extras_require"][extra] for extra in extras]
    print(*(line for text in told for line in lowest(text)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
