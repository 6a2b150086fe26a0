"""`load_pretrained`: from_pretrained with a view of what it does, and a look at what it loaded.

Before a load is said where it reads from, how long that may take, and which known traps its
arguments walk into; while it goes on each weight is a beat and each file of weights a line. Loads
of a script that is only watched are told likewise, without an estimate or a trial.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.generating import TokenBeat, sign_of_life, with_beat
from lightning_hangcheck.hooks.models import (
    are_shared_out,
    clear_cache,
    first_device,
    input_device,
    look_at_model,
    set_on_tokenizer,
    show_class_and_device,
    without_data,
)
from lightning_hangcheck.hooks.zero_code.start import passed
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    in_section,
    is_inside,
    is_outermost,
    wrap,
)
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Section, current
from lightning_hangcheck.text.shown import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import ModuleType

    from lightning_hangcheck.hooks.models import Model
    from lightning_hangcheck.recorder.lifecycle import Recorder

Loaded = TypeVar("Loaded")
LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: long enough that opening the file does not count, read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; below, loading takes no time worth an estimate
TRIAL_TOKENS = 4
# in the order of preference of transformers' from_pretrained
_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
# one of these is in the cache if anything of a model or tokenizer is
_MARKS = ("config.json", "tokenizer_config.json")
_WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "Config", "FeatureExtractor")
# transformers ignores offload_state_dict from here on (its pull request 41103)
_IGNORES_OFFLOAD_STATE_DICT = (4, 57)
# in the name of every class of transformers whose models generate
_GENERATING = ("LM", "Generation", "generation")
_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")


def load_pretrained(
    name_or_path: str | os.PathLike[str],
    kind: type | str = "AutoModelForCausalLM",
    *,
    test_generation: bool = True,
    **named: object,
) -> Any:  # noqa: ANN401 - a model, a tokenizer, or a model and a report
    """Call ``kind.from_pretrained``, and say what it is about to do, how far it is, how it ended.

    A missing pad token is set from the end-of-sequence token, also with ``HANGCHECK_DISABLE=1``. A
    failure of ours is said once and changes nothing.

    Args:
        name_or_path: A folder, or a name of the hub.
        kind: A class with ``from_pretrained``, or the name of one in transformers.
        test_generation: Generate four tokens with a model that can, step by step.
        **named: Of ``from_pretrained``.

    Raises:
        BadUsage: There is no such kind.
        Exception: Whatever ``from_pretrained`` raises, unchanged.
    """
    import transformers

    loader: Any = getattr(transformers, kind, None) if isinstance(kind, str) else kind
    if not hasattr(loader, "from_pretrained"):
        raise BadUsage(
            f"kind={kind!r} has no from_pretrained",
            "write the name of a class of transformers, as 'AutoModelForCausalLM' or "
            "'AutoTokenizer', or give the class itself",
        )
    recorder, title = current(), loader.__name__
    without = any(word in title for word in _WITHOUT_WEIGHTS)
    load = Load(str(name_or_path), title, "tokenizer" if without else "model", dict(named))
    result = load.watched(partial(loader.from_pretrained, name_or_path, **named))
    loaded = result[0] if isinstance(result, tuple) else result
    if not hasattr(loaded, "named_parameters"):
        attempt("a look at the tokenizer", look_at_tokenizer, loaded, recorder)
        return result
    attempt("a look at the model", look_at_model, loaded, recorder)
    if not recorder.settings.disable:
        cleared = attempt("clearing the cache of the GPU", clear_cache)
        if cleared:
            recorder.say(f"after loading: {cleared}")
        if test_generation:
            attempt("the test generation", try_generation, loaded, recorder)
    return result


def look_at_tokenizer(tokenizer: Any, recorder: Recorder) -> None:  # noqa: ANN401 - a guest's
    """Give a tokenizer, or that of a processor, the pad token that it lacks."""
    line = set_on_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
    if line:
        recorder.say(line)


class Load(msgspec.Struct, frozen=True):
    """One load: what is called with which arguments, and what is known before anything is loaded.

    Attributes:
        kind: Where it reads; ``hub`` also where the hub is the only place left to ask.
        folder: Where its files are; None if they are not here.
        weight_files: Bytes of each; 0 for what is no regular file, such as a pipe.
        file_of_weight: File name of each weight, if an index says so.
    """

    name: str
    loader: str
    what: Literal["model", "tokenizer", "model config"]
    named: dict[str, Any]
    kind: Literal["folder", "cache", "hub"] = "folder"
    offline: bool = True
    folder: str | None = None
    weight_files: dict[Path, int] = {}
    file_of_weight: dict[str, str] = {}
    has_generation_config: bool = False

    def watched(self, work: Callable[[], Loaded]) -> Loaded:
        """Announce it, do it in a section of its own, and hear how far it is."""
        recorder = current()
        if recorder.settings.disable:
            return work()
        found = attempt("looking at the files", self.announce, recorder) or self
        if self.what == "model":
            attempt("an estimate of the time", found.estimate, recorder)
        title = f"{self.what} from_pretrained ({self.loader})"
        with Section(recorder, title), found.followed(recorder):
            return work()

    def announce(self, recorder: Recorder) -> Load:
        """Say what will be loaded and which traps its arguments walk into, in about 2 seconds."""
        import transformers

        try:
            found = within(LOOK_LIMIT, self.find)
        except NoAnswer:
            slow = f"the storage of {self.name} did not answer within {LOOK_LIMIT:g} s"
            recorder.say(f"WARNING: {slow}")
            return self
        where = {
            "folder": f"the local folder {self.name}",
            "cache": f"{self.name} from the cache of the hub ({found.folder})",
            "hub": f"{self.name} from the hub (no folder here has this name, and the cache has it "
            "not)",
        }
        parts = [f"{self.loader}.from_pretrained will read {where[found.kind]}"]
        if self.what == "model":
            if found.weight_files:
                files = several(len(found.weight_files), "weight file")
                parts.append(f"{files}, {bytes_in_words(sum(found.weight_files.values()))}")
            dtype = self.named.get("dtype", self.named.get("torch_dtype"))
            parts.append(f"device_map={self.named.get('device_map')!r}")
            parts.append("dtype=transformers' default" if dtype is None else f"dtype={dtype}")
        parts.append("offline: the hub is not asked" if found.offline else "online")
        recorder.say("; ".join(parts))
        if self.what != "tokenizer":
            major, minor = map(int, transformers.__version__.split(".")[:2])
            for trap in traps(found, (major, minor), recorder.identity.world_size or 1):
                recorder.say(f"WARNING: {trap}")
        return found

    def find(self) -> Load:
        """Find out where ``from_pretrained`` will read from; asks no network."""
        from huggingface_hub import constants, try_to_load_from_cache

        named, known = self.named, partial(msgspec.structs.replace, self)
        offline = bool(named.get("local_files_only")) or bool(constants.HF_HUB_OFFLINE)
        folder, kind = Path(self.name), "folder"
        if not folder.is_dir():
            place = {"cache_dir": named.get("cache_dir"), "revision": named.get("revision")}
            try:
                found = [try_to_load_from_cache(self.name, mark, **place) for mark in _MARKS]
            except ValueError:  # no name that the hub could have, such as a path of three parts
                found = []
            cached = next((one for one in found if isinstance(one, str)), None)
            if cached is None:
                return known(kind="hub", offline=offline)
            folder, kind = Path(cached).parent, "cache"
        below = folder / (named.get("subfolder") or "")
        files, file_of_weight = find_weights(below, named.get("variant"))
        return known(
            kind=kind,
            offline=offline,
            folder=str(below),
            weight_files=files,
            file_of_weight=file_of_weight,
            has_generation_config=(below / "generation_config.json").exists(),
        )

    def estimate(self, recorder: Recorder) -> None:
        """Say how long reading may take, by a sample of what the storage delivers."""
        try:
            rate = within(LOOK_LIMIT, partial(reading_rate, self.weight_files))
        except NoAnswer:
            slow = f"a sample of the weight files was not read within {LOOK_LIMIT:g} s"
            recorder.say(f"WARNING: {self.folder} is slow: {slow}")
            return
        if rate:
            size = sum(self.weight_files.values())
            recorder.say(
                f"reading may take about {size / rate:.0f} s (an estimate: {bytes_in_words(size)} "
                f"at {bytes_in_words(rate)}/s, measured just now on a sample of the files)"
            )

    @contextmanager
    def followed(self, recorder: Recorder) -> Iterator[None]:
        """Tell of what transformers loads in this thread; a load within a load is the outer one's.

        transformers 4.48 to 5.23 go through ``transformers.utils.logging.tqdm`` for each file (4.x)
        or weight (5.x); a version that does not is loaded all the same.
        """
        thread = threading.get_ident()
        if thread in _following:
            yield
            return
        attempt("the progress of loading", _watch_bars)
        _following[thread] = ShardProgress(self, recorder.say, partial(sign_of_life, recorder))
        try:
            yield
        finally:
            del _following[thread]


def traps(load: Load, version: tuple[int, int], world_size: int = 1) -> list[str]:
    """Name each trap that a call of ``from_pretrained`` walks into, and the way round it."""
    named, found = load.named, []
    if named.get("offload_state_dict"):
        found.append(
            "offload_state_dict has no effect in this transformers; leave it out"
            if version >= _IGNORES_OFFLOAD_STATE_DICT
            else "offload_state_dict=True writes all weights to a temporary folder and reads them "
            "back at the end: on slow storage loading seems never to end, and parameters can stay "
            "on the meta device; leave it out, and limit memory with max_memory={0: '20GiB', "
            "'cpu': '60GiB'}"
        )
    device_map = named.get("device_map")
    to_disk = isinstance(device_map, dict) and "disk" in device_map.values()
    if device_map is not None and (named.get("offload_folder") or to_disk):
        found.append(
            "with a device map and offload_folder, what does not fit goes to disk: its parameters "
            "stay on the meta device, each forward pass reads them again, and DDP, FSDP or "
            "model.to() fail on them or never end; leave offload_folder out, and load in 8 bits, "
            "on more GPUs, or with a max_memory map that holds the whole model"
        )
    if world_size > 1 and isinstance(device_map, str) and device_map in _SPREADING:
        found.append(
            f"device_map={device_map!r} in each of {world_size} ranks spreads every rank's model "
            "over all GPUs of its node; give each rank its own: "
            "device_map={'': int(os.environ['LOCAL_RANK'])}"
        )
    if load.kind == "cache" and not load.offline:
        found.append(
            "all is in the cache, yet from_pretrained asks the hub about it, and so does "
            "GenerationConfig.from_pretrained: a hub that does not answer holds both up; pass "
            "local_files_only=True to both, or set HF_HUB_OFFLINE=1 before Python starts"
        )
    way_out = "give the path of a folder that exists, or the full name of the hub (owner/model)"
    if load.kind == "hub" and load.offline:
        found.append(
            f"{load.name} is not here, and the hub may not be asked: this fails; {way_out}"
        )
    elif load.kind == "hub" and load.name.startswith(("/", ".", "~")):
        found.append(f"there is no folder {load.name}, so it is taken for a hub's name; {way_out}")
    elif load.kind == "hub":
        found.append(
            "the download counts as progress by the bytes that arrive; to keep it out of training, "
            f"fetch it once with: hf download {load.name}"
        )
    if load.loader == "GenerationConfig":  # what the cache lacks, the hub may have
        concerned = load.kind == "folder" or (load.kind == "cache" and load.offline)
    else:
        generates = any(word in load.loader for word in _GENERATING)
        concerned = generates and bool(load.weight_files)
    if concerned and not load.has_generation_config:
        found.append(
            "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and "
            "asks the network first where the model is given by its hub name; use "
            "GenerationConfig.from_model_config(model.config)"
        )
    return found


def find_weights(
    folder: Path, variant: str | None = None
) -> tuple[dict[Path, int], dict[str, str]]:
    """List a folder's weight files with their sizes, and the file of each weight, by an index."""

    def path(name: str) -> Path:
        stem, _, ending = name.rpartition(".")
        return folder / (f"{stem}.{variant}.{ending}" if variant else name)

    def size(path: Path) -> int:
        state = path.stat()
        return state.st_size if stat.S_ISREG(state.st_mode) else 0

    for single, index in _WEIGHTS:
        if path(single).exists():
            return {path(single): size(path(single))}, {}
        if path(index).exists():
            held = msgspec.json.decode(path(index).read_bytes())["weight_map"]
            files = [folder / name for name in sorted(set(held.values()))]
            return {file: size(file) for file in files}, held
    return {}, {}


def reading_rate(files: Mapping[Path, int]) -> float | None:
    """Read a few places of the files: bytes a second, None where an estimate would tell nothing."""
    if sum(files.values()) < SMALLEST_MODEL:
        return None
    readable = [(file, size) for file, size in files.items() if size >= SAMPLE_SIZE]
    started, read = time.perf_counter(), 0
    for number in range(SAMPLES):
        file, size = readable[number * len(readable) // SAMPLES]
        with file.open("rb", buffering=0) as opened:
            opened.seek(int((size - SAMPLE_SIZE) * (number + 0.5) / SAMPLES))
            read += len(opened.read(SAMPLE_SIZE))
    return read / (time.perf_counter() - started)


class ShardProgress:
    """Hears of one load, and says how far it is: a beat for each weight, a line for each file."""

    def __init__(
        self,
        load: Load,
        say: Callable[[str], None],
        alive: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._alive, self._clock = say, alive, clock
        self._sizes = {file.name: size for file, size in load.weight_files.items()}
        self._file_of_weight = load.file_of_weight
        self._weights_left = Counter(load.file_of_weight.values())
        self._loaded: set[str] = set()
        self._loaded_at = clock()

    def loaded_file(self, path: str) -> None:
        """All weights of this file are where they belong."""
        self._alive()
        name = Path(path).name
        if name not in self._sizes or name in self._loaded:
            return
        self._loaded.add(name)
        number, now = list(self._sizes).index(name) + 1, self._clock()
        size, took = bytes_in_words(self._sizes[name]), now - self._loaded_at
        self._say(f"loaded weight file {number}/{len(self._sizes)} {name} ({size}, {took:.3f}s)")
        self._loaded_at = now

    def loaded_weights(self, names: Iterable[str]) -> None:
        """These weights, by their names in the files, are where they belong."""
        self._alive()
        for name in names:
            file = self._file_of_weight.get(name)
            if file is not None:
                self._weights_left[file] -= 1
                if not self._weights_left[file]:
                    self.loaded_file(file)

    def loaded(self, item: object) -> None:
        """An item of a bar is done: a weight of transformers 5 (name, mapping), else a file."""
        match item:
            case (str() as name, mapping) if not isinstance(mapping, str):
                targets = getattr(mapping, "layer_targets", None) or {"": [name]}
                self.loaded_weights({key for keys in targets.values() for key in keys})
            case (str() as path) | (str() as path, *_):  # or the arguments of its load (4.5x)
                self.loaded_file(path)
            case _:
                self.loaded_weights(())

    def items(self, items: Collection[object]) -> Iterator[object]:
        """Yield the items of a bar, each told once the one after it is asked for."""
        for item in items:
            yield item
            attempt("telling of a weight", self.loaded, item)
        for name in self._sizes:  # files with weights that the model does not have are done too
            attempt("telling of a weight", self.loaded_file, name)


_following: dict[int, ShardProgress] = {}
"""By thread."""


@cache
def _watch_bars() -> None:
    from transformers.utils import logging

    @contextmanager
    def progress_bar(call: Call) -> Iterator[None]:
        """Follow a bar's items; one that is moved by hand, as where threads load, by updates."""
        listener = _following.get(threading.get_ident())
        if listener is None or not str(call.named.get("desc")).startswith("Loading"):
            yield
            return
        call.arguments = tuple(_FollowedItems(items, listener) for items in call.arguments)
        yield
        if not call.arguments:
            wrap(call.result, "update", after=lambda _: listener.loaded_weights(()))

    wrap(type(logging.tqdm), "__call__", progress_bar)


class _FollowedItems:
    """The items of a bar, which asks how many there are, and takes a TypeError for an answer."""

    def __init__(self, items: Collection[object], listener: ShardProgress) -> None:
        self._items, self._listener = items, listener

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        return self._listener.items(self._items)


def try_generation(model: Model, recorder: Recorder) -> None:
    """Generate four tokens without sampling, and say each step: what stands still has a name.

    Not with a model that is shared out over the ranks: a step of it waits for the others.
    """
    import torch
    from transformers import GenerationConfig

    def say(step: str) -> None:
        sign_of_life(recorder)
        recorder.say(f"test generation: {step}")

    can_generate = getattr(model, "can_generate", None)
    if not (callable(can_generate) and can_generate()):
        return
    if without_data(model):
        say("left out, because parameters have no data")
        return
    if are_shared_out(model.parameters()):
        say("left out, because its parameters are shared out over the ranks")
        return
    # where the first token means padding, transformers warns of it
    start, padding = (getattr(model.config, f"{kind}_token_id", None) for kind in ("bos", "pad"))
    if not isinstance(start, int) or start == padding:
        start = 1 if padding == 0 else 0
    tokens = torch.full((1, TRIAL_TOKENS), start, dtype=torch.long)
    say(f"1 input: {TRIAL_TOKENS} tokens of id {start}")
    device = input_device(model)
    say(f"2 device of the first parameter: {first_device(model)}; inputs go to {device}")
    began = time.perf_counter()
    tokens = tokens.to(device)
    say(f"3 input moved ({time.perf_counter() - began:.3f}s)")
    own = model.generation_config
    ids = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    plainest = GenerationConfig(  # as many steps on every rank, whatever the model's settings are
        do_sample=False,
        num_beams=1,
        min_new_tokens=TRIAL_TOKENS,
        max_new_tokens=TRIAL_TOKENS,
        **{name: getattr(own, name) for name in ids},
    )
    beat = with_beat({"generation_config": plainest}, TokenBeat(partial(sign_of_life, recorder)))
    gpus = [device.index or 0] if device.type == "cuda" else []
    section = Section(recorder, "test generation: 4 generate")
    with section, torch.no_grad(), torch.random.fork_rng(gpus):
        mask = torch.ones_like(tokens)
        made = model.generate(input_ids=tokens, attention_mask=mask, **beat)
    say(f"5 output of shape {tuple(made.shape)}")
    say(f"6 {clear_cache() or 'no GPU is used, so there is no cache to clear'}")


def instrument_loading(module: ModuleType) -> None:
    """Watch what the classes of this module of transformers load.

    Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.
    """
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        if owner.__module__ != module.__name__ or "from_pretrained" not in vars(owner):
            continue
        if "Tokenizer" in owner.__name__ or "Processor" in owner.__name__:
            section = in_section("tokenizer", _titled("tokenizer"), then=lambda _: passed(4))
            wrap(owner, "from_pretrained", section)
        elif "Model" in owner.__name__:
            wrap(owner, "from_pretrained", _loading_model)
            configured = in_section("model", _titled("model", "config"), then=lambda _: passed(5))
            wrap(owner, "from_config", configured)


def instrument_config(module: ModuleType) -> None:
    """Watch how a generation config is read, but for the one that a model brings."""
    title = _titled("model config")
    section = in_section("model config", title)

    @contextmanager
    def loading(call: Call) -> Iterator[None]:
        if is_inside("model"):
            yield
            return
        if is_outermost("model config", title(call)):
            _announce_call(call, "model config")
        with section(call):
            yield

    wrap(module.GenerationConfig, "from_pretrained", loading)


def _titled(what: str, source: str = "pretrained") -> Callable[[Call], str]:
    """Name a section after the class whose class method is called."""
    return lambda call: f"{what} from_{source} ({call.instance.__name__})"


_model_title = _titled("model")
_model = in_section("model", _model_title, then=lambda _: passed(5))


@contextmanager
def _loading_model(call: Call) -> Iterator[None]:
    if not is_outermost("model", _model_title(call)):
        with _model(call):
            yield
        return
    load, recorder = _announce_call(call, "model"), current()
    with _model(call), load.followed(recorder):
        yield
    # a model alone, or with what from_pretrained tells of the load (output_loading_info=True)
    model = call.result[0] if isinstance(call.result, tuple) else call.result
    attempt("a look at the model", show_class_and_device, model, recorder)


def _announce_call(call: Call, what: Literal["model", "model config"]) -> Load:
    """Say what will be loaded and what may go wrong with it; no name is given for a new one."""
    name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
    name = call.named.get("pretrained_model_name") if name is None else name
    load = Load(str(name), call.instance.__name__, what, dict(call.named))
    if isinstance(name, (str, os.PathLike)):
        attempt("looking at the files", load.announce, current())
    return load
