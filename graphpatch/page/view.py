"""`graphpatch.view`: the page that shows what flows back through a model."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from graphpatch.analysis.interface import ends_there, refuse_unknown_ends
from graphpatch.analysis.matches import matches
from graphpatch.analysis.revert import revert
from graphpatch.application import apply
from graphpatch.errors import ModelError, PatchError, check_path, tensor_names
from graphpatch.formats import Model
from graphpatch.formats.destination import PAGE_MARK, marked, refuse_inputs
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.formats.output import writing_file
from graphpatch.graph.graph import Progress
from graphpatch.match.spec import Pattern
from graphpatch.page.document import built_document
from graphpatch.page.marks import RuleMarks, marks_of_matches, marks_of_patched
from graphpatch.rules import RulesLike
from graphpatch.shown import finite

if TYPE_CHECKING:
    from graphpatch.runtime.values import Feed

# In the order of the page's script: the first says "use strict", the last begins.
SCRIPTS = "elements lines order rows lanes plots list panel header search keys picture page".split()
PLACE = re.compile(r"\{(\w+)\}")
# What ends a script, or begins a comment in one, wherever it is in a text of the model.
HTML_LETTERS = "<>&\u2028\u2029"


def page(document: dict[str, Any], title: str) -> str:
    """Return the page of a document, with nothing in it that a browser would load from elsewhere.

    Its policy lets run the script of the page alone, whatever the names of a model are.
    """
    style, script = _page_file("page.css"), "\n".join(_page_file(f"{name}.js") for name in SCRIPTS)
    runs = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    parts = {
        "policy": f"default-src 'none'; {runs}; img-src blob:",
        "title": escape(title),
        "style": style,
        "document": as_script(document),
        "script": script,
    }
    return PLACE.sub(lambda match: parts[match[1]], _page_file("page.html"))


def as_script(document: Any) -> str:
    """Return a document as JSON that cannot end the element that it is in."""
    plain = {key: value if key == "bodies" else finite(value) for key, value in document.items()}
    text = msgspec.json.encode(plain).decode()
    for letter in HTML_LETTERS:
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


@cache
def _page_file(name: str) -> str:
    return (resources.files("graphpatch.page") / "files" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


HIGH = 560  # pixels of the page in a notebook


@dataclass(frozen=True, repr=False)
class View:
    """What flows back through a model, as the page draws it.

    `document()` is the data, `html` the page, `save` writes it. A notebook shows the page itself.

    Example:
        >>> graphpatch.view("model.pb", sources="x", targets="loss").ok
        True
    """

    models: tuple[Model, ...]
    data: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Return whether every rule that was to be shown could be applied."""
        return not self.errors

    @property
    def errors(self) -> list[str]:
        """Return what `apply` would say of the rules that it would refuse."""
        return [rule["error"] for rule in self.data["rules"] if rule["error"]]

    @property
    def html(self) -> str:
        """Return the page, as one HTML document that loads nothing."""
        names = " → ".join(model["title"] for model in self.data["models"])
        return page(self.data, f"{names}: what flows back")

    def document(self) -> dict[str, Any]:
        """Return what `view --json` prints: the data that the page draws."""
        return self.data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, whole or not at all, over what was there.

        Raises OutputError where the file cannot be written, or is one of the models; ModelError
        where the file of a model was changed; TypeError where `path` is not a path.

        Example:
            >>> graphpatch.view("model.pb", sources="x", targets="loss").save("page.html")
        """
        check_path("path", path, "the path of a page to write")
        with self.writing(Path(path)):
            pass

    def writing(self, path: Path) -> AbstractContextManager[Path]:
        """Write the page as `save` does, and give the file, which takes its name at the end."""
        for model in self.models:
            refuse_model(path, model)
        page = marked(f"{self.html.rstrip()}\n{PAGE_MARK}\n".encode())
        return writing_file(path, [page])

    def __repr__(self) -> str:
        lines = sum(len(self.data["bodies"][part["body"]]["names"]) for part in self.data["graphs"])
        names = " -> ".join(part["title"] for part in self.data["models"])
        return f"<View: {names}, {lines:,} lines>"

    def _repr_html_(self) -> str:
        page = escape(self.html)
        return f'<iframe srcdoc="{page}" style="width:100%;height:{HIGH}px;border:0"></iframe>'


def refuse_model(path: Path, model: Model) -> None:
    """Raise OutputError where a page would be written over a model, or into its folder."""
    if not model.in_memory and Path(model.path).exists():
        refuse_inputs(path, {"the model itself": model.path})


def view(
    model: ModelLike,
    patched: ModelLike | None = None,
    *,
    sources: str | Sequence[str] = (),
    targets: str | Sequence[str] = (),
    rules: RulesLike | Pattern | Mapping[str, Any] | None = None,
    run: bool = False,
    feed: Feed | None = None,
    allow_unsafe_ops: bool = False,
    control_flow_v2: bool = True,
    progress: Progress | None = None,
) -> View:
    """Show what flows back through a model: where gradients flow, where they end, and why.

    Args:
        model: What `load` takes. A patched model is shown beside its original, which it tells.
        patched: A model to be shown beside it: the same model after rules.
        sources: Gradients flow back to these tensors. Default: to what is fed, or variables.
        targets: Gradients of these tensors. Default: outputs that no op reads and that may
            be a loss.
        rules: A dry run: the model is shown before and after these rules. A match or a `pattern`
            without a patch is marked.
        run: Run the gradients too, and show their sizes and pictures; this needs TensorFlow.
        feed: For `run`: arrays by tensor name, each of the dtype and shape of its tensor, or a .npz
            file; other inputs get seeded values.
        allow_unsafe_ops: Run ops too that touch files, the network or Python.
        control_flow_v2: False shows what flows after `disable_control_flow_v2()`.
        progress: Called with what is done, how much of it, and of how much.

    Nothing is changed: forward and backward the models are what they were.

    Raises:
        ModelError: A model cannot be read or is broken, has no tensor of such a name, or no
            tensor leads from the one end to the other.
        RulesError: A rule is not valid.
        MatchError: A key of a rule names a tensor that the model does not have.
        PatchError: The model carries the rules already.
        UnsafeError: It would do more than compute when it runs.
        TypeError: `model` or `rules` is of another type, or both `patched` and `rules` are given.

    Example:
        >>> page = graphpatch.view("model.pb", sources="x", targets="loss", rules="rules.json")
        >>> page.save("page.html")
    """
    ends = tensor_names("sources", sources), tensor_names("targets", targets)
    loaded = model_from("model", model, progress)
    models, marks = _models(loaded, patched, rules, progress)
    graphs = [graph for model in models for graph in model.graphs]
    refuse_unknown_ends(loaded.path, graphs, *ends)
    document, sides = built_document(models, marks, *ends, control_flow_v2)
    if run:
        from graphpatch.page.gradient_sizes import sizes

        document["run"] = sizes(sides, models, feed, allow_unsafe_ops)
    return View(tuple(models), document)


def _models(
    model: Model,
    patched: ModelLike | None,
    rules: RulesLike | Pattern | Mapping[str, Any] | None,
    progress: Progress | None,
) -> tuple[list[Model], RuleMarks]:
    """Return what is shown beside what, and the rules that are marked."""
    if patched is not None and rules is not None:
        raise TypeError("give patched, or rules that make a patched model; not both")
    if patched is not None:
        try:
            patched_model = model_from("patched", patched, progress)
        except ModelError as error:
            if not isinstance(patched, str) or Path(patched).exists():
                raise
            meant = f"view(model, targets={patched!r}) shows gradients of a tensor"
            outputs = ends_there(model.graphs, are_inputs=False)
            raise ModelError(f"patched: {error}; {meant}; {outputs}") from error
        _refuse_unrelated(model, patched_model)
        return [model, patched_model], marks_of_patched(patched_model.graphs)
    if rules is not None:
        matched = matches(rules, model)
        marks = marks_of_matches(matched)
        if not matched.rules or not matched.ok:
            return [model], marks
        patched_model = apply(list(matched.rules), model).model
        marks.at, marks.is_applied = marks_of_patched(patched_model.graphs).at, True
        return [model, patched_model], marks
    marks = marks_of_patched(model.graphs)
    if marks.written:
        with suppress(PatchError):  # it holds a part of its original alone
            original = revert(model, allow_changed=True).model
            return [original, model], marks
    return [model], marks


def _refuse_unrelated(model: Model, patched: Model) -> None:
    """Raise ModelError where the models stand the other way round, or are two different ones."""
    carry, patched_carry = (
        any(graph.library.rules for graph in each.graphs) for each in (model, patched)
    )
    if carry and not patched_carry:
        raise ModelError(
            f"{model.path} carries rules and {patched.path} none: the original comes first"
        )
    names = set[str]().union(*(graph.main.by_name for graph in model.graphs))
    shared = set[str]().union(*(graph.main.by_name.keys() & names for graph in patched.graphs))
    if len(shared) < len(names) / 2:
        raise ModelError(
            f"{patched.path} is another model: it has {len(shared):,} of the "
            f"{len(names):,} ops of {model.path}"
        )
