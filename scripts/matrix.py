"""Print which TensorFlow does what with a patched file: the table of docs/runtimes.md.

    .venv/bin/python scripts/matrix.py                    # with the TensorFlows that are here
    .venv/bin/python scripts/matrix.py --install          # and with all others, by pip
    .venv/bin/python scripts/matrix.py --install --write  # write the page's table

Each TensorFlow runs in an environment of its own under --folder, and reads the same files. Those
that pip cannot install here are named and left out. Exits 1 where a runtime is silently wrong, or
a tool changes the forward pass.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CONSUMER = ROOT / "scripts" / "matrix_consumer.py"
PAGE = ROOT / "docs" / "runtimes.md"
MARKS = "<!-- matrix -->\n", "<!-- /matrix -->"


class Runtime(NamedTuple):
    """A TensorFlow: the Python that has wheels for it, and what pip is to install."""

    version: str
    python: str
    packages: tuple[str, ...]


OLD = ("protobuf<3.21",)
RUNTIMES = (
    Runtime("1.13", "3.7", ("tensorflow==1.13.2", "numpy<1.19", *OLD)),
    Runtime("1.14", "3.7", ("tensorflow==1.14.0", "numpy<1.19", *OLD)),
    Runtime("1.15", "3.7", ("tensorflow==1.15.5", *OLD)),
    Runtime("2.1", "3.7", ("tensorflow-cpu==2.1.*", *OLD)),
    Runtime("2.4", "3.8", ("tensorflow-cpu==2.4.*", *OLD)),
    Runtime("2.8", "3.9", ("tensorflow-cpu==2.8.*", "numpy<1.24", *OLD)),
    Runtime("2.12", "3.11", ("tensorflow-cpu==2.12.*",)),
    Runtime("2.15", "3.11", ("tensorflow-cpu==2.15.*",)),
    Runtime("2.16", "3.11", ("tensorflow-cpu==2.16.*",)),
    Runtime("2.18", "3.11", ("tensorflow-cpu==2.18.*",)),
    Runtime("2.21", "3.11", ("tensorflow-cpu==2.21.*",)),
)


def interpreter(version: str) -> str | None:
    """Return a Python of this version, on the path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in found:
        code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
        try:
            if subprocess.run([candidate, "-c", code], capture_output=True).returncode == 0:
                return candidate
        except OSError:
            continue
    return None


def present(runtime: Runtime, folder: Path) -> str | None:
    """Return a Python that has this TensorFlow already."""
    here = folder / "runtimes" / runtime.version
    candidates = [str(here / "bin" / "python"), sys.executable]
    candidates += [os.environ.get("GRAPHPATCH_TF1_PYTHON", "")]
    code = "from importlib import metadata as m; print(m.version('tensorflow'))"
    for candidate in filter(None, candidates):
        for name in ("tensorflow", "tensorflow-cpu"):
            asked = [candidate, "-c", code.replace("'tensorflow'", f"'{name}'")]
            found = _said(asked) or _said([candidate, "-c", _OLD.format(name)])
            if found and (found + ".").startswith(runtime.version + "."):
                return candidate
    return None


# Before Python 3.8 there is no importlib.metadata.
_OLD = "import pkg_resources as p; print(p.get_distribution('{}').version)"


def _said(command: list[str]) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def install(runtime: Runtime, folder: Path) -> str | None:
    """Return a new environment with it; None, with the reason on stderr, where there is none."""
    python = interpreter(runtime.python)
    if python is None:
        print(f"TensorFlow {runtime.version}: no Python {runtime.python} here", file=sys.stderr)
        return None
    here = folder / "runtimes" / runtime.version
    print(f"installing TensorFlow {runtime.version}", file=sys.stderr)
    subprocess.run([python, "-m", "venv", "--clear", here], check=True)
    inside = str(here / "bin" / "python")
    pip = [inside, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    if subprocess.run([*pip, *runtime.packages]).returncode:
        print(f"TensorFlow {runtime.version} does not install here", file=sys.stderr)
        return None
    return inside


def measure(python: str, files: Path, output: Path) -> dict[str, Any]:
    """Return what this TensorFlow does with the files. A process that it ends is started again."""
    output.unlink(missing_ok=True)
    log = output.with_suffix(".log")
    for _ in range(50):
        with log.open("a") as file:
            run = subprocess.run([python, CONSUMER, files, output], stdout=file, stderr=file)
        if run.returncode == 0:
            found: dict[str, Any] = json.loads(output.read_text())
            return found
    raise SystemExit(f"{python}: ends again and again; see {log}")


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table for each way; a row has the newest TensorFlow first, then the others."""
    ways: dict[str, dict[str, None]] = {}
    for document in found.values():
        for name, row in document["rows"].items():
            for way in row:
                ways.setdefault(way, {})[name] = None
    *earlier, newest = found
    lines = []
    for way, names in ways.items():
        lines += [f"### {way}", "", f"| file | {newest} | earlier |", "|---|---|---|"]
        for name in names:
            cells = {
                version: one["rows"].get(name, {}).get(way, "-") for version, one in found.items()
            }
            lines.append(f"| {name} | {cells.pop(newest)} | {_runs(cells, earlier)} |")
        lines.append("")
    return "\n".join(lines)


def _runs(cells: Mapping[str, str], versions: Sequence[str]) -> str:
    """Return what versions do, those that do the same together: `1.14 to 2.18 right`."""
    runs = [(said, list(some)) for said, some in groupby(versions, key=cells.__getitem__)]
    return "; ".join(
        f"{some[0]} to {some[-1]} {said}" if len(some) > 1 else f"{some[0]} {said}"
        for said, some in reversed(runs)
        if said != "-"
    )


def written(page: str, table: str) -> str:
    """Return the page with this table between its marks."""
    start, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return page[:start] + f"Measured on {today}.\n\n{table}" + page[end:]


# A gradient that is not the rule's, and nobody is told: this must never be said of a runtime.
LOST = frozenset({"default", "none", "zeros", "wrong"})
CHANGED = "forward differs"

# What rewrites a patched file. It knows nothing of gradients: what it loses, the page tells of.
OFFLINE = frozenset(
    {
        "Grappler offline",
        "optimize_for_inference",
        "strip_unused",
        "remove_training_nodes",
        "extract_sub_graph",
    }
)


def cells(found: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[str, str, str, str]]:
    """Each version, way and file, with what came of it."""
    for version, document in found.items():
        for name, row in document["rows"].items():
            for way, said in row.items():
                yield version, way, name, said


def silent(found: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Yield what must not be: a runtime is silently wrong, or anything changes the forward pass."""
    for version, way, name, said in cells(found):
        if said == CHANGED or (said in LOST and way not in OFFLINE):
            yield f"TensorFlow {version}, {way}, {name}: {said}"


def lost(found: Mapping[str, Mapping[str, Any]]) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """By offline tool and file: in which versions the tool silently loses the gradient, and how."""
    out: dict[tuple[str, str], dict[str, str]] = {}
    for version, way, name, said in cells(found):
        if way in OFFLINE and said in LOST:
            out.setdefault((way, name), {})[version] = said
    return out


def patch_last(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section that says what is lost where a tool rewrites a patched file."""
    lines = ["### Patch last", "", "| tool | file | silently lost |", "|---|---|---|"]
    for (way, name), versions in lost(found).items():
        said = ", ".join(f"{version} ({how})" for version, how in versions.items())
        lines.append(f"| {way} | {name} | {said} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    parser.add_argument("--runtimes", nargs="*", help="1.15 2.21: these alone")
    parser.add_argument("--install", action="store_true", help="what is not here, by pip")
    parser.add_argument("--write", action="store_true", help="write the table of docs/runtimes.md")
    options = parser.parse_args()
    import matrix_files

    matrix_files.build(options.folder / "files")
    found = {}
    for runtime in RUNTIMES:
        if options.runtimes and runtime.version not in options.runtimes:
            continue
        python = present(runtime, options.folder)
        if python is None and options.install:
            python = install(runtime, options.folder)
        if python is not None:
            output = options.folder / f"{runtime.version}.json"
            found[runtime.version] = measure(python, options.folder / "files", output)
    table = f"{markdown(found)}\n{patch_last(found)}"
    print(table)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), table))
    faults = list(silent(found))
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
