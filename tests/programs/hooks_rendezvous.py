"""One rank of a job that some launcher started: meets as its arguments say, and says how it went.

Arguments: a JSON list of steps, each a list of a name and its arguments. Prints a line a step.
"""

import json
import os
import sys
import tempfile
import time

import lightning_hangcheck as hc
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous import join_rendezvous


def say(**words):
    line = json.dumps({"rank": int(os.environ.get("RANK", "0")), **words}) + "\n"
    os.write(1, line.encode())


def do_meet(name, time_limit):
    met = join_rendezvous(name, time_limit, f"from {os.environ['RANK']}".encode())
    return {rank: payload.decode() for rank, payload in met.items()}


def do_first(name, time_limit, work, local=False):
    """`work` says what the body does: nothing, fail, or last for so many seconds."""
    with hc.rank_zero_first(name, time_limit, local=local):
        began = time.monotonic()
        if work == "fail" and os.environ.get("RANK", "0") == "0":
            raise ValueError("no such tokenizer, api_key=verysecretvalue")
        if isinstance(work, float) and os.environ.get("RANK", "0") == "0":
            time.sleep(work)
    return {"began": began, "ended": time.monotonic()}


def do_directory(path, timeout, stray=None):
    """The rank `stray` has another working folder, as if it had another disk."""
    if stray == int(os.environ["RANK"]):
        os.chdir(tempfile.mkdtemp())
    return str(hc.make_directory(path, timeout))


STEPS = {
    "meet": do_meet,
    "first": do_first,
    "directory": do_directory,
}
for name, *arguments in json.loads(sys.argv[1]):
    try:
        say(step=name, result=STEPS[name](*arguments))
    except MeetingFailed as error:
        say(step=name, failed=str(error), cause=repr(error.__cause__))
    except ValueError as error:
        say(step=name, raised=repr(error))
