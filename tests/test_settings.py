"""What variables of the environment tell: settings, and which rank a process is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.settings import (
    PREFIX,
    Settings,
    environment_with,
    from_environment,
    read_option,
    to_environment,
)

if TYPE_CHECKING:
    from lightning_hangcheck.identity import Launcher

NAMES = [field.name for field in msgspec.structs.fields(Settings)]


def test_nothing_set_gives_the_defaults_of_the_contract() -> None:
    settings = from_environment({"HANGCHECK_STALL_TIMEOUT": ""})
    assert settings == Settings()
    assert (settings.stall_timeout, settings.idle_after, settings.busy_factor) == (300, 30, 20)
    assert (settings.proven_after, settings.person_after, settings.absent_after) == (5, 10, 15)


def test_a_switch_can_be_said_in_several_ways() -> None:
    assert [read_option("disable", text) for text in ("1", "true", "yes", "on")] == [True] * 4
    assert [read_option("disable", text) for text in ("0", "false", "no", "off")] == [False] * 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stall_timeout", "soon"),
        ("stall_timeout", "0"),
        ("stall_timeout", "inf"),
        ("on_hang", "explode"),
        ("disable", "perhaps"),
    ],
)
def test_a_value_that_cannot_be_used_names_the_variable_and_an_example(
    name: str, text: str
) -> None:
    variable = PREFIX + name.upper()
    with pytest.raises(BadUsage) as caught:
        from_environment({variable: text})
    assert f"{variable}={text!r}" in str(caught.value)
    assert f"write for example {variable}=" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_child_reads_what_its_parent_uses_whatever_the_environment_said() -> None:
    """A default that was asked for, or taken in place of a bad value, is no variable."""
    said = {"HANGCHECK_STALL_TIMEOUT": "soon", "HANGCHECK_ON_HANG": "abort", "PATH": "/bin"}
    settings = Settings(idle_after=7)
    environment = environment_with(said, settings)
    assert from_environment(environment) == settings
    assert environment == {"PATH": "/bin", "HANGCHECK_IDLE_AFTER": "7"}


@given(some.sampled_from(NAMES), some.text(min_size=1))
@example("slow_after", "none")
@example("slow_after", "0.0")
def test_any_text_is_a_value_or_bad_usage(name: str, text: str) -> None:
    try:
        settings = from_environment({PREFIX + name.upper(): text})
    except BadUsage:
        return
    assert from_environment(to_environment(settings)) == settings


# Who is this process? Told by the environment of each launcher.

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
}
SLURM_STEP = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
}


SHELL = SLURM_STEP | {"SLURM_JOB_NAME": "bash"}
FOUR_NODES = {"SLURM_TASKS_PER_NODE": "2(x3),1"}
OF_TORCHRUN = {"rank": 5, "world_size": 8, "local_rank": 1, "local_world_size": 4, "node_rank": 1}
OF_SLURM = {"rank": 5, "world_size": 8, "local_rank": 1, "node_rank": 1}


@pytest.mark.parametrize(
    ("environment", "launcher", "told"),
    [
        ({"PATH": "/bin"}, "none", {}),
        (TORCHRUN, "torchrun", OF_TORCHRUN),
        (SLURM_STEP | TORCHRUN, "torchrun", OF_TORCHRUN),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "environment", {"rank": 0, "world_size": 2}),
        (SLURM_STEP, "slurm", OF_SLURM),
        (SLURM_STEP | FOUR_NODES, "slurm", OF_SLURM | {"local_world_size": 2}),
        (
            SLURM_STEP | FOUR_NODES | {"SLURM_NODEID": "3"},
            "slurm",
            OF_SLURM | {"local_world_size": 1, "node_rank": 3},
        ),
        (SHELL, "none", {}),
        (
            {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"},
            "lightning",
            {"rank": 1, "world_size": 2, "local_rank": 1, "node_rank": 0},
        ),
        (  # on further nodes only Lightning knows the rank
            {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"},
            "lightning",
            {"world_size": 4, "local_rank": 1, "node_rank": 1},
        ),
    ],
)
def test_the_launchers_variables_say_who_this_is(
    environment: dict[str, str], launcher: Launcher, told: dict[str, int]
) -> None:
    identity = identify(environment)
    assert identity == Identity(launcher=launcher, **told)  # type: ignore[arg-type]
    assert identity.peers_exist == (launcher not in ("none", "lightning"))


@pytest.mark.parametrize("text", ["two", "", "-1", "1.5", "٣²", "3000000000", "1" * 5000])
def test_a_variable_that_is_no_number_is_a_sentence_and_not_an_error(text: str) -> None:
    identity = identify({"RANK": "1", "WORLD_SIZE": text})
    assert (identity.rank, identity.world_size) == (1, None)
    (problem,) = identity.problems
    assert problem.startswith(f"WORLD_SIZE={text[:40]!r} is not a whole number")
    assert "unset it" in problem
