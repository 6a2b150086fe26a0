"""Places of checkpoints, their files as a tree, and remotes of rclone."""

from __future__ import annotations

import re
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from subjects import saving, subject

from lightning_hangcheck.doctor.storage_checks import MOST_LINES, checkpoints, rclone_remotes, tree

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for step in ("step_1", "step_2"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "model.pt").write_bytes(b"x" * 1000)
    return tmp_path


@pytest.mark.parametrize(
    ("expect", "status", "said"),
    [
        ("step_*/model.pt", "ok", "2 files, 2.0 kB"),
        ("step_final/*", "failed", "step_1/model.pt"),  # what is there instead
    ],
)
def test_what_is_expected_must_be_there(saved: Path, expect: str, status: str, said: str) -> None:
    place, expected, _ = checkpoints(saving(saved, expect))
    assert (place.status, expected.status, said in expected.found) == ("ok", status, True)


@pytest.mark.parametrize(("expect", "status"), [((), "warning"), (("*",), "failed")])
@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("no such folder", "mkdir -p 'no such folder'"),
        ("remote:path", "rclone lsf remote:path"),
        ("memory://nothing", "correct its spelling, or leave it to the first run"),
    ],
)
def test_the_remedy_fits_the_kind_of_place(
    place: str, remedy: str, expect: tuple[str, ...], status: str
) -> None:
    (check,) = checkpoints(saving(place, *expect))
    assert (check.status, remedy in check.remedy) == (status, True)
    assert ("mkdir" in check.remedy) is ("mkdir" in remedy)
    assert not Path(place).exists()


def test_a_folder_is_written_read_and_left_as_it_was(saved: Path) -> None:
    check = checkpoints(saving(saved))[-1]
    assert check.status == "ok"
    rate = r"[\d.]+ [kMG]B/s"
    told = rf"written at {rate}, synchronised in .* \({rate} together\), read back at {rate}; "
    assert re.fullmatch(told + "at this rate saving 1.0 kB takes .*", check.found)
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_a_disk_that_takes_no_more_fails_and_nothing_stays(saved: Path) -> None:
    """A limit on the size of a file ends a write half-way, as a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        check = checkpoints(saving(saved))[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert check.status == "failed"
    assert "File too large" in check.found
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_room_for_less_than_two_checkpoints_fails(saved: Path) -> None:
    """The largest one is a file full of holes: it has that size, and takes no room."""
    free = shutil.disk_usage(saved).free
    with (saved / "step_3.ckpt").open("wb") as file:
        file.truncate(int(free * 0.75))
    check = checkpoints(saving(saved))[-1]
    assert check.status == "failed"
    assert "less than two checkpoints take" in check.found
    assert check.remedy.startswith("free some space")


def test_a_tree_shows_what_is_in_folders_and_has_an_end() -> None:
    lines = tree({"step_1/model.pt": 3_000_000, "step_1/more/x": 5, "last.ckpt": 7})
    assert [" ".join(line.split()) for line in lines] == [
        *("last.ckpt 7 B", "step_1/ 2 files, 3.0 MB", "model.pt 3.0 MB"),
        *("more/ 1 file, 5 B", "x 5 B"),
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 2, 4]
    files = {f"{a}/{b}/{c}": 1 for a in range(6) for b in range(6) for c in range(6)}
    assert tree(files)[MOST_LINES:] == ("... 228 more lines",)


def test_depth_says_how_deep_the_place_is_shown(saved: Path) -> None:
    (saved / "a/b/c").mkdir(parents=True)
    (saved / "a/b/c/model.pt").write_bytes(b"x")
    shown = [checkpoints(replace(saving(saved), depth=deep))[0] for deep in (2, 4)]
    assert [
        any("model.pt" in line and line.startswith("      ") for line in one.details)
        for one in shown
    ] == [False, True]
    assert "2 folders deep" in shown[0].found


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


AWS = "[a]\ntype = s3\nprovider = AWS\n"
ENCRYPTED = "RCLONE_ENCRYPT_V0:\nAAAA\n"


@pytest.mark.parametrize(
    ("text", "environment", "status", "said", "remedy"),
    [
        (WELL, {}, "ok", ": store", ""),
        *(
            (
                re.sub(rf"(?m)^{key} .*\n", "", WELL),
                {},
                status,
                f"rclone.conf:1: [store] has no {key}",
                f"[store]\n{mended}",
            )
            for key, mended, status in (
                ("type", "type = s3", "failed"),
                ("access_key_id", "access_key_id = YOUR-KEY", "warning"),
            )
        ),
        # without a region AWS takes us-east-1
        (f"{AWS}access_key_id = k\nsecret_access_key = s\n", {}, "ok", ": a", ""),
        (f"{AWS}env_auth = true\n", {}, "warning", "no credentials are in the environment", ""),
        (f"{AWS}env_auth = true\n", {"AWS_ACCESS_KEY_ID": "k"}, "ok", ": a", ""),
        (ENCRYPTED, {}, "", "", ""),
    ],
)
def test_what_is_missing_in_a_remote_is_named_with_its_line_and_the_block_corrected(
    tmp_path: Path, text: str, environment: dict[str, str], status: str, said: str, remedy: str
) -> None:
    found = _check(tmp_path, text, **environment)
    assert [check.status for check in found[:1]] == [status] * bool(status)
    for check in found[:1]:
        assert said in check.found
        assert remedy in check.remedy
        assert SECRET not in check.remedy


def test_a_run_without_rclone_is_not_asked(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "rclone" / "rclone.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[store]\nprovider = AWS\n")
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    run = subject(f"python {script}", HOME=str(tmp_path))
    assert rclone_remotes(run) == ()
    script.write_text("subprocess.run(['rclone', 'copy'])\n")
    (check,) = rclone_remotes(run)
    assert check.status == "failed"
