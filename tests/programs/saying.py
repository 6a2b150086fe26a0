"""What a program says of itself: JSON objects, a line each; and what its own page shows."""

import json
import os

from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.page_reader import PageReader


def say(event, rank=0, **words):
    """Print a line in one piece: ranks share the pipe."""
    line = {"event": event, "pid": os.getpid(), "rank": rank, **words}
    os.write(1, (json.dumps(line) + "\n").encode())


def page():
    reader = PageReader(current().session.pages / f"{os.getpid()}.page")
    try:
        return reader.read()
    finally:
        reader.close()
