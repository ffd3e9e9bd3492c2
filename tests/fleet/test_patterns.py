from __future__ import annotations

import pytest

from graphpatch.fleet import search as find_models

# A glob, and of the paths of a tree those that it means.
PATHS = ("a.pb", "b.txt", "x/a.pb", "x/b1.pb", "x/y/a.pb", "z]/a.pb")
MEANT = {
    "*.pb": ["a.pb"],
    "*": list(PATHS),  # a folder that is meant is searched
    "?.pb": ["a.pb"],
    "*/*.pb": ["x/a.pb", "x/b1.pb", "z]/a.pb"],
    "x/*": ["x/a.pb", "x/b1.pb", "x/y/a.pb"],
    "**": list(PATHS),
    "**/a.pb": ["a.pb", "x/a.pb", "x/y/a.pb", "z]/a.pb"],
    "x/**/a.pb": ["x/a.pb", "x/y/a.pb"],
    "**/y/*": ["x/y/a.pb"],
    "x/[ab]*.pb": ["x/a.pb", "x/b1.pb"],
    "x/[!a]*": ["x/b1.pb", "x/y/a.pb"],
    "x/b[0-9].pb": ["x/b1.pb"],
    "[z]]/*": ["z]/a.pb"],
    "A.pb": [],
    "*.p": [],
    "x": ["x/a.pb", "x/b1.pb", "x/y/a.pb"],
}


@pytest.mark.parametrize(("glob", "expected"), MEANT.items())
def test_what_a_glob_means(glob: str, expected: list[str]) -> None:
    pattern = glob.split("/")
    assert [path for path in PATHS if find_models.is_meant(pattern, path.split("/"))] == expected
    for path in expected:
        folders = path.split("/")[:-1]
        assert all(
            find_models.may_hold_meant(pattern, folders[:end]) for end in range(1, len(folders) + 1)
        )


@pytest.mark.parametrize(
    ("glob", "folder", "reached"),
    [
        ("*.pb", "x", False),
        ("x/*.pb", "x", True),
        ("x/*.pb", "y", False),
        ("x/*.pb", "x/y", False),
        ("**/a.pb", "q/r/s", True),
        ("x/**/a.pb", "y", False),
        ("*", "x/y", True),
    ],
)
def test_folders_without_what_is_meant_are_left_out(glob: str, folder: str, reached: bool) -> None:
    assert find_models.may_hold_meant(glob.split("/"), folder.split("/")) is reached


@pytest.mark.parametrize(
    ("glob", "base", "pattern"),
    [
        ("*.pb", ".", ("*.pb",)),
        ("a/b/*.pb", "a/b", ("*.pb",)),
        ("/a/*/m.pb", "/a", ("*", "m.pb")),
        ("/*", "/", ("*",)),
        ("../a/**/", "../a", ("**",)),
        ("s3://bucket/a/*.pb", "s3://bucket/a", ("*.pb",)),
    ],
)
def test_where_a_glob_starts(glob: str, base: str, pattern: tuple[str, ...]) -> None:
    assert find_models.split_glob(glob) == (base, pattern)
