"""Stands still in a function that has variables, one of them a secret."""

import time

from announcing import announce


def load(path, batch):
    api_token = "hf_" + "x" * 34
    header = "Bearer " + api_token
    long = "y" * 500
    headers = {"Accept": "text/html", "X-Api-Key": "secret-1", "a": {"Cookie": "secret-2"}}
    pair = {"auth": ("me", "secret-3"), "lr": 1}
    passphrase, pw = "secret-4", "secret-5"
    cut = "password=" + "p" * 617 + " hf_secret-6" + "d" * 200
    announce()
    time.sleep(1000)
    return path, batch, api_token, header, long, headers, pair, passphrase, pw, cut


load("data/train.bin", 17)
