"""Merged stacks in speedscope's format, held to the schema that its authors publish as types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
from cases import IN_LOAD, look, rank, user
from page_runs import ODD, alike, case_of, written

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = {"type": "integer", "minimum": 0}
PROFILE = {
    "type": "object",
    "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "sampled"},
        "name": {"type": "string"},
        "unit": {"const": "none"},
        "startValue": {"type": "number"},
        "endValue": {"type": "number"},
        "samples": {"type": "array", "items": {"type": "array", "items": WHOLE}},
        "weights": {"type": "array", "items": {"type": "number", "minimum": 0}},
    },
}
FRAME = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "file": {"type": "string"},
        "line": {"type": "number"},
        "col": {"type": "number"},
    },
}
FILE = {
    "type": "object",
    "required": ["$schema", "version", "shared", "profiles"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "version": {"type": "string"},
        "exporter": {"type": "string"},
        "name": {"type": "string"},
        "activeProfileIndex": WHOLE,
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {"frames": {"type": "array", "items": FRAME}},
        },
        "profiles": {"type": "array", "items": PROFILE},
    },
}


def checked(text: str) -> dict[str, Any]:
    """Hold a file to the schema, and to what the types say in words."""
    file: dict[str, Any] = json.loads(text)
    jsonschema.validate(file, FILE)
    for profile in file["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        assert all(at < len(file["shared"]["frames"]) for one in profile["samples"] for at in one)
    assert file["activeProfileIndex"] < len(file["profiles"])
    return file


def test_a_frame_is_as_wide_as_there_are_ranks_in_it(tmp_path: Path) -> None:
    file = checked(written(tmp_path, alike(8), form="speedscope"))
    (profile,) = file["profiles"]
    assert profile["weights"] == [7, 1]
    innermost = [file["shared"]["frames"][stack[-1]] for stack in profile["samples"]]
    assert innermost[0]["name"] == "all_reduce"
    assert innermost[1] == {"name": "load", "file": "/home/ada/demo/train.py", "line": 41}
    assert profile["samples"][0][0] == profile["samples"][1][0], "they share their outermost"


def test_workers_have_a_profile_of_their_own(tmp_path: Path) -> None:
    worker = look((user("Samples.__getitem__", 17, "data.py"),), pid=900, role="worker")
    case = case_of(rank(0, IN_LOAD, children=[worker]), rank(ODD, IN_LOAD))
    file = checked(written(tmp_path, case, form="speedscope"))
    assert [one["name"] for one in file["profiles"]] == ["ranks", "DataLoader workers"]
    assert file["profiles"][1]["weights"] == [1]


def test_a_run_without_stacks_and_a_hostile_name(tmp_path: Path) -> None:
    assert checked(written(tmp_path, case_of(rank(0)), form="speedscope"))["shared"]["frames"] == []
    text = written(tmp_path, case_of(rank(0, (user("\x1b[2J\u202e", 3),))), form="speedscope")
    (frame,) = checked(text)["shared"]["frames"]
    assert frame["name"] == r"\x1b[2J\u202e"
    assert text.rstrip("\n").isprintable()
