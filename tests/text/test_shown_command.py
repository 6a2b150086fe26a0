"""A command is shown without its secrets, and with all that helps to find a hang."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightning_hangcheck.text.redaction import HIDDEN
from lightning_hangcheck.text.shown import show_command

VALUE = "xsecretx"
RANDOM = "a8F3kq92LmZ0"
SECRET_WORDS = [
    "api_key", "api-key", "apikey", "wandb_key", "wandb-api-key", "token", "hf_token", "hfToken",
    "pass", "passwd", "password", "passphrase", "pw", "pwd", "auth", "secret", "credentials",
    "key", "db.password", "trainer.token", "access-key", "ACCESS_TOKEN", "cookie", "jwt", "oauth",
]  # fmt: skip


@pytest.mark.parametrize("word", SECRET_WORDS)
def test_a_value_behind_a_secret_word_is_hidden(word: str) -> None:
    assert show_command(["x", f"--{word}", VALUE, "y"]) == f"x --{word} {HIDDEN} y"
    assert show_command(["x", f"--{word}={VALUE}", "y"]) == f"x --{word}={HIDDEN} y"
    assert show_command(["x", f"-{word}", f"a {VALUE} b"]) == f"x -{word} {HIDDEN}"


@given(
    some.sampled_from(SECRET_WORDS),
    some.sampled_from(["=", " "]),
    some.text(some.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
    some.text(some.characters(exclude_categories=["Cs", "Cc"]), max_size=30),
)
def test_whatever_the_value_is_nothing_of_it_is_left(
    word: str, between: str, left: str, right: str
) -> None:
    """Blanks, quotes, commas and further equals signs belong to the value; a dash begins a flag."""
    value = f"v{left}{VALUE}{right}"
    words = [f"--{word}", value] if between == " " else [f"--{word}={value}"]
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
def test_what_is_no_secret_stays(line: str) -> None:
    assert show_command(shlex.split(line)) == line


def test_a_command_is_one_line_that_no_terminal_obeys() -> None:
    shown = show_command(["python", "-c", "a\n\x1b[2J\u202e\udcff", ""])
    assert shown == r"python -c 'a\n\x1b[2J\u202e\udcff' ''"
