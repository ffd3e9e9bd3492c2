"""The tensors of a rules file: what names one, or spells it out, becomes its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphpatch.errors import RulesError
from graphpatch.gradients.npy import NPY_SUFFIX, Files
from graphpatch.gradients.tensors import packed

GRADIENT_PATCHES = ("override_gradient", "filter_gradient")


def with_tensors(document: Any, files: Files | None = None) -> Any:
    """Rules with their tensors in their JSON form, read from `files` where they name one.

    What is not a list of rules stays as it is. Raises RulesError with the path to the tensor.
    """
    rules = document.get("rules") if isinstance(document, Mapping) else None
    if not isinstance(rules, list | tuple):
        return document
    return {**document, "rules": [_packed_rule(n, one, files) for n, one in enumerate(rules)]}


def _packed_rule(number: int, rule: Any, files: Files | None) -> Any:
    patch = rule.get("patch") if isinstance(rule, Mapping) else None
    if not isinstance(patch, Mapping):
        return rule
    found = dict(patch)
    for kind in GRADIENT_PATCHES:
        if isinstance(patch.get(kind), Mapping):
            found[kind] = _packed_gradient(f"rules[{number}].patch.{kind}", patch[kind], files)
    return {**rule, "patch": found}


def _packed_gradient(path: str, spec: Mapping[str, Any], files: Files | None) -> dict[str, Any]:
    """The constants of a formula, and the parameters of a gradient of the library."""
    return {
        name: {
            key: _packed_tensor(f"{path}.{name}.{key}", one, files) for key, one in value.items()
        }
        if isinstance(value, Mapping) and "shape" not in value
        else value
        for name, value in spec.items()
    }


def _packed_tensor(path: str, value: Any, files: Files | None) -> Any:
    if isinstance(value, str) and not value.endswith(NPY_SUFFIX):
        return value
    try:
        return packed(value, files)
    except RulesError as error:
        raise RulesError(f"{path}: {error}") from None
