"""The half of a rehearsal inside a rank: few batches, on CPUs, and the scene that is provoked.

`hangcheck rehearse` names the scene in the environment. What a scene provokes is what can happen to
a real rank: its data, its loss, its save, its signal; never a decision that the program itself
makes for all ranks together. A program that lets its ranks agree therefore passes.
"""

from __future__ import annotations

import atexit
import errno
import inspect
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import wrapt

from lightning_hangcheck import log
from lightning_hangcheck.hooks.zero_code.wrapping import WatchedFunction
from lightning_hangcheck.model.rehearsal import GLOO, VARIABLE, Note, NoteKind, Part

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    Act = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

AT_CALL = 3
"""The call of a kind at which a scene begins: by then the ranks have met in a step."""
EPOCHS = 2
MOST_PASSES = 25
"""Over one DataLoader; a plain loop of hundreds of epochs ends then on all ranks alike."""
RAISED_WAIT_S, PARTED_WAIT_S = 3.0, 8.0
"""A rank that raises waits for the others to do the same before its launcher ends them: not so long
that those who wait for it look hung, longer where gloo has ended the wait of all."""
LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
CUDA_CALLS = (
    "empty_cache",
    "init",
    "ipc_collect",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
)
NEEDS_GPUS = ("fsdp", "deepspeed", "modelparallel", "model_parallel", "bagua", "colossal")


class Rehearsal:
    """The scene that this process takes part in, and its notes."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.calls: Counter[str] = Counter()
        self.keeper: subprocess.Popen[bytes] | None = None
        self._noted: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """Of this process; 0 before anybody has told."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and getattr(distributed, "is_initialized", bool)():
            return int(distributed.get_rank())
        told = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
        return int(told) if told.isdecimal() else 0

    @property
    def is_odd_one(self) -> bool:
        """Whether this is the rank to which something happens: the last."""
        return self.rank == self.part.ranks - 1

    def plays(self, *scenes: str) -> bool:
        """Whether one of these is on."""
        return self.part.scene in scenes

    def comes_to(self, what: str) -> bool:
        """Whether this call of a kind is the one at which a scene begins."""
        with self._lock:
            self.calls[what] += 1
            return self.calls[what] == AT_CALL

    def mark_end(self) -> Path:
        """Show the other ranks that this one is at its end; return the folder of all marks."""
        folder = Path(self.part.folder)
        folder.joinpath(f"left-{self.rank}").touch()
        return folder

    def wait_for_others(self, limit_s: float) -> None:
        """Wait until all ranks are at their end, so that each can still say how it came to it."""
        folder, until = self.mark_end(), time.monotonic() + limit_s
        while time.monotonic() < until and len(list(folder.glob("left-*"))) < self.part.ranks:
            time.sleep(0.05)

    def note(self, kind: NoteKind, text: str = "", **more: Any) -> None:  # noqa: ANN401 - of a Note
        """Write a note, each once a process."""
        about = (kind, more.get("key", text))
        if about in self._noted:
            return
        self._noted.add(about)
        note = Note(kind=kind, rank=self.rank, text=text[:300], **more)
        path = Path(self.part.folder) / f"{os.getpid()}.jsonl"
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, msgspec.json.encode(note) + b"\n")
            finally:
                os.close(file)


def begin() -> None:
    """Take part in the rehearsal that the environment names; nothing of ours raises."""
    try:
        rehearsal = Rehearsal(msgspec.json.decode(os.environ[VARIABLE], type=Part))
    except (KeyError, msgspec.MsgspecError) as error:
        log.once("rehearsal", f"this rank takes no part in the rehearsal ({error})")
        return
    for module, instrument in INSTRUMENTS:
        wrapt.register_post_import_hook(_guarded(rehearsal, instrument), module)
    _tell_exceptions(rehearsal)
    atexit.register(_safely, stay_connected, rehearsal)


def _safely(act: Callable[[Rehearsal], None], rehearsal: Rehearsal) -> None:
    try:
        act(rehearsal)
    except Exception as error:  # noqa: BLE001 - the hooks' boundary: the rank must go on
        log.once(f"rehearsal-{act.__name__}", f"{act.__name__} failed ({error!r})")


def _guarded(
    rehearsal: Rehearsal, instrument: Callable[[Rehearsal, ModuleType], None]
) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        try:
            instrument(rehearsal, module)
        except Exception as error:  # noqa: BLE001 - else the framework's import would fail
            log.once(f"rehearsal-{module.__name__}", f"{module.__name__} is as it was: {error!r}")

    return act


def _put(owner: Any, name: str, act: Act) -> None:  # noqa: ANN401 - a module or a class
    """Have a function called by ``act``, if there is one of this name."""
    if callable(getattr(owner, name, None)):
        wrapt.wrap_object(owner, name, WatchedFunction, (act,))


def _tell_exceptions(rehearsal: Rehearsal) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if kind in (KeyboardInterrupt, SystemExit):
            return
        rehearsal.note("raised", f"{kind.__name__}: {error}", key=_place(trace))
        with suppress(OSError):
            rehearsal.wait_for_others(PARTED_WAIT_S if GLOO in str(error) else RAISED_WAIT_S)

    sys.excepthook = hook


def _place(trace: TracebackType | None) -> str:
    """The innermost line of the program itself; empty where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith(str(Path(__file__).parent.parent))
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.name} ({'/'.join(Path(last.filename).parts[-2:])}:{last.lineno})"


KEEPER = """
n=0
while [ $n -lt 1000 ] && kill -0 $1 2>/dev/null && [ $(ls "$2" | grep -c '^left-') -lt $3 ]
do n=$((n+1)); sleep 0.3; done
"""


def stay_connected(rehearsal: Rehearsal) -> None:
    """Keep the connections of a rank that leaves open, as long as others may wait for it.

    gloo fails at once where a peer's connection is closed; with NCCL the others would wait. So a
    process that does nothing else holds them until all ranks, or their launcher, have left.
    """
    distributed = sys.modules.get("torch.distributed")
    joined = distributed is not None and getattr(distributed, "is_initialized", bool)()
    if not joined or rehearsal.keeper is not None:
        return
    rehearsal.note("left")
    folder = rehearsal.mark_end()
    here = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - numbers, no paths
    sockets = []
    for one in here:
        with suppress(OSError):  # the descriptor with which they were listed
            sockets += [one] if stat.S_ISSOCK(os.fstat(one).st_mode) else []
    given = (str(os.getppid()), str(folder), str(rehearsal.part.ranks))
    rehearsal.keeper = subprocess.Popen(
        ["sh", "-c", KEEPER, "sh", *given],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        pass_fds=sockets,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# data


class _Few:
    """A sampler of batches or samples that ends early, with what the scene does to the last."""

    def __init__(self, sampler: Any, limit: int, *, smaller: bool) -> None:  # noqa: ANN401
        self._sampler = sampler
        self._limit = limit
        self._smaller = smaller

    def __len__(self) -> int:
        return min(len(self._sampler), self._limit)

    def __iter__(self) -> Iterator[Any]:
        ahead: list[Any] = []
        for taken, item in enumerate(iter(self._sampler) if self._limit else ()):
            if ahead:
                yield ahead.pop()
            ahead.append(item)
            if taken + 1 >= self._limit:
                break
        for last in ahead:
            cut = self._smaller and isinstance(last, list) and len(last) > 1
            yield last[: len(last) // 2] if cut else last


def instrument_data(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Give each pass over a DataLoader few batches."""
    loader = module.DataLoader
    whole = loader._index_sampler.fget  # noqa: SLF001 - all indices come from there
    passes: Counter[str] = Counter()

    def few(self: Any) -> Any:  # noqa: ANN401 - a DataLoader
        sampler = whole(self)
        try:
            return _few(rehearsal, self, sampler, passes)
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: the loader must go on
            log.once("rehearsal-loader", f"a DataLoader is not cut short ({error!r})")
            return sampler

    loader._index_sampler = property(few)  # noqa: SLF001 - as above

    def length(wrapped: Callable[..., int], instance: Any, *_: Any) -> int:  # noqa: ANN401
        return min(wrapped(), _limit(rehearsal, instance, whole(instance), passes))

    def begin_pass(
        wrapped: Callable[..., Any],
        instance: Any,  # noqa: ANN401 - a DataLoader
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - its iterator
        key = _key(instance)
        passes[key] += 1
        if passes[key] > MOST_PASSES:
            raise SystemExit(0)
        _note_loader(rehearsal, instance, key)
        return wrapped(*arguments, **named)

    _put(loader, "__len__", length)
    _put(loader, "__iter__", begin_pass)
    _put(loader, "__init__", lambda *call: _with_workers(rehearsal, *call))
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    _put(iterator, "__next__", lambda *call: _first_of_stream(rehearsal, *call))


def _few(rehearsal: Rehearsal, loader: Any, sampler: Any, passes: Counter[str]) -> _Few:  # noqa: ANN401
    key = _key(loader)
    uneven = rehearsal.is_odd_one and key in rehearsal.part.uneven
    limit = _limit(rehearsal, loader, sampler, passes)
    smaller = uneven and rehearsal.plays("smaller-last-batch") and not loader.drop_last
    if uneven and rehearsal.plays("fewer-samples", "no-samples", "smaller-last-batch"):
        rehearsal.note("provoked", rehearsal.part.scene)
    return _Few(sampler, limit, smaller=smaller)


def _limit(rehearsal: Rehearsal, loader: Any, sampler: Any, passes: Counter[str]) -> int:  # noqa: ANN401
    """Batches of this pass: all ranks get equally many, but for the odd one's share of a scene."""
    key, part = _key(loader), rehearsal.part
    limit = part.batches if passes[key] <= EPOCHS else 1
    if not (rehearsal.is_odd_one and key in part.uneven):
        return limit
    if rehearsal.plays("no-samples"):
        return 0
    if rehearsal.plays("fewer-samples"):
        with suppress(TypeError, NotImplementedError):
            limit = min(limit, len(sampler))
        return max(1, limit // 2)
    return limit


def _key(loader: Any) -> str:  # noqa: ANN401 - a DataLoader
    """Names a loader alike in every scene: what it reads, how much of it, in which order."""
    size = "-"
    with suppress(TypeError, NotImplementedError):
        size = str(len(loader.dataset))
    sampler = next(iter(_samplers(loader)), None)
    return f"{type(loader.dataset).__qualname__} of {size} by {type(sampler).__qualname__}"


def _samplers(loader: Any) -> list[Any]:  # noqa: ANN401 - a DataLoader
    """The sampler and the batch sampler with all that they wrap, outermost last."""
    found: list[Any] = []
    todo = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while todo and len(found) < 8:
        one = todo.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            todo += [vars(one).get(name) for name in ("batch_sampler", "sampler", "_sampler")
                     if hasattr(one, "__dict__")]  # fmt: skip
    return found


def _makes_even(loader: Any) -> bool | None:  # noqa: ANN401 - a DataLoader
    """Whether something gives all ranks equally many samples, whatever there is.

    Returns:
        None where nothing gives each rank its share: the data itself may be a share, or be whole.
    """
    for one in (loader.dataset, *_samplers(loader)):
        name = type(one).__name__
        if name in ("BatchSamplerShard", "IterableDatasetShard"):  # of accelerate
            return bool(getattr(one, "even_batches", True))
        if name.startswith("Unrepeated"):  # of Lightning, to predict
            return False
        if hasattr(one, "num_replicas") and hasattr(one, "rank"):
            return True
    return None


def _note_loader(rehearsal: Rehearsal, loader: Any, key: str) -> None:  # noqa: ANN401 - a DataLoader
    is_stream = not hasattr(loader.dataset, "__len__")  # noted with its first batch
    if not rehearsal.plays("as-it-is") or is_stream:
        return
    try:
        even = _makes_even(loader)
        mark = _mark_of_data(loader) if even is None else f"rank {rehearsal.rank}"
        rehearsal.note("loader", key=key, shared=bool(even), mark=mark)
    except Exception as error:  # noqa: BLE001 - the hooks' boundary: reading data is the program's
        log.once("rehearsal-data", f"a DataLoader's data could not be compared ({error!r})")


def _mark_of_data(loader: Any) -> str:  # noqa: ANN401 - a DataLoader
    """What stands for the data of this rank; empty where reading it twice gives different items."""
    known = ("RandomSampler", "SequentialSampler", "BatchSampler", "_InfiniteConstantSampler")
    own = [one for one in _samplers(loader) if type(one).__name__ not in known]
    indices = repr(list(getattr(own[0], "indices", "")))[:2000] if own else ""
    state = _random_state()
    first, again = (_fingerprint(loader.dataset[0]) for _ in range(2))
    _restore_random_state(state)
    return f"{len(loader.dataset)} {first if first == again else ''} {indices}"


def _random_state() -> tuple[Any, ...]:
    import random

    return random.getstate(), sys.modules["torch"].get_rng_state()


def _restore_random_state(state: tuple[Any, ...]) -> None:
    import random

    random.setstate(state[0])
    sys.modules["torch"].set_rng_state(state[1])


def _fingerprint(data: Any, depth: int = 0) -> str:  # noqa: ANN401 - whatever a dataset gives
    if hasattr(data, "detach"):
        return repr(data.detach().flatten()[:64].tolist())
    if isinstance(data, Mapping) and depth < 4:
        return repr([(str(key), _fingerprint(one, depth + 1)) for key, one in data.items()][:16])
    if isinstance(data, (list, tuple)) and depth < 4:
        return repr([_fingerprint(one, depth + 1) for one in data[:16]])
    text = repr(data)[:500]
    return "" if " at 0x" in text else text


def _first_of_stream(
    rehearsal: Rehearsal,
    wrapped: Callable[..., Any],
    instance: Any,  # noqa: ANN401 - a DataLoader's iterator
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Any:  # noqa: ANN401 - a batch
    batch = wrapped(*arguments, **named)
    dataset = getattr(instance, "_dataset", None)
    if rehearsal.plays("as-it-is") and not hasattr(dataset, "__len__"):
        with suppress(Exception):
            shared = type(dataset).__name__ == "IterableDatasetShard"
            key = f"{type(dataset).__qualname__} of - by {_sampler_of_stream(instance)}"
            rehearsal.note("loader", key=key, shared=shared, mark=_fingerprint(batch))
    return batch


def _sampler_of_stream(iterator: Any) -> str:  # noqa: ANN401 - a DataLoader's iterator
    few = iterator._index_sampler  # noqa: SLF001 - it keeps no loader
    sampler = few._sampler if isinstance(few, _Few) else few  # noqa: SLF001 - our own
    return type(getattr(sampler, "sampler", sampler)).__qualname__


def _with_workers(
    rehearsal: Rehearsal,
    wrapped: Callable[..., Any],
    _instance: Any,  # noqa: ANN401 - a DataLoader
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    try:
        given = inspect.signature(wrapped).bind(*arguments, **named).arguments
        named = {**given.pop("kwargs", {}), **given}
        arguments = ()
        rehearsal.note("workers", str(named.get("num_workers", 0)))
        if rehearsal.plays("no-workers", "one-worker"):
            rehearsal.note("provoked", rehearsal.part.scene)
            named["num_workers"] = int(rehearsal.plays("one-worker"))
        if not named.get("num_workers"):
            for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
                named.pop(name, None)
            named["timeout"] = 0
    except TypeError:  # the loader will say what is wrong with them
        pass
    wrapped(*arguments, **named)


def instrument_fetching(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have one rank meet a batch of which no sample is usable, where the program makes do."""

    def fetcher(
        wrapped: Callable[..., Any],
        instance: Any,  # noqa: ANN401 - a fetcher of batches
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        wrapped(*arguments, **named)
        collate = instance.collate_fn
        if not instance.auto_collation or "torch.utils.data" in str(collate.__module__):
            return
        instance.collate_fn = lambda data: _collated(rehearsal, collate, data)

    if rehearsal.plays("as-it-is", "unusable-batch"):
        _put(module._BaseDatasetFetcher, "__init__", fetcher)  # noqa: SLF001 - all collate there


def _collated(rehearsal: Rehearsal, collate: Callable[[Any], Any], data: Any) -> Any:  # noqa: ANN401
    batch = collate(data)
    if rehearsal.plays("as-it-is"):
        if _of_nothing(collate, data) is not _NOTHING:
            rehearsal.note("collate")
    elif rehearsal.is_odd_one and rehearsal.comes_to("batch"):
        rest = _of_nothing(collate, data)
        if rest is not _NOTHING:
            rehearsal.note("provoked", rehearsal.part.scene)
            return rest
    return batch


_NOTHING = object()


def _of_nothing(collate: Callable[[Any], Any], data: Sequence[Any]) -> Any:  # noqa: ANN401
    """What a collate function makes of samples that could not be read, mostly None."""
    for samples in ([None] * len(data), []):
        with suppress(Exception):
            return collate(samples)
    return _NOTHING


# losses and outputs


def instrument_losses(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Make losses of one rank non-finite, or such that this rank alone wants to stop."""
    if not rehearsal.plays("as-it-is", "non-finite-loss", "early-stop"):
        return

    def loss(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - a tensor
        result = wrapped(*arguments, **named)
        return result if rehearsal.part.by_output else _played(rehearsal, result, "loss")

    for name in LOSSES:
        _put(module, name, loss)


def _played(rehearsal: Rehearsal, result: Any, kind: NoteKind) -> Any:  # noqa: ANN401 - a tensor
    trains = bool(getattr(result, "requires_grad", False))
    if rehearsal.plays("as-it-is"):
        if trains:
            rehearsal.note(kind)
        return result
    if not rehearsal.is_odd_one:
        return result
    if rehearsal.plays("non-finite-loss") and trains and rehearsal.comes_to(kind):
        rehearsal.note("provoked", rehearsal.part.scene)
        return result * float("nan")
    if rehearsal.plays("early-stop"):
        rehearsal.comes_to("train" if trains else "eval")
        rehearsal.note("provoked", rehearsal.part.scene)
        if trains:  # as if it had learnt all there is
            return result * 1e-9 if rehearsal.calls["train"] >= AT_CALL else result
        return result * 10.0 * rehearsal.calls["eval"]  # as if it got worse with each evaluation
    return result


def instrument_modules(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Do the same to outputs of modules, where the program has a loss of its own making."""
    if not rehearsal.part.by_output and not rehearsal.plays("as-it-is"):
        return

    def after(_module: Any, _given: Any, output: Any) -> Any:  # noqa: ANN401 - any module
        if getattr(output, "is_floating_point", bool)():
            changed = _played(rehearsal, output, "forward")
            return None if changed is output else changed
        return None

    module.register_module_forward_hook(after)


def instrument_stopping(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Let Lightning's EarlyStopping of one rank want to stop: it asks the others."""

    def evaluate(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - an EarlyStopping
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - whether to stop, and why
        result = wrapped(*arguments, **named)
        if rehearsal.plays("early-stop") and rehearsal.is_odd_one:
            rehearsal.note("provoked", rehearsal.part.scene)
            return True, "rehearsed"
        return result

    _put(module.EarlyStopping, "_evaluate_stopping_criteria", evaluate)


# saves, steps and signals


def instrument_saving(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Let saves of rank 0 fail or take long: of torch, or of safetensors."""

    def save(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - None
        what = arguments[0] if arguments else named.get("obj", named.get("tensors"))
        if isinstance(what, Mapping) or hasattr(type(what), "state_dict"):
            _save_of(rehearsal)
        return wrapped(*arguments, **named)

    _put(module, "save_file" if module.__name__ == "safetensors.torch" else "save", save)


def _save_of(rehearsal: Rehearsal) -> None:
    if rehearsal.plays("as-it-is"):
        rehearsal.note("save")
    if rehearsal.rank != 0 or not rehearsal.plays("save-fails", "save-slow"):
        return
    rehearsal.calls["save"] += 1
    rehearsal.note("provoked", rehearsal.part.scene)
    if rehearsal.plays("save-fails"):
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (rehearsed)")
    if rehearsal.calls["save"] == 1:
        time.sleep(rehearsal.part.slow_s)


def instrument_steps(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Send one rank SIGTERM after a step."""

    def after(*_: Any) -> None:  # noqa: ANN401 - an optimizer and its arguments
        if rehearsal.plays("as-it-is"):
            rehearsal.note("step", _who_answers(signal.getsignal(signal.SIGTERM)))
        if rehearsal.plays("sigterm") and rehearsal.comes_to("step") and rehearsal.is_odd_one:
            rehearsal.note("provoked", rehearsal.part.scene)
            os.kill(os.getpid(), signal.SIGTERM)

    module.register_optimizer_step_post_hook(after)


def _who_answers(handler: Any) -> str:  # noqa: ANN401 - as signal.getsignal gives it
    if not callable(handler):
        return ""
    parts = getattr(handler, "signal_handlers", None) or [handler]
    owners = {str(getattr(one, "__module__", "") or type(one).__module__) for one in parts}
    ours = {one for one in owners if not one.startswith(("lightning_hangcheck", "signal"))}
    if ours and all(one.startswith(("lightning.", "pytorch_lightning.")) for one in ours):
        return "Lightning"
    return "program" if ours else ""


# few steps on CPUs


def instrument_trainer(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have Lightning's Trainer run few epochs on CPU ranks."""

    def make(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - a Trainer
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        wrapped(*arguments, **{**named, **_few_epochs(rehearsal, named)})

    _put(module.Trainer, "__init__", make)


def _few_epochs(rehearsal: Rehearsal, named: Mapping[str, Any]) -> dict[str, Any]:
    batches = rehearsal.part.batches
    changed = _on_cpus(rehearsal, named)
    if not named.get("fast_dev_run"):
        epochs = named.get("max_epochs")
        changed["max_epochs"] = EPOCHS if epochs in (None, -1) else min(int(epochs), EPOCHS)
        changed["min_epochs"] = None
    steps = named.get("max_steps", -1)
    if steps not in (None, -1):
        changed["max_steps"] = min(int(steps), EPOCHS * batches)
    changed["min_steps"] = None
    interval = named.get("val_check_interval")
    if isinstance(interval, int) and not isinstance(interval, bool):
        changed["val_check_interval"] = min(interval, batches)
    changed["log_every_n_steps"] = 1
    if named.get("check_val_every_n_epoch", 1):
        changed["check_val_every_n_epoch"] = 1
    if named.get("sync_batchnorm"):
        rehearsal.note("changed", "sync_batchnorm is off: it needs GPUs")
        changed["sync_batchnorm"] = False
    return changed


def _on_cpus(rehearsal: Rehearsal, named: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {
        "accelerator": "cpu", "devices": rehearsal.part.ranks, "num_nodes": 1,
    }  # fmt: skip
    strategy = named.get("strategy", "auto")
    name = (strategy if isinstance(strategy, str) else type(strategy).__name__).lower()
    if any(one in name for one in NEEDS_GPUS):
        rehearsal.note("changed", f"the strategy {name} needs GPUs: ddp takes its place")
        changed["strategy"] = "ddp"
    if str(named.get("precision", "")) in ("16", "16-mixed", "16-true", "transformer-engine"):
        rehearsal.note("changed", f"precision {named['precision']} needs GPUs: 32-true")
        changed["precision"] = "32-true"
    return changed


def instrument_fabric(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have Fabric run on CPU ranks."""

    def make(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - a Fabric
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        given = inspect.signature(wrapped).bind(*arguments, **named).arguments
        wrapped(**{**given, **_on_cpus(rehearsal, given)})

    _put(module.Fabric, "__init__", make)


def instrument_checkpoints(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have Lightning's ModelCheckpoint save within the few batches."""

    def make(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - a ModelCheckpoint
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        for name, most in (("every_n_train_steps", rehearsal.part.batches), ("every_n_epochs", 1)):
            if isinstance(named.get(name), int):
                named = {**named, name: min(named[name], most)}
        wrapped(*arguments, **named)

    _put(module.ModelCheckpoint, "__init__", make)


def instrument_arguments(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have transformers' Trainer run few steps on CPU ranks."""

    def settle(
        wrapped: Callable[..., Any],
        instance: Any,  # noqa: ANN401 - TrainingArguments
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        batches = rehearsal.part.batches
        new: dict[str, Any] = {"use_cpu": True, "fp16": False, "ddp_backend": "gloo"}
        new |= {"num_train_epochs": min(float(instance.num_train_epochs), EPOCHS)}
        new |= {"dataloader_pin_memory": False}
        if instance.max_steps > 0:
            new["max_steps"] = min(instance.max_steps, EPOCHS * batches)
        for name in ("save_steps", "eval_steps", "logging_steps"):
            if getattr(instance, name, None):
                new[name] = min(getattr(instance, name), batches)
        for name in ("fsdp", "deepspeed"):
            if getattr(instance, name, None):
                rehearsal.note("changed", f"{name} needs GPUs: ddp takes its place")
                new[name] = "" if name == "fsdp" else None
        for name, value in new.items():
            if hasattr(instance, name):
                setattr(instance, name, value)
        wrapped(*arguments, **named)

    _put(module.TrainingArguments, "__post_init__", settle)


def instrument_groups(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have process groups made with gloo."""

    def on_gloo(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - a group
        given = inspect.signature(wrapped).bind(*arguments, **named).arguments
        if "nccl" in str(given.get("backend") or ""):
            rehearsal.note("changed", "gloo in place of nccl")
            given["backend"] = "gloo"
        given.pop("device_id", None)
        result = wrapped(**given)
        rehearsal.note("group", str(module.get_world_size()))
        return result

    def leave(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        if (arguments[0] if arguments else named.get("group")) is None:
            _safely(stay_connected, rehearsal)
        wrapped(*arguments, **named)

    for name in ("init_process_group", "new_group"):
        _put(module, name, on_gloo)
    _put(module, "destroy_process_group", leave)


def instrument_ddp(_rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have DistributedDataParallel wrap modules on CPUs."""

    def make(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - a DistributedDataParallel
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        given = inspect.signature(wrapped).bind(*arguments, **named).arguments
        wrapped(**{**given, "device_ids": None, "output_device": None})

    _put(module.DistributedDataParallel, "__init__", make)


def instrument_sync_batchnorm(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Leave batch norms as they are: SyncBatchNorm refuses CPUs."""

    def convert(
        _wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - a class
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - a module
        rehearsal.note("changed", "SyncBatchNorm is BatchNorm: it needs GPUs")
        return arguments[0] if arguments else named["module"]

    _put(module.SyncBatchNorm, "convert_sync_batchnorm", convert)


def instrument_cuda(_rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have calls that choose a GPU do nothing."""
    for name in CUDA_CALLS:
        _put(module, name, lambda *_: None)


def instrument_devices(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have tensors that shall be on a GPU stay on the CPU; ``module`` is torch, whole by now."""
    if not rehearsal.part.names_cuda:
        return
    from torch.overrides import TorchFunctionMode

    def on_cpu(value: Any) -> Any:  # noqa: ANN401 - an argument
        is_device = isinstance(value, (str, module.device))
        return "cpu" if is_device and str(value).startswith("cuda") else value

    class OnCpu(TorchFunctionMode):  # type: ignore[misc] # torch is unknown to the type checker
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Any,  # noqa: ANN401 - as torch calls it
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:  # noqa: ANN401 - what the function returns
            name, named = getattr(func, "__name__", ""), dict(kwargs or {})
            if name == "cuda":
                return args[0]
            if "device" in named:
                # a number is a GPU's, too
                number = isinstance(named["device"], int)
                named["device"] = "cpu" if number else on_cpu(named["device"])
            if name == "to":
                args = tuple(
                    "cpu" if at == 1 and type(one) is int else on_cpu(one)
                    for at, one in enumerate(args)
                )
            return func(*args, **named)

    OnCpu().__enter__()

    def load(
        wrapped: Callable[..., Any],
        _instance: Any,  # noqa: ANN401 - None
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - what was saved
        return wrapped(*arguments[:1], **{**named, "map_location": "cpu"})

    _put(module, "load", load)


_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
INSTRUMENTS: tuple[tuple[str, Callable[[Rehearsal, ModuleType], None]], ...] = (
    ("torch.utils.data.dataloader", instrument_data),
    ("torch.utils.data._utils.fetch", instrument_fetching),
    ("torch.nn.functional", instrument_losses),
    ("torch.nn.modules.module", instrument_modules),
    ("torch.nn.modules.batchnorm", instrument_sync_batchnorm),
    ("torch.nn.parallel.distributed", instrument_ddp),
    ("torch.optim.optimizer", instrument_steps),
    ("torch.serialization", instrument_saving),
    ("safetensors.torch", instrument_saving),
    ("torch.cuda", instrument_cuda),
    ("torch", instrument_devices),
    ("torch.distributed.distributed_c10d", instrument_groups),
    ("transformers.training_args", instrument_arguments),
    ("lightning.fabric.fabric", instrument_fabric),
    ("lightning_fabric.fabric", instrument_fabric),
    *((f"{one}.trainer.trainer", instrument_trainer) for one in _LIGHTNING),
    *((f"{one}.callbacks.model_checkpoint", instrument_checkpoints) for one in _LIGHTNING),
    *((f"{one}.callbacks.early_stopping", instrument_stopping) for one in _LIGHTNING),
)
