"""Has its node watched, as HangCheck does, and waits until its input closes."""

import sys

from announcing import announce

from lightning_hangcheck.hooks.being_watched import keep_sidecar
from lightning_hangcheck.recorder.lifecycle import current

keep_sidecar(current())
keep_sidecar(current())
announce(str(current().session.path))
sys.stdin.read()
