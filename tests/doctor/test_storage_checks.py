"""Places of checkpoints, their files as a tree, and remotes of rclone."""

from __future__ import annotations

import re
import resource
import shutil
from typing import TYPE_CHECKING

import fsspec
import pytest
from msgspec.structs import replace
from subjects import saving, subject

from lightning_hangcheck.doctor.storage_checks import (
    MOST_LINES,
    checkpoints,
    rclone_remotes,
    tree,
    writing_checkpoints,
)

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.doctor.check import Finding


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for step in ("step_1", "step_2"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "model.pt").write_bytes(b"x" * 1000)
    return tmp_path


def test_what_is_expected_and_there_is_fine(saved: Path) -> None:
    place, expected = checkpoints(saving(saved, "step_*/model.pt"))
    assert (place.status, expected.status) == ("ok", "ok")
    assert "2 files, 2.0 kB" in expected.sentence


def test_the_depth_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c" / "d" / "model.pt").write_bytes(b"x")
    (shallow,) = checkpoints(saving(tmp_path))
    (deep,) = checkpoints(replace(saving(tmp_path), depth=5))
    assert (len(shallow.details), len(deep.details)) == (0, 5)


def test_what_is_expected_and_missing_fails_and_shows_what_is_there(saved: Path) -> None:
    _, missing = checkpoints(saving(saved, "step_final/*"))
    assert missing.status == "failed"
    assert "step_1/model.pt" in missing.sentence


@pytest.mark.parametrize(("expect", "status"), [((), "warning"), (("*",), "failed")])
def test_a_place_that_is_not_there_is_told(
    tmp_path: Path, expect: tuple[str, ...], status: str
) -> None:
    (check,) = checkpoints(saving(tmp_path / "typo", *expect))
    assert check.status == status
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("no such folder", "mkdir -p 'no such folder'"),
        ("remote:path", "rclone lsf remote:path"),
        ("memory://nothing", "correct its spelling, or leave it to the first run"),
    ],
)
def test_the_remedy_fits_the_kind_of_place(place: str, remedy: str) -> None:
    (check,) = checkpoints(saving(place))
    assert remedy in check.remedy
    assert ("mkdir" in check.remedy) is ("mkdir" in remedy)


def test_a_folder_is_written_read_and_left_as_it_was(saved: Path) -> None:
    (check,) = writing_checkpoints(saving(saved))
    assert check.status == "ok"
    rate = r"[\d.]+ [kMG]B/s"
    told = rf"written at {rate}, synchronised in .* \({rate} together\), read back at {rate}; "
    assert re.fullmatch(told + "at this rate saving 1.0 kB takes .*", check.sentence)
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_a_disk_that_takes_no_more_fails_and_nothing_stays(saved: Path) -> None:
    """A limit on the size of a file ends a write half-way, as a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        (check,) = writing_checkpoints(saving(saved))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert check.status == "failed"
    assert "File too large" in check.sentence
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_room_for_less_than_two_checkpoints_fails(saved: Path) -> None:
    """The largest one is a file full of holes: it has that size, and takes no room."""
    free = shutil.disk_usage(saved).free
    with (saved / "step_3.ckpt").open("wb") as file:
        file.truncate(int(free * 0.75))
    (check,) = writing_checkpoints(saving(saved))
    assert check.status == "failed"
    assert "less than two checkpoints take" in check.sentence
    assert check.remedy.startswith("free some space")


def test_a_folder_that_takes_no_files_fails() -> None:
    (check,) = writing_checkpoints(saving("/proc/self/task"))
    assert check.status == "failed"
    assert "cannot be used" in check.sentence


def test_a_store_of_another_kind_is_looked_at_in_the_same_way() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/doctor/step_1/model.pt", b"x" * 500)
    place, expected = checkpoints(saving("memory://doctor", "step_*/model.pt"))
    assert (place.status, expected.status) == ("ok", "ok"), place
    memory.rm("/doctor", recursive=True)


def test_folders_come_with_what_is_in_them() -> None:
    lines = tree({"step_1/model.pt": 3_000_000, "step_1/more/x": 5, "last.ckpt": 7})
    assert [line.split() for line in lines] == [
        ["last.ckpt", "7", "B"],
        ["step_1/", "2", "files,", "3.0", "MB"],
        ["model.pt", "3.0", "MB"],
        ["more/", "1", "file,", "5", "B"],
        ["x", "5", "B"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 2, 4]


def test_steps_stand_in_the_order_of_their_numbers_and_the_newest_is_shown() -> None:
    lines = tree({f"step_{number}.pt": 1 for number in range(1, 101)})
    assert [line.split()[0] for line in lines[:5]] == [f"step_{one}.pt" for one in range(1, 6)]
    assert lines[5] == "... 94 more"
    assert lines[6].startswith("step_100.pt")


def test_a_tree_has_an_end() -> None:
    files = {f"{a}/{b}/{c}": 1 for a in range(6) for b in range(6) for c in range(6)}
    lines = tree(files)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "... 228 more lines"


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
    assert f"[store]\n{corrected}" in check.remedy
    assert SECRET not in check.remedy


def test_a_stray_line_is_named_by_its_number(tmp_path: Path) -> None:
    (before, after) = _check(tmp_path, f"```ini\n{WELL}```\n")
    assert "rclone.conf:1: rclone cannot parse this line" in before.sentence
    assert before.remedy == "remove line 1"
    assert "rclone.conf:8: rclone cannot parse this line" in after.sentence
    assert "`" not in after.remedy


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


def test_a_complete_remote_is_fine(tmp_path: Path) -> None:
    (check,) = _check(tmp_path, WELL)
    assert check.status == "ok"
    assert check.sentence.endswith(": store")
