"""Which loops wait until a file is gone, read from their source alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from lightning_hangcheck.probes.source_code.marker_loops import function_around, marker_loop
from lightning_hangcheck.probes.source_code.path_text import path_text


def found(source: str) -> tuple[str, bool] | None:
    """The path's expression and whether the loop is endless; the thread stands in ``sleep``."""
    text = dedent(source)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "sleep(" in one)
    loop = marker_loop(ast.parse(text), line)
    return (ast.unparse(loop.path), loop.endless) if loop is not None else None


@pytest.mark.parametrize(
    ("source", "path", "endless"),
    [
        ("while os.path.exists(path):\n    time.sleep(1)", "path", True),
        ("while self.lock.exists():\n    log.info('waits')\n    time.sleep(1)", "self.lock", True),
        ("while isfile(a) or isfile(b):\n    time.sleep(1)", "a", False),
        ("while os.path.exists(p) and time.time() < end:\n    time.sleep(1)", "p", False),
        ("while exists(p):\n    sleep(1)\n    if tries > 9:\n        raise Late", "p", False),
        ("while exists(p):\n    sleep(1)\n    break_stale(p)", "p", False),
        ("while True:\n    if not exists(p):\n        break\n    sleep(1)", "p", True),
        ("for _ in range(9):\n    if not exists(p):\n        break\n    sleep(1)", "p", False),
        (
            """
            while True:
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                    break
                except FileExistsError:
                    time.sleep(0.1)
            """,
            "path",
            True,
        ),
        (
            """
            def take(folder):
                while True:
                    try:
                        folder.mkdir()
                        return
                    except OSError:
                        time.sleep(0.1)
            """,
            "folder",
            True,
        ),
        (
            """
            while not acquired:
                try:
                    fd = os.open(path, os.O_CREAT | os.O_EXCL)
                    acquired = True
                except FileExistsError:
                    time.sleep(0.1)
            """,
            "path",
            True,
        ),
        (
            """
            while fd is None and time.time() < deadline:
                try:
                    fd = os.open(path, os.O_CREAT | os.O_EXCL)
                except FileExistsError:
                    time.sleep(0.1)
            """,
            "path",
            False,
        ),
        (
            """
            def held(file):
                return os.path.exists(file)

            def take(cache):
                while held(cache):
                    time.sleep(0.1)
            """,
            "cache",
            True,
        ),
        (
            """
            def try_lock(path):
                try:
                    open(path, "x").close()
                    return True
                except FileExistsError:
                    return False

            def take(path):
                while not try_lock(path):
                    time.sleep(0.1)
            """,
            "path",
            True,
        ),
        (
            """
            def held(path):
                if older_than_a_minute(path):
                    os.remove(path)
                return os.path.exists(path)

            while held(path):
                time.sleep(0.1)
            """,
            "path",
            False,
        ),
    ],
)
def test_a_loop_that_waits_until_a_file_is_gone_is_one(
    source: str, path: str, endless: bool
) -> None:
    assert found(source) == (path, endless)


@pytest.mark.parametrize(
    "source",
    [
        "while not os.path.exists(path):\n    time.sleep(1)",
        "while True:\n    if exists(p):\n        break\n    sleep(1)",
        "while running:\n    sleep(1)",
        "for batch in batches:\n    os.path.exists(p)\n    sleep(1)",
        "os.path.exists(p)\nsleep(1)",
        "while exists(p):\n    def later():\n        sleep(1)",
        "while exists(p):\n    for one in work:\n        sleep(1)",
        """
        for step in steps:
            try:
                os.mkdir(folder)
            except FileExistsError:
                pass
            sleep(1)
        """,
    ],
)
def test_any_other_loop_is_none(source: str) -> None:
    assert found(source) is None


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("path", "/data/a.lock"),
        ("os.path.join(folder, 'a.lock')", "/data/a.lock"),
        ("Path(folder) / 'a.lock'", "/data/a.lock"),
        ("f'{folder}/{name}'", "/data/a.lock"),
        ("path + '.tmp'", "/data/a.lock.tmp"),
        ("marker", "/data/marker"),
        ("self.path", ""),
        ("unknown / 'a'", ""),
        ("loops", ""),
    ],
)
def test_a_path_is_worked_out_from_variables_and_assignments(expression: str, text: str) -> None:
    tree = ast.parse(
        f"def take():\n    marker = Path(folder) / 'marker'\n    loops = loops\n    {expression}"
    )
    last = function_around(tree, 4).body[-1]
    values = {"path": "/data/a.lock", "folder": "/data", "name": "a.lock"}
    assert path_text(last.value, values, function_around(tree, 4)) == text
