"""What the site has besides the pages of docs/: the plots of gradients, and pages of others.

MkDocs calls these functions by their names.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from mkdocs.structure.files import File, Files

from pages import plots

ROOT = Path(__file__).parent.parent.parent
SECTION = "### "


def on_files(files: Files, config: Any) -> Files:
    """Add the plots, as SVG."""
    for name, svg in plots.all_plots():
        files.append(File.generated(config, f"reference/plots/{name}.svg", content=svg))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Put each plot below the heading of its gradient."""
    if page.file.src_uri != "reference/gradients.md":
        return text
    return "\n".join(_with_plot(line, files) for line in text.split("\n"))


def _with_plot(line: str, files: Files) -> str:
    picture = f"plots/{line.removeprefix(SECTION)}.svg"
    if not line.startswith(SECTION) or files.get_file_from_path(f"reference/{picture}") is None:
        return line
    return f"{line}\n\n![dx before and after]({picture}){{ .plot }}\n"
