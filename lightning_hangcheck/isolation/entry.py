"""The first file of our own Python process: runs a module of this package, see `command`.

Its module path is what is installed for the interpreter. This file's folder, which Python adds at
the start, is removed before anything is imported.
"""

import sys

del sys.path[0]

import json
import os
import runpy
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


class Dependencies:
    """Finds only modules of these names, each in the folder given for it."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        """Answer an import, as `importlib.abc.MetaPathFinder` does."""
        folder = self._folders.get(name)
        return None if folder is None else PathFinder.find_spec(name, [folder])


def load_package(folder: Path) -> None:
    """Import the package in this folder, whatever the module path offers under its name."""
    spec = spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is no package")
    package = sys.modules[folder.name] = module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    sys.meta_path.insert(0, Dependencies(json.loads(os.environ["HANGCHECK_DEPENDENCIES"])))
    load_package(Path(__file__).parents[1])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
