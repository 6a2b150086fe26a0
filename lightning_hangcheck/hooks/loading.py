"""`load_pretrained`: from_pretrained with a view of what it does, and a look at what it loaded.

Before a load is said where it reads from, how long that may take, and which known traps its
arguments walk into; while it goes on each weight is a beat and each file of weights a line.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
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
    tell_offloaded_parts,
    without_data,
)
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.shown import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.hooks.models import Model
    from lightning_hangcheck.hooks.zero_code.wrapping import Call
    from lightning_hangcheck.recorder.lifecycle import Recorder

Loaded = TypeVar("Loaded")
LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
SILENCE_S = 10.0  # a file that takes longer gets a line in between
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

    Example:
        >>> tokenizer = load_pretrained("./llama", "AutoTokenizer")
        >>> model = load_pretrained("./llama", device_map="auto", dtype="bfloat16")

    Known traps in the arguments are named before, with the way round them; parameters without data,
    flags that contradict each other, the device map and the memory of each GPU after it. A missing
    pad token is set from the end-of-sequence token. A failure of any of this is said once and
    changes nothing; with ``HANGCHECK_DISABLE=1`` only the pad token is set.

    Args:
        name_or_path: A folder, or a name of the hub.
        kind: A class with ``from_pretrained``, or the name of one in transformers.
        test_generation: Generate four tokens with a model that can, step by step.
        **named: Of ``from_pretrained``.

    Returns:
        What ``from_pretrained`` returned.

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
    what = "tokenizer" if any(word in title for word in _WITHOUT_WEIGHTS) else "model"
    load = Load(name=str(name_or_path), loader=title, what=what, named=dict(named))
    result = watched_load(recorder, load, partial(loader.from_pretrained, name_or_path, **named))
    loaded = result[0] if isinstance(result, tuple) else result
    if not hasattr(loaded, "named_parameters"):
        attempt("a look at the tokenizer", look_at_tokenizer, loaded, recorder)
        return result
    attempt("a look at the model", look_at_model, loaded, recorder)
    attempt("what is offloaded", tell_offloaded_parts, loaded, recorder)
    if not recorder.settings.disable:
        cleared = attempt("clearing the cache of the GPU", clear_cache)
        if cleared:
            recorder.say(f"after loading: {cleared}")
        if test_generation:
            try_generation(loaded, recorder)
    return result


def look_at_tokenizer(tokenizer: Any, recorder: Recorder) -> None:  # noqa: ANN401 - a guest's
    """Give a tokenizer, or that of a processor, the pad token that it lacks."""
    line = set_on_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
    if line:
        recorder.say(line)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, not begun yet.

    Attributes:
        name: A folder or a name of the hub.
        loader: What is called, for people: a class, or a pipeline's task.
        what: ``model``, ``tokenizer`` or ``model config``, which gives the phase.
        named: The arguments of ``from_pretrained``.
    """

    name: str
    loader: str
    what: str
    named: dict[str, Any]


class WeightFile(msgspec.Struct, frozen=True):
    """One file of weights; its size is 0 for what is no regular file, such as a pipe."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return Path(self.path).name


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before anything is loaded.

    Attributes:
        name: As the user gave it.
        kind: ``hub`` also where the hub is the only place left to ask.
        offline: The hub will not be asked.
        folder: Where its files are; None if they are not here.
        weight_files: Empty for a tokenizer, and where nothing is here.
        file_of_weight: File name of each weight, if an index says so.
        has_generation_config: ``generation_config.json`` is there.
    """

    name: str
    kind: Literal["folder", "cache", "hub"]
    offline: bool
    folder: str | None = None
    weight_files: tuple[WeightFile, ...] = ()
    file_of_weight: dict[str, str] = {}
    has_generation_config: bool = False

    @property
    def size(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size for file in self.weight_files)


UNSEEN = Source(name="", kind="folder", offline=True)


def watched_load(recorder: Recorder, load: Load, work: Callable[[], Loaded]) -> Loaded:
    """Announce a load, do it in a section of its own, and hear how far it is.

    Raises:
        Exception: Whatever the work raises.
    """
    if recorder.settings.disable:
        return work()
    source = attempt("looking at the files", announce, recorder, load) or UNSEEN
    if load.what == "model":
        attempt("an estimate of the time", _estimate, recorder, source)
    title = f"{load.what} from_pretrained ({load.loader})"
    progress = ShardProgress(source, recorder.say, partial(sign_of_life, recorder))
    with Section(recorder, title), follow_loading(progress):
        return work()


def announce(recorder: Recorder, load: Load) -> Source:
    """Say what will be loaded and which traps its arguments walk into, within about 2 seconds.

    Returns:
        Where it will come from, as far as it was seen in time.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    import transformers

    try:
        source = within(LOOK_LIMIT, partial(find_source, load.name, load.named))
    except NoAnswer:
        recorder.say(f"WARNING: the storage of {load.name} did not answer within {LOOK_LIMIT:g} s")
        return UNSEEN
    recorder.say(announcement(load, source))
    if load.what != "tokenizer":
        major, minor = map(int, transformers.__version__.split(".")[:2])
        for trap in traps(load, source, (major, minor), recorder.identity.world_size or 1):
            recorder.say(f"WARNING: {trap}")
    return source


def announcement(load: Load, source: Source) -> str:
    """One line about a load: from where, how much, to where."""
    where = {
        "folder": f"the local folder {source.name}",
        "cache": f"{source.name} from the cache of the hub ({source.folder})",
        "hub": f"{source.name} from the hub (no folder here has this name, and the cache has it "
        "not)",
    }
    parts = [f"{load.loader}.from_pretrained will read {where[source.kind]}"]
    if load.what == "model":
        if source.weight_files:
            files = several(len(source.weight_files), "weight file")
            parts.append(f"{files}, {bytes_in_words(source.size)}")
        dtype = load.named.get("dtype", load.named.get("torch_dtype"))
        parts.append(f"device_map={load.named.get('device_map')!r}")
        parts.append("dtype=transformers' default" if dtype is None else f"dtype={dtype}")
    parts.append("offline: the hub is not asked" if source.offline else "online")
    return "; ".join(parts)


def find_source(name: str, named: Mapping[str, Any]) -> Source:
    """Find out where ``from_pretrained`` will read from; asks no network.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    from huggingface_hub import constants

    offline = bool(named.get("local_files_only")) or bool(constants.HF_HUB_OFFLINE)
    is_folder = Path(name).is_dir()
    folder = Path(name) if is_folder else _cached_folder(name, named)
    if folder is None:
        return Source(name=name, kind="hub", offline=offline)
    below = folder / (named.get("subfolder") or "")
    files, file_of_weight = find_weights(below, named.get("variant"))
    return Source(
        name=name,
        kind="folder" if is_folder else "cache",
        offline=offline,
        folder=str(below),
        weight_files=files,
        file_of_weight=file_of_weight,
        has_generation_config=(below / "generation_config.json").exists(),
    )


def _cached_folder(name: str, named: Mapping[str, Any]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    place = {"cache_dir": named.get("cache_dir"), "revision": named.get("revision")}
    try:
        found = (try_to_load_from_cache(name, mark, **place) for mark in _MARKS)
        return next((Path(one).parent for one in found if isinstance(one, str)), None)
    except ValueError:  # no name that the hub could have, such as a path of three parts
        return None


class _Index(msgspec.Struct):
    """What is used of a ``.index.json``."""

    weight_map: dict[str, str]


def find_weights(
    folder: Path, variant: str | None = None
) -> tuple[tuple[WeightFile, ...], dict[str, str]]:
    """List a folder's weight files, and the file of each weight where there is an index.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: An index is no index.
    """

    def path(name: str) -> Path:
        stem, _, ending = name.rpartition(".")
        return folder / (f"{stem}.{variant}.{ending}" if variant else name)

    def file(path: Path) -> WeightFile:
        state = path.stat()
        return WeightFile(str(path), state.st_size if stat.S_ISREG(state.st_mode) else 0)

    for single, index in _WEIGHTS:
        if path(single).exists():
            return (file(path(single)),), {}
        if path(index).exists():
            held = msgspec.json.decode(path(index).read_bytes(), type=_Index).weight_map
            return tuple(file(folder / name) for name in sorted(set(held.values()))), held
    return (), {}


def traps(load: Load, source: Source, version: tuple[int, int], world_size: int = 1) -> list[str]:
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
    if source.kind == "cache" and not source.offline:
        found.append(
            "all is in the cache, yet from_pretrained asks the hub about it, and so does "
            "GenerationConfig.from_pretrained: a hub that does not answer holds both up; pass "
            "local_files_only=True to both, or set HF_HUB_OFFLINE=1 before Python starts"
        )
    if source.kind == "hub":
        found.append(_not_here(source))
    if load.loader == "GenerationConfig":  # what the cache lacks, the hub may have
        concerned = source.kind == "folder" or (source.kind == "cache" and source.offline)
    else:
        generates = any(word in load.loader for word in _GENERATING)
        concerned = generates and bool(source.weight_files)
    if concerned and not source.has_generation_config:
        found.append(
            "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and "
            "asks the network first where the model is given by its hub name; use "
            "GenerationConfig.from_model_config(model.config)"
        )
    return found


def _not_here(source: Source) -> str:
    way_out = "give the path of a folder that exists, or the full name of the hub (owner/model)"
    if source.offline:
        return f"{source.name} is not here, and the hub may not be asked: this fails; {way_out}"
    if source.name.startswith(("/", ".", "~")):
        return f"there is no folder {source.name}, so it is taken for a hub's name; {way_out}"
    return (
        "the download counts as progress by the bytes that arrive; to keep it out of training, "
        f"fetch it once with: hf download {source.name}"
    )


def _estimate(recorder: Recorder, source: Source) -> None:
    """Say how long reading may take, by a sample of what the storage delivers."""
    try:
        rate = within(LOOK_LIMIT, partial(reading_rate, source.weight_files))
    except NoAnswer:
        recorder.say(
            f"WARNING: {source.folder} is slow: a sample of the weight files was not read within "
            f"{LOOK_LIMIT:g} s"
        )
        return
    if rate and source.size:
        recorder.say(expectation(source.size, rate))


def expectation(size: int, rate: float) -> str:
    """How long reading so many bytes may take at so many a second, as an estimate."""
    return (
        f"reading may take about {size / rate:.0f} s (an estimate: {bytes_in_words(size)} at "
        f"{bytes_in_words(rate)}/s, measured just now on a sample of the files)"
    )


def reading_rate(files: Sequence[WeightFile]) -> float | None:
    """Read a few places of the files: bytes a second, None where an estimate would tell nothing.

    What is in the page cache is read at that speed, by these samples and by loading alike.

    Raises:
        OSError: A file cannot be read.
    """
    if sum(file.size for file in files) < SMALLEST_MODEL:
        return None
    readable = [file for file in files if file.size >= SAMPLE_SIZE]
    started, read = time.perf_counter(), 0
    for number in range(SAMPLES):
        file = readable[number * len(readable) // SAMPLES]
        place = int((file.size - SAMPLE_SIZE) * (number + 0.5) / SAMPLES)
        descriptor = os.open(file.path, os.O_RDONLY)
        try:
            read += len(os.pread(descriptor, SAMPLE_SIZE, place))
        finally:
            os.close(descriptor)
    return read / (time.perf_counter() - started)


class ShardProgress:
    """Hears of one load, and says how far it is: a beat for each weight, a line for each file."""

    def __init__(
        self,
        source: Source,
        say: Callable[[str], None],
        alive: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._alive, self._clock = say, alive, clock
        self._files = {file.name: file for file in source.weight_files}
        self._file_of_weight = source.file_of_weight
        self._weights_left = Counter(source.file_of_weight.values())
        self._opened: set[str] = set()
        self._loaded: set[str] = set()
        self._weights = 0
        self._spoke_at = self._loaded_at = clock()

    def opening(self, path: str) -> None:
        """A weight file will be opened next."""
        self._alive()
        name = Path(path).name
        if name in self._files and name not in self._opened:
            self._opened.add(name)
            self._tell(f"opening weight file {self._place(name)}")

    def loaded_file(self, path: str) -> None:
        """All weights of this file are where they belong."""
        self._alive()
        name = Path(path).name
        if name not in self._files or name in self._loaded:
            return
        self._loaded.add(name)
        now = self._clock()
        size = bytes_in_words(self._files[name].size)
        self._tell(f"loaded weight file {self._place(name)} ({size}, {now - self._loaded_at:.3f}s)")
        self._loaded_at = now

    def loaded_weights(self, names: Iterable[str]) -> None:
        """These weights, by their names in the files, are where they belong."""
        self._alive()
        for name in names:
            self._weights += 1
            file = self._file_of_weight.get(name)
            if file is not None:
                self._weights_left[file] -= 1
                if not self._weights_left[file]:
                    self.loaded_file(file)
        if self._clock() - self._spoke_at > SILENCE_S:
            self._tell(f"{self._weights} weights loaded so far")

    def ended(self) -> None:
        """Nothing more comes: files with weights that the model does not have are done too."""
        for name in self._files:
            self.loaded_file(name)

    def _place(self, name: str) -> str:
        number = list(self._files).index(name) + 1
        return f"{number}/{len(self._files)} {name}"

    def _tell(self, text: str) -> None:
        self._spoke_at = self._clock()
        self._say(text)


_following: dict[int, ShardProgress] = {}
_lock = threading.Lock()


@contextmanager
def follow_loading(progress: ShardProgress) -> Iterator[None]:
    """Tell this progress what transformers loads in this thread.

    transformers 4.48 to 5.23 go through ``transformers.utils.logging.tqdm`` for each file (4.x) or
    weight (5.x), and open files by names of ``transformers.modeling_utils``. Both are wrapped while
    a load is followed; a version without them is loaded all the same. A load within a load is
    followed by the outer one. Files that a thread of transformers' own opens count for the load if
    it is the only one.
    """
    thread = threading.get_ident()
    if thread in _following:
        yield
        return
    with _lock:
        if not _following:
            attempt("the progress of loading", _wrap_loading)
        _following[thread] = progress
    try:
        yield
    finally:
        with _lock:
            del _following[thread]
            if not _following:
                attempt("putting transformers back as it was", _unwrap_loading)


def _seams() -> tuple[tuple[Any, str, Any], ...]:
    from transformers import modeling_utils
    from transformers.utils import logging

    return (
        (modeling_utils, "safe_open", _opening),
        (modeling_utils, "load_state_dict", _opening),
        (type(logging.tqdm), "__call__", _progress_bar),
    )


def _wrap_loading() -> None:
    from lightning_hangcheck.hooks.zero_code.wrapping import wrap

    for owner, name, around in _seams():
        wrap(owner, name, around)


def _unwrap_loading() -> None:
    from lightning_hangcheck.hooks.zero_code.wrapping import unwrap

    for owner, name, _ in _seams():
        unwrap(owner, name)


def _listener() -> ShardProgress | None:
    mine = _following.get(threading.get_ident())
    if mine is None and len(_following) == 1:
        return next(iter(_following.values()), None)
    return mine


@contextmanager
def _opening(call: Call) -> Iterator[None]:
    listener = _listener()
    if listener is not None and call.arguments:
        listener.opening(str(call.arguments[0]))
    yield


@contextmanager
def _progress_bar(call: Call) -> Iterator[None]:
    """Follow a bar's items; one that is moved by hand, as where threads load, by its updates."""
    listener = _listener()
    if listener is None or not str(call.named.get("desc")).startswith("Loading"):
        yield
        return
    call.arguments = tuple(_FollowedItems(items, listener) for items in call.arguments)
    yield
    if not call.arguments:
        from lightning_hangcheck.hooks.zero_code.wrapping import wrap

        @contextmanager
        def updating(_call: Call) -> Iterator[None]:
            listener.loaded_weights(())
            yield

        wrap(call.result, "update", updating)


class _FollowedItems:
    """The items of a bar, each told once the one after it is asked for."""

    def __init__(self, items: Collection[object], listener: ShardProgress) -> None:
        self._items = items
        self._listener = listener

    def __len__(self) -> int:
        """As many as there are; a TypeError where the items know no number."""
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        """Yield each item as it is."""
        what = "telling of a weight"
        for item in self._items:
            names = attempt(what, _weight_names, item)
            yield item
            path = item[0] if isinstance(item, tuple) and item else item
            if isinstance(path, str) and not names:  # a file, or the arguments of its load (4.5x)
                attempt(what, self._listener.loaded_file, path)
            else:
                attempt(what, self._listener.loaded_weights, names or ())
        attempt(what, self._listener.ended)


def _weight_names(item: object) -> tuple[str, ...]:
    """Names of the weights that an item of transformers 5 makes, (name, mapping); else none."""
    match item:
        case (str() as name, mapping) if not isinstance(mapping, str):
            targets = getattr(mapping, "layer_targets", None)
            return tuple({key for keys in targets.values() for key in keys} if targets else {name})
    return ()


def try_generation(model: Model, recorder: Recorder) -> None:
    """Generate four tokens without sampling, and say each step: what stands still has a name.

    Never raises; random numbers are left as they were. A model that cannot generate, has parameters
    without data, or is shared out over the ranks (a step of it waits for the others) is not tried.
    """
    attempt("the test generation", _try_generation, model, recorder)


def _try_generation(model: Model, recorder: Recorder) -> None:
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
    plainest = GenerationConfig(  # as many steps on every rank, whatever the model's settings are
        do_sample=False,
        num_beams=1,
        min_new_tokens=TRIAL_TOKENS,
        max_new_tokens=TRIAL_TOKENS,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        decoder_start_token_id=own.decoder_start_token_id,
    )
    beat = with_beat({"generation_config": plainest}, TokenBeat(partial(sign_of_life, recorder)))
    gpus = [device.index or 0] if device.type == "cuda" else []
    section = Section(recorder, "test generation: 4 generate")
    with section, torch.no_grad(), torch.random.fork_rng(gpus):
        mask = torch.ones_like(tokens)
        made = model.generate(input_ids=tokens, attention_mask=mask, **beat)
    say(f"5 output of shape {tuple(made.shape)}")
    say(f"6 {clear_cache() or 'no GPU is used, so there is no cache to clear'}")
