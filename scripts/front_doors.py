"""Front doors: from outside a room only those modules may be imported that its ``__init__`` names.

A contract type for import-linter. A room is a package; its ``__all__`` lists the modules (or inner
rooms) that outsiders may use. Its own modules, those of its inner rooms included, may use them all.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, output
from importlinter.domain import fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grimp import ImportGraph


class FrontDoorsContract(Contract):  # type: ignore[misc]  # import-linter ships no types
    """Holds all rooms below one package to their front doors.

    Options:
        package: The package whose sub-packages are the rooms.
        open_rooms: Rooms without a front door: everything in them may be used (the ground floor).
    """

    package = fields.StringField()
    open_rooms = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find imports that do not go through a front door."""
        broken = sorted(self._past_the_door(graph))
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Say which they are, and the two ways out."""
        for importer, imported, room in check.metadata["broken"]:
            output.print_error(
                f"{importer} imports {imported}, which the front door of {room} does not name: "
                f"name it in {room}'s __all__, or import what is named there"
            )

    def _past_the_door(self, graph: ImportGraph) -> Iterator[tuple[str, str, str]]:
        doors = {room: _front_door(room) for room in self._rooms(graph)}
        for importer in sorted(graph.modules):
            for imported in sorted(graph.find_modules_directly_imported_by(importer)):
                for room, names in doors.items():
                    inside = imported.startswith(f"{room}.")
                    if not inside or importer == room or importer.startswith(f"{room}."):
                        continue
                    if imported.removeprefix(f"{room}.").split(".")[0] not in names:
                        yield importer, imported, room

    def _rooms(self, graph: ImportGraph) -> list[str]:
        return [
            module
            for module in sorted(graph.modules)
            if module.startswith(f"{self.package}.")
            and module not in self.open_rooms
            and graph.find_children(module)
        ]


def _front_door(room: str) -> frozenset[str]:
    """Read ``__all__`` without importing the room."""
    spec = find_spec(room)
    source = Path(spec.origin).read_text() if spec is not None and spec.origin else ""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(statement.value))
    return frozenset()
