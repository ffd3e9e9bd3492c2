"""The site of the documentation: each page has a place in its navigation, once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.examples import ROOT, pages

NAVIGATION = (ROOT / "scripts/pages/mkdocs.yml").read_text().partition("\nnav:\n")[2]


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = re.findall(r"^ +- ([\w./-]+\.md)$", NAVIGATION, re.M)
    pages = (path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
    found = [str(path) for path in pages if path.parent != Path("reference/gradients")]
    assert Counter(named) == Counter(found)
    groups = re.findall(r"^  - ([\w ]+):$", NAVIGATION, re.M)
    wants = ["See", "Train", "Attack", "Freeze", "Check", "Many models"]
    assert groups == ["Start", *wants, "Reference", "Internals"]


TITLE = re.compile(r"^# (.+)$", re.M)
LISTED = re.compile(r"<!-- ([\w ]+) -->.*?<!-- /\1 -->", re.S)
LIMIT = 34_850


def test_pages_have_titles_of_their_own_and_not_too_many_words() -> None:
    """Words have a letter or a digit in them: the lines of a table are none.

    A table between markers has a line for each key, function or command; it grows with the code.
    """
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "gradients"]
    texts = [path.read_text() for path in pages]  # by hand, or in part
    titles = [TITLE.findall(text)[0] for text in texts]
    assert len(set(titles)) == len(titles)
    words = LISTED.sub("", "\n".join([(ROOT / "README.md").read_text(), *texts])).split()
    count = sum(bool(re.search(r"\w", word)) for word in words)
    assert count <= LIMIT, f"say something in fewer words: {count - LIMIT} more than LIMIT"


def test_tables_of_runtimes_begin_with_the_newest() -> None:
    """It stands in the second of three columns, so nobody scrolls to it."""
    page = (ROOT / "docs/runtimes.md").read_text()
    heads = re.findall(r"^\| file \|.*$", page, re.M)
    assert set(heads) == {"| file | 2.21 | earlier |"}


LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)\s]*)\)")
NAMED = re.compile(r"`((?:graphpatch|scripts|tests|docs)/[\w./-]+)`")
FENCE = re.compile(r"^( *)```.*?^\1```", re.S | re.M)
# Made while a site is built, or by the reader.
MADE = re.compile(r"docs/pictures/|scripts/models/.*patched")


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them of plain words."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.M)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in titles]
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    for name in NAMED.findall(prose(page)):
        assert (ROOT / name).exists() or MADE.match(name), name


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md#one-thing) [b](https://x.y)\n```\n[c](d)\n```\n")
    assert LINK.findall(prose(page)) == ["page.md#one-thing"]
    assert anchors(page) == {"one-thing"}
