"""`load_pretrained`: from_pretrained with a view of what it does, and a look at what it loaded."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.generating import TokenBeat, with_beat
from lightning_hangcheck.hooks.models import (
    are_shared_out,
    clear_cache,
    doubtful_flags,
    first_device,
    input_device,
    meta_warning,
    placement_lines,
    set_on_model,
    set_on_tokenizer,
    tell_offloaded_parts,
    without_data,
)
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import bytes_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from transformers import GenerationConfig, PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.recorder.lifecycle import Recorder

    Function: TypeAlias = Callable[..., Any]


# in the order of preference of transformers' from_pretrained
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# one of these is in the cache if anything of a model or tokenizer is
_MARKS = ("config.json", "tokenizer_config.json")


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


class WeightFile(msgspec.Struct, frozen=True):
    """One file of weights.

    Attributes:
        size: Bytes; 0 for what is no regular file, such as a pipe.
    """

    path: str
    size: int

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return Path(self.path).name


def find_source(name: str, named: Mapping[str, Any]) -> Source:
    """Find out where ``from_pretrained`` will read from; asks no network.

    Args:
        name: A folder or a name of the hub.
        named: Keyword arguments of ``from_pretrained``.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    offline = bool(named.get("local_files_only")) or _is_offline()
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


def find_weights(
    folder: Path, variant: str | None = None
) -> tuple[tuple[WeightFile, ...], dict[str, str]]:
    """List a folder's weight files, and say which of them holds which weight.

    Args:
        folder: Of the model.
        variant: As ``from_pretrained`` takes it, for example ``fp16``.

    Returns:
        The files, and the file name of each weight; nothing of either where there is no index.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: An index is no index.
    """
    for single, index in zip(_SINGLE, _INDEX, strict=True):
        one = folder / _with_variant(single, variant)
        if one.exists():
            return (_look(one),), {}
        table = folder / _with_variant(index, variant)
        if table.exists():
            held = msgspec.json.decode(table.read_bytes(), type=_Index).weight_map
            return tuple(_look(folder / name) for name in sorted(set(held.values()))), held
    return (), {}


class _Index(msgspec.Struct):
    """What is used of a ``.index.json``."""

    weight_map: dict[str, str]


def _look(path: Path) -> WeightFile:
    state = path.stat()
    return WeightFile(str(path), state.st_size if stat.S_ISREG(state.st_mode) else 0)


def _with_variant(name: str, variant: str | None) -> str:
    if not variant:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{variant}.{ending}"


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached_folder(name: str, named: Mapping[str, Any]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    for mark in _MARKS:
        try:
            found = try_to_load_from_cache(
                name, mark, cache_dir=named.get("cache_dir"), revision=named.get("revision")
            )
        except ValueError:  # no name that the hub could have, such as a path of three parts
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None


# transformers ignores offload_state_dict from here on (its pull request 41103)
_IGNORES_OFFLOAD_STATE_DICT = (4, 57)
# in the name of every class of transformers whose models generate
_GENERATING = ("LM", "Generation", "generation")


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``from_pretrained`` for a model or a generation config, not made yet.

    Attributes:
        loader: The class, or the pipeline's task.
        named: Its keyword arguments.
        version: Of transformers, major and minor.
        world_size: Ranks that do the same; 1 if unknown.
    """

    loader: str
    source: Source
    named: dict[str, Any]
    version: tuple[int, int]
    world_size: int = 1


def traps(load: LoadRequest) -> list[str]:
    """Name each trap that this call walks into, and the way round it."""
    found = (look(load) for look in _LOOKS)
    return [sentence for sentence in found if sentence]


def _offload_state_dict(load: LoadRequest) -> str | None:
    if not load.named.get("offload_state_dict"):
        return None
    if load.version >= _IGNORES_OFFLOAD_STATE_DICT:
        return "offload_state_dict has no effect in this transformers; leave it out"
    return (
        "offload_state_dict=True writes all weights to a temporary folder and reads them back at "
        "the end: on slow storage loading seems never to end, and parameters can stay on the meta "
        "device; leave it out, and limit memory with max_memory={0: '20GiB', 'cpu': '60GiB'}"
    )


def _offload_folder(load: LoadRequest) -> str | None:
    device_map = load.named.get("device_map")
    if device_map is None or not (load.named.get("offload_folder") or _has_disk(device_map)):
        return None
    return (
        "with a device map and offload_folder, what does not fit goes to disk: its parameters stay "
        "on the meta device, each forward pass reads them again, and DDP, FSDP or model.to() fail "
        "on them or never end; leave offload_folder out, and load in 8 bits, on more GPUs, or with "
        "a max_memory map that holds the whole model"
    )


def _device_map_per_rank(load: LoadRequest) -> str | None:
    spreads = load.named.get("device_map") in ("auto", "balanced", "balanced_low_0", "sequential")
    if load.world_size == 1 or not spreads:
        return None
    return (
        f"device_map={load.named['device_map']!r} in each of {load.world_size} ranks spreads every "
        "rank's model over all GPUs of its node; give each rank its own: "
        "device_map={'': int(os.environ['LOCAL_RANK'])}"
    )


def _asks_the_hub(load: LoadRequest) -> str | None:
    if load.source.kind != "cache" or load.source.offline:
        return None
    return (
        "all is in the cache, yet from_pretrained asks the hub about it, and so does "
        "GenerationConfig.from_pretrained: a hub that does not answer holds both up; pass "
        "local_files_only=True to both, or set HF_HUB_OFFLINE=1 before Python starts"
    )


def _not_here(load: LoadRequest) -> str | None:
    if load.source.kind != "hub":
        return None
    way_out = "give the path of a folder that exists, or the full name of the hub (owner/model)"
    if load.source.offline:
        return (
            f"{load.source.name} is not here, and the hub may not be asked: this fails; {way_out}"
        )
    if load.source.name.startswith(("/", ".", "~")):
        return f"there is no folder {load.source.name}, so it is taken for a hub's name; {way_out}"
    return (
        "the download counts as progress by the bytes that arrive; to keep it out of training, "
        f"fetch it once with: hf download {load.source.name}"
    )


def _no_generation_config(load: LoadRequest) -> str | None:
    source = load.source
    if load.loader == "GenerationConfig":  # what the cache lacks, the hub may have
        concerned = source.kind == "folder" or (source.kind == "cache" and source.offline)
    else:
        generates = any(word in load.loader for word in _GENERATING)
        concerned = generates and bool(source.weight_files)
    if not concerned or source.has_generation_config:
        return None
    return (
        "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and asks "
        "the network first where the model is given by its hub name; use "
        "GenerationConfig.from_model_config(model.config)"
    )


def _has_disk(device_map: object) -> bool:
    places: Mapping[str, object] = device_map if isinstance(device_map, dict) else {}
    return "disk" in places.values()


_LOOKS: tuple[Callable[[LoadRequest], str | None], ...] = (
    _offload_state_dict,
    _offload_folder,
    _device_map_per_rank,
    _asks_the_hub,
    _not_here,
    _no_generation_config,
)


SILENCE_S = 10.0  # a file that takes longer gets a line in between
SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: long enough that opening the file does not count, read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; below, loading takes no time worth an estimate


class ShardProgress:
    """Hears of one load, and says how far it is.

    Args:
        source: What is loaded.
        say: Prints a line.
        beat: Says that the rank advanced.
        clock: Seconds.
    """

    def __init__(
        self,
        source: Source,
        say: Callable[[str], None],
        beat: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._beat, self._clock = say, beat, clock
        self._files = {file.name: file for file in source.weight_files}
        self._file_of_weight = source.file_of_weight
        self._weights_left = Counter(source.file_of_weight.values())
        self._opened: set[str] = set()
        self._loaded: set[str] = set()
        self._weights = 0
        self._spoke_at = self._loaded_at = clock()

    def opening(self, path: str) -> None:
        """A weight file will be opened next."""
        self._beat()
        name = Path(path).name
        if name in self._files and name not in self._opened:
            self._opened.add(name)
            self._tell(f"opening weight file {self._place(name)}")

    def loaded_file(self, path: str) -> None:
        """All weights of this file are where they belong."""
        self._beat()
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
        self._beat()
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


def reading_rate(files: Sequence[WeightFile]) -> float | None:
    """Read a few places of the files, and time it.

    What is in the page cache is read at that speed, by these samples and by loading alike.

    Returns:
        Bytes a second; None where an estimate would tell nothing.

    Raises:
        OSError: A file cannot be read.
    """
    if sum(file.size for file in files) < SMALLEST_MODEL:
        return None
    readable = [file for file in files if file.size >= SAMPLE_SIZE]
    chosen = [readable[number * len(readable) // SAMPLES] for number in range(SAMPLES)]
    started, read = time.perf_counter(), 0
    for number, file in enumerate(chosen):
        read += _read_sample(file, share=(number + 0.5) / SAMPLES)
    return read / (time.perf_counter() - started)


def _read_sample(file: WeightFile, share: float) -> int:
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        place = int((file.size - SAMPLE_SIZE) * share)
        return len(os.pread(descriptor, SAMPLE_SIZE, place))
    finally:
        os.close(descriptor)


_following: dict[int, ShardProgress] = {}
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


@contextmanager
def follow_loading(progress: ShardProgress) -> Iterator[None]:
    """Tell this progress what transformers loads in this thread.

    A load within a load is followed by the outer one. Loads in several threads are told apart;
    files that a thread of transformers' own opens count for the load if it is the only one.
    """
    thread = threading.get_ident()
    if thread in _following:
        yield
        return
    with _lock:
        if not _following:
            attempt("the progress of loading", _install)
        _following[thread] = progress
    try:
        yield
    finally:
        with _lock:
            del _following[thread]
            if not _following:
                attempt("putting transformers back as it was", _remove)


class ProgressBar(Protocol):
    """What is used of a progress bar."""

    update: Callable[..., object]


class FollowedItems:
    """The items of a bar, each told once the one after it is asked for.

    Args:
        items: What the bar was to go through.
        listener: Is told.
    """

    def __init__(self, items: Collection[object], listener: ShardProgress) -> None:
        self._items = items
        self._listener = listener

    def __len__(self) -> int:
        """As many as there are; a TypeError where the items know no number."""
        return len(self._items)

    def __iter__(self) -> Iterator[object]:
        """Yield each item as it is."""
        for item in self._items:
            names = attempt("telling of a weight", partial(weight_names, item))
            yield item
            attempt("telling of a weight", partial(_tell, self._listener, item, names))
        attempt("telling of a weight", self._listener.ended)


def follow_updates(bar: ProgressBar, listener: ShardProgress) -> None:
    """Beat at each update of a bar that is moved by hand, as where several threads load."""
    update = bar.update

    def followed_update(*arguments: object, **named: object) -> object:
        attempt("telling of a weight", partial(listener.loaded_weights, ()))
        return update(*arguments, **named)

    bar.update = followed_update


def weight_names(item: object) -> tuple[str, ...]:
    """Names in the files of the weights that an item of transformers 5 makes: (name, mapping).

    Empty for an item of transformers 4, which is a file.
    """
    match item:
        case (str() as name, mapping) if not isinstance(mapping, str):
            targets = getattr(mapping, "layer_targets", None)
            found = {key for keys in targets.values() for key in keys} if targets else {name}
            return tuple(found)
    return ()


def _tell(listener: ShardProgress, item: object, names: tuple[str, ...] | None) -> None:
    match item:
        case str() as path:
            listener.loaded_file(path)
        case (str() as path, *_) if not names:  # the arguments of one file's load (4.5x)
            listener.loaded_file(path)
        case _:
            listener.loaded_weights(names or ())


def _listener() -> ShardProgress | None:
    mine = _following.get(threading.get_ident())
    if mine is None and len(_following) == 1:
        return next(iter(_following.values()), None)
    return mine


def _install() -> None:
    from transformers import modeling_utils
    from transformers.utils import logging

    _replace(modeling_utils, "safe_open", _announced_opening)
    _replace(modeling_utils, "load_state_dict", _announced_opening)
    _replace(type(logging.tqdm), "__call__", _followed_bar)


def _replace(owner: object, name: str, wrapping: Callable[[Function], Function]) -> None:
    original = getattr(owner, name)
    ours = wrapping(original)
    setattr(owner, name, ours)
    _undo.append(partial(_put_back, owner, name, ours, original))


def _put_back(owner: object, name: str, ours: object, original: object) -> None:
    if getattr(owner, name) is ours:  # else somebody patched over it, and calls ours
        setattr(owner, name, original)


def _remove() -> None:
    while _undo:
        _undo.pop()()


def _announced_opening(opener: Function) -> Function:
    @wraps(opener)
    def opening(path: object, *arguments: object, **named: object) -> object:
        listener = _listener()
        if listener is not None:
            attempt("telling of a file", partial(listener.opening, str(path)))
        return opener(path, *arguments, **named)

    return opening


def _followed_bar(make_bar: Function) -> Function:
    @wraps(make_bar)
    def followed_bar(maker: object, *items: Collection[object], **named: object) -> object:
        listener = _listener()
        if listener is None or not str(named.get("desc")).startswith("Loading"):
            return make_bar(maker, *items, **named)
        bar = make_bar(maker, *(FollowedItems(one, listener) for one in items), **named)
        if not items:
            attempt("hearing a progress bar", partial(follow_updates, bar, listener))
        return bar

    return followed_bar


Loaded = TypeVar("Loaded")
LOOK_LIMIT = 2.0  # seconds that looking at the files may take before the load begins
UNSEEN = Source(name="", kind="folder", offline=True)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load, not begun yet.

    Attributes:
        name: A folder or a name of the hub.
        loader: What is called, for people.
        what: ``model``, ``tokenizer`` or ``model config``, which gives the phase.
        named: The arguments of ``from_pretrained``.
    """

    name: str
    loader: str
    what: str
    named: dict[str, Any]


def watched_load(recorder: Recorder, load: Load, work: Callable[[], Loaded]) -> Loaded:
    """Announce a load, do it in a section of its own, and hear how far it is.

    Raises:
        Exception: Whatever the work raises.
    """
    if recorder.settings.disable:
        return work()
    source = attempt("looking at the files", partial(announce, recorder, load)) or UNSEEN
    if load.what == "model":
        attempt("an estimate of the time", partial(_expect, recorder, source))
    progress = ShardProgress(source, recorder.say, recorder.beat)
    with (
        Section(recorder, f"{load.what} from_pretrained ({load.loader})"),
        follow_loading(progress),
    ):
        return work()


def announcement(loader: str, source: Source, named: Mapping[str, Any], is_model: bool) -> str:
    """One line about a load.

    Args:
        loader: The class whose ``from_pretrained`` will be called.
        source: Where from.
        named: Its keyword arguments.
        is_model: Weights are loaded, not only a tokenizer.
    """
    parts = [f"{loader}.from_pretrained will read {_where(source)}"]
    if is_model and source.weight_files:
        files = several(len(source.weight_files), "weight file")
        parts.append(f"{files}, {bytes_in_words(source.size)}")
    if is_model:
        parts.append(f"device_map={named.get('device_map')!r}")
        parts.append(f"dtype={_dtype(named)}")
    parts.append("offline: the hub is not asked" if source.offline else "online")
    return "; ".join(parts)


def expectation(source: Source, rate: float | None) -> str | None:
    """How long reading may take, as an estimate; None where nothing is known.

    Args:
        source: Where from.
        rate: Bytes a second, measured on a sample.
    """
    if not rate or not source.size:
        return None
    return (
        f"reading may take about {source.size / rate:.0f} s (an estimate: "
        f"{bytes_in_words(source.size)} at {bytes_in_words(rate)}/s, measured just now "
        "on a sample of the files)"
    )


def _where(source: Source) -> str:
    if source.kind == "folder":
        return f"the local folder {source.name}"
    if source.kind == "cache":
        return f"{source.name} from the cache of the hub ({source.folder})"
    return f"{source.name} from the hub (no folder here has this name, and the cache has it not)"


def _dtype(named: Mapping[str, Any]) -> str:
    dtype = named.get("dtype", named.get("torch_dtype"))
    return "transformers' default" if dtype is None else str(dtype)


def announce(recorder: Recorder, load: Load) -> Source:
    """Say what will be loaded and which traps its arguments walk into, within about 2 seconds.

    Returns:
        Where it will come from, as far as it was seen in time.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    try:
        source = within(LOOK_LIMIT, partial(find_source, load.name, load.named))
    except NoAnswer:
        recorder.say(f"WARNING: the storage of {load.name} did not answer within {LOOK_LIMIT:g} s")
        return UNSEEN
    recorder.say(announcement(load.loader, source, load.named, is_model=load.what == "model"))
    if load.what != "tokenizer":
        for sentence in traps(_load_request(source, load, recorder)):
            recorder.say(f"WARNING: {sentence}")
    return source


def _expect(recorder: Recorder, source: Source) -> None:
    try:
        rate = within(LOOK_LIMIT, partial(reading_rate, source.weight_files))
    except NoAnswer:
        recorder.say(
            f"WARNING: {source.folder} is slow: a sample of the weight files was not read within "
            f"{LOOK_LIMIT:g} s"
        )
        return
    expected = expectation(source, rate)
    if expected:
        recorder.say(expected)


def _load_request(source: Source, load: Load, recorder: Recorder) -> LoadRequest:
    import transformers

    major, minor = transformers.__version__.split(".")[:2]
    return LoadRequest(
        loader=load.loader,
        source=source,
        named=load.named,
        version=(int(major), int(minor)),
        world_size=recorder.identity.world_size or 1,
    )


PROMPT_TOKENS = 4
NEW_TOKENS = 4


def try_generation(model: PreTrainedModel, recorder: Recorder) -> None:
    """Generate four tokens without sampling, and say each step. Never raises.

    Random numbers are left as they were. A model that cannot generate, has parameters without data,
    or is shared out over the ranks is not tried.
    """
    if not _can_generate(model):
        return
    reason = attempt("the test generation", partial(_obstacle, model))
    if reason is not None:
        recorder.say(f"test generation: left out, because {reason}")
        return
    attempt("the test generation", partial(_generate, model, recorder))


def _obstacle(model: PreTrainedModel) -> str | None:
    """Why this model must not be tried: a step of a sharded one waits for other ranks."""
    if without_data(model):
        return "parameters have no data"
    if are_shared_out(model.parameters()):
        return "its parameters are shared out over the ranks"
    return None


def _generate(model: PreTrainedModel, recorder: Recorder) -> None:
    import torch

    say = partial(_say, recorder)
    start = _first_token(model)
    tokens = torch.full((1, PROMPT_TOKENS), start, dtype=torch.long)
    say(f"1 input: {PROMPT_TOKENS} tokens of id {start}")
    device = input_device(model)
    say(f"2 device of the first parameter: {first_device(model)}; inputs go to {device}")
    began = time.perf_counter()
    tokens = tokens.to(device)
    say(f"3 input moved ({time.perf_counter() - began:.3f}s)")
    gpus = [device.index or 0] if device.type == "cuda" else []
    with (
        Section(recorder, "test generation: 4 generate"),
        torch.no_grad(),
        torch.random.fork_rng(gpus),
    ):
        made = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            **with_beat({"generation_config": _plainest(model)}, TokenBeat(recorder.beat)),
        )
    say(f"5 output of shape {tuple(made.shape)}")
    say(f"6 {clear_cache() or 'no GPU is used, so there is no cache to clear'}")


def _say(recorder: Recorder, step: str) -> None:
    recorder.beat()
    recorder.say(f"test generation: {step}")


def _can_generate(model: PreTrainedModel) -> bool:
    ask = getattr(model, "can_generate", None)
    return bool(callable(ask) and ask())


def _first_token(model: PreTrainedModel) -> int:
    """The token of a beginning; another where it means padding, as transformers warns of that."""
    start, padding = (getattr(model.config, f"{kind}_token_id", None) for kind in ("bos", "pad"))
    if isinstance(start, int) and start != padding:
        return start
    return 1 if padding == 0 else 0


def _plainest(model: PreTrainedModel) -> GenerationConfig:
    """As many steps on every rank, greedily, whatever the model's own settings are."""
    from transformers import GenerationConfig

    own = model.generation_config
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        decoder_start_token_id=own.decoder_start_token_id,
    )


Loader = Any  # a class with from_pretrained: all of transformers is untyped here
LoadingLoaded = Any  # what it returns: a model, a tokenizer, or a model and a report
_WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "Config", "FeatureExtractor")


def load_pretrained(
    name_or_path: str | os.PathLike[str],
    kind: type | str = "AutoModelForCausalLM",
    *,
    test_generation: bool = True,
    **named: object,
) -> LoadingLoaded:
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
    loader, recorder = _find_loader(kind), current()
    without_weights = any(word in loader.__name__ for word in _WITHOUT_WEIGHTS)
    load = Load(
        name=str(name_or_path),
        loader=loader.__name__,
        what="tokenizer" if without_weights else "model",
        named=dict(named),
    )
    loaded = watched_load(recorder, load, partial(loader.from_pretrained, name_or_path, **named))
    _look_after(loaded[0] if isinstance(loaded, tuple) else loaded, recorder, test_generation)
    return loaded


def look_at_model(model: PreTrainedModel, recorder: Recorder) -> None:
    """Say where the model is and what is wrong with it; give it the pad token that it lacks."""
    lines = [*placement_lines(model), set_on_model(model)]
    config = getattr(model, "generation_config", None)
    doubts = doubtful_flags(config.to_diff_dict()) if config is not None else []
    warnings = [meta_warning(model), *(f"generation_config.json: {doubt}" for doubt in doubts)]
    lines += [f"WARNING: {warning}" for warning in warnings if warning]
    for line in filter(None, lines):
        recorder.say(line)


def look_at_tokenizer(tokenizer: PreTrainedTokenizerBase, recorder: Recorder) -> None:
    """Give a tokenizer, or that of a processor, the pad token that it lacks."""
    line = set_on_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
    if line:
        recorder.say(line)


def _find_loader(kind: type | str) -> Loader:
    import transformers

    loader = getattr(transformers, kind, None) if isinstance(kind, str) else kind
    if not hasattr(loader, "from_pretrained"):
        raise BadUsage(
            f"kind={kind!r} has no from_pretrained",
            "write the name of a class of transformers, as 'AutoModelForCausalLM' or "
            "'AutoTokenizer', or give the class itself",
        )
    return loader


def _look_after(loaded: LoadingLoaded, recorder: Recorder, test_generation: bool) -> None:
    if not hasattr(loaded, "named_parameters"):
        attempt("a look at the tokenizer", partial(look_at_tokenizer, loaded, recorder))
        return
    attempt("a look at the model", partial(look_at_model, loaded, recorder))
    attempt("what is offloaded", partial(tell_offloaded_parts, loaded, recorder))
    if recorder.settings.disable:
        return
    cleared = attempt("clearing the cache of the GPU", clear_cache)
    if cleared:
        recorder.say(f"after loading: {cleared}")
    if test_generation:
        try_generation(loaded, recorder)
