"""Whose code a frame is, told by its path and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import lightning_hangcheck
from lightning_hangcheck.model.code_owner import EXAMPLE, PARTS, Owner, is_users, owner_of

SITE = "/venv/lib/python3.11/site-packages"
PACKAGE = Path(lightning_hangcheck.__file__).parent
FILES = sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))
OURS = [file for file in FILES if not file.startswith(EXAMPLE)]
ROOTS = (
    f"{SITE}/lightning_hangcheck",
    "/home/ada/lightning-hangcheck/lightning_hangcheck",
    "/home/ada/lightning_hangcheck/lightning_hangcheck",
    "/jobs/tools.zip/lightning_hangcheck",
    "lightning_hangcheck",
)


def test_the_parts_of_this_package_are_what_lies_in_its_folder() -> None:
    present = {entry.name for entry in PACKAGE.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    assert present - {"__pycache__", EXAMPLE} == PARTS


@pytest.mark.parametrize("root", ROOTS)
def test_every_file_of_this_package_is_ours_wherever_it_lies(root: str) -> None:
    assert {owner_of(f"{root}/{file}") for file in OURS} == {Owner("ours")}


@pytest.mark.parametrize(
    "file",
    [
        "/home/ada/demo/train.py",
        "train.py",
        "./train.py",
        "/home/ada/lightning_hangcheck/train.py",
        "/home/ada/lightning_hangcheck/scripts/train_reference.py",
        f"{SITE}/lightning_hangcheck/reference_script/train_reference.py",
        f"{SITE}/lightning_hangcheck/reference_script/reference/training.py",
        "/home/ada/lightning-hangcheck/tests/programs/sleeping.py",
        "/home/ada/my_lightning_hangcheck/hooks/meeting.py",
        "/home/ada/lightning_hangcheck_demo/model/net.py",
        "/home/ada/venv/src/my-package/my_package/net.py",
        "/home/ada/site-packages-of-mine/net.py",
        "/jobs/app.pex/my_package/net.py",
        "/home/ada/lib/python3.11/train.py",
        "/scratch/ipykernel_77/123.py",
        "<ipython-input-3-abc>",
        "<python-input-0>",
        "<stdin>",
    ],
)
def test_what_no_package_holds_is_the_users(file: str) -> None:
    assert owner_of(file) == Owner("user")
    assert is_users(file)


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (f"{SITE}/torch/nn/modules/module.py", "torch"),
        (f"{SITE}/lightning/pytorch/loops/fit_loop.py", "lightning"),
        (f"{SITE}/typing_extensions.py", "typing_extensions"),
        (f"{SITE}/tool-1.0-py3.11.egg/tool/run.py", "tool"),
        ("/jobs/tool-1.0-py3-none-any.whl/tool/run.py", "tool"),
        ("/scratch/torchinductor_ada/ab/cabcab.py", "torch"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        ("/home/ada/pytorch/torch/nn/modules/module.py", "torch"),
        ("/home/ada/pytorch-lightning/src/lightning/fabric/fabric.py", "lightning"),
        ("/home/ada/.vscode/extensions/debugpy-1/bundled/libs/debugpy/server/api.py", "debugpy"),
    ],
)
def test_an_installed_package_and_a_frameworks_sources_are_a_frameworks(
    file: str, package: str
) -> None:
    assert owner_of(file) == Owner("framework", package)


@pytest.mark.parametrize(
    "file",
    [
        "/opt/conda/lib/python3.12/selectors.py",
        "/usr/lib64/python3.9/threading.py",
        "/home/ada/.pyenv/versions/3.13.0t/lib/python3.13t/threading.py",
        "/opt/lib/pypy3.10/threading.py",
        "/usr/lib/python311.zip/threading.py",
        "<frozen runpy>",
        "<string>",
        "<attrs generated init Model>",
    ],
)
def test_the_interpreters_library_and_what_it_generates_is_standard(file: str) -> None:
    assert owner_of(file) == Owner("standard")
