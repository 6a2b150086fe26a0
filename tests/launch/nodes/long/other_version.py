"""A node with another version of this package: a changed copy, in an environment of its own."""

from __future__ import annotations

import shutil
import sysconfig
import venv
from pathlib import Path

from launch.nodes.nodes_of_a_job import Host

import lightning_hangcheck
from lightning_hangcheck.nodes.word import VERSION
from lightning_hangcheck.version import __version__


def host_with_version(folder: Path, version: str, words: int = VERSION) -> Host:
    """A node on which all that is Python's has this version of the package."""
    venv.create(folder, symlinks=True, with_pip=False)
    names = {"base": str(folder), "platbase": str(folder)}
    there = Path(sysconfig.get_path("purelib", "venv", names))
    here = sysconfig.get_path("purelib")
    (there / "installed_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    package = there / "lightning_hangcheck"
    shutil.copytree(
        Path(lightning_hangcheck.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    _change(package / "version.py", f'"{__version__}"', f'"{version}"')
    _change(package / "nodes" / "word.py", f"VERSION = {VERSION}\n", f"VERSION = {words}\n")
    return Host(python=str(folder / "bin" / "python"))


def _change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file} has {old!r} not once"
    file.write_text(text.replace(old, new))
