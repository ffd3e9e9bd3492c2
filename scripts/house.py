"""Count what the package weighs, room by room: lines, code lines, tokens, modules.

Usage: house.py [--record] [COMMIT...]: a table for each commit, and one for the checkout. Lines
include the page's HTML, CSS and JavaScript. Code lines are without blanks, comments, docstrings and
imports. `--record` writes the lines into the table of docs/ARCHITECTURE.md, and lowers the budgets
of rooms that shrank: to a fiftieth more than they weigh, and to the goal at the lowest.
tests/test_house.py fails where a room is heavier.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
COUNTED = (".py", ".pyi", ".js", ".css", ".html")
GOALS = {
    "graph": 2_200, "control_flow": 1_300, "formats": 1_800, "differentiation": 1_900,
    "match": 3_300, "gradients": 4_600, "patches": 2_700, "analysis": 3_700, "runtime": 6_000,
    "page": 2_600, "fleet": 900, "cli": 1_700, "rules and the rest": 2_300,
}  # fmt: skip
"""What each room may weigh in the end; together 35,000 lines."""
SAYS_NOTHING = set("found one told given kept there left way look held seen other".split())
MOST_THAT_SAY_NOTHING = 150
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


class Weight(NamedTuple):
    """What a room, or the whole package, weighs; `vague` are bindings of names that say nothing."""

    lines: int = 0
    code: int = 0
    tokens: int = 0
    modules: int = 0
    vague: int = 0

    @classmethod
    def sum_of(cls, weights: Iterable[Weight]) -> Weight:
        return cls(*map(sum, zip(cls(), *weights, strict=True)))


def texts_at(commit: str) -> dict[str, str]:
    """Return the files of the package at a commit, by their path."""
    words = ["git", "archive", commit, "graphpatch"]
    packed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(COUNTED) else None
            if file is not None:
                texts[member.name] = file.read().decode()
    return texts


def texts_now() -> dict[str, str]:
    """Return the files of the checkout."""
    paths = sorted(path for path in (ROOT / "graphpatch").rglob("*") if path.suffix in COUNTED)
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def weight_of(path: str, text: str) -> Weight:
    """Weigh one file."""
    lines = text.count("\n")
    if not path.endswith((".py", ".pyi")):
        return Weight(lines)
    tree, skipped, vague = ast.parse(text), set[int](), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(_lines_of(node))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                skipped.update(_lines_of(node.body[0]))
        elif isinstance(node, ast.Name):
            vague += isinstance(node.ctx, ast.Store) and node.id in SAYS_NOTHING
        elif isinstance(node, ast.arg):
            vague += node.arg in SAYS_NOTHING
    code, tokens = set[int](), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        lines_of_token = set(range(token.start[0], token.end[0] + 1))
        if token.type not in NO_CODE and not lines_of_token <= skipped:
            tokens += 1
            code |= lines_of_token
    return Weight(lines, len(code - skipped), tokens, path.endswith(".py"), vague)


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def room_of(path: str) -> str:
    """Return the room of a file, as GOALS names it."""
    name = Path(path).parts[1].removesuffix(".py")
    return name if name in GOALS else "rules and the rest"


def rooms(texts: Mapping[str, str]) -> dict[str, Weight]:
    """Weigh each room."""
    weights: dict[str, list[Weight]] = {room: [] for room in GOALS}
    for path, text in texts.items():
        weights[room_of(path)].append(weight_of(path, text))
    return {room: Weight.sum_of(parts) for room, parts in weights.items()}


ROW = re.compile(r"^\| ([a-z_ ]+) \| +([\d,]+) \| +([\d,]+) \|$", re.M)
VAGUE = "names that say nothing"


def budgets(page: str) -> dict[str, int]:
    """Read what each room may weigh from the table of the page."""
    return {name: int(most.replace(",", "")) for name, _, most in ROW.findall(page)}


def recorded(page: str, weights: Mapping[str, Weight]) -> str:
    """Write the weights into the table of the page, and lower the budgets that they allow.

    A fiftieth more than a room weighs stays, and at least 100 lines: what a recipe of CONTRIBUTING
    adds to one room, a kind of patch with its docstrings, takes up to 80.
    """
    now = {room: weight.lines for room, weight in weights.items()}
    now[VAGUE] = Weight.sum_of(weights.values()).vague
    goals = {**GOALS, VAGUE: MOST_THAT_SAY_NOTHING}

    def row(match: re.Match[str]) -> str:
        name, most = match[1], int(match[3].replace(",", ""))
        room_to_grow = now[name] + max(now[name] // 50, 100)
        budget = max(goals[name], min(most, -(-room_to_grow // 10) * 10))
        return f"| {name} | {now[name]:,} | {budget:,} |"

    return ROW.sub(row, page)


def print_table(title: str, weights: Mapping[str, Weight]) -> None:
    """Print the weights as a table of Markdown."""
    print(f"\n| {title} | " + " | ".join(Weight._fields) + " |\n|---" + "|---:" * 5 + "|")
    for room, weight in {**weights, "all": Weight.sum_of(weights.values())}.items():
        print(f"| {room} | " + " | ".join(f"{figure:,}" for figure in weight) + " |")


def main() -> None:
    """Print the tables; with --record, write that of docs/ARCHITECTURE.md."""
    commits = [word for word in sys.argv[1:] if word != "--record"]
    for commit in commits:
        print_table(commit, rooms(texts_at(commit)))
    weights = rooms(texts_now())
    print_table("now", weights)
    if "--record" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(recorded(page, weights), encoding="utf-8")


if __name__ == "__main__":
    main()
