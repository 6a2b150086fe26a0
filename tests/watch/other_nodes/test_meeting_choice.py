"""Where nodes meet, by what is there and what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes.meeting_place import FolderPlace, SealedPlace
from lightning_hangcheck.nodes.store_place import CourierPlace
from lightning_hangcheck.settings import SHARED_BY_NODES, Settings
from lightning_hangcheck.watch.other_nodes.meeting import meetings_of, nowhere, why_there

SLURM = NodePlace(number=1, nnodes=4, job="slurm-7-0", first="node0")
TORCHRUN = NodePlace(number=1, nnodes=2, host="node0", port=29500, first="node0")
OFFERED = Settings(nodes_port=29511)
FOLDERS = {"nodes_dir": "/shared/meet", "run_dir": "/shared/run"}


@pytest.fixture(autouse=True)
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_BY_NODES, "0123456789abcdef")


def test_the_first_node_serves_the_store_that_was_asked_for() -> None:
    said = why_there(SLURM, OFFERED)
    assert said.startswith("the first sidecar's store at node0:29511: no store that outlives the")
    assert said.endswith("--nodes-port has one served; this is node 1 of 4")
    assert isinstance(meetings_of(SLURM, OFFERED)[0], SealedPlace)


def test_a_launchers_own_store_goes_before_one_that_must_be_served() -> None:
    assert isinstance(meetings_of(TORCHRUN, OFFERED)[0], CourierPlace)
    assert "torchrun's store at node0:29500" in why_there(TORCHRUN, OFFERED)


def test_a_folder_that_was_named_for_it_goes_before_all() -> None:
    settings = Settings(nodes_port=29511, **FOLDERS)
    assert [type(one) for one in meetings_of(SLURM, settings)] == [FolderPlace]
    assert "/shared/meet" in why_there(SLURM, settings)


def test_a_port_goes_before_the_run_folder() -> None:
    settings = Settings(nodes_port=29511, run_dir="/shared/run")
    store, folder = meetings_of(SLURM, settings)
    assert isinstance(store, SealedPlace)
    assert "/shared/run/nodes/" in folder.where, "there they go on if it is lost"


@pytest.mark.parametrize("secret", ["", "short"])
def test_nothing_is_served_without_a_secret(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_BY_NODES, secret)
    without = nowhere(SLURM, OFFERED)
    assert without is not None
    assert "needs a secret" in without.why
    assert f"export {SHARED_BY_NODES}=" in without.way_out
    assert "nowhere: " in why_there(SLURM, OFFERED)
    in_folder = Settings(nodes_port=29511, run_dir=str(Path("/shared/run")))
    assert isinstance(meetings_of(SLURM, in_folder)[0], FolderPlace)


def test_nothing_is_served_where_nobody_knows_the_first_node() -> None:
    without = nowhere(NodePlace(number=1, nnodes=2, job="job"), OFFERED)
    assert without is not None
    assert "nothing says where the first node is" in without.why


def test_nothing_is_served_unless_asked() -> None:
    without = nowhere(SLURM, Settings())
    assert without is not None
    assert "--nodes-port" in without.way_out
    assert meetings_of(SLURM, Settings()) == ()


def test_one_node_meets_nobody() -> None:
    alone = NodePlace(number=0, nnodes=1, first="node0")
    assert (meetings_of(alone, OFFERED), nowhere(alone, OFFERED), why_there(alone, OFFERED)) == (
        (),
        None,
        "",
    )
