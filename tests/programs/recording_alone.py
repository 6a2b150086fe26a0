"""Records without a launcher and without hangcheck run; announces its session."""

import time

from announcing import announce

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

hc.checkpoint("Model created", number=5)
announce(str(current().session.path))
time.sleep(1000)
