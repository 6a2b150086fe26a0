"""Rank 0 downloads a model for 15 s, a little at a time; the others wait for it."""

import http.server
import threading
import time
import urllib.request

import torch.distributed as dist


class SlowMirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(50):
            self.wfile.write(b"x" * 10_000)
            time.sleep(0.3)

    def log_message(self, *_):
        pass


def download(port):
    size = 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/model.safetensors") as answer:
        while part := answer.read(10_000):
            size += len(part)
    return size


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    mirror = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowMirror)
    threading.Thread(target=mirror.serve_forever, daemon=True).start()
    print(download(mirror.server_port), "bytes")
dist.barrier()
dist.destroy_process_group()
