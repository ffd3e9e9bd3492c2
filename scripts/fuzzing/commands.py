"""The command lines that a hostile model, hostile rules or a hostile word goes through."""

from __future__ import annotations

from random import Random

from fuzzing.outputs import EVENTS, FIXED, PAGE, PARTLY, PARTS, SAVED
from fuzzing.sources import PATTERNS, RECIPES

Command = list[str]
ENDS = ["x", "out", "relu", "Multiply", "loss", "y:0"]


def of_model(model: str, whole: str, rng: Random) -> list[list[Command]]:
    """Return what may be done with a model, besides patching it; `whole` is the model unchanged.

    Each is one command or several, of which the next reads what the one before it wrote.
    """
    way = ["--from", rng.choice(ENDS), "--to", rng.choice(ENDS)]
    asked = rng.choice((way, way[:2], way[2:], [], []))
    cut = ["--cut", rng.choice(ENDS), "--loss", rng.choice(ENDS), "--wrt", rng.choice(ENDS)]
    recipe = rng.choice(RECIPES)
    single = [
        ["ops", model], ["ops", model, "**"], ["ops", model, "--all"],
        ["ops", model, "**", "--json"], ["ops", model, "--json"],
        ["match", "r.json", model, "--explain"],
        ["match", model, "--pattern", rng.choice(PATTERNS)],
        ["match", recipe, model, "--explain"],
        ["revert", model, "-o", "back.pb", *rng.choice(([], ["--allow-changed"]))],
        ["revert", model, "--rule", "rule 1", "-o", PARTLY],
        ["check", "r.json", model, "-j", "1"], ["check", "r.json", model, "--json", "-j", "1"],
        ["check", recipe, model, "-j", "1"],
        ["diff", whole, model], ["diff", model, whole, "--all", "--json"], ["diff", model, model],
        ["doctor", model], ["doctor", model], ["doctor", model, *way],
        ["doctor", model, *asked, "--all"], ["doctor", model, *asked, "--json"],
        ["doctor", model, *asked, "--no-control-flow-v2"],
        ["verify", whole, model, "--no-run"], ["verify", model, model, "--no-run"],
        ["verify", model, model, "--no-run", "--all", "--json"],
        ["view", model, *asked, "-o", PAGE], ["view", model, "--rules", "r.json", "-o", PAGE],
        ["view", whole, model, *asked, "-o", PAGE], ["view", model, *asked, "--json"],
        ["view", model, "--pattern", rng.choice(PATTERNS), "-o", PAGE],
        ["view", model, "--rules", recipe, "--json"],
        ["view", model, "--tensorboard", EVENTS],
        ["split", model, *cut, "-o", PARTS],
        ["references", model, "--feed", model],
        ["apply", recipe, model, "--dry-run"],
        ["apply", "r.json", model, "--rebuild-gradients", "-o", PARTLY],
    ]  # fmt: skip
    patched = ["apply", "r.json", model, "-o", "out.pb"]
    several = [
        [["doctor", model, *asked, "--fix", FIXED], ["apply", FIXED, model, "-o", "out.pb"]],
        [["match", "r.json", model, "--save", SAVED], ["match", SAVED, model]],
        [patched, rng.choice((
            ["view", "out.pb", "-o", PAGE], ["view", model, "out.pb", "--json"],
            ["doctor", "out.pb"], ["verify", model, "out.pb", "--no-run"], ["ops", "out.pb", "**"],
            ["diff", model, "out.pb"], ["revert", "out.pb", "--rule", "rule 1", "-o", PARTLY],
        ))],
        [[*patched[:-2], "--emit", rng.choice(("construction", "function", "attr")), "-o",
            "out.pb"]],
    ]  # fmt: skip
    return [*([one] for one in single), *several]


def of_word(word: str, model: str, rng: Random) -> list[Command]:
    """Return what no user is expected to type: names of recipes, gradients, patterns, tensors."""
    sign = f"@{word.removeprefix('@')}"
    more = [f"--from={word}", *rng.choice(([], [f"--to={word}"]))]
    return [
        ["recipes", "--json", word], ["recipes", word], ["recipes", "--save", SAVED, sign],
        ["gradients", word], ["gradients", "--json", word],
        ["patterns", word], ["patterns", "--json", word],
        ["apply", sign, model, "-o", "out.pb"], ["match", sign, model, "--explain"],
        ["check", sign, model], ["ops", model, word], ["ops", model, word, "--json"],
        ["completion", word], ["schema", word], [word], [word, model], ["ops", f"--{word}", model],
        ["doctor", model, *more], ["doctor", model, *more, "--fix", FIXED],
        ["view", model, *more, "-o", PAGE], ["view", model, f"--rules={sign}", "-o", PAGE],
        ["view", model, f"--pattern={word}", "--json"],
        ["verify", model, model, "--no-run", *more],
        ["split", model, f"--cut={word}", f"--loss={word}", f"--wrt={rng.choice(ENDS)}"],
        ["split", model, "--cut=relu", "--loss=out", f"--wrt={word}", "-o", PARTS],
        ["references", model, "--feed", word], ["revert", model, f"--rule={word}"],
        ["apply", "@guided_backprop", model, f"--inputs={word}", "--outputs=out", "-o", "out.pb"],
        ["apply", "@guided_backprop", model, f"--emit={word}"],
        ["ops", word], ["diff", word, model],
    ]  # fmt: skip


def of_arrays(model: str, rng: Random) -> list[Command]:
    """Return what reads the arrays that rules name."""
    patched = ["apply", "r.json", model, "-o", "out.pb"]
    return rng.choice((
        [patched, ["revert", "out.pb", "-o", "back.pb"]],
        [patched, ["doctor", "out.pb"], ["ops", "out.pb", "**"]],
        [["apply", "r.json", model, "--emit", rng.choice(("construction", "attr", "function")),
            "-o", "out.pb"]],
        [["match", "r.json", model]],
        [["check", "r.json", model, "-j", "1"]],
        [["view", model, "--rules", "r.json", "-o", PAGE]],
    ))  # fmt: skip
