"""What a process that was killed left behind beside an output, and its end."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

# As `formats.output` names what is not whole yet, and a folder that makes room.
LEFT = re.compile(r"\.(.+)\.\d+\.(tmp|old)")


def sweep(targets: Iterable[str]) -> None:
    """Take away what was left beside these outputs; an old folder goes back where none is."""
    names = defaultdict(set)
    for target in targets:
        names[Path(target).parent].add(Path(target).name)
    for folder, known in names.items():
        if folder.is_dir():
            for path in list(folder.iterdir()):
                found = LEFT.fullmatch(path.name)
                if found is not None and found[1] in known:
                    _end(path, folder / found[1], found[2])


def _end(path: Path, target: Path, kind: str) -> None:
    # What cannot be taken away here is in nobody's way: names are never used twice.
    with contextlib.suppress(OSError):
        if kind == "old" and not target.exists():
            path.rename(target)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
