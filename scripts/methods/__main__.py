"""Print the table of methods x models, and make its heat maps.

Usage: python scripts/methods --models FOLDER [--only LABEL] [--write] [--pictures FOLDER].
FOLDER has the real models. Each cell says how many ops the recipe patches, and the largest
difference of the attribution from that of the method as its peers have it (peers.py), as a part of
its largest element. --write puts the table into docs/methods-on-models.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf

from methods import maps, peers
from methods.measure import PLAIN, Found, attribution, measured, message
from methods.models import ROOT, SUBJECTS, Subject

PAGE = ROOT / "docs" / "methods-on-models.md"
BEGIN, END = "<!-- methods -->", "<!-- /methods -->"


def row(subject: Subject, folder: Path) -> dict[str, Found]:
    """Each method on a model."""
    path = folder / subject.file
    values = attribution(message(path), subject, subject.given, 0)
    top = int(np.argmax(values[0][0])) if subject.index is None else 0
    values = attribution(message(path), subject, subject.given, top)
    plain = values[2][0] if subject.batch else values[2]
    found = {PLAIN: Found(plain, 0.0, 0)}
    for method in peers.METHODS:
        found[method] = measured(method, path, subject, top)
        print(f"{subject.label}  {method}  {found[method].told}", file=sys.stderr, flush=True)
    return found


def table(rows: dict[str, dict[str, Found]], before: str = "") -> str:
    """Return the table as Markdown; models that were not run keep their lines of `before`."""
    methods = list(peers.METHODS)
    lines = [f"| model | {' | '.join(f'`{one}`' for one in methods)} |"]
    lines.append("|" + "---|" * (len(methods) + 1))
    for one in SUBJECTS:
        start = f"| {one.label}: {one.kind} |"
        if one.label in rows:
            cells = " | ".join(rows[one.label][method].told for method in methods)
            lines.append(f"{start} {cells} |")
        else:
            lines += [line for line in before.splitlines() if line.startswith(start)]
    return "\n".join(lines)


def written(rows: dict[str, dict[str, Found]], page: Path) -> None:
    """Put the table between its marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(rows, old)}\n{END}{after}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", action="append", help="the label of a model; may be repeated")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pictures", type=Path)
    options: Any = parser.parse_args(arguments)
    tf.compat.v1.disable_control_flow_v2()
    peers.register()
    chosen = [one for one in SUBJECTS if not options.only or one.label in options.only]
    rows = {one.label: row(one, options.models) for one in chosen}
    print(table(rows))
    if options.write:
        written(rows, PAGE)
    for one in chosen if options.pictures else ():
        path = maps.save(one, rows[one.label], options.pictures)
        print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
