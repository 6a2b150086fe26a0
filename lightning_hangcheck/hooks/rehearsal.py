"""The part of a rehearsal inside a rank: few batches, on CPUs, and the scene that is provoked.

`hangcheck rehearse` names the scene in the environment. A scene provokes what can happen to a real
rank: in its data, loss, save or signals; never a decision that the program itself makes for all
ranks together. So a program that lets its ranks agree passes.
"""

from __future__ import annotations

import atexit
import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from zlib import crc32

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.files import open_for_append
from lightning_hangcheck.hooks.being_watched import REHEARSAL
from lightning_hangcheck.hooks.zero_code.wrapping import Call, on_import, replace
from lightning_hangcheck.recorder.announcer import attempt, user_frame

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

Foreign: TypeAlias = Any  # an object of a framework or of the program

GLOO = "gloo/transport"
"""In the text of all errors with which gloo ends a collective that not all ranks enter."""
EPOCHS = 2
FULL_PASSES, MOST_PASSES = 2, 25
"""Over one DataLoader: later passes have one batch; after the most, all ranks exit together."""
STREAM_SAMPLES, STREAM_READ_S = 5000, 2.0
SLOW_SAVE_S = 4.0
AT_CALL = 3  # the call of a kind at which a scene begins: by then the ranks have met in a step
RAISED_WAIT_S, PARTED_WAIT_S = 3.0, 8.0
"""A rank that raises waits for the others to raise too, before its launcher ends them. The wait is
short enough that waiting ranks do not look hung, and longer if gloo has ended all ranks' waits."""
LOSSES = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cross_entropy", "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss",
    "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "nll_loss",
    "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss",
)  # fmt: skip
CUDA_CALLS = (
    "empty_cache", "init", "ipc_collect", "reset_max_memory_allocated", "reset_peak_memory_stats",
    "set_device", "synchronize",
)  # fmt: skip
OF_WORKERS = {"prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"}
"""Arguments of a DataLoader that are refused or meaningless without workers."""
NEEDS_GPUS = ("fsdp", "deepspeed", "modelparallel", "model_parallel", "bagua", "colossal")
KEEPER = """
n=0
while [ $n -lt 1000 ] && kill -0 $1 2>/dev/null && [ $(ls "$2" | grep -c '^left-') -lt $3 ]
do n=$((n+1)); sleep 0.3; done
"""


LEFT = "left"  # mark of a rank that ends; the keeper counts them


SceneName = Literal[
    "as-it-is", "fewer-samples", "no-samples", "smaller-last-batch", "unusable-batch",
    "non-finite-loss", "save-fails", "save-slow", "early-stop", "sigterm", "no-workers",
    "one-worker",
]  # fmt: skip
NoteKind = Literal[
    "group",  # the rank joined a process group; text: its size
    "loader",  # a DataLoader was used first; key, text: how its samples get to the ranks
    "workers",  # a DataLoader was made; text: its number of workers
    "collate",  # its own collate function makes something of a batch without samples
    "loss",  # a loss of torch.nn.functional that training steps on
    "forward",  # a module's output that training steps on
    "save",  # a checkpoint was saved
    "step",  # an optimizer stepped; text: who answers SIGTERM
    "changed",  # something was replaced so that it runs on CPUs
    "provoked",  # the scene took place
    "raised",  # the rank ends with an exception
    "left",  # the rank ends otherwise, or leaves its process group
]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's instructions; its notes go to ``folder``, and ``batches`` limits a pass."""

    scene: SceneName
    folder: str
    ranks: int
    batches: int
    uneven: tuple[str, ...] = ()  # keys of loaders that may give ranks different numbers of batches
    by_output: bool = False  # no loss function is known: outputs of modules are made non-finite
    names_cuda: bool = False  # the program's source names CUDA: what it puts there stays on the CPU


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a rank's notes."""

    kind: NoteKind
    rank: int
    text: str = ""
    key: str = ""  # which loader; for an exception, the program's line
    shared: bool = False  # the loader's sampler gives every rank as many batches
    mark: str = ""  # identifies the loader's data; empty if unknown


class Rehearsal:
    """The scene that this process takes part in, and its notes."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.calls: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.at_end: dict[str, Callable[[], None]] = {}
        self.has_failed = False
        self.keeper: subprocess.Popen[bytes] | None = None
        self._noted: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """This process's rank; 0 while unknown."""
        if has_joined():
            return int(sys.modules["torch.distributed"].get_rank())
        number = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
        return int(number) if number.isdecimal() else 0

    def plays(self, *scenes: str) -> bool:
        """Whether one of these scenes is played."""
        return self.part.scene in scenes

    def provokes(self, scene: SceneName, what: str = "", rank: int = -1) -> bool:
        """Whether the scene takes place here and now; if so, note that.

        It happens to the last rank (or rank 0). With ``what`` it begins at a call of that kind.
        """
        if not self.plays(scene) or self.rank != rank % self.part.ranks:
            return False
        if what:
            with self._lock:
                self.calls[what] += 1
                if self.calls[what] != AT_CALL:
                    return False
        self.note("provoked")
        return True

    def offers(self, kind: NoteKind, text: str = "") -> None:
        """Note what a scene could make use of, in the run that provokes nothing."""
        if self.plays("as-it-is"):
            self.note(kind, text)

    def note(self, kind: NoteKind, text: str = "", **more: Any) -> None:  # noqa: ANN401 - of a Note
        """Write a note, each once per process."""
        about = (kind, more.get("key", text))
        if about in self._noted:
            return
        self._noted.add(about)
        note = Note(kind=kind, rank=self.rank, text=text[:300], **more)
        path = Path(self.part.folder) / f"{os.getpid()}.jsonl"
        with suppress(OSError), os.fdopen(open_for_append(path), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(note) + b"\n")

    def meets_others(self, mark: str, limit_s: float) -> bool:
        """Show the other ranks that this rank is at a mark; return whether all come, in time."""
        folder, until = Path(self.part.folder), time.monotonic() + limit_s
        own = folder / f"{mark}-{self.rank}"
        own.touch()
        while len(list(folder.glob(f"{mark}-*"))) < self.part.ranks:
            if time.monotonic() >= until:
                if mark != LEFT:
                    own.unlink()
                return False
            time.sleep(0.05)
        return True


def has_joined() -> bool:
    """Whether this process is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(getattr(distributed, "is_initialized", bool)())


def tell_exceptions(rehearsal: Rehearsal) -> None:
    """Note the exception that ends this rank."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if kind in (KeyboardInterrupt, SystemExit):
            return
        rehearsal.has_failed = True
        place = str(user_frame(trace) or "")
        rehearsal.note("raised", f"{kind.__name__}: {error}", key=place)
        limit_s = PARTED_WAIT_S if GLOO in str(error) else RAISED_WAIT_S
        attempt("waiting for other ranks", rehearsal.meets_others, LEFT, limit_s)

    sys.excepthook = hook


def stay_connected(rehearsal: Rehearsal) -> None:
    """Keep a leaving rank's connections open, as long as others may wait for it."""
    # gloo fails at once if a peer's connection is closed; with NCCL the others would wait. So an
    # idle process holds the connections until all ranks, or their launcher, have left. Not if the
    # rank fails: that is a crash with NCCL, too.
    if rehearsal.has_failed or rehearsal.keeper is not None or not has_joined():
        return
    for key, act in rehearsal.at_end.items():
        attempt(key, act)
    rehearsal.note("left")
    rehearsal.meets_others(LEFT, 0.0)
    sockets = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - numbers, no paths
        with suppress(OSError):  # the descriptor that listed them
            sockets += [descriptor] if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else []
    given = str(os.getppid()), rehearsal.part.folder, str(rehearsal.part.ranks)
    rehearsal.keeper = subprocess.Popen(
        ["sh", "-c", KEEPER, "sh", *given],
        env={"PATH": os.environ.get("PATH", os.defpath)},
        pass_fds=sockets,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


# ---------------------------------------------------------------- few epochs, on CPUs


def make_trainer(rehearsal: Rehearsal, call: Call) -> None:
    """Have Lightning's Trainer run few epochs on CPU ranks."""
    named, batches = call.named, rehearsal.part.batches
    changed = {"log_every_n_steps": 1, "min_epochs": None, "min_steps": None}
    changed |= _on_cpus(rehearsal, named)
    if not named.get("fast_dev_run"):
        epochs = named.get("max_epochs")
        changed["max_epochs"] = EPOCHS if epochs in (None, -1) else min(epochs, EPOCHS)
    if named.get("max_steps", -1) not in (None, -1):
        changed["max_steps"] = min(named["max_steps"], EPOCHS * batches)
    if type(named.get("val_check_interval")) is int:
        changed["val_check_interval"] = min(named["val_check_interval"], batches)
    if named.get("check_val_every_n_epoch", 1):
        changed["check_val_every_n_epoch"] = 1
    if named.get("sync_batchnorm"):
        rehearsal.note("changed", "sync_batchnorm is off: it needs GPUs")
        changed["sync_batchnorm"] = False
    call.go(**changed)


def _on_cpus(rehearsal: Rehearsal, named: Mapping[str, Foreign]) -> dict[str, Foreign]:
    changed = {"accelerator": "cpu", "devices": rehearsal.part.ranks, "num_nodes": 1}
    strategy = named.get("strategy", "auto")
    name = (strategy if isinstance(strategy, str) else type(strategy).__name__).lower()
    if any(gpu in name for gpu in NEEDS_GPUS):
        rehearsal.note("changed", f"the strategy {name} needs GPUs: ddp takes its place")
        changed["strategy"] = "ddp"
    if str(named.get("precision", "")) in ("16", "16-mixed", "16-true", "transformer-engine"):
        rehearsal.note("changed", f"precision {named['precision']} needs GPUs: 32-true")
        changed["precision"] = "32-true"
    return changed


def make_fabric(rehearsal: Rehearsal, call: Call) -> None:
    """Have Fabric run on CPU ranks."""
    given = call.bound()
    call.function(**{**given, **_on_cpus(rehearsal, given)})


def make_checkpoints(rehearsal: Rehearsal, call: Call) -> None:
    """Have Lightning's ModelCheckpoint save within the few batches."""
    most = {"every_n_train_steps": rehearsal.part.batches, "every_n_epochs": 1}
    given = {name: call.named.get(name) for name in most}
    call.go(**{name: min(n, most[name]) for name, n in given.items() if isinstance(n, int)})


def settle_arguments(rehearsal: Rehearsal, call: Call) -> None:
    """Have transformers' Trainer run few steps on CPU ranks."""
    given, batches = call.instance, rehearsal.part.batches
    new: dict[str, Foreign] = {"use_cpu": True, "fp16": False, "ddp_backend": "gloo"}
    new |= {"num_train_epochs": min(float(given.num_train_epochs), EPOCHS)}
    new["dataloader_pin_memory"] = False
    if given.max_steps > 0:
        new["max_steps"] = min(given.max_steps, EPOCHS * batches)
    for name in ("save_steps", "eval_steps", "logging_steps"):
        if getattr(given, name, None):
            new[name] = min(getattr(given, name), batches)
    for name in ("fsdp", "deepspeed"):
        if getattr(given, name, None):
            rehearsal.note("changed", f"{name} needs GPUs: ddp takes its place")
            new[name] = None
    for name, value in new.items():
        if hasattr(given, name):
            setattr(given, name, value)
    call.go()


def make_group(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Have process groups made with gloo."""
    given = call.bound()
    if "nccl" in str(given.get("backend") or ""):
        rehearsal.note("changed", "gloo in place of nccl")
        given["backend"] = "gloo"
    given.pop("device_id", None)
    group = call.function(**given)
    rehearsal.note("group", str(sys.modules["torch.distributed"].get_world_size()))
    return group


def leave_group(rehearsal: Rehearsal, call: Call) -> None:
    """Have process groups left with their connections open."""
    if call.given().get("group") is None:
        attempt("leaving", stay_connected, rehearsal)
    call.go()


def leave_batchnorm(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Leave batch norms as they are: SyncBatchNorm refuses CPUs."""
    rehearsal.note("changed", "SyncBatchNorm is BatchNorm: it needs GPUs")
    return call.bound()["module"]


def instrument_devices(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Keep tensors meant for a GPU on the CPU; ``module`` is torch, fully imported by now."""
    if not rehearsal.part.names_cuda:
        return
    from torch.overrides import TorchFunctionMode

    def on_cpu(value: Foreign) -> Foreign:
        """Replace a GPU by the CPU; a plain number is a GPU, too."""
        is_device = isinstance(value, (str, module.device)) and str(value).startswith("cuda")
        return "cpu" if is_device or type(value) is int else value

    class OnCpu(TorchFunctionMode):  # type: ignore[misc] # torch is unknown to the type checker
        def __torch_function__(
            self,
            func: Callable[..., Foreign],
            types: Foreign,
            args: tuple[Foreign, ...] = (),
            kwargs: dict[str, Foreign] | None = None,
        ) -> Foreign:
            name, named = getattr(func, "__name__", ""), dict(kwargs or {})
            if name == "cuda":
                return args[0]
            if "device" in named:
                named["device"] = on_cpu(named["device"])
            if name == "to":
                args = (*args[:1], *map(on_cpu, args[1:]))
            return func(*args, **named)

    OnCpu().__enter__()

    def load(call: Call) -> Foreign:
        return call.function(*call.arguments[:1], **{**call.named, "map_location": "cpu"})

    replace(module, "load", load)


# ---------------------------------------------------------------- data


class Few:
    """A sampler of batches or samples that ends early; a scene may make its last batch smaller."""

    def __init__(self, sampler: Foreign, limit: int, *, smaller: bool) -> None:
        self.sampler, self._limit, self._smaller = sampler, limit, smaller

    def __len__(self) -> int:
        return min(len(self.sampler), self._limit)

    def __iter__(self) -> Iterator[Foreign]:
        items = list(islice(self.sampler, self._limit))
        if self._smaller and items and isinstance(items[-1], list) and len(items[-1]) > 1:
            items[-1] = items[-1][: len(items[-1]) // 2]
        return iter(items)


def instrument_data(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Give each pass over a DataLoader few batches; in a scene, fewer to the last rank."""
    part, loader = rehearsal.part, module.DataLoader
    whole = loader._index_sampler.fget  # noqa: SLF001 - all indices come from there

    def most_batches(instance: Foreign, sampler: Foreign) -> int:
        """Return the limit of this pass: equal on all ranks, except for the odd one in a scene."""
        key = _key(instance.dataset, instance.sampler)
        limit = part.batches if rehearsal.passes[key] <= FULL_PASSES else 1
        if rehearsal.rank != part.ranks - 1 or key not in part.uneven:
            return limit
        if rehearsal.plays("fewer-samples"):
            with suppress(TypeError, NotImplementedError):
                limit = min(limit, len(sampler))
            return max(1, limit // 2)
        return 0 if rehearsal.plays("no-samples") else limit

    def cut_short(instance: Foreign, sampler: Foreign) -> Few:
        smaller = False
        if _key(instance.dataset, instance.sampler) in part.uneven:
            smaller = not instance.drop_last and rehearsal.provokes("smaller-last-batch")
            _ = rehearsal.provokes("fewer-samples") or rehearsal.provokes("no-samples")
        return Few(sampler, most_batches(instance, sampler), smaller=smaller)

    def few(instance: Foreign) -> Foreign:
        sampler = whole(instance)
        shorter = attempt("shortening a DataLoader", cut_short, instance, sampler)
        return sampler if shorter is None else shorter  # a sampler without batches is falsy

    def length(call: Call) -> int:
        return min(int(call.go()), most_batches(call.instance, whole(call.instance)))

    def begin_pass(call: Call) -> Foreign:
        key = _key(call.instance.dataset, call.instance.sampler)
        rehearsal.passes[key] += 1
        if rehearsal.passes[key] == MOST_PASSES + 1:  # unless only this rank reads it
            mark = f"over-{crc32(key.encode()):x}"
            if attempt("leaving together", rehearsal.meets_others, mark, PARTED_WAIT_S):
                raise SystemExit(0)
        if rehearsal.plays("as-it-is") and not _is_stream(call.instance):
            attempt("a look at the data", note_loader, call.instance, key)
        return call.go()

    def note_loader(instance: Foreign, key: str) -> None:
        even = _makes_even(instance.dataset, _samplers(instance))
        mark = _mark_of_data(instance) if even is None else f"rank {rehearsal.rank}"
        rehearsal.note("loader", key=key, shared=bool(even), mark=mark)

    def next_batch(call: Call) -> Foreign:
        batch = call.go()
        if rehearsal.plays("as-it-is") and _is_stream(call.instance):
            attempt("a look at a stream", note_stream, call.instance, batch)
        return batch

    def note_stream(iterator: Foreign, batch: Foreign) -> None:
        """Note a stream once the rank is done: only reading on shows whether it ends."""
        dataset, sampler = iterator._dataset, iterator._index_sampler  # noqa: SLF001 - it keeps no loader
        sampler = sampler.sampler if isinstance(sampler, Few) else sampler
        key = _key(dataset, getattr(sampler, "sampler", sampler))
        mark, shared = _print_of(batch), bool(_makes_even(dataset, ()))

        def note() -> None:  # a stream without end gives no rank fewer samples
            until, read = time.monotonic() + STREAM_READ_S, enumerate(iter(dataset))
            if all(at < STREAM_SAMPLES and time.monotonic() < until for at, _ in read):
                rehearsal.note("loader", key=key, shared=shared, mark=mark)

        rehearsal.at_end.setdefault(key, note)

    def with_workers(call: Call) -> Foreign:
        named = attempt("a look at a DataLoader", call.bound)
        if named is None:  # invalid arguments: the loader reports them
            return call.go()
        rehearsal.note("workers", str(named.get("num_workers", 0)))
        if rehearsal.plays("no-workers", "one-worker"):
            rehearsal.note("provoked")
            named["num_workers"] = int(rehearsal.plays("one-worker"))
        if not named.get("num_workers"):
            for name in OF_WORKERS & named.keys():
                del named[name]
        return call.function(**named)

    loader._index_sampler = property(few)  # noqa: SLF001 - as above
    replace(loader, "__len__", length)
    replace(loader, "__iter__", begin_pass)
    replace(loader, "__init__", with_workers)
    replace(module._BaseDataLoaderIter, "__next__", next_batch)  # noqa: SLF001 - of every iterator


def _key(dataset: Foreign, sampler: Foreign) -> str:
    """Name a loader alike in every scene: what it reads, how much of it, in which order."""
    size = "-"
    with suppress(TypeError, NotImplementedError):
        size = str(len(dataset))
    return f"{type(dataset).__qualname__} of {size} by {type(sampler).__qualname__}"


def _is_stream(loader: Foreign) -> bool:
    """Whether a DataLoader, or its iterator, reads a dataset without items by number."""
    return bool(loader._dataset_kind == 1)  # noqa: SLF001 - torch's own test


def _samplers(loader: Foreign) -> list[Foreign]:
    found: list[Foreign] = []
    todo = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while todo and len(found) < 8:
        sampler = todo.pop()
        if sampler is not None and not any(sampler is other for other in found):
            found.append(sampler)
            todo += [
                getattr(sampler, name, None) for name in ("batch_sampler", "sampler", "_sampler")
            ]
    return found


def _makes_even(dataset: Foreign, samplers: Sequence[Foreign]) -> bool | None:
    """Whether something gives all ranks equally many samples; None if unknown."""
    for sampler in (dataset, *samplers):
        name = type(sampler).__name__
        if name in ("BatchSamplerShard", "IterableDatasetShard"):  # of accelerate
            return bool(getattr(sampler, "even_batches", True))
        if name.startswith("Unrepeated"):  # of Lightning, to predict
            return False
        if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
            return True
    return None


def _mark_of_data(loader: Foreign) -> str:
    """Return a mark of this rank's data; only the size counts if an item differs each time."""
    torch = sys.modules["torch"]
    indices = [
        repr(list(sampler.indices))[:2000]
        for sampler in _samplers(loader)
        if hasattr(sampler, "indices")
    ]
    states = random.getstate(), torch.get_rng_state()
    first, again = (_print_of(loader.dataset[0]) for _ in range(2))
    random.setstate(states[0])
    torch.set_rng_state(states[1])
    return f"{len(loader.dataset)} {first if first == again else ''} {indices}"


def _print_of(data: Foreign, depth: int = 0) -> str:
    if hasattr(data, "detach"):
        return repr(data.detach().flatten()[:64].tolist())
    if isinstance(data, Mapping) and depth < 4:
        return repr([(str(key), _print_of(value, depth + 1)) for key, value in data.items()][:16])
    if isinstance(data, (list, tuple)) and depth < 4:
        return repr([_print_of(value, depth + 1) for value in data[:16]])
    text = repr(data)[:500]
    return "" if " at 0x" in text else text


def instrument_fetching(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Give one rank a batch without usable samples, if the program can collate such a batch."""
    nothing = object()

    def of_nothing(collate: Callable[[Foreign], Foreign], data: Sequence[Foreign]) -> Foreign:
        """Collate samples that could not be read, mostly None."""
        for samples in ([None] * len(data), []):
            with suppress(Exception):
                return collate(samples)
        return nothing

    def collated(collate: Callable[[Foreign], Foreign], data: Foreign) -> Foreign:
        batch, rest = collate(data), nothing
        if rehearsal.plays("as-it-is"):
            if of_nothing(collate, data) is not nothing:
                rehearsal.note("collate")
        elif rehearsal.provokes("unusable-batch", "batch"):
            rest = of_nothing(collate, data)
        return batch if rest is nothing else rest

    def fetcher(call: Call) -> None:
        call.go()
        collate = call.instance.collate_fn
        own = "torch.utils.data" not in str(getattr(collate, "__module__", ""))
        if call.instance.auto_collation and own:
            call.instance.collate_fn = partial(collated, collate)

    if rehearsal.plays("as-it-is", "unusable-batch"):
        replace(module._BaseDatasetFetcher, "__init__", fetcher)  # noqa: SLF001 - all collate there


# ---------------------------------------------------------------- losses, saves, signals


def instrument_losses(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Make losses of one rank non-finite, or such that only this rank wants to stop."""
    spoils = rehearsal.plays("as-it-is", "non-finite-loss", "early-stop")
    for name in LOSSES if spoils and not rehearsal.part.by_output else ():
        replace(module, name, lambda call: _played(rehearsal, call.go(), "loss"))


def instrument_modules(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Do the same to outputs of modules, if the program computes its own loss."""

    def after(_module: Foreign, _given: Foreign, output: Foreign) -> Foreign:
        if not getattr(output, "is_floating_point", bool)():
            return None
        changed = _played(rehearsal, output, "forward")
        return None if changed is output else changed

    if rehearsal.part.by_output or rehearsal.plays("as-it-is"):
        module.register_module_forward_hook(after)


def _played(rehearsal: Rehearsal, result: Foreign, kind: NoteKind) -> Foreign:
    trains = bool(getattr(result, "requires_grad", False))
    if trains:
        rehearsal.offers(kind)
        if rehearsal.provokes("non-finite-loss", kind):
            return result * float("nan")
    if rehearsal.provokes("early-stop"):
        rehearsal.calls["train" if trains else "eval"] += 1
        if not trains:  # as if the loss got worse with each evaluation
            return result * 10.0 * rehearsal.calls["eval"]
        # as if the model had learnt everything
        return result * 1e-9 if rehearsal.calls["train"] >= AT_CALL else result
    return result


def stop(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Make one rank's EarlyStopping of Lightning want to stop: it asks the others."""
    result = call.go()
    return (True, "rehearsed") if rehearsal.provokes("early-stop") else result


def save(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Let saves of rank 0, by torch or safetensors, fail or take long."""
    first = next(iter(call.arguments), None)
    what = call.named.get("obj", call.named.get("tensors")) if first is None else first
    if isinstance(what, Mapping) or hasattr(type(what), "state_dict"):
        rehearsal.offers("save")
        if rehearsal.provokes("save-fails", rank=0):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (rehearsed)")
        rehearsal.calls["save"] += 1
        if rehearsal.provokes("save-slow", rank=0) and rehearsal.calls["save"] == 1:
            time.sleep(SLOW_SAVE_S)
    return call.go()


def instrument_steps(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Send one rank SIGTERM after a step."""

    def who_answers() -> str:
        """Return ``program``, ``Lightning``, or empty if SIGTERM just ends the process."""
        handler = signal.getsignal(signal.SIGTERM)
        if not callable(handler):
            return ""
        parts = getattr(handler, "signal_handlers", None) or [handler]
        owners = {str(getattr(part, "__module__", "") or type(part).__module__) for part in parts}
        foreign = {
            owner for owner in owners if not owner.startswith(("lightning_hangcheck", "signal"))
        }
        if any(not owner.startswith(("lightning.", "pytorch_lightning.")) for owner in foreign):
            return "program"
        return "Lightning" if foreign else ""

    def after(*_: Foreign) -> None:
        rehearsal.offers("step", who_answers())
        if rehearsal.provokes("sigterm", "step"):
            os.kill(os.getpid(), signal.SIGTERM)

    module.register_optimizer_step_post_hook(after)


INSTRUMENTS: tuple[tuple[str, Callable[[Rehearsal, ModuleType], None]], ...] = (
    ("torch.utils.data.dataloader", instrument_data),
    ("torch.utils.data._utils.fetch", instrument_fetching),
    ("torch.nn.functional", instrument_losses),
    ("torch.nn.modules.module", instrument_modules),
    ("torch.optim.optimizer", instrument_steps),
    ("torch", instrument_devices),
)
CALLS: tuple[tuple[str, str, Callable[[Rehearsal, Call], Foreign]], ...] = (
    ("torch.nn.modules.batchnorm", "SyncBatchNorm.convert_sync_batchnorm", leave_batchnorm),
    (
        "torch.nn.parallel.distributed",
        "DistributedDataParallel.__init__",
        lambda _, call: call.function(
            **{**call.bound(), "device_ids": None, "output_device": None}
        ),
    ),
    *(("torch.cuda", name, lambda *_: None) for name in CUDA_CALLS),
    ("torch.serialization", "save", save),
    ("safetensors.torch", "save_file", save),
    ("torch.distributed.distributed_c10d", "init_process_group", make_group),
    ("torch.distributed.distributed_c10d", "new_group", make_group),
    ("torch.distributed.distributed_c10d", "destroy_process_group", leave_group),
    ("transformers.training_args", "TrainingArguments.__post_init__", settle_arguments),
    ("FABRIC.fabric", "Fabric.__init__", make_fabric),
    ("LIGHTNING.trainer.trainer", "Trainer.__init__", make_trainer),
    ("LIGHTNING.callbacks.model_checkpoint", "ModelCheckpoint.__init__", make_checkpoints),
    ("LIGHTNING.callbacks.early_stopping", "EarlyStopping._evaluate_stopping_criteria", stop),
)
"""Functions that ours replace."""


def begin() -> None:
    """Take part in the rehearsal that the environment names; our own code raises nothing."""
    try:
        rehearsal = Rehearsal(msgspec.json.decode(os.environ[REHEARSAL], type=Part))
    except (KeyError, msgspec.MsgspecError) as error:
        log.once("rehearsal", f"this rank takes no part in the rehearsal ({error})")
        return
    for module, instrument in INSTRUMENTS:
        on_import(module, partial(instrument, rehearsal))

    def take_place(function: str, act: Callable[[Call], Foreign], module: ModuleType) -> None:
        owner, _, name = function.rpartition(".")
        replace(getattr(module, owner) if owner else module, name, act)

    for module, function, act in CALLS:
        on_import(module, partial(take_place, function, partial(act, rehearsal)))
    tell_exceptions(rehearsal)
    atexit.register(attempt, "leaving", stay_connected, rehearsal)
