"""Where a rank stands: its wait, the user's line, its phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_CONNECT,
    IN_GETITEM,
    IN_GUARD,
    IN_INIT,
    IN_LOAD,
    IN_LOADER,
    IN_WANDB,
    MAIN,
    SITE,
    STDLIB,
    WANTS_WORK,
    job,
    rank,
    torch,
    user,
    worker,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.frames import find_wait, is_exiting, of_own_process, users_place
from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.phase_of_life import phase_of_life
from lightning_hangcheck.judge.wording import within
from lightning_hangcheck.model.beat import Beat, OpenSection
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.naming.slugs import Phase

PL = f"{SITE}/lightning/pytorch"
OLD_PL = f"{SITE}/pytorch_lightning"


def phase_of(frames: Sequence[Frame], beat: Beat | None) -> Phase | None:
    found = phase_of_life(RankView(rank=0, pid=1, beat=beat), frames)
    return found.phase if found is not None else None


RUNPY = Frame("_run_module_as_main", "<frozen runpy>", 198)
CLICK = Frame("Command.__call__", f"{SITE}/click/core.py", 1)
HOOK_IN_BACKWARD = (*IN_BACKWARD, user("on_gradient", 5))
IN_NEW_GROUP = (MAIN, torch("new_group"), torch("_new_process_group_helper"))
IN_SIGNAL_HANDLER = (*IN_ALL_REDUCE, user("handler", 3))
SANITY = (
    MAIN,
    Frame("Trainer._run_sanity_check", f"{PL}/trainer/trainer.py", 1),
    Frame("_EvaluationLoop.run", f"{PL}/loops/evaluation_loop.py", 1),
    user("validation_step", 20),
)


@pytest.mark.parametrize(
    ("frames", "kind", "name"),
    [
        (IN_ALL_REDUCE, "collective", "all_reduce"),
        (IN_BACKWARD, "backward", "backward"),
        (IN_NEW_GROUP, "collective", "new_group"),
        (IN_INIT, "rendezvous_peers", "init_process_group"),
        (IN_CONNECT, "rendezvous_connect", "init_process_group"),
        (IN_GUARD, "guard", "a guard of hangcheck"),
        (IN_LOADER, "dataloader", "the DataLoader"),
        (IN_WANDB, "logger", "init"),
        (of_own_process(WANTS_WORK), "index_queue", "_worker_loop"),
    ],
)
def test_a_wait_is_known_by_its_frames(frames: tuple[Frame, ...], kind: str, name: str) -> None:
    wait = find_wait(frames)
    assert wait is not None
    assert (wait.kind, wait.name) == (kind, name)


@pytest.mark.parametrize(
    "frames", [(), IN_LOAD, HOOK_IN_BACKWARD, IN_SIGNAL_HANDLER, of_own_process(IN_GETITEM)]
)
def test_the_users_own_code_inside_a_wait_is_none(frames: tuple[Frame, ...]) -> None:
    assert find_wait(frames) is None


def test_a_forked_worker_does_not_stand_where_its_parent_stood() -> None:
    assert users_place(of_own_process(WANTS_WORK)) is None
    assert users_place(of_own_process(IN_GETITEM)) == IN_GETITEM[-1]


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ((user("load_shards.<locals>.<listcomp>", 9),), "load_shards.<listcomp>"),
        ((user("load.<locals>.read.<locals>.<lambda>", 9),), "read.<lambda>"),
        ((user("load.<locals>.read", 9),), "read"),
        ((user("Shards.load", 8), user("<genexpr>", 9)), "Shards.load.<genexpr>"),
        ((user("load", 8), user("<listcomp>", 9), user("<listcomp>", 9)), "load.<listcomp>"),
        ((MAIN, user("<listcomp>", 9)), "<listcomp>"),
        ((user("submit", 8), user("<lambda>", 9)), "<lambda>"),
        ((user("load", 8, "other.py"), user("<listcomp>", 9)), "<listcomp>"),
    ],
)
def test_a_comprehension_is_told_with_the_function_around_it(
    frames: tuple[Frame, ...], told: str
) -> None:
    assert within(users_place(frames)) == f"in {told} (demo/train.py:9)"


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (IN_LOAD, "startup"),
        (IN_BACKWARD, "backward"),
        (IN_LOADER, "dataloading"),
        (IN_CONNECT, "rendezvous"),
        (IN_INIT, "rendezvous"),
        (IN_NEW_GROUP, "startup"),
        (IN_WANDB, "logger_init"),
        (SANITY, "sanity_check"),
        ((SANITY[2], user("validation_step", 20)), "validation"),
        ((Frame("advance", f"{OLD_PL}/loops/fit_loop.py", 1), MAIN), "training_step"),
        ((Frame("Trainer.save_checkpoint", f"{PL}/trainer/trainer.py", 1),), "checkpoint_save"),
        ((Frame("_shutdown", f"{STDLIB}/threading.py", 1),), "teardown"),
        ((torch("Adam.step", "optim/adam.py"),), "optimizer_step"),
        ((torch("get_state_dict", "distributed/checkpoint/state_dict.py"),), "checkpoint_save"),
        (
            (torch("Optimizer.wrapper", "optim/optimizer.py"), user("OwnSGD.step", 9)),
            "optimizer_step",
        ),
        ((Frame("_call_teardown_hook", f"{PL}/trainer/call.py", 1), user("t", 4)), "teardown"),
    ],
)
def test_frames_tell_the_phase(frames: tuple[Frame, ...], phase: str | None) -> None:
    assert phase_of(frames, None) == phase


@pytest.mark.parametrize(
    ("outermost", "exiting"),
    [
        (user("flush_results", 13), True),
        (Frame("_python_exit", f"{STDLIB}/concurrent/futures/thread.py", 31), True),
        (MAIN, False),
        (Frame("_run_module_as_main", "<frozen runpy>", 198), False),
        (Frame("_find_and_load", "<frozen importlib._bootstrap>", 1176), False),
        (Frame("Thread._bootstrap", f"{STDLIB}/threading.py", 1002), False),
    ],
)
def test_what_stands_below_no_module_runs_at_exit(outermost: Frame, exiting: bool) -> None:
    assert is_exiting((outermost, user("load", 41))) == exiting


def test_of_a_stack_that_was_cut_nothing_tells_whether_it_runs_at_exit() -> None:
    assert not is_exiting((user("recur", 7),) * 100)
    assert not is_exiting(())


def test_an_exit_handler_runs_in_teardown() -> None:
    handler = (user("flush_results", 13),)
    view = rank(0, handler, beat=Beat(pid=100, phase="startup"))
    assert read_job(job(view)).ranks[0].phase == "teardown"


def test_the_ranks_own_word_counts_before_its_frames() -> None:
    assert phase_of(IN_BACKWARD, Beat(pid=1, phase="validation")) == "validation"


def test_which_part_of_a_step_a_rank_is_in_is_told_by_its_frames() -> None:
    """The callback says once a step that it began, and nothing until the next."""
    assert phase_of(IN_BACKWARD, Beat(pid=1, phase="training_step")) == "backward"
    assert phase_of(IN_LOADER, Beat(pid=1, phase="training_step")) == "dataloading"
    assert phase_of([], Beat(pid=1, phase="training_step")) == "training_step"
    in_step = (ADVANCE, user("validate_batch", 7))
    assert phase_of(in_step, Beat(pid=1, phase="training_step")) == "training_step"


def test_a_loop_that_said_once_that_it_trains_may_do_something_else_by_now() -> None:
    evaluating = (MAIN, user("evaluate", 7), user("collect", 9))
    assert phase_of(evaluating, Beat(pid=1, phase="training_step")) == "validation"


RUN = Frame("Trainer._run", f"{PL}/trainer/trainer.py", 1)
ADVANCE = Frame("advance", f"{PL}/loops/fit_loop.py", 1)
LOAD, SAVE = torch("load", "serialization.py"), torch("save", "serialization.py")


@pytest.mark.parametrize(
    ("frames", "step", "phase"),
    [
        ((MAIN, LOAD), None, "model_load"),
        ((MAIN, user("load_weights", 7), LOAD), 5, "model_load"),
        ((MAIN, user("load_dataset", 7), LOAD), None, "dataloading"),
        ((*IN_GETITEM, LOAD), 5, "dataloading"),
        ((MAIN, user("compute_loss", 7), LOAD), 5, "training_step"),
        ((MAIN, user("train", 3), SAVE), 5, "checkpoint_save"),
        ((MAIN, user("build_index", 3), SAVE), None, "startup"),
        ((MAIN, user("prepare_dataset", 3), SAVE), None, "dataloading"),
        (
            (Frame("Trainer._run", f"{PL}/trainer/trainer.py", 1), user("setup", 3), LOAD),
            None,
            "model_load",
        ),
        (
            (ADVANCE, user("keep", 3), SAVE),
            5,
            "training_step",
        ),
        (
            (ADVANCE, user("save_weights", 3), SAVE),
            5,
            "checkpoint_save",
        ),
    ],
)
def test_what_a_file_is_for_is_told_by_what_is_around_its_reading_and_writing(
    frames: tuple[Frame, ...], step: int | None, phase: str
) -> None:
    assert phase_of(frames, Beat(pid=1, phase="startup", step=step)) == phase


def test_what_a_rank_does_between_two_steps_is_told_by_its_frames() -> None:
    assert phase_of(IN_BACKWARD, Beat(pid=1, phase="dataloading")) == "backward"
    assert phase_of([], Beat(pid=1, phase="dataloading")) == "dataloading"


def test_a_loader_that_is_made_while_the_trainer_starts_is_dataloading() -> None:
    starts = (MAIN, Frame("Trainer._run", f"{PL}/trainer/trainer.py", 980))
    makes = Frame("_FitLoop.setup_data", f"{PL}/loops/fit_loop.py", 260)
    beat = Beat(pid=1, phase="trainer_init")
    assert phase_of((*starts, makes, user("DataModule.train_dataloader", 9)), beat) == "dataloading"
    assert phase_of((*starts, user("Model.configure_model", 9)), beat) == "trainer_init"
    assert phase_of([], beat) == "trainer_init"


@pytest.mark.parametrize(
    ("frames", "sections"),
    [(IN_WANDB, ()), (IN_LOAD, (OpenSection("WandbLogger constructor", 0),))],
)
def test_creating_the_logger_overrides_the_ranks_own_word(
    frames: tuple[Frame, ...], sections: tuple[OpenSection, ...]
) -> None:
    beat = Beat(pid=1, phase="trainer_init", sections=sections)
    assert phase_of(frames, beat) == "logger_init"


@pytest.mark.parametrize("name", ["Datalogger sync", "upload wandb artifact", "logger flush"])
def test_what_is_done_with_a_logger_is_not_its_creation(name: str) -> None:
    beat = Beat(pid=1, phase="training_step", sections=(OpenSection(name, 0),))
    assert phase_of(IN_LOAD, beat) == "training_step"


def test_another_threads_section_says_nothing_of_the_main_thread() -> None:
    other = OpenSection("WandbLogger constructor", 0, in_main_thread=False)
    assert phase_of(IN_LOAD, Beat(pid=1, phase="startup", sections=(other,))) == "startup"


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        ("load_weights", "model_load"),
        ("Loop.evaluate", "validation"),
        ("save_checkpoint", "checkpoint_save"),
        ("overloaded", "startup"),
        ("Wandb.flush_logger", "startup"),
    ],
)
def test_where_no_call_tells_whole_words_in_the_users_names_do(function: str, phase: str) -> None:
    frames = (MAIN, user(function, 7), user("inner", 9), Frame("get", f"{STDLIB}/queue.py", 1))
    assert phase_of(frames, Beat(pid=1, phase="startup")) == phase
    assert phase_of(frames, Beat(pid=1, phase="backward")) == "backward"


def test_finishing_the_loggers_run_is_not_creating_it() -> None:
    beat = Beat(pid=1, phase="teardown", sections=(OpenSection("wandb.finish", 0),))
    assert phase_of(IN_LOAD, beat) == "teardown"


def installed(function: str, line: int) -> Frame:
    """A frame of a package that the user installed."""
    return Frame(function, f"{SITE}/pretraining/train.py", line)


@pytest.mark.parametrize(
    ("start", "place"),
    [
        ((RUNPY, installed("<module>", 9)), "pretraining/train.py:41"),
        ((Frame("<module>", "/venv/bin/pretrain", 8), CLICK), "pretraining/train.py:41"),
        ((MAIN,), "demo/train.py:140"),
        ((RUNPY, Frame("<module>", f"{SITE}/ray/worker.py", 9)), None),
    ],
)
def test_what_a_process_was_started_to_run_is_the_users_wherever_it_lies(
    start: tuple[Frame, ...], place: str | None
) -> None:
    verdict = judge(job(rank(0, (*start, installed("load", 41))), rank(1, IN_ALL_REDUCE)))
    assert verdict.culprits[0] == 0
    assert (f"({place})" in verdict.summary or f"at {place}" in verdict.summary) == bool(place)
    assert ("pretraining/train.py:41" in verdict.summary) == (place == "pretraining/train.py:41")


def test_so_it_is_in_the_workers_that_it_forks() -> None:
    forked = (
        *(RUNPY, installed("<module>", 9)),
        Frame("BaseProcess._bootstrap", f"{STDLIB}/multiprocessing/process.py", 314),
        torch("_worker_loop", "utils/data/_utils/worker.py"),
        torch("_MapDatasetFetcher.fetch", "utils/data/_utils/fetch.py"),
        installed("Samples.__getitem__", 17),
    )
    loads = rank(0, IN_LOADER, children=[worker(0, forked)])
    verdict = judge(job(loads, rank(1, IN_ALL_REDUCE)))
    assert "in Samples.__getitem__ (pretraining/train.py:17)" in verdict.summary


def test_a_function_of_the_users_with_the_name_of_a_librarys_is_not_that_one() -> None:
    get = Frame("Queue.get", f"{STDLIB}/multiprocessing/queues.py", 103)
    assert find_wait((MAIN, user("worker", 4), get)) is None


def test_a_helper_of_multiprocessing_waits_for_work() -> None:
    select = Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468)
    server = (Frame("main", f"{STDLIB}/multiprocessing/forkserver.py", 210), select)
    assert read_job(job(rank(0, IN_LOADER, children=[worker(0, server)]))).ranks[0].workers == ()
