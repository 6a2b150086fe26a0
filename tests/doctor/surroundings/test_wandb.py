"""wandb before a run: its mode, its key, and real servers that answer, refuse or keep silent."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import no_answer, wandb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test's output to itself."""


@pytest.fixture
def server() -> Iterator[str]:
    answering = HTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=answering.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{answering.server_port}"
    answering.shutdown()
    thread.join()
    answering.server_close()


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def test_a_server_that_answers_and_a_key_are_fine(server: str) -> None:
    (check,) = wandb(subject(WANDB_API_KEY="0" * 40, WANDB_BASE_URL=server))
    assert check.status == "ok"
    assert "0000" not in check.sentence


def test_a_key_may_be_in_netrc(server: str, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login user password secret\n")
    file.chmod(0o600)
    (check,) = wandb(subject(NETRC=str(file), WANDB_BASE_URL=server))
    assert check.status == "ok"


def test_a_key_for_every_other_host_is_none_of_wandbs(server: str, tmp_path: Path) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine other.example login a password b\ndefault login c password d\n")
    file.chmod(0o600)
    (check,) = wandb(subject(NETRC=str(file), WANDB_BASE_URL=server))
    assert check.status == "warning"


def test_without_a_key_somebody_will_be_asked(server: str, tmp_path: Path) -> None:
    (check,) = wandb(subject(HOME=str(tmp_path), WANDB_BASE_URL=server))
    assert check.status == "warning"
    assert "wandb login" in check.remedy


def test_a_server_that_refuses_fails(silent_port: int) -> None:
    with socket.socket() as once:
        once.bind(("127.0.0.1", 0))
        closed = once.getsockname()[1]
    run = subject(WANDB_API_KEY="k", WANDB_BASE_URL=f"http://127.0.0.1:{closed}")
    (check,) = wandb(run)
    assert check.status == "failed"
    assert "WANDB_MODE=offline" in check.remedy


def test_a_server_that_keeps_silent_is_given_up(silent_port: int) -> None:
    assert no_answer("http", "127.0.0.1", silent_port, 0.1) == "nothing within 0.1 s"


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_no_server_is_asked_offline(mode: str) -> None:
    (check,) = wandb(subject(WANDB_MODE=mode, WANDB_BASE_URL="http://127.0.0.1:1"))
    assert check.status == "ok"


def test_a_run_without_wandb_is_not_asked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('nothing to log')\n")
    assert wandb(subject(f"python {script}")) == ()
    script.write_text("from lightning.pytorch.loggers import WandbLogger\n")
    (check,) = wandb(subject(f"python {script}", HOME=str(tmp_path)))
    assert check.status == "warning"
