"""Commands that are typed wrong, and outputs that cannot be written."""

from __future__ import annotations

from provoking.case import Case, typed

COMMANDS: tuple[Case, ...] = (
    typed(
        "--dry-run of two models into a file",
        "apply rules.json model.pb other.pb --dry-run -o one.pb",
    ),
    typed("a typo in a command", "appply rules.json model.pb"),
    typed("a model where a command is expected", "model.pb"),
    typed("a typo in an option", "ops model.pb --jsn"),
    typed("an option of another command", "ops model.pb --explain"),
    typed("no arguments", "apply"),
    typed("no model", "apply rules.json"),
    typed("rules and model swapped in apply", "apply model.pb rules.json"),
    typed("rules and model swapped in match", "match model.pb rules.json"),
    typed("rules and model swapped in check", "check model.pb rules.json"),
    typed("original and patched swapped in verify", "verify --no-run patched.pb model.pb"),
    typed("a rules file to verify", "verify model.pb rules.json"),
    typed("match without a rule", "match model.pb"),
    typed("match with too much", "match rules.json model.pb other.pb"),
    typed("an emit that is not there", "apply rules.json model.pb --emit inline"),
    typed("-o one.pb for two models", "apply rules.json model.pb other.pb -o one.pb"),
    typed("-o out.onnx", "apply rules.json model.pb -o out.onnx"),
    typed("-o over the model", "apply rules.json model.pb -o model.pb"),
    typed("-o over the rules", "apply rules.json model.pb -o rules.json"),
    typed("-o in a folder that is not there", "apply rules.json model.pb -o gone/out.pb"),
    typed("-o without a value", "apply rules.json model.pb -o"),
    typed("two models of one name", "apply rules.json model.pb ./model.pb -o out"),
    typed("the model and JSON to one pipe", "apply rules.json model.pb -o - --json"),
    typed("a pipe and a second model", "apply rules.json - model.pb -o out"),
    typed("a glob that finds nothing", "apply rules.json nets/*.pb -o out"),
    typed("a list that is not there", "apply rules.json @models.txt -o out"),
    typed("--inputs without --outputs", "apply rules.json model.pb --inputs x -o out"),
    typed("--loss alone", "apply rules.json model.pb --loss out"),
    typed("--resume without -o", "apply rules.json model.pb --resume"),
    typed("no jobs", "apply rules.json model.pb -j 0"),
    typed("a gradient that is not there", "gradients guided_rleu"),
    typed("a ready pattern that is not there", "patterns bathnorm"),
    typed("revert of a model that was not patched", "revert model.pb"),
    typed("revert of a rule that is not there", "revert patched.pb --rule guided"),
    typed("doctor with a tensor that is not there", "doctor model.pb --from x --to logits"),
    typed("a diff with a file that is not there", "diff model.pb gone.pb"),
    typed("split without a cut", "split model.pb --loss out --wrt x"),
    typed("check of a model without the rules", "check rules.json model.pb -j 1"),
)
