"""Gradient reversal by a rules file trains as well as the one that is written by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")


@pytest.mark.slow
def test_the_rules_reach_what_the_script_reaches() -> None:
    from scripts import domain_adversarial as script

    script.register_by_hand()
    plain = script.built(by_hand=False)
    without = script.trained(plain)
    by_hand = script.trained(script.built(by_hand=True))
    by_rules = script.trained(script.by_rules(plain))
    # The reversal does what it is for: domains are no longer told apart, digits are better.
    # Training amplifies rounding: by seeds and machines the latter was told in 0.50 to 0.71.
    assert without.domain > 0.9
    assert by_hand.domain < 0.85
    assert by_hand.target > without.target + 0.1
    # One binomial standard error of 1797 digits is 0.012 here.
    assert by_rules.target > by_hand.target - 0.036
    assert by_rules.domain < 0.85
