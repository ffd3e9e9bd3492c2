"""Make the pictures of README and docs: pages of graphpatch view in Chromium, and heat maps.

Usage: pictures.py [--models FOLDER] [--to docs/pictures]. FOLDER has the MobileNet of the real
models; without it that picture stays as it is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import numpy as np
from chromium import launched
from methods import maps

import graphpatch

ROOT = Path(__file__).resolve().parent.parent
DIGITS, GUIDED = Path("scripts/models/digits.pb"), Path("scripts/models/guided.json")
NUMERALS = Path("scripts/models/numerals.pb")
DIGIT = 4
MOBILENET = "mobilenet_v1_0.25_128_frozen.pb"
LOGITS = "MobilenetV1/Logits/SpatialSqueeze"
GUIDED_RELU = {
    "name": "guided backprop",
    "match": {"op": "Relu6"},
    "patch": {"override_gradient": "guided_relu"},
}
FLOWER = 128  # pixels that the net takes


class Shot(NamedTuple):
    name: str
    view: graphpatch.View
    width: int
    height: int
    keys: Sequence[str] = ()


def digits() -> Shot:
    """Return the digits net before and after the rules of the README, with a digit."""
    with np.load(DIGITS.with_suffix(".npz")) as found:
        image = found["images"][found["labels"] == DIGIT][:1]
    view = graphpatch.view(
        DIGITS, rules=GUIDED, sources="image", targets="logits", run=True, feed={"image": image}
    )
    return Shot("digits", view, 1000, 900)


def blocked() -> Shot:
    """Return a gradient that Round blocks, doctor's words, and the rule that fixes it."""
    fix = graphpatch.diagnose(DIGITS, "image", "logits", fix=True).rules
    view = graphpatch.view(DIGITS, rules=fix, sources="image", targets="logits")
    return Shot("blocked", view, 1000, 620, ["b", "Enter"])


def flower() -> Any:
    """Return a photograph that scikit-learn brings along, as the net takes it: from -1 to 1."""
    from sklearn.datasets import load_sample_image

    photo = np.asarray(load_sample_image("flower.jpg"), np.float32)[10:394, 120:504]
    small = photo.reshape(FLOWER, 3, FLOWER, 3, 3).mean(axis=(1, 3))
    return small[None] / 127.5 - 1


def guided(folder: Path) -> Shot:
    """Guided backpropagation on a trained net, for a photograph."""
    os.chdir(folder)  # the page names the model as it was named here
    view = graphpatch.view(
        MOBILENET,
        rules=GUIDED_RELU,
        sources="input",
        targets=LOGITS,
        run=True,
        feed={"input": flower()},
    )
    os.chdir(ROOT)
    return Shot("guided", view, 1000, 620)


def saliency(folder: Path) -> Path:
    """Draw each digit, the gradient of its class, and guided backprop, one below the other."""
    with np.load(NUMERALS.with_suffix(".npz")) as arrays:
        images = arrays["images"]
    patched = graphpatch.apply("@guided_backprop", NUMERALS).graph_def().SerializeToString()
    plain, guided = (pixel_gradients(graph, images) for graph in (NUMERALS.read_bytes(), patched))
    rows = {"the image": map(maps.shown, images)}
    rows |= {"its gradient": map(maps.drawn, plain), "@guided_backprop": map(maps.drawn, guided)}
    parts = []
    for words, pictures in rows.items():
        row = np.concatenate(list(pictures), 1)
        parts += [maps.text(words, row.shape[1]), row]
    path = folder / "saliency.png"
    maps.write_png(np.concatenate(parts), path)
    return path


def pixel_gradients(graph_def: bytes, images: Any) -> Any:
    """Return the gradients of the largest logit of each image with respect to its pixels."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    with tf1.Graph().as_default() as graph, tf1.Session() as session:
        tf1.import_graph_def(tf1.GraphDef.FromString(graph_def), name="")
        image, logits = (graph.get_tensor_by_name(name) for name in ("image:0", "logits:0"))
        return session.run(
            tf1.gradients(tf.reduce_max(logits, axis=1), [image])[0], {image: images}
        )


def shoot(browser: Any, shot: Shot, folder: Path) -> Path:
    """Open a page and write what is seen of it."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "page.html")
        shot.view.save(file)
        page = browser.new_page(viewport={"width": shot.width, "height": shot.height})
        page.goto(file.as_uri())
        page.focus("#list")
        for key in shot.keys:
            page.keyboard.press(key)
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(100)
        path = folder / f"{shot.name}.png"
        page.screenshot(path=path)
        page.close()
    return path


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    options = parser.parse_args(arguments)
    os.chdir(ROOT)
    options.to.mkdir(parents=True, exist_ok=True)
    path = saliency(options.to)
    print(f"{path}: {path.stat().st_size // 1000} kB")
    shots = [digits(), blocked()]
    if options.models is not None:
        shots.append(guided(options.models))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launched(playwright)
        for shot in shots:
            path = shoot(browser, shot, options.to)
            print(f"{path}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
