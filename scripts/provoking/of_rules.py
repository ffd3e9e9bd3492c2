"""Rules files that are none, and rules that are not right."""

from __future__ import annotations

from provoking.case import Case, gradient, in_rules, match, patch, rule, typed
from provoking.files import GUIDED, rules

YAML = "version: 1\nrules:\n- match: {op: Relu}\n  patch: {override_gradient: guided_relu}\n"
COMMENTS = '{"version": 1,\n // ReLUs\n "rules": [{"match": {"op": "Relu"}, "patch": {}}]}'

FILES: tuple[Case, ...] = (
    typed("a rules file that is not there", "apply rulse.json model.pb"),
    in_rules("an empty rules file", ""),
    in_rules("YAML", YAML),
    in_rules("JSON with a // comment", COMMENTS),
    in_rules("JSON with a # comment", '# rules\n{"version": 1, "rules": []}'),
    in_rules("JSON with a /* comment */", '{"version": 1, /* x */ "rules": []}'),
    in_rules("a comma after the last rule", '{"version": 1, "rules": [{"match": {}},]}'),
    in_rules("single quotes", "{'version': 1, 'rules': []}"),
    in_rules("True instead of true", '{"version": 1, "rules": [{"patch": True}]}'),
    in_rules("a missing bracket", '{"version": 1, "rules": ['),
    in_rules("UTF-16", rules(GUIDED).encode("utf-16")),
    in_rules("a byte order mark, then no JSON", b"\xef\xbb\xbfrules"),
    typed("a model as the rules file", "apply model.pb model.pb"),
    typed("a folder as the rules file", "apply pile model.pb"),
    typed("a checkpoint as the rules file", "apply model.ckpt.index model.pb"),
    typed("gzip as the rules file", "apply model.pb.gz model.pb"),
    in_rules("a TOML file", '[[rules]]\nmatch = { op = "Relu" }\n'),
    in_rules("a number", "3"),
    in_rules("an empty object", "{}"),
    in_rules("an empty list", "[]"),
    in_rules("no version", '{"rules": []}'),
    in_rules("another version", '{"version": 2, "rules": []}'),
    in_rules("no rules in the list", rules()),
    in_rules("one key twice", '{"version": 1, "version": 1, "rules": []}'),
    in_rules("a typo at the top", '{"version": 1, "rulse": []}'),
)

KEYS: tuple[Case, ...] = (
    in_rules("a rule without a match", rules({"patch": {"stop_gradient": True}})),
    in_rules("a rule without a patch", rules({"match": {"op": "Relu"}})),
    in_rules("an empty patch", rules({"match": {"op": "Relu"}, "patch": {}})),
    rule("a typo in a rule", expct=1),
    rule("a negative number of matches", expect=-1),
    rule("a maximum below the minimum", expect={"min": 2, "max": 1}),
    rule("an emit that is not there", emit="inline"),
    match("a typo in a match", nmae="dense/**"),
    match("a number for an op type", op=3),
    match("an empty list of op types", op=[]),
    match("an empty list of names", name=[]),
    match("a regular expression that is not one", name_regex="dense/("),
    match("a dtype that is not there", dtype="float"),
    match("a typo in a pattern", pattern="a:MatMul - > b:BiasAdd"),
    match("a ready pattern that is not there", pattern="@bathnorm"),
    match("no condition of `any`", any=[]),
    match("a value that is not one", value="half"),
    match("a typo in between", between={"form": ["x"], "to": ["out"]}),
    patch("a kind of patch that is not there", overide_gradient="guided_relu"),
    patch("two kinds of patch", override_gradient="guided_relu", stop_gradient=True),
    match("an op type as ops prints it", op_type="Relu"),
    match("a scope as a key", scope="dense"),
    patch("a function of Python as a patch", scale_gradient=0.1),
    patch("stop_gradient: false", stop_gradient=False),
    patch("`at` that is not a place", filter_gradient={"scale": 2}, at="output"),
    patch("`at` where it does not go", straight_through=True, at="inputs"),
    patch("`on` without a pattern", stop_gradient=True, on="act"),
)

GRADIENTS: tuple[Case, ...] = (
    gradient("a gradient that is not there", "guided_rleu"),
    gradient("a parameter that is not there", {"clip": {"mni": 0}}),
    gradient("a parameter that is text", {"scale": "much"}),
    gradient("a parameter that is missing", {"clip": {}}),
    gradient("a gradient of two names", {"scale": 1, "clip": {"min": 0}}),
    gradient("an empty formula", {"formula": ""}),
    gradient("a formula with a typo", {"formula": "whre(x > 0, dy, 0)"}),
    gradient("a formula that is cut short", {"formula": "dy * ("}),
    gradient("a formula with a name that is not there", {"formula": "dy * gradient"}),
    gradient("Python in a formula", {"formula": "dy if x > 0 else 0"}),
    gradient("`and` spelled &&", {"formula": "where(x > 0 && dy > 0, dy, 0)"}),
    gradient("a power spelled ^", {"formula": "dy * x ^ 2"}),
    gradient("an input that the op does not have", {"formula": "dy * x1"}),
    gradient("an attr that the op does not have", {"formula": "dy * attr.alpha"}),
    gradient("two formulas for one input", {"formula": ["dy", "dy"]}),
    gradient("Python without --allow-python", {"python": "mine:gradient"}),
    gradient("a number", 2),
    gradient("the larger of two numbers as max", {"formula": "max(x, 0) * dy"}),
)
