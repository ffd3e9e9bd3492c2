"""Write the page of each model of a folder, open it in Chromium, and tell what went wrong.

Usage: view_models.py FOLDER [--keep DIR] [--screenshots DIR] [--only TEXT...]. A model that
graphpatch refuses with one message counts as refused; what counts as wrong is any other exception,
a message in the browser's console, a page that shows no line of those that it has, and one whose
header, rows and panel do not name the same op where a gradient ends. Says at the end how many
models were shown, with how many lines. Exits 1 where something is wrong.

`--screenshots` writes pictures of each page, 1,400 and 800 pixels wide, light and dark, with the
first op at which a gradient ends in the panel.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chromium import launched

import graphpatch
from graphpatch.errors import GraphpatchError

PATIENCE = 10  # seconds
SAVED_MODEL = "saved_model.pb"


def models(folder: Path) -> list[Path]:
    """Return the models in a folder: files, and folders of SavedModels."""
    found = [path for path in folder.rglob("*") if path.suffix in {".pb", ".pbtxt", ".meta"}]
    return sorted({path.parent if path.name == SAVED_MODEL else path for path in found})


def opened(page: Any, path: Path) -> Iterator[str]:
    """Yield what is wrong with a page."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.resolve().as_uri())
    yield from disagreeing(page)
    page.click("#open")
    lines, rows = page.evaluate(
        "[view.main.lines.length, document.querySelectorAll('.row').length]"
    )
    page.focus("#list")
    for key in ("b", "Enter", "End", "Enter"):
        page.keyboard.press(key)
    if lines and not rows:
        yield "it has lines, and shows none"
    yield from said


BLOCKER = """
number => {
  const verdict = document.querySelectorAll("#verdicts .verdict")[number];
  const link = verdict.querySelector(".link:not(.more)");
  if (!link) return null;
  link.click();
  const row = document.querySelector(".row[aria-selected=true]");
  const text = query => (document.querySelector(query) || {}).textContent || "";
  return {
    header: link.textContent, why: link.title, row: row ? row.textContent : "",
    title: row ? row.querySelector(".name").title : "", panel: text("#panel h2"),
    what: [...document.querySelectorAll("#panel .finding p:first-of-type")].map(p => p.textContent),
  };
}
"""


def disagreeing(page: Any) -> Iterator[str]:
    """Where the header, the row and the panel do not say the same of the op that blocks a pair."""
    for number in range(page.locator("#verdicts .verdict").count()):
        said = page.evaluate(BLOCKER, number)
        if said is None:
            continue
        if not said["row"]:
            yield f"the header names {said['header']!r}, which has no row"
        elif said["panel"] != f"{said['header'].partition(' ')[0]} {said['title']}":
            yield f"the header names {said['header']!r}, the panel {said['panel']!r}"
        elif said["why"] not in said["what"] or said["what"][0] not in said["row"]:
            yield f"{said['header']}: header, row and panel give other reasons: {said}"


def write_screenshots(browser: Any, page: Path, folder: Path) -> None:
    """Write how a page looks at two widths, light and dark, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, scheme in itertools.product((1400, 800), ("light", "dark")):
        opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.goto(page.resolve().as_uri())
        if width == 800 or scheme == "dark":
            opened.keyboard.press("b")
        opened.wait_for_timeout(50)
        opened.screenshot(path=folder / f"{page.stem}.{width}.{scheme}.png")
        opened.close()


def shown(path: Path, target: Path, browser: Any) -> tuple[int, list[str]]:
    """Return the lines of a model's page, written to `target`, and what is wrong with it."""
    try:
        view = graphpatch.view(path)
        view.save(target)
    except GraphpatchError:
        raise
    except Exception:
        return 0, [traceback.format_exc()]
    page = browser.new_page()
    faults = list(opened(page, target))
    page.close()
    return sum(len(body["names"]) for body in view.document()["bodies"]), faults


def tried(paths: Sequence[Path], folder: Path, out: Path, browser: Any) -> dict[str, int]:
    """Write and open the page of each of the models of a folder, and print what went wrong."""
    counts = {"shown": 0, "lines": 0, "refused": 0, "with faults": 0}
    out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        name = str(path.relative_to(folder)).replace("/", "__")
        begun = time.monotonic()
        try:
            lines, faults = shown(path, out / f"{name}.html", browser)
            counts["shown"] += 1
            counts["lines"] += lines
        except GraphpatchError as error:
            counts["refused"] += 1
            print(f"{name}: refused: {error}")
            continue
        counts["with faults"] += bool(faults)
        for fault in faults:
            print(f"{name}: {fault}")
        if time.monotonic() - begun > PATIENCE:
            print(f"{name}: {time.monotonic() - begun:.1f} s")
    return counts


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=Path, help="where the pages stay")
    parser.add_argument("--screenshots", type=Path, help="where pictures of the pages go")
    parser.add_argument(
        "--only", nargs="*", default=[""], help="models with such a text in the path"
    )
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    paths = [p for p in models(options.folder) if any(text in str(p) for text in options.only)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser, out = launched(playwright), options.keep or Path(folder)
        counts = tried(paths, options.folder, out, browser)
        for page in sorted(out.glob("*.html")) if options.screenshots else ():
            write_screenshots(browser, page, options.screenshots)
    print(", ".join(f"{count:,} {what}" for what, count in counts.items()))
    return 1 if counts["with faults"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
