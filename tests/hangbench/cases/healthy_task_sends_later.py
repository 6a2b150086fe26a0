"""A task fetches weights on rank 1; what is called at its end broadcasts them to rank 0."""

import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist


def serve(server):
    connection, _ = server.accept()
    connection.recv(4096)
    threading.Event().wait(18)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + bytes(1000))
    connection.close()


dist.init_process_group("gloo")
weights_group = dist.new_group([0, 1])
weights = torch.zeros(250)
for _ in range(20):
    dist.all_reduce(torch.ones(4))


def publish(request):
    weights.copy_(torch.frombuffer(bytearray(request.result().read()), dtype=torch.float32))
    dist.broadcast(weights, src=1, group=weights_group)


if dist.get_rank() == 1:
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    ThreadPoolExecutor(1).submit(urllib.request.urlopen, url).add_done_callback(publish)
else:
    dist.broadcast(weights, src=1, group=weights_group)
dist.all_reduce(torch.ones(4))
dist.barrier()
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
