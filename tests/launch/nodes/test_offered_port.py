"""A port for the nodes to meet at that cannot be served is refused before anything starts."""

from __future__ import annotations

import pytest

from lightning_hangcheck.cli.main import invoke


def test_a_port_without_a_secret_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANGCHECK_NODES_TOKEN", raising=False)
    assert invoke(["run", "--nodes-port", "29511", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs a secret of 16 characters or more, the same on all nodes; export" in said


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--nodes-port", port, "--", "true"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
