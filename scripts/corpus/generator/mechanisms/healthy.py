"""What takes long for a good reason, and ends by itself."""

from __future__ import annotations

from corpus.generator.mechanisms.outside import APART
from corpus.generator.mechanisms.own_waits import ANY_THREAD
from corpus.generator.piece import Mechanism

SLEEPS = Mechanism(
    name="healthy_sleeps",
    source="""
        def $function(affected):
            time.sleep($seconds if affected else 0.01)
    """,
    imports=("time",),
    threads=ANY_THREAD,
)
COMPUTES = Mechanism(
    name="healthy_computes_in_python",
    source="""
        def $third(value):
            return value * 31 % 65521


        def $helper(value):
            return sum($third(value + digit) for digit in range(50))


        def $function(affected):
            value, until = 1, time.monotonic() + ($seconds if affected else 0.01)
            while time.monotonic() < until:
                value = $helper(value)
            return value
    """,
    imports=("time",),
    threads=("main", "pool", "process"),
)
MULTIPLIES = Mechanism(
    name="healthy_computes_in_torch",
    source="""
        def $function(affected):
            $noun, until = torch.rand(600, 600), time.monotonic() + ($seconds if affected else 0.01)
            while time.monotonic() < until:
                $noun = torch.tanh($noun @ $noun)
            return $noun
    """,
    imports=("time",),
    threads=("main", "pool"),
)
RETRIES = Mechanism(
    name="healthy_retries",
    source="""
        def $helper(port):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return True


        def $function(affected):
            until = time.monotonic() + ($seconds if affected else 0.01)
            while time.monotonic() < until:
                try:
                    $helper(1)
                except OSError:
                    time.sleep(min(7.0, max(0.0, until - time.monotonic())))
    """,
    imports=("socket", "time"),
    threads=("main", "pool", "thread"),
)
CHILD_WORKS = Mechanism(
    name="healthy_child_works",
    source="""
        def $function(affected):
            program = "import sys, time; until = time.monotonic() + float(sys.argv[1])\\n"
            program += "while time.monotonic() < until: sum(range(10000))"
            length = str($seconds if affected else 0.01)
            subprocess.run([sys.executable, "-c", program, length], check=True)
    """,
    imports=("subprocess", "sys"),
    threads=("main", "pool"),
)
OUTSIDER_WRITES = Mechanism(
    name="healthy_file_comes_late",
    source=APART
    + """

WRITER = '''
import pathlib, sys, time
time.sleep(float(sys.argv[2]))
pathlib.Path(sys.argv[1]).touch()
'''


def $function(affected):
    path = os.path.join(tempfile.mkdtemp(), "$noun.done")
    run_apart(WRITER, path, $seconds if affected else 0)
    while not os.path.exists(path):
        time.sleep(0.5)
    """,
    imports=("os", "subprocess", "sys", "tempfile", "time"),
)
DOWNLOADS = Mechanism(
    name="healthy_download_trickles",
    source=APART
    + """

SERVER = '''
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
print("port", server.getsockname()[1], flush=True)
connection, _ = server.accept()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    connection.sendall(b"x" * 2000)
    time.sleep(1.5)
connection.close()
'''


def $function(affected):
    told = run_apart(SERVER, $seconds if affected else 0)
    line = told.readline()
    while not line.startswith(b"port"):
        line = told.readline()
    received = 0
    with socket.create_connection(("127.0.0.1", int(line.split()[1]))) as connection:
        while data := connection.recv(4096):
            received += len(data)
    return received
    """,
    imports=("socket", "subprocess", "sys"),
    threads=("main", "pool", "thread"),
)
ALL = (SLEEPS, COMPUTES, MULTIPLIES, RETRIES, CHILD_WORKS, OUTSIDER_WRITES, DOWNLOADS)
