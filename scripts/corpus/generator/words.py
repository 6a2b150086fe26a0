"""Names as real training code has them; those of faulty functions say no phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

VERBS = [
    "refresh",
    "resolve",
    "fetch",
    "acquire",
    "collect",
    "claim",
    "reserve",
    "update",
    "look_up",
    "poll",
    "query",
    "read",
    "register",
]
NOUNS = [
    "statistics",
    "schedule",
    "curriculum",
    "shard",
    "cache",
    "quota",
    "lease",
    "prompts",
    "rewards",
    "features",
    "buffers",
    "index",
    "replay",
    "embeddings",
    "manifest",
    "sampler_order",
    "learning_rates",
    "mixture_ratios",
    "router_counts",
    "teacher_scores",
    "priorities",
    "token_budget",
]
MODELS = [
    "Regressor",
    "Classifier",
    "TinyTransformer",
    "Encoder",
    "RewardModel",
    "Adapter",
    "PolicyNetwork",
]
DATASETS = [
    "Sentences",
    "Passages",
    "Trajectories",
    "Captions",
    "Recordings",
    "Dialogues",
]
NAMES_OF_PLACE = {
    "startup": [
        "prepare_workspace",
        "check_environment",
        "prepare_run",
        "configure_run",
        "warm_caches",
    ],
    "tokenizer": [
        "load_tokenizer",
        "build_tokenizer",
        "prepare_tokenizer",
        "get_tokenizer",
    ],
    "model_load": [
        "load_model",
        "load_weights",
        "load_pretrained_model",
        "restore_model",
    ],
    "logger_init": [
        "create_logger",
        "make_logger",
        "init_wandb",
        "setup_mlflow",
    ],
    "dataloading": [
        "load_dataset",
        "build_dataloader",
        "prepare_dataset",
    ],
    "validation": [
        "evaluate",
        "validate",
        "run_evaluation",
        "run_validation",
        "evaluate_perplexity",
    ],
    "checkpoint_save": [
        "save_checkpoint",
        "write_checkpoint",
        "save_model",
        "save_model_state",
    ],
    "generate": [
        "generate_samples",
        "generate_text",
        "generate_completions",
    ],
    "teardown": [
        "cleanup",
        "shutdown_run",
        "teardown_run",
    ],
    "training_step": [
        "train_one_epoch",
        "run_training",
        "train",
        "train_loop",
        "fit",
    ],
}
"""Whole words of these say the phase, as the contract has it; those of a startup say none."""


class Names:
    """Draws names for one program, none twice."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._taken: set[str] = set()

    def function(self) -> str:
        """A function's name that says what is done, and no phase."""
        return self._fresh(lambda: f"{self.choose(VERBS)}_{self.choose(NOUNS)}")

    def noun(self) -> str:
        """Something that a program waits for, reads or writes."""
        return self._fresh(lambda: self.choose(NOUNS))

    def of_place(self, place: str) -> str:
        """The name of the function that makes up a place in a program's life."""
        return self.choose(NAMES_OF_PLACE[place])

    def choose(self, words: Sequence[str]) -> str:
        """One of these."""
        return self._random.choice(list(words))

    def _fresh(self, draw: Callable[[], str]) -> str:
        name = draw()
        while name in self._taken:
            name = draw()
        self._taken.add(name)
        return name
