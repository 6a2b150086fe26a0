"""Rank 0 downloads a tokenizer from a hub that accepts connections and never answers."""

import os
import socket

import torch.distributed as dist
from onset import mark_onset


def load_tokenizer(port):
    os.environ.update(
        HF_ENDPOINT=f"http://127.0.0.1:{port}",
        HF_HUB_ETAG_TIMEOUT="1000",
        HF_HUB_DOWNLOAD_TIMEOUT="1000",
        HF_HUB_OFFLINE="0",
    )
    from transformers import AutoTokenizer

    mark_onset()
    return AutoTokenizer.from_pretrained("somebody/tiny-model")


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    silent_hub = socket.create_server(("127.0.0.1", 0))
    load_tokenizer(silent_hub.getsockname()[1])
dist.barrier()
dist.destroy_process_group()
