"""Rules files that are wrong: how every error walks to its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphpatch.errors import RulesError
from graphpatch.rules import load_rules, rules_from
from tests.rule_dicts import ZERO, matched, patching, rule

KIND_NAMES = (
    "override_gradient, filter_gradient, stop_gradient, freeze, straight_through,"
    " surrogate_gradient, backward_as"
)


# The document, and the whole message.
ERRORS: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "at the top: the key 'version' is missing; for example \"version\": 1"),
    "a text": ("rules", "at the top: expected an object, found a string"),
    "null": (None, "at the top: expected an object, found null"),
    "no version": (
        {"rules": [rule()]},
        "at the top: the key 'version' is missing; for example \"version\": 1",
    ),
    "another version": ({"version": 2, "rules": []}, "version: 2 is not a legal value; legal: 1"),
    "no rules": (
        {"version": 1},
        'at the top: the key \'rules\' is missing; for example "rules": [{"match": {"op": '
        '"Relu"}, "patch": {"override_gradient": "guided_relu"}}]',
    ),
    "an empty list": (
        [],
        "rules: expected at least 1 rule, found none (apply needs no rule only to convert: "
        "with -o MODEL.meta, or with --inputs and --outputs)",
    ),
    "an unknown key at the top": (
        {"version": 1, "rulez": []},
        "at the top: unknown key 'rulez'; nearest: rules",
    ),
    "an unknown key of a rule": (
        [rule(), rule(expects=1)],
        "rules[1]: unknown key 'expects'; nearest: expect",
    ),
    "one like none": (
        [rule(zzz=1)],
        "rules[0]: unknown key 'zzz'; legal: match, patch, name, expect, emit",
    ),
    "a key of the rule in its patch": (
        [{"match": {}, "patch": {**ZERO, "emit": "attr"}}],
        "rules[0].patch: unknown key 'emit'; it stands beside 'patch', in the rule itself",
    ),
    "a key of the rule in its match": (
        [{"match": {"op": "Relu", "expect": 2}, "patch": ZERO}],
        "rules[0].match: unknown key 'expect'; it stands beside 'match', in the rule itself",
    ),
    "no match": (
        [{"patch": ZERO}],
        'rules[0]: the key \'match\' is missing; for example "match": {"op": ["Relu", '
        '"Relu6"], "name": "head/**"}',
    ),
    "no patch": (
        [{"match": {}}],
        'rules[0]: the key \'patch\' is missing; for example "patch": {"override_gradient":'
        ' "guided_relu"}',
    ),
    "a rule that is none": (
        [3],
        'rules[0]: expected an object, found a whole number; for example "rules": '
        '[{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}]',
    ),
    # match
    "an unknown key of a match": (
        [rule(), matched(nmae="x")],
        "rules[1].match: unknown key 'nmae'; nearest: name",
    ),
    "in any": (
        [matched(any=[{"op": "Relu"}, {"opp": "x"}])],
        "rules[0].match.any[1]: unknown key 'opp'; nearest: op",
    ),
    "in not in all": (
        [matched(all=[{"not": {"regex": "x"}}])],
        "rules[0].match.all[0].not: unknown key 'regex'; nearest: name_regex",
    ),
    "in attr": (
        [matched(attr={"T": {"inn": []}})],
        "rules[0].match.attr[...]: unknown key 'inn'; nearest: in",
    ),
    "a number for an op": (
        [matched(op=3)],
        "rules[0].match.op: expected a string or a list, found a whole number; for "
        'example "op": ["Relu", "*Relu*"]',
    ),
    "a number among ops": (
        [matched(op=["a", 1])],
        'rules[0].match.op[1]: expected a string, found a whole number; for example "op":'
        ' ["Relu", "*Relu*"]',
    ),
    "an object for a body": (
        [matched(body={})],
        "rules[0].match.body: expected a string or a list, found an object; for example "
        '"body": "main"',
    ),
    "null for an attr": (
        [matched(attr={"T": None})],
        "rules[0].match.attr[...]: expected true or false, a number, a string, an object "
        'or a list, found null; for example "attr": {"T": "float32", "padding": {"in": '
        '["SAME", "VALID"]}}',
    ),
    "a type for an input": (
        [matched(inputs={"op": "Relu"})],
        "rules[0].match.inputs[...]: expected an object, found a string; for example "
        '"inputs": {"0": {"op": "Conv2D"}}',
    ),
    "a match for a list": (
        [matched(any={"op": "x"})],
        'rules[0].match.any: expected a list, found an object; for example "any": [{"op":'
        ' "Relu"}, {"name": "head/**"}]',
    ),
    "a regular expression": (
        [rule(name="mine", match={"name_regex": "(a"})],
        "rules[0] ('mine'): name_regex '(a' is not a regular expression:"
        " missing ): (a (in RE2's syntax)",
    ),
    "a regular expression inside": (
        [matched(**{"not": {"name_regex": "*"}})],
        "rules[0] ('rule 1'): name_regex '*' is not a regular expression:"
        " no argument for repetition operator: * (in RE2's syntax)",
    ),
    # patch
    "no kind": (
        [patching()],
        f"rules[0] ('rule 1'): patch: expected exactly one of {KIND_NAMES}; found none",
    ),
    "an option alone": (
        [patching(at="inputs")],
        f"rules[0] ('rule 1'): patch: expected exactly one of {KIND_NAMES}; found none",
    ),
    "two kinds": (
        [patching(stop_gradient=True, override_gradient="zero")],
        f"rules[0] ('rule 1'): patch: expected exactly one of {KIND_NAMES};"
        " found 2: override_gradient, stop_gradient; write a rule for each",
    ),
    "an unknown kind": (
        [patching(stop_gradients=True)],
        "rules[0].patch: unknown key 'stop_gradients';"
        " nearest: stop_gradient, filter_gradient, surrogate_gradient",
    ),
    "an option of another kind": (
        [patching(override_gradient="zero", at="inputs")],
        "rules[0] ('rule 1'): patch.at does not go with override_gradient; "
        "it goes with filter_gradient and stop_gradient",
    ),
    "and with straight_through": (
        [patching(straight_through=True, at="inputs")],
        "rules[0] ('rule 1'): patch.at does not go with straight_through; "
        "it goes with filter_gradient and stop_gradient",
    ),
    "a place that is none": (
        [patching(stop_gradient=True, at="input")],
        'rules[0].patch.at: "input" is not a legal value; which side: outputs '
        "(default), inputs, or one, as output:0 or input:1",
    ),
    "false": (
        [patching(stop_gradient=False)],
        "rules[0].patch.stop_gradient: false is not a legal value; legal: true",
    ),
    "a text for true": (
        [patching(stop_gradient="yes")],
        "rules[0].patch.stop_gradient: expected true or false, found a string; for "
        'example "stop_gradient": true',
    ),
    "an unknown key of straight_through": (
        [patching(straight_through={"inputs": 1})],
        "rules[0].patch.straight_through: unknown key 'inputs'; nearest: input",
    ),
    "an input below 0": (
        [patching(straight_through={"input": -1})],
        "rules[0].patch.straight_through.input: expected a number of at least 0; for "
        'example "input": 1',
    ),
    # G
    "a number for a gradient": (
        [patching(override_gradient=3)],
        "rules[0].patch.override_gradient: expected a string or an object, found a whole "
        'number; for example "override_gradient": "guided_relu"',
    ),
    "a parameter that is missing": (
        [patching(filter_gradient={"clip": {"min": 0}})],
        "rules[0] ('rule 1'): patch.filter_gradient: clip needs max: the upper bound",
    ),
    "an unknown parameter": (
        [patching(filter_gradient={"clip": {"mn": 0, "max": 1}})],
        "rules[0] ('rule 1'): patch.filter_gradient: clip has no parameter 'mn'; nearest: min",
    ),
    "a parameter that is no number": (
        [patching(filter_gradient={"scale": "half"})],
        "rules[0] ('rule 1'): patch.filter_gradient: scale: factor is 'half', not a number",
    ),
    "two gradients": (
        [patching(override_gradient={"zero": {}, "clip": {}})],
        "rules[0] ('rule 1'): patch.override_gradient:"
        " expected the name of a gradient, or an object with one key, {name: parameters}; "
        "found 2 keys: zero, clip",
    ),
    "a registered gradient without a name": (
        [patching(override_gradient={"registered": ""})],
        "rules[0] ('rule 1'): patch.override_gradient:"
        " \"registered\" is the name of a gradient, not ''",
    ),
    # expect, emit, name
    "expect below 0": (
        [rule(expect=-1)],
        'rules[0].expect: expected a number of at least 0; for example "expect": {"min": '
        '1, "max": 4}',
    ),
    "expect as a text": (
        [rule(expect="1")],
        "rules[0].expect: expected a whole number or an object, found a string; for "
        'example "expect": {"min": 1, "max": 4}',
    ),
    "expect as true": (
        [rule(expect=True)],
        "rules[0].expect: expected a whole number or an object, found true or false; for "
        'example "expect": {"min": 1, "max": 4}',
    ),
    "an unknown key of expect": (
        [rule(expect={"mim": 1})],
        "rules[0].expect: unknown key 'mim'; nearest: min",
    ),
    "more than at most": (
        [rule(expect={"min": 3, "max": 2})],
        "rules[0] ('rule 1'): expect: max, 2, is less than min, 3",
    ),
    "an unknown carrier": (
        [rule(emit="atr")],
        'rules[0].emit: "atr" is not a legal value; legal: "auto", "construction", '
        '"function", "attr"',
    ),
    "a number for a name": (
        [rule(name=3)],
        'rules[0].name: expected a string, found a whole number; for example "name": '
        '"guided backprop"',
    ),
}


@pytest.mark.parametrize(("document", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_walks_to_its_key(document: Any, message: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from(document)
    assert str(raised.value) == message


def test_a_gradient_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(RulesError, match=r"override_gradient: 'guided_rlu' .*nearest: guided_relu"):
        rules_from([patching(override_gradient="guided_rlu")])
    with pytest.raises(RulesError, match=r"override_gradient: 'relu6' .*nearest: .*Relu6"):
        rules_from([patching(override_gradient="relu6")])


@pytest.mark.parametrize("text", ["dy * 2", "dx*x", "x1", "where(y > 0, dy, 0)"])
def test_a_formula_in_the_place_of_a_name(text: str) -> None:
    with pytest.raises(RulesError) as raised:
        rules_from([patching(override_gradient=text)])
    assert f'of a formula: {{"formula":"{text}"}}' in str(raised.value)


JSON_ERRORS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "the file is empty; a rules file looks like this"),
    "cut short": (b'{"version": 1,\n "rules": [', "line 2, column 12: not valid JSON: it ends too"),
    "a bracket too early": (b'{"version": 1,\n "rules": [}]', "line 2, column 12: not valid JSON"),
    "a comma too many": (b'{\n\n  "version": 1,\n}', "line 4, column 1: not valid JSON: "),
    "a comment": (b'{"version": 1,\n  // mine\n', "line 2, column 3: not valid JSON: "),
    "single quotes": (b"{'version': 1}", "line 1, column 2: not valid JSON: "),
    "a bare word": (b'{"version": one}', "line 1, column 13: not valid JSON: Expecting value"),
    "what follows": (b'{"version": 1}\n{}', "line 2, column 1: not valid JSON: Extra data"),
    "a key twice": (
        b'{"version": 1, "version": 1}',
        "the key 'version' is there twice in one object",
    ),
    "no UTF-8": (b'{"version": "\xff"}', "line 1, column 14: not valid JSON: not UTF-8"),
    "a model": (b"\x0a\x10\x0a\x01x\x12\x0bPlaceholder", "expected a rules file, found a GraphDef"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), JSON_ERRORS.values(), ids=JSON_ERRORS)
def test_what_is_no_json_is_said_with_line_and_column(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "rules.json"
    path.write_bytes(data)
    with pytest.raises(RulesError) as raised:
        load_rules(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


def test_an_error_in_a_file_starts_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"version": 1}')
    with pytest.raises(RulesError) as raised:
        load_rules(path)
    assert str(raised.value).startswith(f"{path}: at the top: the key 'rules' is missing; for")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "gone", f"cannot read {tmp_path / 'gone'}: No such file"),
        (tmp_path, f"{tmp_path} is a folder; expected a rules file"),
    ):
        with pytest.raises(RulesError, match=reason):
            load_rules(path)
