"""What is asked about seeing a hang."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.question import Question
from lightning_hangcheck.doctor.seeing.file_system import clock_right, file_system_kind
from lightning_hangcheck.doctor.seeing.python_version import python_version
from lightning_hangcheck.doctor.seeing.room_to_record import (
    run_folder_writable,
    shared_memory_usable,
)
from lightning_hangcheck.doctor.seeing.stacks_readable import stacks_readable

GROUP: Final = "seeing"
SEEING = (
    Question(
        GROUP,
        "stacks readable",
        "a small Python process, started for this and read by py-spy as ranks will be",
        "without stacks a verdict cannot name the line at which a rank stands",
        lambda _: (stacks_readable(3.0),),
    ),
    Question(
        GROUP,
        "python version",
        "the version of this Python, against those that py-spy reads",
        "a reader that does not know this Python shows no stack, or a wrong one",
        lambda _: (python_version(),),
    ),
    Question(
        GROUP,
        "shared memory usable",
        "shared memory: a page is mapped there, and its free space",
        "heartbeats go through it, and DataLoader workers that fill it die of a bus error",
        lambda _: (shared_memory_usable(),),
    ),
    Question(
        GROUP,
        "run folder writable",
        "a small file, written and flushed where the run will be recorded",
        "without it verdict and evidence go to a temporary folder, or nowhere",
        lambda subject: (run_folder_writable(subject.run_dir),),
    ),
    Question(
        GROUP,
        "run folder's disk",
        "the kind of file system that the run folder is on",
        "a network file system that stalls takes the evidence of its own hang with it",
        lambda subject: (file_system_kind(subject.run_dir),),
    ),
    Question(
        GROUP,
        "clock",
        "this machine's time beside the one that the file system gave to a new file",
        "times of several nodes are compared: a clock that is off makes the order of events wrong",
        lambda subject: (clock_right(subject.run_dir),),
    ),
)
