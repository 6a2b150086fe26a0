"""What names tell of a phase: whole words, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.model.slugs import (
    creates_logger,
    phase_after_checkpoint,
    phase_of_name,
    words_of,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WandbLogger constructor", ("wandb", "logger", "constructor")),
        ("Datalogger sync", ("datalogger", "sync")),
        ("load_weights", ("load", "weights")),
        ("HTTPServer.__init__", ("http", "server", "init")),
        ("GPT2Model", ("gpt2", "model")),
        ("naïveLogger", ("naïve", "logger")),
        ("wait for the lock /data/model/init_wandb.lock", ("wait", "for", "the", "lock")),
        ("", ()),
    ],
)
def test_a_name_is_split_into_whole_words(name: str, words: tuple[str, ...]) -> None:
    assert words_of(name) == words


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("WandbLogger constructor", "logger_init"),
        ("WandbLogger.__init__", "logger_init"),
        ("wandb.init", "logger_init"),
        ("wandb run creation", "logger_init"),
        ("create the experiment logger", "logger_init"),
        ("setup_logger", "logger_init"),
        ("wandb.finish", "teardown"),
        ("wandb run finish", "teardown"),
        ("Datalogger sync", None),
        ("upload wandb artifact", None),
        ("create_wandb_artifact", None),
        ("init_comet_metric", None),
        ("init wandb on rank 0", "logger_init"),
        ("dataset logger model weights", None),
        ("create the dataset, then tell the logger", None),
        ("logger", None),
        ("wait for the lock /data/model/init_wandb.lock", None),
        ("Trainer constructor", "trainer_init"),
        ("Trainer.fit", None),
        ("Trainer.evaluate", "validation"),
        ("Trainer.save_checkpoint", "checkpoint_save"),
        ("Trainer.save_model of a checkpoint", "checkpoint_save"),
        ("torch.save of a checkpoint", "checkpoint_save"),
        ("torch.save", None),
        ("save checkpoint", "checkpoint_save"),
        ("save_checkpoint", "checkpoint_save"),
        ("saveModelWeights", "checkpoint_save"),
        ("ModelCheckpoint callback", None),
        ("torch.load of a checkpoint", "model_load"),
        ("load tokenizer", "tokenizer"),
        ("tokenizer from_pretrained (AutoTokenizer)", "tokenizer"),
        ("AutoModel.from_pretrained", "model_load"),
        ("model from_pretrained (GPT2LMHeadModel)", "model_load"),
        ("model from_config (GPT2LMHeadModel)", "model_load"),
        ("model_loading", "model_load"),
        ("load_weights", "model_load"),
        ("model", "model_load"),
        ("upload model", None),
        ("remodel the kitchen", None),
        ("overload", None),
        ("dist.init_process_group", "rendezvous"),
        ("destroy_process_group", "teardown"),
        ("datasets.load_dataset", "dataloading"),
        ("DataLoader constructor", "dataloading"),
        ("first batch of a DataLoader", "dataloading"),
        ("model.generate", "generate"),
        ("generate (GPT2LMHeadModel)", "generate"),
        ("test generation: 4 generate", "generate"),
        ("regenerate", None),
        ("generate_noise", None),
        ("generate_samples", "generate"),
        ("evaluate", "validation"),
        ("re_evaluate_model", "validation"),
        ("reevaluated", None),
        ("interpreter shutdown", "teardown"),
        ("train one epoch", None),
        ("training_step", "training_step"),
        ("optimizer_step", "optimizer_step"),
        ("backward_pass", "backward"),
        ("next_batch", "dataloading"),
        ("__getitem__", "dataloading"),
        ("validate_config", None),
        ("validate_batch", "validation"),
        ("finalize", "teardown"),
        ("get_model", "model_load"),
        ("fetch_weights", "model_load"),
        ("get_model_outputs", None),
        ("load_backbone", "model_load"),
        ("Backbone.forward", None),
        ("prepare_data", "dataloading"),
        ("load_data", "dataloading"),
        ("data_parallel_rank", None),
        ("run_val_epoch", "validation"),
        ("collect_rollouts", "generate"),
        ("apply_gradients", "optimizer_step"),
        ("persist_checkpoint", "checkpoint_save"),
        ("setup_distributed", "rendezvous"),
        ("initialize_model_parallel", "rendezvous"),
        ("build_distributed_sampler", None),
        ("finish_run", "teardown"),
        ("on_train_end", "teardown"),
        ("on_train_epoch_end", None),
        ("something else", None),
        ("", None),
    ],
)
def test_a_name_means_a_phase_by_whole_words(name: str, phase: Phase | None) -> None:
    assert phase_of_name(name) == phase
    assert creates_logger(name) == (phase == "logger_init")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Script started", "startup", "startup"),
        ("Tokenizer loaded", "startup", "startup"),
        ("Tokenizer loaded", "tokenizer", "startup"),
        ("Model created", "tokenizer", "tokenizer"),
        ("Model created", "model_load", "startup"),
        ("Trainer ready", "trainer_init", "startup"),
        ("WandbLogger ready (prime suspect)", "logger_init", "startup"),
        ("Datalogger ready", "logger_init", "logger_init"),
        ("Training finished", "validation", "teardown"),
        ("Script done", "startup", "teardown"),
    ],
)
def test_a_checkpoint_ends_the_phase_that_it_names(name: str, before: Phase, after: Phase) -> None:
    assert phase_after_checkpoint(name, before) == after
