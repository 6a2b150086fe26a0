"""Rank 1's plug-in asks a licence daemon while it is imported, and the daemon is gone."""

import importlib
import os
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist
from onset import mark_onset

PLUGIN = """
import threading

def ask_licence_daemon():
    threading.Event().wait()

ask_licence_daemon()
"""


def import_plugin():
    folder = tempfile.mkdtemp()
    (Path(folder) / "licensed_augmentation.py").write_text(PLUGIN)
    sys.path.append(folder)
    mark_onset()
    importlib.import_module("licensed_augmentation")


if os.environ["RANK"] == "1":
    import_plugin()
dist.init_process_group("gloo")
dist.destroy_process_group()
