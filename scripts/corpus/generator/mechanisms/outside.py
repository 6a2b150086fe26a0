"""Waits whose end lies outside the rank's process: files, locks, pipes, sockets, children."""

from __future__ import annotations

from corpus.generator.piece import Mechanism

APART = """
def run_apart(program, *arguments):
    # started by a shell that ends at once, so that it is nobody's child, as a stranger's process is
    command = [sys.executable, "-c", program, *map(str, arguments)]
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$$@" & echo', "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return shell.stdout
"""
OUTSIDE_LOCK = Mechanism(
    name="file_locked_by_an_outsider",
    source=APART
    + """

HOLDER = '''
import fcntl, sys, threading
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
threading.Event().wait(1200)
'''


def $function(affected):
    path = os.path.join(tempfile.mkdtemp(), "$noun.lock")
    if affected:
        told = run_apart(HOLDER, path)
        while b"locked" not in told.readline():
            pass
        mark_onset()
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    """,
    imports=("fcntl", "os", "subprocess", "sys", "tempfile"),
    cause=("file_lock",),
    threads=("main", "pool", "thread"),
)
RECORD_LOCK = Mechanism(
    name="record_locked_by_an_outsider",
    source=OUTSIDE_LOCK.source.replace("fcntl.flock(", "fcntl.lockf("),
    imports=OUTSIDE_LOCK.imports,
    cause=("file_lock",),
    threads=("main", "pool"),
)
STALE_MARKER = Mechanism(
    name="marker_of_a_lock_left_behind",
    source="""
        def $function(affected):
            folder = tempfile.mkdtemp()
            path = os.path.join(folder, "$noun.lock")
            if affected:
                with open(path, "w") as file:
                    file.write("4194000")
                mark_onset()
            while os.path.exists(path):
                time.sleep(0.2)
    """,
    imports=("os", "tempfile", "time"),
    cause=("rank_stalled", "filesystem_wait"),
    because="it sleeps in its own code until a file is gone",
    slow=True,
)
FLAG_FILE = Mechanism(
    name="file_never_written",
    source="""
        def $function(affected):
            path = os.path.join(tempfile.mkdtemp(), "$noun.ready")
            if affected:
                mark_onset()
            else:
                open(path, "w").close()
            while not os.path.exists(path):
                time.sleep(0.25)
    """,
    imports=("os", "tempfile", "time"),
    cause=("rank_stalled", "filesystem_wait"),
    because="it sleeps in its own code until a file appears",
    threads=("main", "pool", "thread"),
    slow=True,
)
FIFO = Mechanism(
    name="fifo_without_writer",
    source="""
        def $function(affected):
            path = os.path.join(tempfile.mkdtemp(), "$noun.pipe")
            if affected:
                os.mkfifo(path)
                mark_onset()
            else:
                open(path, "w").close()
            with open(path) as stream:
                return stream.read()
    """,
    imports=("os", "tempfile"),
    cause=("filesystem_wait",),
    threads=("main", "pool", "thread"),
)
MUTE_SERVER = Mechanism(
    name="server_never_answers",
    source=APART
    + """

SERVER = '''
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], flush=True)
connections = []
server.settimeout(1200)
while True:
    connections.append(server.accept())
'''


def $function(affected):
    if not affected:
        return b""
    told = run_apart(SERVER)
    line = told.readline()
    while not line.startswith(b"port"):
        line = told.readline()
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as connection:
        connection.sendall(b"GET /$noun HTTP/1.0\\r\\n\\r\\n")
        mark_onset()
        return connection.recv(4096)
    """,
    imports=("socket", "subprocess", "sys"),
    cause=("network_wait",),
    threads=("main", "pool", "thread", "asyncio"),
    slow=True,
)
MUTE_WEB_SERVER = Mechanism(
    name="web_server_never_answers",
    source=MUTE_SERVER.source.split("    with socket.create_connection")[0]
    + """    mark_onset()
    with urllib.request.urlopen(f"http://127.0.0.1:{int(line.split()[1])}/$noun") as answer:
        return answer.read()
    """,
    imports=("subprocess", "sys", "urllib.request"),
    cause=("network_wait",),
    threads=("main", "pool"),
    slow=True,
)
CHILD = Mechanism(
    name="child_never_ends",
    source="""
        def $function(affected):
            if affected:
                mark_onset()
            program = "import threading; threading.Event().wait()" if affected else "pass"
            subprocess.run([sys.executable, "-c", program], check=False)
    """,
    imports=("subprocess", "sys"),
    cause=("rank_stalled",),
    threads=("main", "pool"),
)
CHILD_FILTER = Mechanism(
    name="child_waits_for_more_input",
    source="""
        def $function(affected):
            child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            child.stdin.write(b"$noun")
            child.stdin.flush()
            if affected:
                mark_onset()
            else:
                child.stdin.close()
            child.wait()
    """,
    imports=("subprocess",),
    cause=("rank_stalled",),
)
ALL = (
    *(OUTSIDE_LOCK, RECORD_LOCK, STALE_MARKER, FLAG_FILE, FIFO),
    *(MUTE_SERVER, MUTE_WEB_SERVER, CHILD, CHILD_FILTER),
)
