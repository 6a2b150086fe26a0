"""What is asked about the environment of the ranks."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.question import Question
from lightning_hangcheck.doctor.surroundings.debug_settings import debug_settings
from lightning_hangcheck.doctor.surroundings.hugging_face import cache_usable, locks_free
from lightning_hangcheck.doctor.surroundings.nccl_variables import (
    backend_generation,
    nccl_names,
    recorder_on,
)
from lightning_hangcheck.doctor.surroundings.output import output_unbuffered
from lightning_hangcheck.doctor.surroundings.threads import threads_fit, tokenizers_fork
from lightning_hangcheck.doctor.surroundings.versions import versions_known
from lightning_hangcheck.doctor.surroundings.wandb import wandb_ready

GROUP: Final = "environment"
ENVIRONMENT = (
    Question(
        GROUP,
        "debug settings",
        "variables of torch, NCCL and ours that change how a hang looks",
        "a job that ends, slows down or waits because of a setting hides the hang behind it",
        lambda subject: debug_settings(subject.environment),
    ),
    Question(
        GROUP,
        "output buffering",
        "PYTHONUNBUFFERED, -u, and where the output goes",
        "the last line in the log is not the last that was printed: a job that works looks stuck",
        output_unbuffered,
    ),
    Question(
        GROUP,
        "tokenizers' threads",
        "TOKENIZERS_PARALLELISM",
        "a fork copies one thread of many, and locks that the others held stay locked in it",
        tokenizers_fork,
    ),
    Question(
        GROUP,
        "computing threads",
        "OMP_NUM_THREADS times the ranks of a node, beside its processors",
        "ranks that take processors from each other are slow together and look stuck in turn",
        threads_fit,
    ),
    Question(
        GROUP,
        "NCCL variables",
        "variables of NCCL under the names that torch had for them before 2.2",
        "a setting that is no longer read does nothing, and nobody says so",
        nccl_names,
    ),
    Question(
        GROUP,
        "flight recorder",
        "TORCH_FR_BUFFER_SIZE, and TORCH_NCCL_TRACE_BUFFER_SIZE before torch 2.7",
        "without it nobody can tell in which collective the ranks parted",
        recorder_on,
    ),
    Question(
        GROUP,
        "NCCL backend",
        "the version of the installed torch",
        "the second generation of the backend keeps no flight record of its own",
        backend_generation,
    ),
    Question(
        GROUP,
        "known versions",
        "the kernel and NCCL, against versions that are known to hang",
        "what hangs inside a library cannot be mended in the script",
        versions_known,
    ),
    Question(
        GROUP,
        "wandb",
        "WANDB_MODE, whether there is a key (never its value), and the server's answer",
        "rank 0 waits for the server while it creates the logger, and the others for rank 0",
        wandb_ready,
        limit_s=8.0,
    ),
    Question(
        GROUP,
        "Hugging Face cache",
        "HF_HUB_OFFLINE, and the cache folder by HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME",
        "ranks that cannot keep what they fetch each fetch it again, or fail one by one",
        cache_usable,
    ),
    Question(
        GROUP,
        "Hugging Face locks",
        "lock files of the cache, and the kernel's table of who holds them",
        "from_pretrained waits without a limit for a lock that another process holds",
        locks_free,
    ),
)
