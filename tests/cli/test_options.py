"""The options are a public promise: names and defaults are frozen here."""

from __future__ import annotations

import click
import msgspec
import pytest

from lightning_hangcheck.cli.main import hangcheck, invoke
from lightning_hangcheck.cli.options import NOT_AN_OPTION, WORDS, settings_from, settings_options
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import Settings

RUN_OPTIONS = {
    "--run-dir": (None, "my-run", "my-run"),
    "--stall-timeout": (300.0, "600", 600.0),
    "--on-hang": ("report", "abort", "abort"),
    "--console": ("auto", "all", "all"),
    "--start-report": ("differences", "off", "off"),
    "--suspect-proven-after": (3.0, "2", 2.0),
    "--proven-after": (5.0, "7", 7.0),
    "--suspect-person-after": (3.0, "2", 2.0),
    "--person-after": (10.0, "20", 20.0),
    "--suspect-idle-after": (5.0, "4", 4.0),
    "--idle-after": (30.0, "45.5", 45.5),
    "--suspect-outside-after": (10.0, "20", 20.0),
    "--suspect-busy-after": (10.0, "20", 20.0),
    "--busy-floor": (120.0, "90", 90.0),
    "--busy-factor": (20.0, "3", 3.0),
    "--suspect-absent-after": (10.0, "20", 20.0),
    "--absent-after": (15.0, "60", 60.0),
    "--look-after": (2.0, "1", 1.0),
    "--poll-interval": (0.25, "0.5", 0.5),
    "--probe-timeout": (5.0, "8", 8.0),
    "--abort-grace": (10.0, "2", 2.0),
    "--meeting-timeout": (60.0, "90", 90.0),
    "--lock-timeout": (300.0, "20", 20.0),
    "--logger-init-timeout": (60.0, "20", 20.0),
    "--logger-finish-timeout": (30.0, "5", 5.0),
    "--logger-on-failure": ("raise", "offline", "offline"),
    "--slow-after": (180.0, "none", 0.0),
    "--ledger": (None, "mine.jsonl", "mine.jsonl"),
    "--prometheus": (None, "job.prom", "job.prom"),
    "--if-done": ("ask", "reuse", "reuse"),
    "--price": (None, "0.89/h", "0.89/h"),
    "--nodes-dir": (None, "/shared/meet", "/shared/meet"),
    "--nodes-port": (None, "29511", 29511),
}
"""Option: its default, a text to give it, and the value which that text means."""


FLAG = "--locals"
ALERT_OPTIONS = ["--notify", "--on-hang-exec", "--otel", "--wandb-alert", "--live"]
"""Only of `hangcheck run`, and handed on to nobody."""


def _options(name: str) -> list[str]:
    command = hangcheck.commands[name]
    return [param.opts[0] for param in command.params if isinstance(param, click.Option)]


def _settings(*arguments: str) -> Settings:
    """What the option block makes of these arguments, by way of a command of its own."""

    @click.command()
    @settings_options
    def watch(**options: object) -> Settings:
        return settings_from(options)

    settings = watch.main(list(arguments), standalone_mode=False)
    assert isinstance(settings, Settings)
    return settings


def test_commands_are_frozen() -> None:
    """Commands of the contract that don't exist yet are not listed."""
    assert sorted(hangcheck.commands) == [
        "attach",
        "doctor",
        "explain",
        "ledger",
        "merge",
        "plan",
        "rehearse",
        "report",
        "run",
        "smoke",
        "watch",
    ]


def test_options_of_run_are_frozen() -> None:
    listed = list(RUN_OPTIONS)
    settings = [*listed[:5], "--quiet", "--steps", FLAG, *listed[5:]]
    assert _options("run") == [*settings, *ALERT_OPTIONS]


def test_options_of_report_are_frozen() -> None:
    assert _options("report") == [
        "--json",
        "--html",
        "--issue",
        "--prompt",
        "--perfetto",
        "--speedscope",
        "--stacks",
        "--serve",
        "--port",
        "--log",
    ]


def test_options_of_doctor_are_frozen() -> None:
    assert _options("doctor") == [
        "--only",
        "--run-dir",
        "--checkpoints",
        "--depth",
        "--expect",
        "--needs",
        "--loads",
        "--backbone",
        "--extra",
        "--fresh",
        "--json",
    ]


def test_options_of_plan_are_frozen() -> None:
    assert _options("plan") == [
        "--gpus",
        "--gpu-memory",
        "--cpu-memory",
        "--dtype",
        "--context",
        "--batch",
        "--extra",
        "--phase",
        "--json",
    ]


def test_options_of_attach_and_merge_are_frozen() -> None:
    hosts = ["--hostfile", "--remote-command", "--ssh", "--host-timeout", "--at-once"]
    assert _options("attach") == ["--pid", "--run-dir", FLAG, *hosts, "--json-case"]
    assert _options("merge") == ["--run-dir"]
    assert _options("explain") == ["--agent"]
    options = ["--ledger", "--price", "--json", "--csv", "--markdown", "--chart"]
    assert _options("ledger") == options


@pytest.mark.parametrize("option", RUN_OPTIONS)
def test_defaults_are_frozen(option: str) -> None:
    default, _, _ = RUN_OPTIONS[option]
    assert getattr(_settings(), option[2:].replace("-", "_")) == default


@pytest.mark.parametrize("option", RUN_OPTIONS)
def test_an_option_overrides_the_environment(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    default, text, value = RUN_OPTIONS[option]
    field = option[2:].replace("-", "_")
    monkeypatch.setenv(f"HANGCHECK_{field.upper()}", str(default or "29500"))
    assert getattr(_settings(option, text), field) == value
    monkeypatch.setenv(f"HANGCHECK_{field.upper()}", text)
    assert getattr(_settings(), field) == value


def test_the_flag_is_off_until_an_option_or_the_environment_sets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _settings().locals is False
    assert _settings(FLAG).locals is True
    assert _settings("--quiet").quiet is True
    assert _settings("--steps").steps is True
    monkeypatch.setenv("HANGCHECK_LOCALS", "1")
    assert _settings().locals is True


def test_every_setting_is_an_option_but_disable() -> None:
    fields = {field.name for field in msgspec.structs.fields(Settings)}
    assert set(WORDS) == fields - {NOT_AN_OPTION}


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", ""])
def test_a_time_that_cannot_be_is_refused_in_one_line(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", f"--stall-timeout={text}", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--stall-timeout" in said
    assert "write for example 30" in said


def test_a_bad_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANGCHECK_IDLE_AFTER", "soon")
    with pytest.raises(BadUsage, match="HANGCHECK_IDLE_AFTER='soon'"):
        _settings()
