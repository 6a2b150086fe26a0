"""Remotes of rclone: complete, incomplete, with what a chat window leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from subjects import subject

from lightning_hangcheck.doctor.storing import rclone_remotes

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Finding

SECRET = "q7hX9" * 8
WELL = f"""[store]
type = s3
provider = Cloudflare
endpoint = https://store.example
access_key_id = {SECRET}
secret_access_key = {SECRET}
"""


def _check(folder: Path, text: str, **environment: str) -> tuple[Finding, ...]:
    file = folder / "rclone.conf"
    file.write_text(text)
    return rclone_remotes(subject(RCLONE_CONFIG=str(file), HOME=str(folder), **environment))


def test_a_complete_remote_is_fine(tmp_path: Path) -> None:
    (check,) = _check(tmp_path, WELL)
    assert check.status == "ok"
    assert check.sentence.endswith(": store")


@pytest.mark.parametrize(
    ("without", "named", "corrected", "status"),
    [
        ("type", "has no type", "type = s3", "failed"),
        ("provider", "has no provider", "provider = Other", "failed"),
        ("endpoint", "has no endpoint", "endpoint = https://", "failed"),
        ("access_key_id", "has no access_key_id", "access_key_id = YOUR-KEY", "warning"),
    ],
)
def test_what_is_missing_is_named_with_its_line_and_the_block_corrected(
    tmp_path: Path, without: str, named: str, corrected: str, status: str
) -> None:
    lines = [line for line in WELL.splitlines() if not line.startswith(without)]
    (check, *_) = _check(tmp_path, "\n".join(lines))
    assert check.status == status
    assert "rclone.conf:1: " in check.sentence
    assert named in check.sentence
    assert check.remedy.startswith("[store]\ntype = s3\n")
    assert corrected in check.remedy
    assert SECRET not in check.remedy


def test_a_stray_line_is_named_by_its_number(tmp_path: Path) -> None:
    (before, after) = _check(tmp_path, f"```ini\n{WELL}```\n")
    assert "rclone.conf:1: rclone cannot parse this line" in before.sentence
    assert before.remedy == "remove line 1"
    assert "rclone.conf:8: rclone cannot parse this line" in after.sentence
    assert "`" not in after.remedy


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("endpoint = `https://store.example`", "ok"),
        ("endpoint: https://store.example", "ok"),
        ("`endpoint` = https://store.example", "ok"),
        ("endpoint = ``", "failed"),
        ("endpoint = `https://store.example", "failed"),
        ("`endpoint = https://store.example`", "failed"),
    ],
)
def test_lines_are_taken_apart_as_rclone_does(tmp_path: Path, line: str, status: str) -> None:
    (check, *_) = _check(tmp_path, WELL.replace("endpoint = https://store.example", line))
    assert check.status == status


def test_aws_without_a_region_is_us_east_1(tmp_path: Path) -> None:
    text = WELL.replace("Cloudflare", "AWS").replace("endpoint = https://store.example\n", "")
    (check,) = _check(tmp_path, text)
    assert check.status == "ok"


def test_a_run_without_rclone_is_not_asked(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "rclone" / "rclone.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[store]\nprovider = AWS\n")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    run = subject(f"python {script}", HOME=str(tmp_path))
    assert rclone_remotes(run) == ()
    (check,) = rclone_remotes(subject(HOME=str(tmp_path)))
    assert check.status == "warning"
    (check,) = rclone_remotes(replace(run, checkpoints="store:bucket/run"))
    assert check.status == "failed"
    script.write_text("subprocess.run(['rclone', 'copy'])\n")
    (check,) = rclone_remotes(run)
    assert check.status == "failed"


def test_credentials_of_the_environment_must_be_there(tmp_path: Path) -> None:
    text = "[a]\ntype = s3\nprovider = AWS\nregion = eu-west-1\nenv_auth = true\n"
    (check,) = _check(tmp_path, text)
    assert "no credentials are in the environment" in check.sentence
    (check,) = _check(tmp_path, text, AWS_ACCESS_KEY_ID="k")
    assert check.status == "ok"


def test_an_encrypted_configuration_is_not_read(tmp_path: Path) -> None:
    text = "# Encrypted rclone configuration File\n\nRCLONE_ENCRYPT_V0:\nAAAA\n"
    assert _check(tmp_path, text) == ()


def test_without_a_configuration_nothing_is_asked(tmp_path: Path) -> None:
    assert rclone_remotes(subject(HOME=str(tmp_path))) == ()


def test_where_rclone_is_installed_it_reads_its_own_configuration(tmp_path: Path) -> None:
    """It may know more than the file tells: of variables, or of a file that is encrypted."""
    rclone = tmp_path / "rclone"
    told = '{"store": {"type": "s3", "provider": "Minio", "access_key_id": "k"}}'
    rclone.write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'config dump' ] && echo '{told}'\n")
    rclone.chmod(0o700)
    encrypted = "RCLONE_ENCRYPT_V0:\nAAAA\n"
    (check,) = _check(tmp_path, encrypted, PATH=f"{tmp_path}:/bin:/usr/bin")
    assert check.status == "failed"
    assert "[store] has no endpoint" in check.sentence


def test_what_rclone_itself_cannot_read_is_taken_apart_line_by_line(tmp_path: Path) -> None:
    rclone = tmp_path / "rclone"
    rclone.write_text("#!/bin/sh\nexit 1\n")
    rclone.chmod(0o700)
    (check,) = _check(tmp_path, f"{WELL}stray\n", PATH=f"{tmp_path}:/bin:/usr/bin")
    assert "rclone.conf:7: rclone cannot parse this line" in check.sentence
