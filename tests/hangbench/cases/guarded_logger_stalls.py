"""The guarded logger meets a server that accepts and never answers, and has a minute for it."""

import os
import socket
import tempfile
import threading

import torch.distributed as dist
from onset import mark_onset

import lightning_hangcheck as hc


def accept_and_say_nothing(server):
    connection, _ = server.accept()
    mark_onset()
    connection.recv(1)
    threading.Event().wait()


def make_logger():
    return hc.guarded_wandb_logger(project="demo", save_dir=tempfile.mkdtemp(), init_timeout=90.0)


server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept_and_say_nothing, args=(server,), daemon=True).start()
port = server.getsockname()[1]
os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0" * 40)
make_logger()
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
