"""Evaluate on rank 0 during training, while the other ranks wait at a named barrier.

Evaluations run in order, none twice, at the same step on all ranks. Their results are checked, and
models can be moved to main memory meanwhile.
"""

from __future__ import annotations

import csv
import gc
import json
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

import msgspec

from lightning_hangcheck.errors import BadUsage, MeetingFailed, ResultsIncomplete, StepOutOfTurn
from lightning_hangcheck.hooks.guards import rank_zero_first
from lightning_hangcheck.hooks.models import are_shared_out, gpu_memory, in_one_line
from lightning_hangcheck.hooks.places import check_limit
from lightning_hangcheck.hooks.rendezvous import (
    default_process_group,
    find_peer_group,
    join_rendezvous,
)
from lightning_hangcheck.identity import identify
from lightning_hangcheck.model.codec import msgpack_decoder
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Section, current
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, device

Step: TypeAlias = int | Literal["final"]
Held: TypeAlias = Any  # a module or an optimizer of torch
READ_LIMIT_S = 60.0  # for one file; a table of 1 GB takes about 20 s
CLOCKS_DIFFER_S = 60.0  # a file server's clock may be behind ours; only older files count as old
TABLES = (".csv", ".tsv", ".jsonl", ".json")
_turns: dict[tuple[str, int], list[Step]] = {}
"""Steps at which this process has evaluated, by name and interval; all ranks evaluate in the same
order."""


class Evaluation:
    """One evaluation; ``needed`` is true on rank 0, at a step at which one is due."""

    def __init__(self, step: Step, *, needed: bool) -> None:
        self.step = step
        self.needed = needed
        self.expected: list[tuple[str, int | None, tuple[str, ...]]] = []
        self._begun_at = time.time()

    def expect(
        self, path: str | os.PathLike[str], *, rows: int | None = None, columns: Iterable[str] = ()
    ) -> None:
        """Declare a result of this evaluation; it is checked when the body ends.

        A file must exist, not be empty, and have been written since the evaluation began. A folder
        must hold something. A table (.csv, .tsv, .jsonl, .json) must have these columns and so many
        rows without its header, by default at least one. If the path has ``{step}``, the files of
        all earlier steps must still exist too.
        """
        wanted = (columns,) if isinstance(columns, str) else tuple(columns)
        if rows is not None and (not hasattr(rows, "__index__") or rows < 0):
            raise BadUsage(f"rows={rows!r} is no number of rows", "write for example rows=20")
        if (rows is not None or wanted) and Path(path).suffix not in TABLES:
            raise BadUsage(
                f"rows and columns of {path} cannot be counted",
                f"name a file that ends in {', '.join(TABLES)}, or leave rows and columns out",
            )
        self.expected.append((str(Path(path).absolute()), rows, wanted))

    def complaints(self, so_far: Sequence[Step]) -> list[str]:
        """Say which results are missing or wrong, including files of these earlier steps."""
        found: list[str] = []
        for path, rows, columns in self.expected:
            for step in dict.fromkeys((self.step, *so_far) if "{step}" in path else (self.step,)):
                file = Path(path.replace("{step}", str(step)))
                earlier, name = step != self.step, str(file)
                name = f"{file} of step {step}" if earlier else name
                since = None if earlier else self._begun_at
                try:
                    wrong = within(READ_LIMIT_S, partial(_wrong_with, file, rows, columns, since))
                except FileNotFoundError:
                    wrong = "is not there"
                except NoAnswer as error:
                    # each further file would take as long, while the other ranks wait
                    return [*found, f"{name} is not read: {error}"]
                except (OSError, ValueError, csv.Error) as error:
                    wrong = f"cannot be read ({error})"
                found += [f"{name} {wrong}"] * bool(wrong)
        return found


def _wrong_with(
    path: Path, rows: int | None, columns: Sequence[str], begun_at: float | None
) -> str:
    """Say what is wrong with a file of this evaluation, in words that follow its name."""
    state, is_folder = path.stat(), path.is_dir()
    if begun_at is None:  # an earlier evaluation made it: it is enough that it is there
        return ""
    age = begun_at - state.st_mtime
    if age > CLOCKS_DIFFER_S and not is_folder:
        return f"was last written {seconds_in_words(age)} before this evaluation began"
    is_empty = next(path.iterdir(), None) is None if is_folder else not state.st_size
    if is_empty and (is_folder or path.is_file()):
        return "is empty"
    if is_folder or path.suffix not in TABLES:
        return ""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        text = StringIO(file.read(), newline="")
    # a cell may hold a long generated text. The limit is process-wide, so nothing waits for storage
    # while it is changed
    number, limit = 0, csv.field_size_limit(sys.maxsize)
    try:
        for number, row in enumerate(_rows(text, path.suffix), 1):
            if not isinstance(row, dict):
                return f"row {number} cannot be read (it has no columns)"
            head = [name for name in row if name is not None]
            if path.suffix in (".csv", ".tsv"):
                lack, more = sum(cell is None for cell in row.values()), len(row.get(None, ()))
                if lack or more:
                    return (
                        f"row {number} has {len(head) - lack + more} of {len(head)} cells: it was "
                        "not written to its end, or by two writers"
                    )
            lacking = [column for column in columns if column not in row]
            if lacking:
                noun = "column" if len(lacking) == 1 else "columns"
                has = f"(it has {', '.join(head)})"
                return f"row {number} lacks {noun} {', '.join(lacking)} {has}"
    except (json.JSONDecodeError, TypeError) as error:
        return f"row {number + 1} cannot be read ({error})"
    finally:
        csv.field_size_limit(limit)
    if number == rows or (number and rows is None):
        return ""
    return f"has {several(number, 'row')}, not {rows}" if number else "has no rows"


def _rows(file: TextIO, kind: str) -> Iterable[Any]:
    """Read the rows of a table, each by its columns; surplus cells are under None."""
    if kind in (".csv", ".tsv"):
        return csv.DictReader(file, delimiter="\t" if kind == ".tsv" else ",")
    if kind == ".jsonl":
        return map(json.loads, filter(str.strip, file))
    read = json.load(file)
    if isinstance(read, dict):
        raise TypeError("it holds no list of rows")
    return read  # type: ignore[no-any-return] # a list, else TypeError on iteration


@contextmanager
def rank_zero_evaluation(
    step: Step,
    timeout: float,
    *,
    every: int = 1,
    first: int | None = None,
    name: str = "evaluation",
    off_gpu: Iterable[Held] = (),
) -> Iterator[Evaluation]:
    """Evaluate on rank 0 while the other ranks wait for it, up to a time limit.

    Python cannot skip the body of a ``with``: check `needed` in the body. No collective call is
    made. All ranks must pass the same steps in order, none twice, none left out. Every rank raises
    the same error; a process without peers raises its own error unchanged.

    Args:
        step: 0, 1, 2... or ``"final"``, at which there always is an evaluation.
        timeout: Seconds that ranks wait for each other before it, and then for rank 0.
        every: Steps between two evaluations; at others nobody waits and none is `needed`.
        first: First step of the training, if an earlier process took it: results are checked from
            this step on. By default from this process's first step.
        name: A name for each kind of evaluation, if a training has several.
        off_gpu: Models and optimizers that rank 0 moves off its GPU meanwhile.
    """
    check_limit("timeout", timeout)
    _check_steps(step, every, first)
    if step != "final" and step % every:
        yield Evaluation(step, needed=False)
        return
    taken, recorder = _turns.setdefault((name, every), []), current()
    peers = find_peer_group(recorder)
    own = msgspec.msgpack.encode((step, _complaint(step, taken, every)))
    brought = join_rendezvous(f"begin {name}", timeout, own, peers)
    decoder = msgpack_decoder(tuple[Step, str])
    arrivals = {rank: decoder.decode(word) for rank, word in sorted(brought.items())}
    for rank, (_, complaint) in arrivals.items():
        if complaint:
            where = f" (on rank {rank})" if len(arrivals) > 1 else ""
            raise StepOutOfTurn(
                f"{name}: {complaint}{where}",
                "call it with each step once, in order; say every=... where steps of training lie "
                "between two evaluations, and name=... where there are two kinds of them",
            )
    if len({at for at, _ in arrivals.values()}) > 1:
        where = ", ".join(f"rank {rank} at step {at}" for rank, (at, _) in arrivals.items())
        raise MeetingFailed(
            f"the ranks came to {name} at different steps: {where}",
            "count steps alike on all ranks: a DataLoader that is shorter on one of them, or a "
            "step that one of them skips, parts them",
        )
    taken.append(step)
    so_far: list[Step] = [*taken]
    numbers = [step for step in taken if step != "final"]
    if first is not None and numbers:
        so_far = [*range(first, numbers[-1] + 1, every)]
        if step == "final":
            so_far.append(step)
    title = f"{name} at step {step}"
    # without peers, as with HANGCHECK_DISABLE=1, the other ranks need not evaluate either
    group = default_process_group()
    alone = identify(os.environ).rank if group is None else group.rank
    if peers.index if peers is not None else alone:
        with Section(recorder, f"wait for rank 0: {title}"), rank_zero_first(title, timeout):
            pass
        yield Evaluation(step, needed=False)
        return
    held = list(off_gpu)
    with rank_zero_first(title, timeout), Section(recorder, title):
        evaluation = Evaluation(step, needed=True)
        with kept_off_gpu(held, recorder.say) if held else nullcontext():
            yield evaluation
        wrong = evaluation.complaints(so_far)
        if wrong:
            raise ResultsIncomplete(
                f"step {step} did not leave what it should: {'; '.join(wrong)}",
                "see what the evaluation itself said, and evaluate these steps again",
            )
        if evaluation.expected:
            found = several(len(evaluation.expected), "result")
            there = f"{'step' if len(so_far) == 1 else 'steps'} {', '.join(map(str, so_far))}"
            recorder.say(f"{found} of step {step} as expected; {there} there")


def _check_steps(step: Step, every: int, first: int | None) -> None:
    if not isinstance(every, int) or every < 1:
        raise BadUsage(f"every={every!r} is no whole number above 0", "write every=100")
    for number in (step, 0 if first is None else first):
        is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
        if not is_number and number != "final":
            raise BadUsage(f"step={number!r} is no step", 'write step=0, 1, 2... and step="final"')
    late = isinstance(step, int) and step % every == 0 and first is not None and first > step
    if first is not None and (first % every or late):
        raise BadUsage(
            f"first={first} can be no first step: evaluations are every {every}, now at {step}",
            f"write first={every}, or leave it out",
        )


def _complaint(step: Step, taken: Sequence[Step], every: int) -> str:
    """Say why this step is out of order; empty if it is not. Any first step is in order."""
    last = taken[-1] if taken else None
    if step == last:
        return f"step {step} came again"
    if last == "final":
        return f"step {step} came after step final, which is the last of its name"
    if last is None or step == "final" or step == last + every:
        return ""
    if step < last:
        return f"step {step} came after step {last}, which is later"
    missed, by = range(last + every, step, every), f" (every {every})" if every > 1 else ""
    are = f"step {missed[0]} is" if len(missed) == 1 else f"steps {missed[0]}-{missed[-1]}{by} are"
    return f"step {step} came after step {last}, and {are} left out"


@contextmanager
def kept_off_gpu(held: Iterable[Held], say: Callable[[str], None]) -> Iterator[None]:
    """Keep models and optimizers on the CPU while the body runs, and say what that frees.

    They stay complete and usable. Gradients stay on the GPU.
    """
    import torch

    homes = [(each, each.device) for each in tensors_of(held) if each.device.type == "cuda"]
    gpus = {home for _, home in homes}

    def memory() -> str:  # a driver that refuses to tell must not keep a model off its GPU
        return in_one_line(attempt("the memory of the GPUs", gpu_memory, gpus) or ())

    def moved(where: str, places: list[tuple[Tensor, device]]) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        before, began = memory(), time.perf_counter()
        size = bytes_in_words(move(places))
        took = seconds_in_words(time.perf_counter() - began)
        torch.cuda.empty_cache()
        say(f"{size} moved {where} the GPU in {took}: {before}; now {memory()}")

    if not homes:
        say("nothing is on a GPU that could be moved off it")
        yield
        return
    try:
        moved("off", [(tensor, torch.device("cpu")) for tensor, _ in homes])
        yield
    finally:
        moved("back to", [(tensor, home) for tensor, home in homes if tensor.device != home])


def tensors_of(held: Iterable[Held]) -> list[Tensor]:
    """Return parameters, buffers and optimizer states, each tensor once."""
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    found: dict[int, Tensor] = {}
    for owner in held:
        if isinstance(owner, Module):
            tensors = [*owner.parameters(), *owner.buffers()]
        elif isinstance(owner, Optimizer):
            values = [value for state in owner.state.values() for value in state.values()]
            tensors = [value for value in values if isinstance(value, Tensor)]
        else:
            raise BadUsage(
                f"off_gpu has a {type(owner).__name__}, which is neither a model nor an optimizer",
                "write off_gpu=[model, optimizer]",
            )
        found |= {id(tensor): tensor for tensor in tensors}
    if are_shared_out(found.values()):
        raise BadUsage(
            "what is to leave the GPU is shared out over the ranks (FSDP, DeepSpeed, DTensor)",
            "leave it out of off_gpu, or move it with its own library on all ranks",
        )
    return list(found.values())


def move(places: Iterable[tuple[Tensor, device]]) -> int:
    """Move tensors' data to other devices, sharing included; return the bytes moved.

    Each storage moves once, so tied weights and views stay tied. No tensor object is replaced,
    because optimizer, DDP and the graph's hooks refer to them.
    """
    import torch

    copies: dict[tuple[device, int, device], tuple[Tensor, Tensor]] = {}  # of whole storages
    for tensor, to in places:
        old = tensor.untyped_storage()
        key = tensor.device, old.data_ptr(), to
        if key not in copies:
            octets = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(old)
            copies[key] = octets, octets.to(to, copy=True)
        view = tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
        empty = torch.empty(0, dtype=tensor.dtype, device=to)
        tensor.data = empty.set_(copies[key][1].untyped_storage(), *view)
    return sum(new.nbytes for _, new in copies.values())
