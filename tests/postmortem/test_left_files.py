"""What lies in a folder is known by its content, read within bounds, and kept apart."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
from typing import TYPE_CHECKING

import pytest
from log_lines import raised, timeout
from postmortem.dumps import did, dump, write

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge import judge
from lightning_hangcheck.postmortem.postmortem import Postmortem, case_of, read_left

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAIR = {"0": [0, 1]}
HOUR = 3600.0


def stuck(began_s: float = 0.0, number: int = 7) -> dict[int, dict[str, object]]:
    """A job of two ranks: rank 1 did not come."""
    return {
        0: dump(0, did(number - 1, ended=True), did(number), groups=PAIR, began_s=began_s),
        1: dump(1, did(number - 1, ended=True), groups=PAIR, began_s=began_s),
    }


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A folder with the dumps of that job."""
    return write(tmp_path / "left", {f"dump_{rank}": one for rank, one in stuck().items()})


def read(folder: Path, *more: Path) -> Postmortem:
    """Read a folder and judge it."""
    case = case_of(read_left([str(folder), *map(str, more)]), "test")
    assert case.left is not None
    return Postmortem(case, judge(case), case.left)


def reasons(found: Postmortem) -> dict[str, str]:
    """Why files were left out, by their names."""
    return {one.path.rpartition("/")[2]: one.why for one in found.left.left_out}


# Known by content.


@pytest.mark.parametrize("names", [("a", "b"), ("rank_1", "rank_0"), ("x.log", "trace.pt.txt")])
def test_a_records_name_says_nothing_where_its_groups_do(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """Swapped ones are put right: each rank has a group of its own."""
    dumps = stuck()
    folder = write(tmp_path / "left", dict(zip(names, dumps.values(), strict=True)))
    found = read(folder)
    assert found.verdict.culprits == (1,)
    assert [one.ranks for one in found.left.read] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("names", "known"), [(("nccl_trace_rank_0", "nccl_trace_rank_1"), True), (("a", "b"), False)]
)
def test_without_a_group_that_tells_a_name_must(
    tmp_path: Path, names: tuple[str, str], known: bool
) -> None:
    """Where nothing tells, a record is left out, and the reason is said."""
    dumps = stuck()
    for rank, one in dumps.items():
        del one["pg_config"][str(1000 + rank)]  # type: ignore[attr-defined]
    folder = write(tmp_path / "left", dict(zip(names, dumps.values(), strict=True)))
    if known:
        assert read(folder).verdict.culprits == (1,)
        return
    with pytest.raises(UnreadableRun, match="whose flight record it is"):
        read(folder)


def test_json_tells_the_same_as_a_pickle(tmp_path: Path) -> None:
    for rank, one in stuck().items():
        (tmp_path / f"{rank}.txt").write_text(json.dumps(one))
    assert read(tmp_path).verdict.culprits == (1,)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files_are_unpacked(left: Path, pack: Callable[[bytes], bytes]) -> None:
    for file in left.iterdir():
        file.write_bytes(pack(file.read_bytes()))
    assert read(left).verdict.culprits == (1,)


def test_records_of_an_older_form_are_read(tmp_path: Path) -> None:
    """Before torch 2.4 one number counted for all; `record_id` and counts came later."""
    dumps = stuck()
    for one in dumps.values():
        del one["pg_status"]
        for entry in one["entries"]:  # type: ignore[attr-defined]
            entry["seq_id"] = entry.pop("collective_seq_id")
            del entry["p2p_seq_id"], entry["record_id"]
    found = read(write(tmp_path / "left", {f"dump_{rank}": one for rank, one in dumps.items()}))
    assert found.verdict.culprits == (1,)


# Kept apart.


def test_of_two_incidents_the_newer_is_told_and_the_other_named(tmp_path: Path) -> None:
    old = {f"old_{rank}": one for rank, one in stuck(number=3).items()}
    new = {f"new_{rank}": one for rank, one in stuck(began_s=3 * HOUR).items()}
    found = read(write(tmp_path / "left", old | new))
    assert found.verdict.culprits == (1,)
    assert "#7" in found.verdict.summary
    assert set(reasons(found)) == {"old_0", "old_1"}
    assert "another incident or job, of 2023-11-14T22:13:21Z" in reasons(found)["old_0"]


def test_jobs_of_other_sizes_are_not_mixed(tmp_path: Path) -> None:
    wide = {"0": [0, 1, 2, 3]}
    other = {f"b_{rank}": dump(rank, did(7, ended=True), groups=wide) for rank in (2, 3)}
    mine = {f"a_{rank}": one for rank, one in stuck(began_s=5.0).items()}
    found = read(write(tmp_path / "left", mine | other))
    assert (found.verdict.world_size, found.verdict.culprits) == (2, (1,))
    assert set(reasons(found)) == {"b_2", "b_3"}


def test_a_record_without_entries_belongs_where_its_counts_do(tmp_path: Path) -> None:
    dumps = {"a_0": stuck()[0], "a_1": dump(1, groups=PAIR, counted={"0": (6, 6)})}
    old = {"b_1": dump(1, groups=PAIR, counted={"0": (52_000, 52_000)})}
    found = read(write(tmp_path / "left", dumps | old))
    assert found.verdict.culprits == (1,)
    assert set(reasons(found)) == {"b_1"}


# Foreign, torn and hostile.


class Runs:
    """What a hostile pickle holds: something to call when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, ("hostile-was-here",)


def test_a_pickle_that_would_run_code_is_refused(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = pickle.dumps({"pg_config": {}, "entries": [Runs()]}, protocol=2)
    (left / "dump_9").write_bytes(hostile)
    found = read(left)
    assert found.verdict.culprits == (1,)
    assert "only plain data is read" in reasons(found)["dump_9"]
    assert not (tmp_path / "hostile-was-here").exists()


def huge_memo() -> bytes:
    """Names a place of the unpickler's memory that is 16 GB away."""
    return b"\x80\x02X\x09\x00\x00\x00pg_configr\xff\xff\xff\x7f."


def many_references() -> bytes:
    """A list of a million times one entry, each with a million sizes."""
    data = io.BytesIO()
    pickler = pickle.Pickler(data, protocol=2)
    sizes = [[1] * 1_000] * 1_000
    entry = {"profiling_name": "nccl:all_reduce", "input_sizes": sizes * 1_000, "pg_id": 0}
    pickler.dump({"entries": [entry] * 1_000_000})
    return data.getvalue()


TORN = pickle.dumps(stuck()[0], protocol=2)
FOREIGN = {
    "torn": (TORN[: len(TORN) // 2], "its pickle is torn"),
    "empty": (b"", "it is empty"),
    "memo": (huge_memo(), "too much memory"),
    "other_pickle": (pickle.dumps({"pg_config": 3, "weights": [1.0]}), "flight record"),
    "other_json": (b'{"pg_config": 5, "entries": "none"}', "it is not a flight record"),
    "notes": (b"# Notes\n\nTry again with a smaller batch.\n", "says nothing of ranks"),
    "torn_json": (b'{"pg_config": {"0": ', "its JSON is torn"),
    "deep_json": (b'{"pg_config": ' + b"[" * 100_000, "its JSON is torn"),
    "numbers": (b'{"entries": [{"profiling_name": 5, "record_id": "x"}]}', "of another form"),
    "checkpoint": (b"PK\x03\x04" + b"\0" * 100, "a zip archive"),
    "tar": (gzip.compress(b"a.log".ljust(257, b"\0") + b"ustar\0"), "a tar archive: unpack it"),
    "program": (b"\x7fELF\x02", "a program"),
    "noise": (bytes(range(256)) * 8, "of no kind that is known"),
    "torn_gzip": (gzip.compress(TORN)[:200], "its gzip data is torn"),
    "bomb": (300 * gzip.compress(b"\0" * 1_000_000), "no kind that is known"),
    "pickle_bomb": (gzip.compress(TORN[:-1]) + 300 * gzip.compress(b"N0" * 500_000), "a bomb"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_torn_or_foreign_ends_in_a_sentence(left: Path, name: str) -> None:
    data, why = FOREIGN[name]
    (left / "foreign").write_bytes(data)
    found = read(left)
    assert found.verdict.culprits == (1,)
    assert why in reasons(found)["foreign"]


def test_references_do_not_grow_without_bounds(left: Path) -> None:
    (left / "foreign").write_bytes(many_references())
    found = read(left)
    assert found.verdict.culprits == (1,)


def test_links_pipes_and_circles_are_left_out(left: Path) -> None:
    (left / "deep").mkdir()
    (left / "deep" / "circle").symlink_to(left)
    os.mkfifo(left / "fifo")
    found = read(left)
    assert found.verdict.culprits == (1,)
    assert set(reasons(found)) == {"circle", "fifo"}


def test_a_file_named_twice_is_read_once(left: Path) -> None:
    found = read(left, left / "dump_0")
    assert len(found.left.read) == 2
    assert found.left.left_out == ()


@pytest.mark.parametrize("what", ["nothing", "no record"])
def test_where_nothing_can_be_read_the_reason_is_said(tmp_path: Path, what: str) -> None:
    folder = write(tmp_path / "left", {})
    if what == "no record":
        (folder / "notes").write_bytes(b"\0\1\2")
    with pytest.raises(UnreadableRun, match=r"it holds no file|of no kind that is known"):
        read(folder)
    with pytest.raises(UnreadableRun, match="is not there"):
        read(tmp_path / "nowhere")


def test_dumps_with_foreign_bytes_end_in_a_sentence_or_are_read(tmp_path: Path) -> None:
    draw = random.Random(11)
    folder = write(tmp_path / "left", {"dump_0": stuck()[0]})
    whole = [pickle.dumps(stuck()[1], protocol=2), json.dumps(stuck()[1]).encode()]
    for number in range(60):
        data = bytearray(whole[number % 2])
        for _ in range(draw.randrange(1, 9)):
            at = draw.randrange(len(data))
            data[at : at + draw.choice((0, 1, 9))] = draw.randbytes(draw.choice((0, 1, 5)))
        (folder / "dump_1").write_bytes(data)
        found = read(folder)
        assert found.verdict.verdict == "hang", "rank 0 waits, whatever is left of rank 1"


def test_source_code_beside_logs_is_no_log_of_the_rank_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("[rank1]: ValueError: no data\n")
    source = tmp_path / "save_on_rank_0.py"
    source.write_text("print('saving')\n")
    found = read(tmp_path)
    assert reasons(found) == {
        "save_on_rank_0.py": "source code or documentation; name the file to read it"
    }
    assert [one.path for one in found.left.read] == [str(tmp_path / "job.log")]
    assert len(read(tmp_path / "job.log", source).left.read) == 2


def test_of_torchruns_attempts_the_last_counts(tmp_path: Path) -> None:
    for attempt, error in ((0, "KeyError: 'a'"), (1, "ValueError: b")):
        log = tmp_path / "none_x" / f"attempt_{attempt}" / "1" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"{raised(1, error)}\n[rank0]: step 3\n")
    found = read(tmp_path)
    assert "ValueError: b" in found.verdict.summary
    assert "before the last one" in reasons(found)["stderr.log"]


@pytest.mark.parametrize(("lines", "who"), [(2, (7,)), (1, ())])
def test_torchruns_folders_are_put_to_ranks_by_the_numbers_of_others(
    tmp_path: Path, lines: int, who: tuple[int, ...]
) -> None:
    for local in range(4):
        log = tmp_path / "none_x" / "attempt_0" / f"{local}" / "stderr.log"
        log.parent.mkdir(parents=True)
        said = timeout(4 + local, 70).partition(":")[2] if local < lines else "started"
        log.write_text(f"{said if local < 3 else raised(None, 'KeyError: lr')}\n")
    assert read(tmp_path).verdict.culprits == who
