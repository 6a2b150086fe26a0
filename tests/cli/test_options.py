"""The options are a public promise: names and defaults are frozen here."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

from lightning_hangcheck.cli.main import COMMANDS, command_named, invoke
from lightning_hangcheck.cli.options import OF_RUN, setting_options, settings_from
from lightning_hangcheck.model.limits import Limits
from lightning_hangcheck.observe.discovery import patience_of
from lightning_hangcheck.settings import Settings

SETTINGS = {
    "patience": (1.0, "2", 2.0),
    "suspect_proven_after": (3.0, "2", 2.0),
    "proven_after": (5.0, "7", 7.0),
    "suspect_person_after": (3.0, "2", 2.0),
    "person_after": (10.0, "20", 20.0),
    "suspect_idle_after": (5.0, "4", 4.0),
    "idle_after": (30.0, "45.5", 45.5),
    "suspect_outside_after": (10.0, "20", 20.0),
    "suspect_busy_after": (10.0, "20", 20.0),
    "busy_floor": (120.0, "90", 90.0),
    "busy_factor": (20.0, "3", 3.0),
    "suspect_absent_after": (10.0, "20", 20.0),
    "absent_after": (15.0, "60", 60.0),
    "stall_timeout": (300.0, "600", 600.0),
    "slow_after": (180.0, "none", 0.0),
    "look_after": (2.0, "1", 1.0),
    "poll_interval": (0.25, "0.5", 0.5),
    "probe_timeout": (5.0, "8", 8.0),
    "locals": (False, "1", True),
    "on_hang": ("report", "abort", "abort"),
    "abort_grace": (10.0, "2", 2.0),
    "console": ("auto", "all", "all"),
    "quiet": (False, "yes", True),
    "steps": (False, "1", True),
    "start_report": ("differences", "off", "off"),
    "prometheus": (None, "job.prom", "job.prom"),
    "run_dir": (None, "my-run", "my-run"),
    "ledger": (None, "mine.jsonl", "mine.jsonl"),
    "price": (None, "0.89/h", "0.89/h"),
    "if_done": ("ask", "reuse", "reuse"),
    "nodes_dir": (None, "/shared/meet", "/shared/meet"),
    "nodes_port": (None, "29511", 29511),
    "meeting_timeout": (60.0, "90", 90.0),
    "lock_timeout": (300.0, "20", 20.0),
    "logger_init_timeout": (60.0, "20", 20.0),
    "logger_finish_timeout": (30.0, "5", 5.0),
    "logger_on_failure": ("raise", "offline", "offline"),
    "disable": (False, "1", True),
}
"""Setting: its default, a text to give it, and the value which that text means."""
RUN_OPTIONS = [
    *("--stall-timeout", "--patience", "--slow-after", "--on-hang", "--locals", "--console"),
    *("--quiet", "--prometheus", "--run-dir", "--ledger", "--nodes-dir", "--nodes-port", "--set"),
]
"""Those of which each but the last is a setting, too."""
FLAG = "--locals"
OPTIONS = {
    "attach": f"--pid {FLAG} --patience --set --run-dir --json-case --hostfile --remote-command "
    "--ssh --host-timeout --at-once",
    "demo": "",
    "doctor": "--only --run-dir --checkpoints --depth --expect --needs --loads --backbone --extra "
    "--fresh --json",
    "explain": "--agent",
    "ledger": "--ledger --price --json --csv --markdown --chart",
    "lint": "--notes --json --sarif --github --explain",
    "merge": "--run-dir",
    "plan": "--gpus --gpu-memory --cpu-memory --dtype --context --batch --extra --phase --json",
    "postmortem": "--run-dir --json",
    "rehearse": "--ranks --batches --scene --limit --json --run-dir",
    "report": "--json --html --issue --prompt --perfetto",
    "run": f"{' '.join(RUN_OPTIONS)} --on-hang-exec --notify",
    "smoke": "--limit --run-dir",
    "watch": "",
}
"""Of every command; alerts are asked for on the command line of `hangcheck run` alone."""


def _settings(*arguments: str) -> Settings:
    """What the option block makes of these arguments, by way of a command of its own."""

    @click.command()
    @setting_options(*OF_RUN)
    def watch(**options: object) -> Settings:
        return settings_from(options)

    settings = watch.main(list(arguments), standalone_mode=False)
    assert isinstance(settings, Settings)
    return settings


def test_commands_are_frozen() -> None:
    assert sorted(OPTIONS) == COMMANDS


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_frozen(name: str) -> None:
    command = command_named(name)
    options = [param.opts[0] for param in command.params if isinstance(param, click.Option)]
    assert options == OPTIONS[name].split()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_lost_its_value_is_bad_usage(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes no next option and no ``--`` for it, and none goes on without."""
    for param in command_named(name).params:
        if not isinstance(param, click.Option) or param.is_flag or param.flag_value == "30":
            continue
        assert invoke([name, param.opts[0]]) == 2, param.opts
        assert f"{param.opts[0]}' requires an argument" in capsys.readouterr().err


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_read_from_set_and_from_its_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text, value = SETTINGS[name]
    assert getattr(_settings("--set", f"{name}={text}"), name) == value
    monkeypatch.setenv(f"HANGCHECK_{name.upper()}", text)
    assert getattr(_settings(), name) == value


@pytest.mark.parametrize("option", RUN_OPTIONS[:-1])
def test_an_option_wins_over_set_and_set_over_the_variable(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = option[2:].replace("-", "_")
    default, text, value = SETTINGS[name]
    usual = "0" if isinstance(default, bool) else str(default or "29500")
    monkeypatch.setenv(f"HANGCHECK_{name.upper()}", usual)
    assert getattr(_settings("--set", f"{name}={text}"), name) == value
    words = [option] if isinstance(default, bool) else [option, text]
    assert getattr(_settings(*words, "--set", f"{name}={usual}"), name) == value


def test_the_page_of_settings_has_each_with_its_default_and_its_choices() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = {name: row for name, *row in re.findall(r"^\| `(\w+)` \| (.*?) \| (.+) \|$", page, re.M)}
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    assert set(rows) == set(fields) == set(SETTINGS)
    for name, (default, meaning) in rows.items():
        usual = {None: "", False: "off"}.get(fields[name].default, fields[name].default)  # type: ignore[call-overload]
        shown = f"{usual:g}" if isinstance(usual, float) else str(usual)
        assert default.removesuffix(" s").strip("`") == shown, name
        choices = getattr(fields[name].type, "__args__", ()) if default else ()
        assert all(f"`{one}`" in meaning for one in choices if isinstance(one, str)), name


def test_patience_multiplies_every_figure_of_its_table() -> None:
    usual, doubled = (patience_of(_settings("--patience", factor)) for factor in ("1", "2"))
    assert usual == Limits()
    figures = msgspec.structs.asdict(usual)
    assert msgspec.structs.asdict(doubled) == {name: 2 * one for name, one in figures.items()}


def test_the_folder_of_a_run_is_not_for_what_starts_in_it_or_on_its_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANGCHECK_RUN_DIR", "of-the-run")
    assert settings_from({}).run_dir == "of-the-run"
    monkeypatch.setenv("HANGCHECK_VERDICT", "of-the-run/verdicts/1.json")
    assert settings_from({}).run_dir is None
    assert settings_from({"run_dir": "own"}).run_dir == "own"
