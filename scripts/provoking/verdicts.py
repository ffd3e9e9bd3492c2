"""What a reader who saw nothing but the message had to read twice, by what was provoked.

The reader went over all messages as they were on 2026-11-22; what is named here was then written
anew. Of all others the verdict is CLEAR.
"""

from __future__ import annotations

CLEAR = "clear at the first reading"

TWICE: dict[str, str] = {
    "an empty file": "it did not say what to do",
    "a file that was cut short": "it did not say what to do",
    "random bytes": "it did not say what a model is",
    "a GraphDef as text with a typo": "2:8 and tensorflow.NodeDef had to be guessed",
    "a model compressed with gzip": "as the rules file it read: found compressed with gzip",
    "weights in HDF5": "what the folder is called was the last word of a long list",
    "a PyTorch file": "it left open whether such a file can be read",
    "a NumPy array": "it did not say what a model is",
    "a rules file as the model": "it told of RULES and MODEL to commands that take no rules",
    "an op that is not there": "an empty line came before the message",
    "an empty pipe": "it did not say what was expected",
    "a folder as the rules file": "it did not say what was expected",
    "gzip as the rules file": "found compressed with gzip",
    "an empty object": "it did not say what to write",
    "no version": "it did not say what to write",
    "an empty list": "apply only converts: a command without rules, or a fault?",
    "no rules in the list": "apply only converts: a command without rules, or a fault?",
    "a rule without a match": "it did not say what to write",
    "a rule without a patch": "it did not say what to write",
    "a ready pattern that is not there": "the nearest names had no @, which the pattern needs",
    "a value that is not one": "three ops were called near that have no value",
    "two kinds of patch": "it did not say how to have both",
    "`at` that is not a place": "this is not a legal value; the numbers looked like a full list",
    "`at` where it does not go": "it did not say where it goes",
    "`on` without a pattern": "there is none of what?",
    "a gradient that is not there": "it did not say where all names are listed",
    "a gradient of two names": "it did not say which keys it found",
    "an attr that the op does not have": "it has: no number or boolean",
    "two formulas for one input": "the list has 2 formulas, and the op 1 inputs",
    "a tensor where a name is expected": "dense/Relu looks like what was written",
    "* where ** is meant": "it did not say why *Relu does not mean dense/Relu",
    "a regular expression of a part of the name": "it did not say that the whole name is matched",
    "two keys that no op meets": "1 op each, and yet nothing matched",
    "an attr that no op has": "left out of what? and three ops told the same",
    "a value of an attr that no op has": "it did not say which values there are",
    "a dtype that no op has": "three ops told the same",
    "a value that no op has": "which is no Const",
    "an attr of another op type": "left out of what?",
    "a tensor that is not there": "the reason came last, after three ops that told nothing",
    "a pattern in the wrong order": "not Relu 'dense/Relu', which is no MatMul",
    "a pattern of types that are not there": "alone, Conv2D: 0; and which is no Conv2D",
    "fewer matches than expected": "narrow the match, where there are too few",
    "a gradient for other op types": "60 names, and none of them the right one",
    "a surrogate for an op of two inputs": "it reads x0 to x0",
    "straight through an input that is not there": "it has 0: no input, or number 0?",
    "original and patched swapped in verify": "the reason stood between 28 that follow from it",
    "a rules file to verify": "it told of RULES, which verify does not take",
    "two models of one name": "it did not say what to do",
    "--resume without -o": "three reasons at once, of which one was meant",
    "a pipe and a second model": "the note said that functions have the gradients of some ops",
}
