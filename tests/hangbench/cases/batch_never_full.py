"""Requests are gathered to fours in an event loop that ticks; once there are seven of them."""

import asyncio
import threading

import torch
import torch.distributed as dist
from onset import mark_onset


class RewardService:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.waiting = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        self.loop.create_task(self.watch_queue())
        self.loop.run_forever()

    async def watch_queue(self):
        while True:
            await asyncio.sleep(0.5)

    async def request(self, sample):
        done = self.loop.create_future()
        self.waiting.append(done)
        if len(self.waiting) == 4:
            for one in self.waiting:
                one.set_result(sample)
            self.waiting = []
        return await done

    def score(self, samples):
        asked = [asyncio.run_coroutine_threadsafe(self.request(one), self.loop) for one in samples]
        return [one.result() for one in asked]


dist.init_process_group("gloo")
service = RewardService()
for step in range(30):
    dist.all_reduce(torch.ones(16))
    short = dist.get_rank() == 1 and step == 20
    if short:
        mark_onset()
    service.score(range(7 if short else 8))
dist.destroy_process_group()
