"""What the guard does when rank 0's logger fails or is late; started by torchrun on two ranks."""

import os
import socket
import sys

from hooks_model import loaded
from saying import say

import lightning_hangcheck as hc
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.places import StorePlace
from lightning_hangcheck.hooks.rendezvous import join_rendezvous

rank = int(os.environ["RANK"])


def attempt(event, *arguments, **named):
    """Call the guard and say what came of it."""
    try:
        logger = hc.guarded_wandb_logger(*arguments, **named)
    except MeetingFailed as error:
        say(event, rank=rank, failed=str(error))
    else:
        names = [logger.name, logger.version, logger.save_dir]
        say(event, rank=rank, identity=names)
        if rank == 0:
            logger.log_metrics({"loss": 1.0}, step=0)
            logger.experiment.finish()


def accepts_and_never_answers():
    """A wandb server that is there and says nothing."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    os.environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{server.getsockname()[1]}"
    os.environ["WANDB_API_KEY"] = "0" * 40
    return server


# as on two nodes of one rank each: the ranks meet in the store of torchrun's agent
os.environ["LOCAL_WORLD_SIZE"] = "1"
say(
    "met",
    rank=rank,
    brought={r: b.decode() for r, b in join_rendezvous("nodes", 240.0, b"%d" % rank).items()},
)
os.environ["LOCAL_WORLD_SIZE"] = "2"
try:
    StorePlace.of_agent("127.0.0.1", 1, "nobody listens there", timeout=0.5)
except MeetingFailed as error:
    say("no store", rank=rank, failed=str(error))

attempt("refused", project="demo", offline=True, log_model=True)
del os.environ["WANDB_MODE"]
server = accepts_and_never_answers()
attempt("late", project="demo", init_timeout=4.0)
os.environ["WANDB_INIT_TIMEOUT"] = "20"  # so wandb itself goes on trying; the exit waits for that
attempt("none", project="demo", init_timeout=2.0, on_failure="none")
attempt("offline", project="demo", save_dir=sys.argv[1], init_timeout=3.0, on_failure="offline")
say("end", rank=rank, modules=loaded("wandb"))
