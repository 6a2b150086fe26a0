"""Stands still in a function that has variables, one of them a secret."""

import time

from announcing import announce


def load(path, batch):
    api_token = "hf_" + "x" * 34
    header = "Bearer " + api_token
    long = "y" * 500
    announce()
    time.sleep(1000)
    return path, batch, api_token, header, long


load("data/train.bin", 17)
