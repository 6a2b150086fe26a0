"""Stacks that faulthandler wrote are read back as py-spy would have given them."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

import pytest

from lightning_hangcheck.look.signalled_stacks import read_stacks
from lightning_hangcheck.model.evidence import Frame

NEWER = """\
Thread 0x00007f00000000b0 [loader] (most recent call first):
  File "/home/ada/data.py", line 17 in __getitem__
  File "/home/ada/data.py", line 9 in work

Current thread 0x00007f00000000a0 [MainThread] (most recent call first):
  File "/home/ada/m\\xfcnchen/\\u8a13\\u7df4.py", line 3 in pr\\xfcfe
  ...
"""


def test_the_main_thread_comes_first_and_calls_run_from_the_outermost() -> None:
    main, loader = read_stacks(NEWER, 4711, 0x7F00000000A0)
    assert (main.tid, main.name) == (4711, "MainThread")
    assert main.frames == (Frame("prüfe", "/home/ada/münchen/訓練.py", 3),)
    assert (loader.tid, loader.name) == (None, "loader")
    assert [frame.function for frame in loader.frames] == ["work", "__getitem__"]


@pytest.mark.parametrize("text", ["", "Fatal Python error: Segmentation fault\n", NEWER[:90]])
def test_without_the_main_thread_nothing_is_claimed(text: str) -> None:
    assert read_stacks(text, 4711, 0x7F00000000A0) == ()


def test_what_this_interpreter_writes_is_understood() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read()
    main, *_ = read_stacks(text, 1, threading.main_thread().ident or 0)
    functions = [frame.function for frame in main.frames]
    assert functions[-1] == "test_what_this_interpreter_writes_is_understood"
