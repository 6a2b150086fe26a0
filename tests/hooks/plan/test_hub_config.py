"""A hub name: fetched where there is a hub, else one sentence within a time limit."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import pytest
from processes import run_python

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("huggingface_hub")
NAME = "ada/tiny-llama"
CONFIG = json.dumps({"model_type": "llama"})
LIMIT_S = 6.0
PROGRAM = f"""
import sys
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.plan import fetch_config
import huggingface_hub
try:
    print(fetch_config({NAME!r}, {LIMIT_S}).read_text())
except BadUsage as error:
    print(error)
"""


def fetch(endpoint: str, folder: Path, **environment: str) -> str:
    """What a process of its own gets: the hub's library reads its environment when imported."""
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_OFFLINE": "0"}
    ours |= {"NO_PROXY": "127.0.0.1", **environment}
    said = run_python("-c", PROGRAM, environment={**os.environ, **ours})
    assert said.returncode == 0, said.stderr
    return said.stdout.removesuffix("\n")


def test_a_config_in_the_hubs_cache_is_had_offline(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    for file, text in (("refs/main", "0123"), ("snapshots/0123/config.json", CONFIG)):
        (repository / file).parent.mkdir(parents=True)
        (repository / file).write_text(text)
    assert fetch("http://127.0.0.1:1", tmp_path, HF_HUB_OFFLINE="1") == CONFIG


@pytest.mark.parametrize("offline", ["0", "1"])
@pytest.mark.parametrize("accepts", [False, True])
def test_without_an_answer_one_sentence_says_the_way_out(
    tmp_path: Path, offline: str, accepts: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its kernel accepts, nobody answers
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if not accepts:
            silent.close()
        answer = fetch(endpoint, tmp_path, HF_HUB_OFFLINE=offline)
    assert answer.startswith(f"{NAME} is no folder here, and its config.json cannot be had")
    assert "\n" not in answer
    assert f"hf download {NAME} config.json --local-dir DIR" in answer
