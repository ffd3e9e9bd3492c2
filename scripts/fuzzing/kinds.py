"""What is tried, by kind: each makes a case from a source of random numbers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import PurePath
from random import Random
from typing import Any

from fuzzing import arrays, commands, mutate
from fuzzing.case import Case
from fuzzing.outputs import EXPORTED
from fuzzing.sources import (
    FORMULAS,
    GLOBS,
    PATTERNS,
    RECIPES,
    RULES,
    ends,
    models,
    rules_file,
)
from graphpatch.gradients.library import LIBRARY
from graphpatch.match.ready import READY

Json = Any
WORDS = {
    "pattern": (
        " -> ", " ->+ ", " ^-> ", "; ", "*", "Relu", "Mul", "?", "!", ":0", ":1", "[0]", "|", "a:",
        "b:", "x:_", "_", "Const=1", "~", "=", "@", "Addons>Gelu", "AddN", "a", "b", "9" * 30,
        "-", "",
        "* -> ", "* ->+ ", "a:*?", "Identity",
    ),
    "formula": (
        "dy", "x", "y", "x1", "dy0", "x9", "attr.alpha", "attr.", "(", ")", "+", "-", "*", "/",
        "**",
        "<", "<=", "==", "and ", "or ", "not ", "where(", ", ", "sum(", "matmul(", "abs(", "max(",
        "axis=0", "axis=-9", "keepdims=true", "norm(", "1e999", "1", "0.5", "9" * 400, "[", "]",
        "true",
        "reshape_like(", "transpose(", "cast_like(", "1e-400", "dy ** -dy", "",
    ),
    "glob": (
        "*", "**", "**/", "?", "/", "a", "relu", "[", "]", "[!", "a-", "\\", "(", ")", "+", ".*",
        "|",
        "^", "$", "{1,9}", "{1000}", "(?i)", "(?=", "(?P<", "\\1", "\\d", "\\Z", "(a+)+", "é", "",
        "*a*", "(.*)*", ":0",
    ),
    "word": (
        "@", "(", ")", "=", ",", "at=", "strength=", "1e999", "nan", "-1", "first=", "name=", "**",
        "x:0", ":", "^", "/", "..", ".", "-", "--", "~", "file://", "%s", "{}", "[", "]", '"',
        "scope=", "q=", "epsilon=", "9" * 400, " ", "\u202e", "\ud800", "é", "reverse", "",
    ),
    "rules": (
        '"', "{", "}", "[", "]", ",", ":", "null", "true", "-1", "1e999", "9" * 50, '"op"',
        '"name"',
        '"match"', '"patch"', '"pattern"', '"on"', '"expect"', '"not"', '"any"', '"*"', '"zero"',
        '"constants"', '"shape"', '"float32"', '"reference"', "w.npy", '"../w.npy"',
        '{"any": [', '{"not": ', "\\u0000", "\\ud800", "[" * 99, '"Relu"', '"stop_gradient"', "",
    ),
}  # fmt: skip
VALUES: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 2**70, 1e308, 0.5, "", "*", "**", "Relu", "x", "out", "x:0",
        "main",
    "match", "a", [], {}, ["Relu", "x"], [[1], 2], {"in": [1]}, {"op": "*"}, "\u001b[2J",
    "n" * 9_000, "w.npy", "../w.npy", {"w": [1.5]}, {"shape": [-1], "float32": "AAAAPw=="},
    {"shape": [2**40], "float64": ""}, {"shape": None, "float32": "AA"},
)  # fmt: skip


def models_case(rng: Random) -> Case:
    """Return a mutated model, patched and reverted, or through one of the other commands."""
    name, raw = rng.choice(models())
    suffix = PurePath(name).suffix
    model = f"m{suffix}"
    files = {model: mutate.model(raw, suffix, rng), "whole" + suffix: raw}
    files["r.json"] = rules_file(rng.sample(RULES, rng.choice((1, 1, 2))))
    way = [["apply", "r.json", model, "-o", "out.pb"], ["revert", "out.pb", "-o", "back.pb"]]
    others = commands.of_model(model, "whole" + suffix, rng)
    chosen = [one for some in rng.sample(others, rng.choice((0, 1, 2))) for one in some]
    chosen += way if not chosen or rng.random() < 0.6 else []
    chosen += _exports(model, raw, rng)
    return Case(files, chosen, model, model if suffix == ".pb" else "")


def rules_case(rng: Random) -> Case:
    """Mutated rules over a sound model, whose patches are reverted."""
    rules = [one.copy() for one in rng.sample(RULES, rng.choice((1, 1, 2, 3)))]
    document = json.loads(rules_file(rules))
    if rng.random() < 0.75:
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change_value(document, rng)
        raw = json.dumps(document).encode()
    else:
        raw = mutate.text(json.dumps(document), WORDS["rules"], rng).encode(errors="surrogatepass")
    return _over_rules({"r.json": raw}, rng)


def formulas_case(rng: Random) -> Case:
    """Return a mutated formula, as the gradient of the ops of a sound model."""
    text = _written(FORMULAS, "formula", rng)
    formula: Json = text if rng.random() < 0.7 else [text, rng.choice((None, "dy"))]
    patch: Json = {"override_gradient": {"formula": formula}}
    if rng.random() < 0.3:
        patch = rng.choice((
            {"surrogate_gradient": text}, {"filter_gradient": {"formula": text}, "at": "inputs"},
        ))  # fmt: skip
    op = rng.choice((["Relu", "Tanh"], ["Mul", "AddV2"], "*"))
    return _over_rules({"r.json": rules_file([{"match": {"op": op}, "patch": patch}])}, rng)


def patterns_case(rng: Random) -> Case:
    """Return a mutated pattern, searched in a sound model."""
    text = _written(PATTERNS, "pattern", rng)
    if rng.random() < 0.4:
        rule = {"match": {"pattern": text}, "patch": {"stop_gradient": True}}
        return _over_rules({"r.json": rules_file([rule])}, rng)
    return _typed(["--pattern", text], rng)


def globs_case(rng: Random) -> Case:
    """Return a mutated glob or regular expression."""
    text = _written(GLOBS, "glob", rng)
    if rng.random() < 0.5:
        key = rng.choice(("name_regex", "name_regex", "name", "op", "body"))
        rule = {"match": {key: text}, "patch": {"stop_gradient": True}}
        return _over_rules({"r.json": rules_file([rule])}, rng)
    return _typed([rng.choice(("--op", "--name")), text], rng)


def words_case(rng: Random) -> Case:
    """Try what a user types, or a program pastes: names of recipes and tensors, options, files."""
    name, raw = _sound(rng)
    word = rng.choice(mutate.NAMES)
    if rng.random() < 0.7:
        word = mutate.text(rng.choice([*RECIPES, *LIBRARY, *READY, "x:0"]), WORDS["word"], rng)
    chosen = rng.sample(commands.of_word(_argument(word), name, rng), 2)
    return Case({name: raw}, chosen, name)


def arrays_case(rng: Random) -> Case:
    """Rules that name an array: one that is none, in no file, elsewhere, or not to be reached."""
    name, raw = _sound(rng)
    file, files, odd = arrays.made(rng)
    patch: Json = rng.choice((
        {"override_gradient": {"formula": "dy * w", "constants": {"w": file}}},
        {"override_gradient": {"deeplift_rescale": {"reference": file}}},
        {"filter_gradient": {"formula": "dy + w", "constants": {"w": file}}, "at": "inputs"},
    ))  # fmt: skip
    rule = {"match": {"op": rng.choice((["Relu", "Tanh"], "Relu", "Mul"))}, "patch": patch}
    files = {name: raw, "r.json": rules_file([rule]), **files}
    original = name if name.endswith(".pb") else ""
    varied = arrays.NAME if arrays.NAME in files else "r.json"
    return Case(files, commands.of_arrays(name, rng), varied, original, odd)


def feeds_case(rng: Random) -> Case:
    """Return what `references` is fed with: an archive of arrays that is none."""
    name, raw = _sound(rng)
    feed, files, odd = arrays.fed(rng)
    return Case({name: raw, **files}, [["references", name, "--feed", feed]], name, odd=odd)


SIZES: tuple[Json, ...] = (
    0, -0.0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 2**64, -(2**70), 10**400, 1e308, 1.8e308,
    1e-308, 5e-324, 0.1, 254, 255, 256, float("nan"), float("inf"), float("-inf"), True, "1", None,
)  # fmt: skip
MOST_NUMBERS = 100_000  # of one tensor: 40 axes of 3 would be a file of 88 MB and more
GRADIENTS: tuple[Callable[[Json], Json], ...] = (
    lambda number: {"formula": "dy * w", "constants": {"w": number}},
    lambda number: {"formula": f"dy + {number}"},
    lambda number: {"formula": f"sum(dy, axes=[{number}])"},
    lambda number: {"formula": f"split(dy, parts={number}, index={number})"},
    lambda number: {"formula": f"normal_like(dy, seed={number})"},
    lambda number: {"formula": f"gather(dy, [{number}], axis={number})"},
    lambda number: {"clip": {"min": number, "max": number}},
    lambda number: {"scale": number},
    lambda number: {"reverse": {"strength": number}},
    lambda number: {"clip_by_norm": {"norm": number, "from_axis": number}},
)


def numbers_case(rng: Random) -> Case:
    """Numbers of any size, and constants of any shape, in formulas and parameters."""
    value: Json = rng.choice(SIZES)
    if rng.random() < 0.4:  # a tensor: regular or ragged, with axes of no size
        count = 1
        for _ in range(rng.choice((1, 2, 3, 40))):
            times = rng.choice((0, 1, 1, 2, 3)) if count < MOST_NUMBERS else 1
            value, count = [value] * times, count * times
        if rng.random() < 0.2:
            value = [value, rng.choice(SIZES)]
    patch = {rng.choice(("override_gradient", "filter_gradient")): rng.choice(GRADIENTS)(value)}
    rule: Json = {"match": {"op": rng.choice(("Relu", "Mul", "*"))}, "patch": patch}
    rule |= rng.choice(({}, {}, {"expect": value}, {"expect": {"min": value}}))
    return _over_rules({"r.json": rules_file([rule])}, rng)


DEVICES = ("/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "folder", "gone")


def places_case(rng: Random) -> Case:
    """Rules, lists and models that are devices; outputs that are inputs; full, closed streams."""
    name, raw = _sound(rng)
    files = {name: raw, "r.json": rules_file(rng.sample(RULES, 1))}
    inputs = [name, "r.json", f"@{name}"]
    same = rng.choice(("{}", "./{}", "file://FOLDER/{}", "local://FOLDER/{}", "FOLDER/../x/{}"))
    out = rng.choice(("out.pb", same.format(rng.choice((name, "r.json"))), "odd", "-", "out.pb"))
    words = ["r.json", same.format(name)]
    odd: tuple[tuple[str, str], ...] = ()
    if rng.random() < 0.4:
        odd = (("odd", rng.choice(DEVICES)),)
        words[rng.randrange(2)] = rng.choice(("odd", "@odd"))
    typed = rng.choice((
        ["apply", *words, "-o", out], ["apply", *words, "-o", out, "--json"],
        ["apply", *words, "--dry-run"], ["check", *words], ["match", *words],
        ["match", *words, "--save", out], ["diff", *words], ["ops", words[1], "--json"],
        ["revert", words[1], "-o", out], ["doctor", words[1], "--fix", out],
        ["view", words[1], "-o", out], ["view", words[1], "--json"],
        ["recipes", "--save", out, "@guided_backprop"], ["verify", *words, "--no-run"],
        ["apply", "r.json", *inputs, "-o", "parts"],
    ))  # fmt: skip
    stdout = rng.choice(("memory", "memory", "full", "closed"))
    return Case(files, [typed], "r.json", odd=odd, stdout=stdout)


KINDS: dict[str, Callable[[Random], Case]] = {
    "models": models_case,
    "rules": rules_case,
    "formulas": formulas_case,
    "patterns": patterns_case,
    "globs": globs_case,
    "words": words_case,
    "arrays": arrays_case,
    "feeds": feeds_case,
    "numbers": numbers_case,
    "places": places_case,
}


def _written(sources: list[str], kind: str, rng: Random) -> str:
    """Return a text of words alone, or a sound one that was mutated."""
    if rng.random() < 0.4:
        return "".join(rng.choice(WORDS[kind]) for _ in range(rng.choice((2, 4, 8, 16, 60))))
    return mutate.text(rng.choice(sources), WORDS[kind], rng)


def _over_rules(files: dict[str, bytes], rng: Random) -> Case:
    name, raw = _sound(rng)
    end = [["match", "r.json", name, *rng.choice(([], ["--explain"], ["--json"]))]]
    if rng.random() < 0.7:
        end = [["apply", "r.json", name, "-o", "out.pb"], ["revert", "out.pb", "-o", "back.pb"]]
    end += _exports(name, raw, rng)
    return Case({name: raw, **files}, end, "r.json", name if name.endswith(".pb") else "")


def _exports(model: str, whole: bytes, rng: Random) -> list[list[str]]:
    """Now and then: patched, and written as a TF2 SavedModel; `whole` is the model unchanged."""
    if rng.random() < 0.8:
        return []
    given, asked = ends(whole, model)
    names = [
        _argument(rng.choice(mutate.NAMES)) if rng.random() < 0.1 else one
        for one in (",".join(given), rng.choice(asked))
    ]
    words = [f"--inputs={names[0]}", f"--outputs={names[1]}"]
    return [
        ["apply", "r.json", model, *words, "-o", EXPORTED],
        rng.choice((["ops", EXPORTED], ["revert", EXPORTED, "-o", "original.pb"])),
    ]


def _typed(option: list[str], rng: Random) -> Case:
    name, raw = _sound(rng)
    explain = ["--explain"] if rng.random() < 0.3 else []
    return Case(
        {name: raw}, [["match", name, f"{option[0]}={_argument(option[1])}", *explain]], name
    )


def _argument(text: str) -> str:
    """As an operating system passes it: bytes without zeros, which need not be UTF-8."""
    raw = text.replace("\0", "").encode(errors="surrogatepass")
    return raw.decode(errors="surrogateescape")


def _sound(rng: Random) -> tuple[str, bytes]:
    found = models()
    name, raw = rng.choice(found[:17] if rng.random() < 0.5 else found)
    return f"m{PurePath(name).suffix}", raw


def _change_value(document: Json, rng: Random) -> None:
    """Change some value within a document: another, gone, or under another key."""
    here = document
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = here[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            here = inner
            continue
        how = rng.randrange(5)
        if how == 0:
            del here[key]
        elif how == 1 and isinstance(inner, str):
            here[key] = mutate.text(inner, WORDS[rng.choice(list(WORDS))], rng)
        elif how == 2 and isinstance(here, dict):
            other = rng.choice(("op", "name", "any", "not", "at", "on", "emit", "pattern", "x"))
            here[other] = deepcopy(inner)
        elif how == 3:
            here[key] = [inner, deepcopy(inner)] if rng.random() < 0.5 else {"all": [inner]}
        else:
            here[key] = deepcopy(rng.choice(VALUES))  # what is shared would change later inputs
        return
