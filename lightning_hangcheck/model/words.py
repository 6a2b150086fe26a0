"""What the names of sections, checkpoints and functions say: the phase that they mean."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase

PHASES: tuple[Phase, ...] = (
    "startup", "tokenizer", "model_load", "logger_init", "trainer_init", "rendezvous",
    "sanity_check", "dataloading", "training_step", "backward", "optimizer_step", "validation",
    "checkpoint_save", "generate", "teardown",
)  # fmt: skip
"""All phases, in the order of `slugs.Phase`: the page holds their numbers."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NAMES_REMEMBERED = 1024
STARTING_SERVER = "start of torch's worker server"
"""Our section in which torch starts threads: if a thread is refused, the rank aborts."""
UNKNOWN_PLACE = "unknown"
"""Place of a rank without a stack."""

TOKENIZER = _words("tokenizer tokenizers vocab vocabulary")
LOGGER = _words("logger loggers wandb mlflow tensorboard comet neptune clearml")
TRAINER = _words("trainer")
MODEL = _words("model models weights")
PARTS = _words("backbone network encoder decoder adapter adapters llm")
"""Parts of a model, or the whole of it: only together with a verb do they mean its loading."""
CHECKPOINT = _words("checkpoint checkpoints checkpointer checkpointing ckpt snapshot state")
SOURCES = _words("data corpus")
DATA = _words("dataloader dataloaders dataloading dataset datasets datamodule")
SAVING = _words("save saves saving write writing dump dumping persist persisting")
LOADING = _words("load loading restore restoring resume resuming download downloading pretrained")
MAKING = _words(
    "constructor construct constructing construction create creating creation init initialize "
    "initializing initialization initialise initialising initialisation setup build building "
    "make making login"
)
ENDING = _words("finish finishing close closing shutdown teardown")
VALIDATION = _words("validation validate validating val evaluation evaluate evaluating eval evals")
GENERATION = _words("generate generation generating rollout rollouts")
CHECKED = _words(
    "config configuration arguments args settings options environment env input inputs path "
    "paths schema shape shapes"
)
"""Things that are validated before training: that is no validation of a model."""
GENERATED = _words(
    "answer answers caption captions completion completions response responses sample samples "
    "sequence sequences text texts token tokens greedy beam search test run collect do step "
    "loop all"
)
"""What a language model generates, and words used with that; noise and masks are not in it."""
OF_A_MODEL = CHECKED | {"output", "outputs", "prediction", "predictions", "loss", "logits", "name"}
"""What one gets from a model, or about it, without creating it."""
BATCHES = _words("batch batches")
GETTING = _words("next get fetch read collate")
PREPARING = _words("prepare preparing preprocess preprocessing")
DISTRIBUTED = _words("distributed dist ddp")
ONE_OF_MANY = _words("epoch batch step steps")
ENDED = _words("finish finishing end ending")
WHOLE_RUN = _words("run train training fit job")
LEAVING = _words("teardown shutdown cleanup finalize finalise")
# the trainer's and the model's own work has phases of its own, which the callback reports
WORK = _words("fit train training test predict step epoch")
DONE = _words(
    "ready loaded created configured finished done initialized built parsed complete completed"
)
ARTICLES = _words("the a an our new run experiment")
"""Words that may stand between a logger and its creation: "wandb run creation"."""
NEUTRAL = _words(
    "call calling client for instance main of offline on online process project rank session "
    "tracking tracker zero"
)
"""Words allowed with these two; any other word is another thing that is made: an artifact."""

MEANINGS: tuple[tuple[Phase | None, tuple[frozenset[str], ...]], ...] = (
    ("checkpoint_save", (SAVING, CHECKPOINT | MODEL | PARTS)),
    ("tokenizer", (TOKENIZER,)),
    ("dataloading", (LOADING, DATA)),
    ("model_load", (LOADING, CHECKPOINT | MODEL | PARTS)),
    ("teardown", (ENDING, LOGGER)),
    (None, (LOGGER,)),
    ("rendezvous", (_words("rendezvous"),)),
    ("rendezvous", (_words("init"), _words("process"), _words("group"))),
    ("rendezvous", (MAKING, _words("parallel"))),
    ("dataloading", (DATA,)),
    ("dataloading", (_words("data"), _words("loader loaders loading"))),
    ("dataloading", (SOURCES, LOADING | MAKING | GETTING | PREPARING)),
    ("dataloading", (BATCHES, GETTING | LOADING)),
    ("dataloading", (_words("getitem getitems collate"),)),
    ("generate", (GENERATION,)),
    (None, (VALIDATION, CHECKED)),
    ("validation", (VALIDATION,)),
    ("training_step", (_words("train training"), _words("step"))),
    ("optimizer_step", (_words("optimizer"), _words("step"))),
    ("optimizer_step", (_words("apply"), _words("gradients grads"))),
    ("backward", (_words("backward"),)),
    (None, (ONE_OF_MANY,)),
    ("teardown", (ENDED, WHOLE_RUN)),
    (None, (WORK,)),
    ("teardown", (LEAVING,)),
    ("teardown", (_words("destroy"), _words("process"), _words("group"))),
    ("trainer_init", (MAKING, TRAINER)),
    ("model_load", (MAKING, MODEL | PARTS)),
    (None, (GETTING, OF_A_MODEL)),
    ("model_load", (GETTING, MODEL)),
    (None, (_words("sampler samplers"),)),
    ("rendezvous", (MAKING, DISTRIBUTED)),
    ("model_load", (_words("from"), _words("config"), MODEL)),
)
"""The first row decides in which every set shares a word with the name."""
SUBJECTS: dict[Phase, frozenset[str]] = {
    "tokenizer": TOKENIZER,
    "logger_init": LOGGER,
    "trainer_init": TRAINER,
    "model_load": MODEL,
    "dataloading": DATA,
}
"""What a phase is about: a name of only these words means the phase, and "X ready" ends it."""

_IN_BRACKETS = r"\(.*"
_PATH = r"\S*/\S*"
_BETWEEN_WORDS = r"[\W_]+|(?<=[^\W_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"


@lru_cache(maxsize=NAMES_REMEMBERED)
def words_of(name: str) -> tuple[str, ...]:
    """Split a name into lower-case words: at what is no letter or digit, and within camelCase.

    A path says where, not what, so its words are left out.
    """
    return tuple(
        word.lower() for word in re.split(_BETWEEN_WORDS, re.sub(_PATH, " ", name)) if word
    )


@lru_cache(maxsize=NAMES_REMEMBERED)
def phase_of_name(name: str) -> Phase | None:
    """Return the phase that a section or function of this name means; None if unknown."""
    if creates_logger(name):
        return "logger_init"
    words = frozenset(words_of(name))
    for phase, subject in SUBJECTS.items():
        if words and words <= subject:
            return phase if subject is not LOGGER else None
    found = next(
        (phase for phase, asked in MEANINGS if all(words & wanted for wanted in asked)), None
    )
    if found == "generate":  # only if a model does, and nothing else is made
        known = GENERATION | GENERATED | MODEL | PARTS
        said = words_of(re.sub(_IN_BRACKETS, "", name))
        return found if all(word in known or word.isdigit() for word in said) else None
    return found


@lru_cache(maxsize=NAMES_REMEMBERED)
def phase_of_function(name: str) -> Phase | None:
    """Return the phase that a function's name means.

    If a method only saves or loads, its class says what: ``Checkpointer.save``. Examples call the
    evaluation ``test``; a trainer's own ``test`` method is recognised by its calls.
    """
    outer, _, bare = name.rpartition(".")
    phase = "validation" if bare == "test" else phase_of_name(bare)
    verb = words_of(bare)
    if phase is None and len(verb) == 1 and verb[0] in SAVING | LOADING:
        return phase_of_name(f"{bare} {outer.rpartition('.')[2]}")
    return phase


@lru_cache(maxsize=NAMES_REMEMBERED)
def creates_logger(name: str) -> bool:
    """Whether a name says that an experiment logger is created, not that one is used.

    The words for both are adjacent: "WandbLogger constructor", "create the logger", "wandb run
    creation". No other thing is named: "create_wandb_artifact" makes an artifact.
    """
    words = [word for word in words_of(name) if word not in ARTICLES]
    alone = all(word in LOGGER | MAKING | NEUTRAL or word.isdigit() for word in words)
    return alone and any(
        (word in LOGGER and other in MAKING) or (word in MAKING and other in LOGGER)
        for word, other in pairwise(words)
    )


@lru_cache(maxsize=NAMES_REMEMBERED)
def phase_after_checkpoint(name: str, present: Phase | None) -> Phase | None:
    """Return the phase after a checkpoint of this name.

    A checkpoint says what is done ("Model created"), rarely what begins. So it ends the phase that
    it names and begins none, except the end of all: "Training finished".
    """
    words = frozenset(words_of(name))
    if not words & DONE:
        return present
    if words & {"training", "script"} and words & {"finished", "done", "complete", "completed"}:
        return "teardown"
    if present is not None and words & SUBJECTS.get(present, frozenset()):
        return "startup"
    return present
