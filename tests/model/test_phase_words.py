"""What names tell of a phase: whole words, both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.model.slugs import (
    creates_logger,
    phase_after_checkpoint,
    phase_of_name,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("WandbLogger constructor", "logger_init"),
        ("wandb.init", "logger_init"),
        ("create the experiment logger", "logger_init"),
        ("wandb.finish", "teardown"),
        ("Datalogger sync", None),
        ("create_wandb_artifact", None),
        ("init wandb on rank 0", "logger_init"),
        ("dataset logger model weights", None),
        ("create the dataset, then tell the logger", None),
        ("wait for the lock /data/model/init_wandb.lock", None),
        ("Trainer constructor", "trainer_init"),
        ("Trainer.fit", None),
        ("Trainer.evaluate", "validation"),
        ("Trainer.save_checkpoint", "checkpoint_save"),
        ("torch.save of a checkpoint", "checkpoint_save"),
        ("torch.save", None),
        ("save_checkpoint", "checkpoint_save"),
        ("ModelCheckpoint callback", None),
        ("torch.load of a checkpoint", "model_load"),
        ("load tokenizer", "tokenizer"),
        ("tokenizer from_pretrained (AutoTokenizer)", "tokenizer"),
        ("model from_pretrained (GPT2LMHeadModel)", "model_load"),
        ("load_weights", "model_load"),
        ("remodel the kitchen", None),
        ("dist.init_process_group", "rendezvous"),
        ("destroy_process_group", "teardown"),
        ("datasets.load_dataset", "dataloading"),
        ("DataLoader constructor", "dataloading"),
        ("generate (GPT2LMHeadModel)", "generate"),
        ("generate_noise", None),
        ("generate_samples", "generate"),
        ("re_evaluate_model", "validation"),
        ("interpreter shutdown", "teardown"),
        ("train one epoch", None),
        ("backward_pass", "backward"),
        ("__getitem__", "dataloading"),
        ("validate_config", None),
        ("validate_batch", "validation"),
        ("get_model", "model_load"),
        ("load_backbone", "model_load"),
        ("prepare_data", "dataloading"),
        ("data_parallel_rank", None),
        ("collect_rollouts", "generate"),
        ("persist_checkpoint", "checkpoint_save"),
        ("setup_distributed", "rendezvous"),
        ("build_distributed_sampler", None),
        ("on_train_end", "teardown"),
        ("on_train_epoch_end", None),
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
