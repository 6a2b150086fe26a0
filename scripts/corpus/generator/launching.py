"""How a program's ranks are started, and how each of them joins."""

from __future__ import annotations

from corpus.generator.filling import fill

IMPORTS = {
    "torchrun": (),
    "alone": (),
    "spawn": ("socket", "os"),
    "own": ("socket", "subprocess", "sys", "os"),
}
FIND_PORT = """
def find_port():
    # not one that the kernel hands out: it would hand it to another program, too
    for port in range(15000 + os.getpid() % 15000, 32768):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
"""
DIRECT = """
if __name__ == "__main__":
    main()
"""
SPAWN = (
    FIND_PORT
    + """

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
)
OWN = (
    FIND_PORT
    + """

def launch():
    port = find_port()
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
)
SOURCES = {"torchrun": DIRECT, "alone": DIRECT, "spawn": SPAWN, "own": OWN}


def launcher_of(launch: str, ranks: int) -> str:
    """Write the end of the script."""
    return fill(SOURCES[launch], ranks=ranks)
