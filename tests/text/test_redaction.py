"""What is shown: facts in words, nothing that a terminal obeys, and no secret."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some
from processes import PATIENCE_S, PROGRAMS

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.identity import identify
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.run_record import rank_record
from lightning_hangcheck.recorder.process import start_facts
from lightning_hangcheck.text.redaction import HIDDEN, redact_text, redact_values
from lightning_hangcheck.text.shown import (
    LARGEST_RANK,
    format_ranks,
    one_line,
    parse_ranks,
    seconds_in_words,
    show_command,
    visible,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_duration_is_never_an_exponent() -> None:
    seconds = (0.0, 0.31, 41.2, 59.94, 59.96, 125.4, 3599.6)
    words = ["<1 ms", "0.31 s", "41.2 s", "59.9 s", "1 min 00 s", "2 min 05 s", "1 h 00 min"]
    assert [seconds_in_words(one) for one in seconds] == words
    assert seconds_in_words(float("inf")) == seconds_in_words(1e15)


@given(some.lists(some.integers(0, 60) | some.integers(0, LARGEST_RANK)))
def test_ranges_read_back_as_the_ranks_in_order(ranks: list[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(set(ranks)))


@pytest.mark.parametrize("text", ["-1", "1-", "3-1", "a", "1-2-3", "0-99999999", "1.5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_ranks(text)


texts = some.text(
    some.characters(categories=["L", "N", "P", "Z", "C"]) | some.sampled_from("\x1b\x9b\u202e\n\\")
)


@given(texts)
def test_what_is_visible_stays_as_it_is_and_nothing_is_left_that_a_terminal_obeys(
    text: str,
) -> None:
    once = visible(text)
    assert once.isprintable()
    assert one_line(text).isprintable()
    assert (once == text) == text.isprintable()


def test_what_is_not_visible_is_shown_by_its_escape() -> None:
    text = "a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    shown = r"a\tb\x1b[31m\x07\x7f\x9b\u200b\u202e\u2066\ufeff\ud800 é 模 🙂"
    assert visible(text) == shown
    assert one_line(f" {text}\r\n\n b ") == shown.replace(r"\t", " ") + " b"


# C0 without the line break, DEL, C1, directions, zero width, byte order mark
OBEYED = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
EVIL = "\x1b[2J\x1b]0;owned\x07\u202egnp\u200b\r\n[red]a[/red]"
OURS = [sys.executable, "-m", "lightning_hangcheck"]


def assert_harmless(shown: bytes) -> str:
    """Nothing in it is obeyed by a terminal."""
    text = shown.decode()
    assert OBEYED.findall(text) == []
    return text


def hangcheck(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command on a folder, and return its exit code and all that it showed."""
    ended = subprocess.run(
        [*OURS, *words], cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return ended.returncode, assert_harmless(ended.stdout + ended.stderr)


@pytest.mark.real
def test_the_console_and_the_report_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last words, checkpoints, sections and tracked loops of a rank that failed."""
    program = str(PROGRAMS / "escaping_names.py")
    job = [sys.executable, program, "failing", EVIL, os.fsdecode(b"\xff")]
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    code, shown = hangcheck(tmp_path, "run", "--run-dir", "run", "--", *job)
    assert code == 1
    assert r"CHECKPOINT 1: checkpoint\x1b[2J" in shown
    assert r"section\x1b[2J\x1b]0;owned\x07\x9b31m" in shown
    assert r"ValueError: no \x1b[2J" in shown
    assert "[red]a[/red][link=http://evil]b[/link]" in shown, "no markup is interpreted"
    assert not [line for line in shown.splitlines() if line.startswith("HANG")], "a forged line"
    assert hangcheck(tmp_path, "report", "run")[0] == 0
    assert hangcheck(tmp_path, "report", "run", "--json")[0] == 0
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    left = {file.name: assert_harmless(file.read_bytes()) for file in files}
    assert r"\\udcff" in left["run.json"]
    assert r"\u001b[2J" in left["rank-0.jsonl"]


@pytest.mark.parametrize(
    "words", [["report", EVIL], ["--" + EVIL], [EVIL], ["attach", EVIL], ["explain", EVIL]]
)
def test_an_error_that_quotes_its_argument(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(words) == 2
    said = assert_harmless(capsys.readouterr().err.encode())
    assert said.startswith("hangcheck: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("bar", ["rich", "tqdm"])
def test_the_bar_of_a_tracked_loop(bar: str, tmp_path: Path) -> None:
    """On a real terminal; of the escapes in it, all are the bar's own."""
    reader, writer = pty.openpty()
    code = f"import lightning_hangcheck as hc\nfor _ in hc.track([1], {EVIL!r}, bar={bar!r}): pass"
    try:
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            stderr=writer,
            env={**os.environ, "HANGCHECK_RUN_DIR": str(tmp_path / "run"), "COLUMNS": "300"},
            timeout=PATIENCE_S,
            check=True,
        )
        shown = os.read(reader, 1 << 16).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert r"\x1b[2J\x1b]0;owned\x07\u202egnp\u200b [red]a[/red]" in shown
    assert "\x1b[2J" not in shown
    assert not {"\x07", "\u202e", "\u200b"} & set(shown)


# What is never shown, in text and in command lines.

SECRETS = [
    "0123456789abcdef0123456789abcdef01234567",
    "wandb_v1_Abcdefghij0123456789",
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "sk-proj-abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghij_klmnop",
    "glpat-abcdefghij0123456789",
    "xoxb-1234567890-abcdefghij",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def_ghi",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]
breaks = some.text(some.sampled_from(" \n\t'\"(,;:="), min_size=1)


@given(some.sampled_from(SECRETS), some.text(), breaks, breaks, some.text())
def test_a_secret_is_found_by_its_shape(
    secret: str, before: str, left: str, right: str, after: str
) -> None:
    text = redact_text(f"{before}{left}{secret}{right}{after}")
    assert secret not in text
    assert HIDDEN in text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter2@proxy:3128/x", "hunter2"),
        ("postgres://u:p@ss@host/db", "p@ss"),
        ("api_key=abc123", "abc123"),
        ("WANDB_API_KEY = 'abc123'", "abc123"),
        ("login(token='abc123')", "abc123"),
        ('{"token": "abc123"}', "abc123"),
        ("train.py --wandb-api-key abc123 --lr 1", "abc123"),
        ("train.py --token=abc123", "abc123"),
        ("password=hunter2&next", "hunter2"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("header Bearer abcdefghij0123456789", "abcdefghij0123456789"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEcut", "MIIEcut"),
        ("{'X-Api-Key': 'abc123', 'lr': 1}", "abc123"),
        ('{"password": ("abc", "abc123")}', "abc123"),
        ("{'keys': [{'api_key': ['a', ('b', 'abc123')]}]}", "abc123"),
        ('{"password": "quo"te, abc123"}', "abc123"),
        (r'{"config": "{\"token\": \"abc123\"}"}', "abc123"),
        ("('X-Api-Key', 'abc123')", "abc123"),
        ("Command '['curl', '--token', 'abc123']' failed", "abc123"),
        ("os.environ['HF_TOKEN'] = 'abc123'", "abc123"),
        ("password = 'open sesame abc123'", "abc123"),
        ("Client(token=SecretStr('abc123'))", "abc123"),
        ("token == 'abc123'", "abc123"),
        ("X-Auth-Token: abc123", "abc123"),
        ("passphrase: abc123", "abc123"),
        ("Set-Cookie: a=b; session=abc123; Path=/", "abc123"),
        ("...token=abc123", "abc123"),
        ("-----token abc123", "abc123"),
        ("https://host/x?sig=a8F3kq92LmZ0&se=1", "a8F3kq92LmZ0"),
        ("sort_key='a8F3kq92LmZ0'", "a8F3kq92LmZ0"),
        ("://a:b:abc123@host", "abc123"),
    ],
)
def test_a_secret_is_found_by_the_name_in_front_of_it(text: str, secret: str) -> None:
    assert secret not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'layer1.weight'",
        "max_new_tokens=128",
        "pad_token=<pad> eos_token='</s>'",
        "expected token: EOS",
        "tokenizer=gpt2",
        "train.py --tokenizer gpt2 --lr 1e-3",
        "tcp://10.0.0.1:29500",
        "http://host:8080/path",
        "2 basic functionality checks",
        "sk-learn",
        "sort_key=name missing_keys=['a.b'] pin_memory=True use_auth_token=None",
        "author=me compass=1 monkey: 2 keyboard=us passes=3 --key_padding 1",
        "columns=['token', 'label']",
        "for key, value in items",
        "",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


pieces = some.sampled_from(
    [*SECRETS, HIDDEN, "token=", "--key ", "://", "@", ":", "Authorization: ", "bearer ", " ", '"']
)


@given(some.lists(pieces | some.text(max_size=5), max_size=12).map("".join))
def test_redacting_again_changes_nothing(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


LONG = 50_000
SLOW_S = 8.0
"""Linear takes a tenth of it at most, quadratic minutes."""


@pytest.mark.parametrize(
    "piece",
    [
        "a", "-", " ", "=", ":", "'", "\\", "0", "://", "://:", "-eyJ", "token=", "token='",
        'token=\\"', "token=(", "token: ", "token=none ", "-k=", "-k ", "key:", "--a ", "a=",
        "-----BEGIN ", "-----END ", "bearer ", "authorization: ", "://a:token=\"://b\" @",
        "-k a1b2c3d4e5f6g7h8 ", "('token', ", "sk-a ", "hf_",
        "step 17: loss=0.31 tokens=512 path=/data/x --lr 3e-4 token=abc 'key': 1 ",
    ],
)  # fmt: skip
def test_no_text_takes_more_than_its_length(piece: str) -> None:
    text = piece * (LONG // len(piece))
    assert seconds_for(text) < SLOW_S
    assert seconds_for(f"token={text}") < SLOW_S


def seconds_for(text: str) -> float:
    started_s = time.process_time()
    redact_text(text)
    return time.process_time() - started_s


HIDDEN_NAMES = (
    "WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD MYSQL_PWD "
    "GOOGLE_APPLICATION_CREDENTIALS BASIC_AUTH OPENAI_APIKEY session_cookie wandbApiKey passphrase"
)
SHOWN_NAMES = (
    "TOKENIZERS_PARALLELISM PWD OLDPWD NCCL_DEBUG PATH MASTER_ADDR MAX_TOKENS AUTHOR HF_TOKEN_PATH"
)


def test_variables_are_hidden_by_name_and_by_what_they_hold() -> None:
    for name in HIDDEN_NAMES.split():
        assert redact_values({name: "x", "MY_TOKEN": ""}) == {name: HIDDEN, "MY_TOKEN": ""}
    plain = dict.fromkeys(SHOWN_NAMES.split(), "false")
    assert redact_values(plain) == plain
    proxy = redact_values({"HTTPS_PROXY": "http://u:pw@proxy:1"})
    assert proxy == {"HTTPS_PROXY": f"http://{HIDDEN}@proxy:1"}


ENVIRONMENT = {"WORLD_SIZE": "2", "UCX_TLS": "tcp", "FSDP_VERSION": "2", "HOME": "/root"}
TOLD = {"FSDP_VERSION": "2", "UCX_TLS": "tcp", "WORLD_SIZE": "2"}


def test_the_journal_and_the_run_record_tell_the_same() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, bufsize=0, env=ENVIRONMENT) as rank:
        rank.stdin.write(b"\n")
        assert rank.stdout.read(1) == b"\n"  # it runs: during its exec it shows no environment
        recorded = rank_record(FoundRank(rank=0, pid=rank.pid), "node0")
    assert recorded.environment == TOLD
    assert start_facts(ENVIRONMENT, identify(ENVIRONMENT))["environment"] == TOLD


VALUE = "xsecretx"
RANDOM = "a8F3kq92LmZ0"
SECRET_WORDS = [
    "api_key", "api-key", "apikey", "wandb_key", "wandb-api-key", "token", "hf_token", "hfToken",
    "pass", "passwd", "password", "passphrase", "pw", "pwd", "auth", "secret", "credentials",
    "key", "db.password", "trainer.token", "access-key", "ACCESS_TOKEN", "cookie", "jwt", "oauth",
]  # fmt: skip


@given(
    some.sampled_from([f"{dashes}{word}" for word in SECRET_WORDS for dashes in ("-", "--")]),
    some.sampled_from(["=", " "]),
    some.text(some.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
    some.text(some.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
)
def test_whatever_the_value_is_nothing_of_it_is_left(
    word: str, between: str, left: str, right: str
) -> None:
    """Blanks, quotes, commas and further equals signs belong to the value; a dash begins a flag."""
    value = f"v{left}{VALUE}{right}"
    words = [word, value] if between == " " else [f"{word}={value}"]
    assert shlex.split(show_command(words)) == [
        part.replace(value, HIDDEN) if VALUE in part else part for part in words
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["HF_TOKEN=xsecretx"],
        ["wandb.key=xsecretx"],
        ["+trainer.token=xsecretx"],
        ["++trainer.token=xsecretx"],
        ['{"api_key": "xsecretx", "lr": 1}'],
        ['{"a": {"secrets": ["b", "xsecretx"]}}'],
        ["https://me:xsecretx@host/path"],
        ["https://host/path?token=xsecretx&x=1"],
        ["-H", "X-Api-Key: xsecretx"],
        ["bash", "-c", "curl --token xsecretx --pass 'a xsecretx'"],
        ["--options", "a=1,token=xsecretx"],
    ],
)
def test_other_ways_to_hand_over_a_secret(words: list[str]) -> None:
    shown = show_command(words)
    assert VALUE not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "words",
    [["-k", RANDOM], [f"-k{RANDOM}"], [f"-k={RANDOM}"], ["key=" + RANDOM], ["sort_key=" + RANDOM]],
)
def test_a_name_that_tells_nothing_certain_hides_what_looks_random(words: list[str]) -> None:
    assert RANDOM not in show_command(words)


@pytest.mark.parametrize(
    "line",
    [
        "python train.py --tokenizer gpt2 --max_tokens 512 --key_padding 3 --keyboard us",
        "python train.py --author me --compass north --passes=3 monkey=1 bos_token=x",
        "python -k 5 -p 8080 -t 3e-4 -k data/train-2024-01-01.bin -m torch.distributed.run",
        "python -k bert-base-uncased-v2 -r 20241120T102301Z -k meta-llama/Llama-3.1-8B-Instruct",
        "python --use_auth_token True --sort-key name --token --lr 1 --single_pass=2",
        "python +trainer.max_epochs=3 data.text_key=content dataset.key=image 'a b'",
    ],
)
def test_what_is_no_secret_stays_in_a_command(line: str) -> None:
    assert show_command(shlex.split(line)) == line


def test_a_command_is_one_line_that_no_terminal_obeys() -> None:
    shown = show_command(["python", "-c", "a\n\x1b[2J\u202e\udcff", ""])
    assert shown == r"python -c 'a\n\x1b[2J\u202e\udcff' ''"
