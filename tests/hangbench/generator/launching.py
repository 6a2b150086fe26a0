"""How a program's ranks are started, and how each of them joins."""

from __future__ import annotations

from hangbench.generator.filling import fill

IMPORTS = {
    "torchrun": (),
    "alone": (),
    "spawn": ("socket", "os"),
    "own": ("socket", "subprocess", "sys", "os"),
}
DIRECT = """
if __name__ == "__main__":
    main()
"""
SPAWN = """
def find_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run_rank(rank, port):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="$ranks",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    main()


if __name__ == "__main__":
    torch.multiprocessing.spawn(run_rank, args=(find_port(),), nprocs=$ranks)
"""
OWN = """
def launch():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    processes = []
    for rank in range($ranks):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE="$ranks",
            LOCAL_WORLD_SIZE="$ranks",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        processes.append(subprocess.Popen([sys.executable, __file__], env=environment))
    sys.exit(max([abs(process.wait()) for process in processes]))


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        launch()
"""
SOURCES = {"torchrun": DIRECT, "alone": DIRECT, "spawn": SPAWN, "own": OWN}


def launcher_of(launch: str, ranks: int) -> str:
    """Write the end of the script."""
    return fill(SOURCES[launch], ranks=ranks)
