"""Times the heartbeat of nvidia-resiliency-ext; recorder_cost.py starts it under ft_launcher."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

LOOPS = 15
NUMBER = 1_000


def main() -> None:
    """Write the microseconds of one heartbeat, median over loops, to the file that is named."""
    client = RankMonitorClient()
    client.init_workload_monitoring()
    spent = []
    for _ in range(LOOPS):
        began = time.perf_counter()
        for _ in range(NUMBER):
            client.send_heartbeat()
        spent.append((time.perf_counter() - began) / NUMBER * 1e6)
    client.shutdown_workload_monitoring()
    Path(sys.argv[1]).write_text(str(statistics.median(spent)))


if __name__ == "__main__":
    main()
