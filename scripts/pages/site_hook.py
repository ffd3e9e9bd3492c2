"""What the site has besides docs/: the plots of gradients, the version; and that it is offline.

MkDocs calls these functions by their names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from mkdocs.exceptions import BuildError
from mkdocs.structure.files import File, Files

import graphpatch
from pages import plots

HERE = Path(__file__).parent
GRADIENTS = "reference/gradients/"
# What lets the search run in a page that is opened as a file. The theme reads it from the network.
SHIM = re.compile(r'(?<=src=")https://[^"]*/iframe-worker/shim(?=")')
FROM_OUTSIDE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"')


def on_config(config: Any) -> Any:
    """Put the version beside the name of the site, where each page shows it."""
    config.site_name = f"{config.site_name} {graphpatch.__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the plots, and what the theme would read from the network."""
    for name, svg in plots.all_plots():
        files.append(File.generated(config, f"reference/plots/{name}.svg", content=svg))
    shim = (HERE / "iframe-worker.js").read_text()
    files.append(File.generated(config, "assets/iframe-worker.js", content=shim))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Files) -> str:
    """Put the plot of a gradient below the formula on its page."""
    folder, _, name = page.file.src_uri.rpartition("/")
    name = name.removesuffix(".md")
    if f"{folder}/" != GRADIENTS:
        return text
    assert files.get_file_from_path(f"reference/plots/{name}.svg") is not None
    picture = f"![dx of {name} before and after](../plots/{name}.svg){{ .plot }}"
    return text.replace("\n```\n", f"\n```\n\n{picture}\n", 1)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Read the shim from the site. Raises BuildError for what still comes from the network."""
    up = "../" * page.file.dest_uri.count("/")
    output = SHIM.sub(f"{up}assets/iframe-worker.js", output)
    for found in FROM_OUTSIDE.findall(output):
        raise BuildError(f"{page.file.src_uri} reads from the network: {found}")
    return output
