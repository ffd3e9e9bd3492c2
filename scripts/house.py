"""Count the modules of the package, their lines, and the names that stand more than once.

Usage: house.py [COMMIT...]: a column for each commit, and one for the checkout. Names are those of
functions, classes and constants at the top of a module; `command` and `__all__` are none of them.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
WATCHED = ("MOST", "KINDS", "_named", "Step", "Way", "Place", "Asked", "COLLECTION", "ENTERS",
           "SWITCHES", "FED", "VARIABLES")  # fmt: skip
CONTROL_FLOW = ("frames", "branches", "contexts", "control_flow", "rebuilt", "pruned",
                "known_values")  # fmt: skip


def texts_at(commit: str) -> dict[str, str]:
    """The modules of the package at a commit, by their path."""
    words = ["git", "archive", commit, "graphpatch"]
    packed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".py") else None
            if file is not None:
                found[member.name] = file.read().decode()
    return found


def texts_now() -> dict[str, str]:
    """The modules of the checkout."""
    paths = sorted((ROOT / "graphpatch").rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def defined(text: str) -> Iterator[str]:
    """The names that a module defines at its top."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (one.id for one in targets if isinstance(one, ast.Name))


def counts(texts: dict[str, str]) -> dict[str, int]:
    """The figures of one state of the package."""
    names = Counter(name for text in texts.values() for name in set(defined(text)))
    for name in ("command", "__all__"):
        del names[name]
    public = {name: count for name, count in names.items() if not name.startswith("_")}
    private = names.keys() - public.keys()
    lines = sorted(len(text.splitlines()) for text in texts.values())
    return {
        "modules": len(texts),
        "lines": sum(lines),
        "lines of a module, median": lines[len(lines) // 2],
        "rooms that hold v1 control flow": len(_rooms(texts)),
        "public names in several modules": sum(count > 1 for count in public.values()),
        "public names in four or more": sum(count > 3 for count in public.values()),
        "private names in several modules": sum(names[name] > 1 for name in private),
        "private names in four or more": sum(names[name] > 3 for name in private),
        **{f"modules that define {name}": names[name] for name in WATCHED},
    }


def _rooms(texts: dict[str, str]) -> set[str]:
    paths = (Path(path) for path in texts)
    return {path.parts[1] for path in paths if len(path.parts) == 3 and path.stem in CONTROL_FLOW}


def main() -> None:
    """Print the figures as a table of Markdown."""
    commits = sys.argv[1:]
    columns = [*(counts(texts_at(one)) for one in commits), counts(texts_now())]
    print("| | " + " | ".join([*commits, "now"]) + " |")
    print("|---|" + "---:|" * len(columns))
    for key in columns[-1]:
        print(f"| {key} | " + " | ".join(f"{column[key]:,}" for column in columns) + " |")


if __name__ == "__main__":
    main()
