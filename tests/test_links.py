"""Links of the README and of the documentation lead somewhere, as do the paths they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples import ROOT, pages

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
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_names_are_there(page: Path) -> None:
    for name in NAMED.findall(prose(page)):
        assert (ROOT / name).exists() or MADE.match(name), name


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md#one-thing) [b](https://x.y)\n```\n[c](d)\n```\n")
    assert LINK.findall(prose(page)) == ["page.md#one-thing"]
    assert anchors(page) == {"one-thing"}
