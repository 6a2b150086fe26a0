"""DataLoader workers ask a cache for samples that an event loop in a thread of their rank serves;
its source, on another machine, takes 18 s for one of them."""

import asyncio
import os
import socket
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SLOW, SLOW_S = 202, 18


def serve_source(listening):
    def answer(connection):
        with connection:
            number = int(connection.recv(64))
            time.sleep(SLOW_S if number == SLOW else 0)
            connection.sendall(b"%d" % number)

    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def start_source():
    listening = socket.create_server(("127.0.0.1", 0))
    rank = os.getpid()
    first = os.fork()
    if first == 0:  # as a daemon: it stands for another machine
        os.setsid()
        if os.fork() == 0:
            threading.Thread(target=serve_source, args=(listening,), daemon=True).start()
            while os.path.exists(f"/proc/{rank}"):
                time.sleep(0.5)
        os._exit(0)
    os.waitpid(first, 0)
    with listening:
        return listening.getsockname()[1]


async def serve_cache(source):
    async def answer(reader, writer):
        from_source, to_source = await asyncio.open_connection("127.0.0.1", source)
        to_source.write(await reader.read(64))
        writer.write(await from_source.read(64))
        await writer.drain()
        writer.close()
        to_source.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server.sockets[0].getsockname()[1]


class Samples(Dataset):
    def __init__(self, cache):
        self.cache = cache

    def __len__(self):
        return 400

    def __getitem__(self, number):
        with socket.create_connection(("127.0.0.1", self.cache)) as connection:
            connection.sendall(b"%d" % number)
            return torch.full((4,), float(connection.recv(64)))


if __name__ == "__main__":
    source = start_source()
    dist.init_process_group("gloo")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    cache = asyncio.run_coroutine_threadsafe(serve_cache(source), loop).result()
    for batch in DataLoader(Samples(cache), batch_size=4, num_workers=2):
        dist.all_reduce(batch)
    dist.destroy_process_group()
