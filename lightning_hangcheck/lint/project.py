"""The source of a project: modules, functions, classes, and the target of each call.

A file is parsed when it is linted, or when a linted file imports it. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

from lightning_hangcheck.files import read_regular
from lightning_hangcheck.look.syntax import FUNCTIONS, RankTests, called_name, names_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

Body: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module"
Meaning: TypeAlias = "Function | Class | Module | str | None"
Node = TypeVar("Node", bound=ast.AST)
LARGEST_FILE = 2 * 1024 * 1024
MOST_CHOICES = 6
"""Classes among which a setting may choose that are followed."""
MOST_STEPS = 6
"""Maximum number of imports from file to file, or aliases of aliases, that are followed."""
PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
REQUIREMENTS = (
    *("requirements*.txt", "environment*.y*ml", "setup.py", "setup.cfg", "pyproject.toml"),
    "README*",
)
ZERO_STAGE = re.compile(rb"(?:\b|zero_)stage[\"']?\s*:\s*(\d)")
FSDP_CHOSEN = re.compile(rb"distributed_type[\"']?\s*:\s*[\"']?FSDP")
SHARDING = re.compile(r"(.*(deepspeed|zero|fsdp|accelerate).*|ds_.*|default_config)\.(ya?ml|json)")
"""Names of settings files for `accelerate launch` and DeepSpeed."""
DEEPEST_SETTINGS = 2
MOST_LOOKED_AT = 20_000
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError)


def parts(kind: type[Node], *nodes: ast.AST, into: bool = True) -> Iterator[Node]:
    """Yield the nodes of one kind; `into` includes those inside functions and classes."""
    return (node for node in walk(*nodes, into=into) if isinstance(node, kind))


def blocks_of(statement: ast.AST) -> list[list[ast.stmt]]:
    """Return a statement's blocks; those of handlers and cases come last."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return []  # they run only when called
    own = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    below = (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ()))
    return [block for block in (*own, *(part.body for part in below)) if isinstance(block, list)]


def targets_of(statement: ast.AST) -> list[ast.expr]:
    """Return what a statement or ``:=`` assigns to or changes."""
    target = getattr(statement, "target", None)
    return getattr(statement, "targets", [] if target is None else [target])


def tail(node: ast.AST) -> str:
    """Return the last name of ``a.b.c``; empty if any part is not a name."""
    return (names_of(node) or [""])[-1]


@dataclass(frozen=True, eq=False)
class Function:
    """A function, method or lambda; or the top-level code of a file.

    Attributes:
        name: As in a traceback, with its class.
        owner: Class of the method that it is, or that it is defined in.
        around: Function in which it is defined.
        nodes: Its syntax nodes, without those of inner functions and classes.
    """

    name: str
    node: Body
    module: Module
    owner: Class | None = None
    around: Function | None = None
    nodes: list[ast.AST] = field(default_factory=list)

    @cached_property
    def body(self) -> list[ast.stmt]:
        """Its statements; a lambda's expression is made into one."""
        if isinstance(self.node, ast.Lambda):
            return [ast.copy_location(ast.Expr(self.node.body), self.node.body)]
        return self.node.body

    @cached_property
    def parameters(self) -> list[str]:
        """Names of positional parameters, without ``self`` and ``cls``."""
        if isinstance(self.node, ast.Module):
            return []
        given = self.node.args
        names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        return names[1:] if names[:1] in (["self"], ["cls"]) else names

    @cached_property
    def defaults(self) -> dict[str, ast.expr]:
        """Default values by parameter, keyword-only ones included."""
        if isinstance(self.node, ast.Module):
            return {}
        given = self.node.args
        found = dict(zip(reversed(self.parameters), reversed(given.defaults), strict=False))
        pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        return found | {argument.arg: value for argument, value in pairs if value is not None}

    @cached_property
    def annotations(self) -> dict[str, ast.expr]:
        """Annotations of positional parameters."""
        given = getattr(self.node, "args", None)
        every = (*given.posonlyargs, *given.args) if given else ()
        return {each.arg: each.annotation for each in every if each.annotation is not None}

    @cached_property
    def _sources(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        made: list[ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.For] = self.each(
            ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For
        )
        for each in made:
            value = each.iter if isinstance(each, ast.For) else each.value
            for name in parts(ast.Name, *targets_of(each)):
                if value is not None and isinstance(name.ctx, ast.Store):
                    found.setdefault(name.id, []).append(value)
        return found

    def sources_of(self, name: str) -> list[ast.expr]:
        """Return what a name gets its values from, as a part of a tuple or of a loop too."""
        return self._sources.get(name, [])

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    def each(self, *kinds: type[Node]) -> list[Node]:
        """Return its nodes of some kinds, kind by kind, each kind in source order."""
        found = [node for kind in kinds for node in self._by_kind.get(kind, ())]
        return cast("list[Node]", found)

    def given_by(self, call: ast.Call) -> dict[str, ast.expr]:
        """Return the arguments that a call passes to it, by parameter."""
        given = dict(zip(self.parameters, call.args, strict=False))
        return given | {word.arg: word.value for word in call.keywords if word.arg}

    def values_of(self, name: str) -> list[ast.expr]:
        """Return the values that it assigns to a name."""
        assigned: list[ast.Assign | ast.AnnAssign | ast.NamedExpr] = self.each(
            ast.Assign, ast.AnnAssign, ast.NamedExpr
        )
        values = (each.value for each in assigned if [name] in map(names_of, targets_of(each)))
        return [value for value in values if value is not None]

    @property
    def decorators(self) -> list[ast.expr]:
        """Its decorators."""
        return getattr(self.node, "decorator_list", [])


@dataclass(frozen=True, eq=False)
class Class:
    """A class and the methods defined in it."""

    name: str
    node: ast.ClassDef
    module: Module
    methods: dict[str, Function] = field(default_factory=dict)

    @cached_property
    def line(self) -> tuple[Class | str, ...]:
        """The class and all its base classes, nearest first; external ones by name."""
        self.__dict__["line"] = (self,)  # a class above itself has no other
        found: dict[Class | str, None] = {self: None}
        for base in self.node.bases:
            path = tuple(names_of(base))
            known = self.module.meaning(path) if path else None
            if isinstance(known, Class):
                found |= dict.fromkeys(known.line)
            elif path:
                found[known if isinstance(known, str) else ".".join(path)] = None
        return tuple(found)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the class and of all above it."""
        return tuple(each if isinstance(each, str) else each.name for each in self.line)

    @cached_property
    def attributes(self) -> dict[str, list[ast.expr]]:
        """What its methods, and those of classes above it, assign to attributes of ``self``."""
        classes = [each for each in self.line if isinstance(each, Class)]
        found: dict[str, list[ast.expr]] = {}
        for method in (method for each in classes for method in each.methods.values()):
            assigned: list[ast.Assign | ast.AnnAssign] = method.each(ast.Assign, ast.AnnAssign)
            for node in assigned:
                for path in map(names_of, targets_of(node)):
                    if path[:1] == ["self"] and len(path) == 2 and node.value is not None:
                        found.setdefault(path[1], []).append(node.value)
        return found

    def method(self, name: str, *, above: bool = False) -> Function | None:
        """Return a method, its own or inherited; only an inherited one if ``above``."""
        classes = (each for each in self.line[above:] if isinstance(each, Class))
        return next((each.methods[name] for each in classes if name in each.methods), None)


_TAUGHT = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.With, ast.AsyncWith)


class _Imported(NamedTuple):
    """What a name was imported from: a dotted path, below ``folder`` if the import is relative."""

    path: tuple[str, ...]
    folder: str = ""


class Module:
    """A parsed file.

    Attributes:
        path: As given on the command line, or below a folder that was.
        functions: Functions that are not methods, by name; a name may have several.
        made: For each name or attribute, the classes or calls that made its values.
        assigned: For each name, the lambdas, calls, aliases and conditionals assigned to it.
    """

    def __init__(self, path: str, text: bytes, project: Project) -> None:
        self.path, self.project, self.text = path, project, text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.tree = ast.parse(text)
        self.folder = os.path.dirname(path)  # noqa: PTH120 - thousands of paths: pathlib is slow
        self.functions: dict[str, list[Function]] = {}
        self.classes: dict[str, Class] = {}
        self.made: dict[str, set[tuple[str, ...]]] = {}
        self.assigned: dict[str, list[ast.expr]] = {}
        self.imports: dict[str, _Imported] = {}
        self.stars: list[_Imported] = []
        self._nodes: list[ast.AST] = []
        self._texts: dict[bytes | re.Pattern[bytes], bool] = {}
        self.main = Function("<module>", self.tree, self)
        self.all_functions = [self.main]
        self.main.nodes.extend(self._index(self.tree.body, None, None))

    @cached_property
    def ranks(self) -> RankTests:
        """Tells which of its expressions depend on the rank."""
        return RankTests(self.tree, self._nodes)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.decode(errors="replace").splitlines()

    def line(self, number: int) -> str:
        """Return a line, counted from 1; empty if there is none."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    @cached_property
    def _roots(self) -> set[str]:
        return {".".join(imported.path) for imported in (*self.imports.values(), *self.stars)}

    def has(self, text: bytes | re.Pattern[bytes]) -> bool:
        """Whether the file contains a text, or a match; each is searched for once."""
        if text not in self._texts:
            found = text in self.text if isinstance(text, bytes) else text.search(self.text)
            self._texts[text] = bool(found)
        return self._texts[text]

    def imports_of(self, libraries: list[str]) -> bool:
        """Whether it imports a module whose name begins with one of some names."""
        return any(root.startswith(tuple(libraries)) for root in self._roots)

    def with_imported(self) -> list[Module]:
        """Return this file and the project's files that it imports, directly or indirectly."""
        found = {self.path: self}
        pending = [self]
        while pending:
            new = [other for other in pending.pop().imported if other.path not in found]
            found.update({other.path: other for other in new})
            pending += new
        return list(found.values())

    @cached_property
    def imported(self) -> list[Module]:
        """The project's files that it imports itself."""
        named = {(each.path, each.folder) for each in (*self.imports.values(), *self.stars)}
        paths = {(part, folder) for path, folder in named for part in (path, path[:-1]) if part}
        modules = (self.project.module(path, folder, self) for path, folder in sorted(paths))
        return [module for module in modules if module is not None]

    def _index(
        self, block: list[ast.stmt], owner: Class | None, around: Function | None
    ) -> list[ast.AST]:
        nodes = list(walk(*block, into=False))
        self._nodes += nodes
        for node in nodes:
            if isinstance(node, FUNCTIONS):
                self._add_function(node, owner, around)
            elif isinstance(node, ast.ClassDef):
                found = Class(node.name, node, self)
                self.classes.setdefault(node.name, found)
                self._index(node.body, found, around)
            elif isinstance(node, _TAUGHT):
                self._learn(node)
        return nodes

    def _add_function(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        owner: Class | None,
        around: Function | None,
    ) -> None:
        bare = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        name = f"{owner.name}.{bare}" if owner is not None else bare
        found = Function(name, node, self, owner or (around.owner if around else None), around)
        self.all_functions.append(found)
        if owner is not None and bare != "<lambda>":
            owner.methods.setdefault(bare, found)
        else:
            self.functions.setdefault(bare, []).append(found)
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.annotation is not None:
                self._make(argument.arg, argument.annotation)
        found.nodes.extend(self._index(found.body, None, found))

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = tuple(alias.name.split("."))
                bound = path if alias.asname else path[:1]
                self.imports[alias.asname or path[0]] = _Imported(bound)
        elif isinstance(node, ast.ImportFrom):
            folder = self.folder
            for _ in range(node.level - 1):
                folder = os.path.dirname(folder)  # noqa: PTH120
            base = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                where = folder or "." if node.level else ""
                if alias.name == "*":
                    self.stars.append(_Imported(base, where))
                else:
                    self.imports[alias.asname or alias.name] = _Imported((*base, alias.name), where)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign):
            if name := names_of(node.target):
                self._make(name[-1], node.annotation)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for expression, its in zip(target.elts, value.elts, strict=True):
                    self._assign(expression, its)
            return
        name = names_of(target)
        if not name:
            return
        if isinstance(value, ast.Call):
            maker = names_of(value.func) or [called_name(value)]
            self.made.setdefault(name[-1], set()).add(tuple(maker))
        if isinstance(value, (ast.Lambda, ast.Call, ast.Name, ast.Attribute, ast.IfExp)):
            self.assigned.setdefault(name[-1], []).append(value)

    def _make(self, name: str, annotation: ast.expr) -> None:
        if path := _annotated(annotation):
            self.made.setdefault(name, set()).add(path)

    # Name resolution

    def meaning(self, path: tuple[str, ...], steps: int = MOST_STEPS) -> Meaning:
        """Resolve a dotted name: an object of the project, a full external name, or None.

        Args:
            path: The names between the dots.
            steps: Maximum number of imports to follow.
        """
        first, rest = path[0], path[1:]
        if first in self.classes:
            found = self.classes[first]
            return found.method(rest[0]) if rest else found
        outer = [function for function in self.functions.get(first, ()) if function.around is None]
        if outer:
            return outer[0] if not rest else None
        if first in self.imports:
            return self._imported(self.imports[first], rest, steps)
        for star in self.stars if steps else ():
            module = self.project.module(star.path, star.folder, self)
            if module is not None and (there := module.meaning(path, steps - 1)) is not None:
                return there
        return None

    def _imported(self, imported: _Imported, rest: tuple[str, ...], steps: int) -> Meaning:
        whole = imported.path + rest
        for length in range(len(whole), 0 if not imported.folder else -1, -1):
            module = self.project.module(whole[:length], imported.folder, self)
            if module is None:
                continue
            inside = whole[length:]
            if not inside:
                return module
            found = module.meaning(inside, steps - 1) if steps and module is not self else None
            return found if found is not None else ".".join(whole)
        return ".".join(whole)


class Project:
    """All parsed files, by path."""

    def __init__(self) -> None:
        self._callers: dict[str, dict[Function, list[tuple[ast.Call, Function]]]] = {}
        self._overriding: dict[str, dict[Class | str, list[Function]]] = {}
        self._modules: dict[str, Module | None] = {}
        self._found: dict[tuple[str, tuple[str, ...]], str] = {}
        self._up: dict[str, tuple[str, ...]] = {}
        self._requirements: dict[str, bytes] = {}
        self._settings: dict[str, list[bytes]] = {}
        self._texts: dict[re.Pattern[bytes], bool] = {}

    def read(self, path: str) -> Module | None:
        """Parse a file once; None if it cannot be parsed."""
        if path not in self._modules:
            self._modules[path] = None
            try:
                self._modules[path] = self.parse(path)
            except UNPARSABLE:
                return None
        return self._modules[path]

    def parse(self, path: str) -> Module:
        """Read and parse a file.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError, OSError: It cannot be parsed.
        """
        self._modules[path] = module = Module(path, text_of(path), self)
        return module

    def module(self, path: tuple[str, ...], folder: str, asking: Module) -> Module | None:
        """Find a module of the project.

        Args:
            path: Its dotted name.
            folder: Folder of a relative import. Empty for an absolute import, which may start in
                any folder from the importing file up to the project's root.
            asking: The importing file.
        """
        key = (folder or f"{asking.folder}/", path)
        if key not in self._found:
            places = (folder,) if folder else self._folders_up(asking.folder)
            self._found[key] = next(filter(None, (_file_of(place, path) for place in places)), "")
        return self.read(self._found[key]) if self._found[key] else None

    def _folders_up(self, folder: str) -> tuple[str, ...]:
        """Return a folder and its parents, up to the project's root."""
        if folder not in self._up:
            above = os.path.dirname(folder)  # noqa: PTH120
            files = (os.path.join(folder or ".", file) for file in PROJECT_FILES)  # noqa: PTH118
            last = above == folder or any(map(os.path.exists, files))
            self._up[folder] = (folder,) if last else (folder, *self._folders_up(above))
        return self._up[folder]

    def pinned(self, library: str, asking: Module) -> tuple[int, int] | None:
        """Return (major, minor) of the library version that a file's project requires, or None."""
        pattern = re.compile(
            rb"(?i)\b[\w-]*" + library.lower().encode() + rb"['\"]?\s*[<~=]?=+\s*v?(\d+)\.(\d+)"
        )
        for folder in self._folders_up(asking.folder):
            if folder not in self._requirements:
                files = sorted(path for form in REQUIREMENTS for path in Path(folder).glob(form))
                self._requirements[folder] = b"\n".join(
                    path.read_bytes() for path in files if path.stat().st_size < LARGEST_FILE
                )
            if found := pattern.search(self._requirements[folder]):
                return int(found[1]), int(found[2])
        return None

    def shards(self, asking: Module, *, weights: bool) -> bool:
        """Whether settings of the file's project make accelerate shard a model over ranks.

        Args:
            asking: The file.
            weights: Whether weights must be sharded too (FSDP, ZeRO-3); else any DeepSpeed stage.
        """
        root = self._folders_up(asking.folder)[-1]
        if root == os.sep:  # no project root was found
            root = asking.folder
        if root not in self._settings:
            self._settings[root] = _sharding_settings(root)
        texts = self._settings[root]
        if any(map(FSDP_CHOSEN.search, texts)):
            return True
        stages = {found for text in texts for found in ZERO_STAGE.findall(text)}
        return max(stages, default=b"0") >= (b"3" if weights else b"1")

    def has(self, text: re.Pattern[bytes]) -> bool:
        """Whether any file read so far contains a pattern."""
        if text not in self._texts:
            modules = filter(None, self._modules.values())
            self._texts[text] = any(module.has(text) for module in modules)
        return self._texts[text]

    def given(self, function: Function, parameter: str) -> list[tuple[ast.expr, Function]]:
        """Return values that calls in files read so far pass for a parameter, with the caller."""
        calls = [(function.given_by(call), caller) for call, caller in self.calls_of(function)]
        return [(given[parameter], caller) for given, caller in calls if parameter in given]

    def calls_of(self, function: Function) -> list[tuple[ast.Call, Function]]:
        """Return the calls in files read so far that may reach a function, and their callers."""
        owner, _, name = function.name.rpartition(".")
        name = owner if name == "__init__" else name
        if name not in self._callers:
            found = self._callers[name] = {}
            for call, caller in self._calls.get(name, ()):
                for reached in callee(call.func, caller).functions:
                    found.setdefault(reached, []).append((call, caller))
        return self._callers[name].get(function, [])

    @cached_property
    def spawned(self) -> set[Function]:
        """Functions that `torch.multiprocessing.spawn` starts, with a rank as first argument."""
        started = self._calls.get("spawn", [])
        given = (callee(call.args[0], caller) for call, caller in started if call.args)
        return {function for target in given for function in target.functions}

    @cached_property
    def _calls(self) -> dict[str, list[tuple[ast.Call, Function]]]:
        """All calls in the files read so far, by the name that is called."""
        found: dict[str, list[tuple[ast.Call, Function]]] = {}
        for module in filter(None, list(self._modules.values())):
            for caller in module.all_functions:
                for call in caller.each(ast.Call):
                    found.setdefault(called_name(call), []).append((call, caller))
        return found

    @cached_property
    def methods(self) -> dict[str, list[Function]]:
        """Methods by name, of the classes in files read so far."""
        found: dict[str, list[Function]] = {}
        for module in filter(None, list(self._modules.values())):
            for klass in module.classes.values():
                for name, method in klass.methods.items():
                    found.setdefault(name, []).append(method)
        return found

    def overriding(self, name: str) -> dict[Class | str, list[Function]]:
        """Return the methods of a name by each class that they are in, or in one below it."""
        if name not in self._overriding:
            found = self._overriding[name] = {}
            for method in self.methods.get(name, ()):
                for above in method.owner.line if method.owner else ():
                    found.setdefault(above, []).append(method)
        return self._overriding[name]


def text_of(path: str) -> bytes:
    """Read a source file; ValueError if it is too large, OSError as from `open`."""
    if os.path.getsize(path) > LARGEST_FILE:  # noqa: PTH202
        raise ValueError(f"larger than {LARGEST_FILE >> 20} MiB")
    with open(path, "rb") as stream:  # noqa: PTH123
        return stream.read()


def _sharding_settings(root: str) -> list[bytes]:
    """Return the files that may be settings of `accelerate launch` and DeepSpeed.

    Only folders near the project's root are searched: folders of data may be huge.
    """
    found: list[bytes] = []
    looked_at = 0
    for folder, below, names in os.walk(root or "."):
        below[:] = [folder for folder in below if not folder.startswith(".")]
        looked_at += len(below) + len(names)
        depth = len(Path(os.path.relpath(folder, root or ".")).parts)
        if depth == DEEPEST_SETTINGS or looked_at > MOST_LOOKED_AT:
            below.clear()
        for name in filter(SHARDING.fullmatch, names):
            with suppress(OSError):
                found.append(read_regular(Path(folder, name), LARGEST_FILE))
    return found


def _file_of(folder: str, path: tuple[str, ...]) -> str:
    stem = os.path.join(folder, *path)  # noqa: PTH118
    files = (*((f"{stem}.py",) if path else ()), f"{stem}/__init__.py")
    return next((file for file in files if os.path.isfile(file)), "")  # noqa: PTH113


def _annotated(annotation: ast.expr | None) -> tuple[str, ...]:
    """Return the dotted name of the single class that an annotation names, else empty."""
    path = names_of(annotation)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        path = annotation.value.strip("'\" ").partition(" |")[0].split(".")
    return tuple(path) if all(part.isidentifier() for part in path) else ()


# Call targets


@dataclass(frozen=True)
class Callee:
    """The target of a call.

    Attributes:
        name: The last of its names.
        functions: Functions of the project that it may be.
        path: Full dotted name of an imported, external target, else empty.
        receiver: Last name of the object: ``trainer`` of ``self.trainer.fit``.
        kinds: Full dotted names of classes that the object may be of.
        choice: Methods of the project's classes among which a setting chooses the object's.
    """

    name: str
    functions: tuple[Function, ...] = ()
    path: str = ""
    receiver: str = ""
    kinds: tuple[str, ...] = ()
    choice: tuple[Function, ...] = ()


def callee(called: ast.expr, function: Function, steps: int = MOST_STEPS) -> Callee:
    """Resolve an expression that is called, or an attribute that is read.

    Args:
        called: The expression.
        function: The function that contains it.
        steps: Assignments to follow at most: ``run = partial(run, 3)`` leads back to itself.
    """
    if isinstance(called, ast.Call) and names_of(called.func)[-1:] == ["partial"] and called.args:
        return callee(called.args[0], function, steps)
    if isinstance(called, ast.Lambda):
        known = function.module.functions.get("<lambda>", ())
        return Callee("<lambda>", tuple(function for function in known if function.node is called))
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Call):
        name, maker = called.attr, tuple(names_of(called.value.func))
        if maker == ("super",) and (owner := function.owner) is not None:
            found = owner.method(name, above=True)
            return Callee(name, (found,) if found else (), receiver="super", kinds=owner.kinds[1:])
        return _of_kinds(name, maker[-1] if maker else "", {maker} if maker else set(), function)
    path = tuple(names_of(called))
    if not path:
        return Callee(called.attr if isinstance(called, ast.Attribute) else "")
    return _by_name(path, function, steps)


def _by_name(path: tuple[str, ...], function: Function, steps: int) -> Callee:
    module, name = function.module, path[-1]
    if len(path) == 1:
        scopes = [function]
        while (outer := scopes[-1].around) is not None:
            scopes.append(outer)
        inner = [
            function for function in module.functions.get(name, ()) if function.around in scopes
        ]
        if inner:
            return Callee(name, (inner[-1],))
    known = module.meaning(path)
    receiver = path[-2] if len(path) > 1 else ""
    if isinstance(known, Function):
        return Callee(name, (known,), receiver=receiver)
    if isinstance(known, Class):
        made = known.method("__init__")
        return Callee(name, (made,) if made else (), kinds=(known.name,))
    if isinstance(known, str):
        return Callee(name, path=known, receiver=receiver)
    if len(path) == 1:
        return _assigned(name, function, steps)
    if path[0] in ("self", "cls") and len(path) == 2 and function.owner is not None:
        method = function.owner.method(name)
        if method is None and steps and name in function.owner.attributes:
            return _assigned(name, function, steps)
        kinds = function.owner.kinds
        return Callee(name, (method,) if method else (), receiver=path[0], kinds=kinds)
    return _of_kinds(name, receiver, module.made.get(receiver, set()), function)


def _assigned(name: str, function: Function, steps: int) -> Callee:
    """Resolve a name that holds a function, lambda, partial or callable object."""
    module = function.module
    values = module.assigned.get(name, [])
    if len(values) == 1 and steps:
        value = values[0]
        if isinstance(value, (ast.Name, ast.Attribute)) and (path := tuple(names_of(value))):
            return _by_name(path, function, steps - 1) if path[-1] != name else Callee(name)
        partial = names_of(getattr(value, "func", None))[-1:] == ["partial"]
        if partial or isinstance(value, ast.Lambda):
            return callee(value, function, steps - 1)
    found = _of_kinds("__call__", name, module.made.get(name, set()), function)
    return found if found.functions or found.kinds else Callee(name)


def callee_of_object(name: str, holder: str, function: Function) -> Callee:
    """Resolve a method of the object that a name of the function's file holds."""
    return _of_kinds(name, holder, function.module.made.get(holder, set()), function)


def _of_kinds(
    name: str,
    receiver: str,
    makers: set[tuple[str, ...]],
    function: Function,
    steps: int = MOST_STEPS,
) -> Callee:
    """Resolve a method by the class that made the object, or by what a function returned."""
    module, methods, kinds = function.module, list[Function](), list[str]()
    for maker in makers:
        known = module.meaning(maker) if maker else None
        if isinstance(known, Function) and steps:
            calls = (ret.value for ret in known.each(ast.Return) if isinstance(ret.value, ast.Call))
            inner = {_annotated(getattr(known.node, "returns", None))}
            inner |= {tuple(names_of(call.func)) for call in calls}
            returned = _of_kinds(name, receiver, inner - {()}, known, steps - 1)
            methods += returned.functions
            methods += returned.choice
            kinds += returned.kinds
        if isinstance(known, Class):
            kinds += known.kinds
            methods += filter(None, [known.method(name)])
        else:
            kinds.append(known if isinstance(known, str) else ".".join(maker))
    found = tuple(dict.fromkeys(methods))
    if len(found) == 1:
        return Callee(name, found, receiver=receiver, kinds=tuple(kinds))
    return Callee(name, receiver=receiver, kinds=tuple(kinds), choice=found[:MOST_CHOICES])
