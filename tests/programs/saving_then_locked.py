"""Saves a tiny model in no time, then waits in a section for a lock of its own threads."""

import io
import threading

import torch

import lightning_hangcheck as hc

state = torch.nn.Linear(2, 2).state_dict()
torch.save(torch.ones(2), "samples.pt")
torch.save(state, io.BytesIO())
torch.save({"model": state, "epoch": 1}, "last.pt")

first, second = threading.Lock(), threading.Lock()
both_hold = threading.Barrier(2)


def push_records():
    with second:
        both_hold.wait()
        with first:
            pass


def pull_records():
    with first:
        both_hold.wait()
        with second:
            pass


threading.Thread(target=push_records).start()
with hc.section("Datalogger sync"):
    pull_records()
