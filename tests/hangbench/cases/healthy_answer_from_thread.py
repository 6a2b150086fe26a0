"""Rank 1 serves vocabulary lookups in a thread; one of them takes long, and all others wait for rank 0."""

import socket
import threading
import time

import torch
import torch.distributed as dist


def serve(listening):
    while True:
        connection, _ = listening.accept()
        connection.recv(100)
        time.sleep(20)
        connection.sendall(b"ok")
        connection.close()


dist.init_process_group("gloo")
rank = dist.get_rank()
port = torch.zeros(1, dtype=torch.long)
if rank == 1:
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
    port[0] = listening.getsockname()[1]
dist.broadcast(port, 1)
for step in range(40):
    dist.all_reduce(torch.ones(4))
    if step == 20 and rank == 0:
        with socket.create_connection(("127.0.0.1", int(port))) as asking:
            asking.sendall(b"how many words?")
            asking.recv(100)
dist.destroy_process_group()
