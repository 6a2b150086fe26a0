"""Whether an evaluation left what it should: the files of its steps, their rows and columns."""

from __future__ import annotations

import csv
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.text.amounts import seconds_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.hooks.evaluation.turns import Step

READ_LIMIT_S = 60.0  # for one file; a table of 1 GB takes some 20 s
CLOCKS_DIFFER_S = 60.0  # a file server's clock may be behind ours; older files are old
LONGEST_CELL = 1 << 27  # characters; csv's own limit, 131072, is below a long generated text
TABLES = (".csv", ".tsv", ".jsonl", ".json")


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation is to leave.

    Attributes:
        path: A file or folder, ``{step}`` in it where each step has its own.
        rows: Of a table, without its head; None for any number but none.
        columns: That it has, in any order, and others perhaps.
    """

    path: str
    rows: int | None = None
    columns: tuple[str, ...] = ()


class _NotRight(Exception):
    """What is wrong with a file, in words that follow its name."""


def expect(
    path: str | os.PathLike[str], rows: int | None = None, columns: Iterable[str] = ()
) -> Expected:
    """Describe what an evaluation is to leave.

    Raises:
        BadUsage: The rows or columns are asked of what is no table.
    """
    expected = Expected(path=str(Path(path).absolute()), rows=rows, columns=tuple(columns))
    asks = expected.rows is not None or expected.columns
    if asks and Path(expected.path).suffix not in TABLES:
        raise BadUsage(
            f"rows and columns of {path} cannot be counted",
            f"name a file that ends in {', '.join(TABLES)}, or leave rows and columns out",
        )
    return expected


def complaints(
    expected: Expected, step: Step, so_far: Sequence[Step], begun_at: float
) -> list[str]:
    """Say what of it is missing or wrong, a clause each, within a minute or two.

    Args:
        expected: What is to be there.
        step: That has been evaluated just now.
        so_far: All steps that were, this one too: where each has files of its own, those of the
            earlier ones must still be there.
        begun_at: When this evaluation began, as `time.time` tells it.
    """
    path = _of_step(expected, step)
    checks = {path: (str(path), partial(_check, path, expected, begun_at))}
    for earlier in so_far:
        other = _of_step(expected, earlier)
        checks.setdefault(other, (f"{other} of step {earlier}", partial(_is_there, other)))
    found = []
    for name, check in checks.values():
        try:
            found.append(_wrong(name, check))
        except NoAnswer as error:
            # each further file would take as long again, while the other ranks wait
            found.append(f"{name} is not read: {error}")
            break
    return [one for one in found if one]


def _of_step(expected: Expected, step: Step) -> Path:
    return Path(expected.path.replace("{step}", str(step)))


def _wrong(name: str, check: partial[None]) -> str:
    """Run a check of a file; return what is wrong, in words.

    Raises:
        NoAnswer: Its storage does not answer.
    """
    try:
        within(READ_LIMIT_S, check)
    except _NotRight as error:
        return f"{name} {error}"
    except FileNotFoundError:
        return f"{name} is not there"
    except (OSError, ValueError, csv.Error) as error:
        return f"{name} cannot be read ({error})"
    return ""


def _is_there(path: Path) -> None:
    path.stat()


def _check(path: Path, expected: Expected, begun_at: float) -> None:
    if path.is_dir():
        if next(path.iterdir(), None) is None:
            raise _NotRight("is empty")
        return
    state = path.stat()
    age = begun_at - state.st_mtime
    if age > CLOCKS_DIFFER_S:
        raise _NotRight(f"was last written {seconds_in_words(age)} before this evaluation began")
    if path.is_file() and not state.st_size:
        raise _NotRight("is empty")
    if path.suffix in TABLES:
        _check_rows(_rows(path, expected.columns), expected.rows)


def _check_rows(rows: Iterator[None], wanted: int | None) -> None:
    number = sum(1 for _ in rows)
    if not number:
        raise _NotRight("has no rows")
    if wanted is not None and number != wanted:
        raise _NotRight(f"has {several(number, 'row')}, not {wanted}")


def _rows(path: Path, columns: Sequence[str]) -> Iterator[None]:
    """Go through the rows of a table, each looked at for its columns."""
    if path.suffix in (".csv", ".tsv"):
        return _rows_of_cells(path, columns)
    return _rows_of_objects(path, columns)


def _rows_of_cells(path: Path, columns: Sequence[str]) -> Iterator[None]:
    with (
        path.open(newline="", encoding="utf-8-sig", errors="replace") as file,
        _long_cells(),
    ):
        lines = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        head = next(lines, [])
        _check_columns("", head, columns)
        for number, cells in enumerate((line for line in lines if line), 1):
            if len(cells) != len(head):
                raise _NotRight(
                    f"row {number} has {len(cells)} of {len(head)} cells: it was not written to "
                    "its end, or by two writers"
                )
            yield


@contextmanager
def _long_cells() -> Iterator[None]:
    """Read cells as long as a generated text; the limit is one for the whole process."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _rows_of_objects(path: Path, columns: Sequence[str]) -> Iterator[None]:
    for number, text in zip(count(1), _objects(path), strict=False):
        try:
            fields = msgspec.json.decode(text, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise _NotRight(f"row {number} cannot be read ({error})") from error
        _check_columns(f"row {number} ", list(fields), columns)
        yield


def _objects(path: Path) -> Iterator[bytes | msgspec.Raw]:
    with path.open("rb") as file:
        if path.suffix == ".jsonl":
            yield from (line for line in file if line.strip())
        else:
            yield from msgspec.json.decode(file.read(), type=list[msgspec.Raw])


def _check_columns(where: str, have: Sequence[str], wanted: Sequence[str]) -> None:
    lacking = [column for column in wanted if column not in have]
    if lacking:
        noun = "column" if len(lacking) == 1 else "columns"
        raise _NotRight(f"{where}lacks {noun} {', '.join(lacking)} (it has {', '.join(have)})")
