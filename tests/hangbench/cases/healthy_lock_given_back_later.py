"""A lock limits requests: a timer gives it back on rank 0, the end of a pool's task on rank 1."""

import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


class RateLimit:
    """One request in so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.lock = threading.Lock()

    def wait(self):
        self.lock.acquire()
        timer = threading.Timer(self.seconds, self.lock.release)
        timer.daemon = True
        timer.start()


def answer_late(server):
    connection, _ = server.accept()
    threading.Event().wait(15)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\ndone")
    connection.close()


def fetch_one_at_a_time():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer_late, args=(server,), daemon=True).start()
    free = threading.Lock()
    free.acquire()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    request = ThreadPoolExecutor(1).submit(urllib.request.urlopen, url)
    request.add_done_callback(lambda _: free.release())
    free.acquire()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    limit = RateLimit(15)
    limit.wait()
    limit.wait()
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    fetch_one_at_a_time()
dist.barrier()
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
