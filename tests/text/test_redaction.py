"""What is never shown, in text and in command lines."""

from __future__ import annotations

import shlex
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.identity import identify
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.run_record import rank_record
from lightning_hangcheck.recorder.process import start_facts
from lightning_hangcheck.text.redaction import HIDDEN, redact_text, redact_values
from lightning_hangcheck.text.shown import show_command

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
        assert rank.stdin is not None
        assert rank.stdout is not None
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
