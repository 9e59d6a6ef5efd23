"""`MODULE:NAME` of a recipe: where the module is, what its source hashes to, and the object that it names."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from sleuth.host.escapes import replace_surrogates
from sleuth.own.permission import CODE, prints_to_stderr
from sleuth.types import SleuthError

SOURCE = ".py"


class UserCodeError(SleuthError):
    """An error of a user's own code: `my_rewards.py:7: brevity: ZeroDivisionError: division by zero`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunction:
    """A function or class that a recipe names.

    `name` is `my_rewards:brevity`, wherever the file is, or `__main__:brevity` of a notebook, whose `file` is the cell.
    `sources` has the sha256 of its file, and of the files beside it that it imports, by their paths from the folder
    that contains the module; and of the files that it reads.
    """

    name: str
    call: Callable[..., Any]
    file: Path
    sources: Mapping[str, str]
    module: ModuleType

    @property
    def short_name(self) -> str:
        """`brevity`."""
        return self.name.rpartition(":")[2]

    @property
    def where(self) -> str:
        """File and line of the definition: `my_rewards.py:3`."""
        return f"{shown(self.file)}:{_first_line(self.call)}"

    def error(self, message: str) -> UserCodeError:
        """An error at the definition."""
        return UserCodeError(f"{self.where}: {self.short_name}: {message}")

    def raised(self, error: BaseException) -> UserCodeError:
        """An error at the line of the user's code that raised `error`."""
        where = _line_in(error.__traceback__, self._files) or self.where
        return UserCodeError(f"{where}: {self.short_name}: {error_line(error)}")

    @property
    def _files(self) -> set[Path]:
        root = _root_of(self.file)[0]
        return {self.file, *(root / name for name in self.sources)}


def resolved(name: str, folders: Sequence[Path]) -> str:
    """`my_rewards:brevity` as `folder/my_rewards.py:brevity` if the module is a file in one of the folders, the first
    of them; otherwise the name as it is. Paths under the working directory become relative to it."""
    module, colon, attribute = name.partition(":")
    if not colon or module.endswith(SOURCE):
        return name
    for folder in folders:
        place = folder.joinpath(*module.split("."))
        for file in (place.with_name(place.name + SOURCE), place / "__init__.py"):
            if file.is_file():
                return f"{shown(file)}:{attribute}"
    return name


def load_function(name: str, files: Sequence[Path] = ()) -> UserFunction:
    """What `my_rewards:brevity` or `folder/my_rewards.py:brevity` names, which reads these `files`; its module is
    imported, again if its source or one of the files has changed. Raises UserCodeError if there is no such module, name
    or file, or if the import fails; CodeRefusedError, before the import, if it may not run here."""
    read = {str(file): file_hash(file) for file in files}
    module, attribute, found = _load(name, read)
    full_name = f"{module.__name__}:{attribute}"
    if not callable(found):
        where = shown(_file_of(module) or Path(module.__name__))
        raise UserCodeError(f"{where}: {attribute} is {found!r}; expected a function or a class")
    if module.__name__ == "__main__" and _file_of(module) is None:
        place, sources = _cell_of(found, full_name)
    else:
        place, is_file = _source_of(module), name.partition(":")[0].endswith(SOURCE)
        sources = _IMPORTED[module.__name__][1] if is_file else _sources(place)
    return UserFunction(name=full_name, call=found, file=place, sources=merged_sources(sources, read), module=module)


def _cell_of(found: Callable[..., Any], name: str) -> tuple[Path, Mapping[str, str]]:
    """The cell of a notebook that defines a function or a class, and its sha256; what other cells define has none."""
    functions = vars(found).values() if isinstance(found, type) else [inspect.unwrap(found)]
    cell = next((one.__code__.co_filename for one in functions if inspect.isfunction(one)), "")
    if not (lines := linecache.getlines(cell)):
        raise UserCodeError(f"{name}: its source is not there, so that it cannot be recorded; write it to a file")
    return Path(cell), {name: hashlib.sha256("".join(lines).encode()).hexdigest()}


def load_object(name: str, *, ask: bool = True) -> tuple[Any, str]:
    """What `my_family:FAMILY` or `folder/my_family.py:FAMILY` names, and the file and line at which it is defined.
    Raises UserCodeError as `load_function` does; with `ask`, CodeRefusedError if it may not run here."""
    module, attribute, found = _load(name, {}, ask=ask)
    place = _file_of(module)
    return found, module.__name__ if place is None else f"{shown(place)}:{_line_of(place, attribute)}"


def _load(name: str, read: Mapping[str, str], *, ask: bool = True) -> tuple[ModuleType, str, Any]:
    """The module, the name in it, and what it names."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UserCodeError(f"should be MODULE:NAME, such as my_rewards:brevity; found {name!r}")
    is_file = module_name.endswith(SOURCE)
    module = _module_in(Path(module_name), read) if is_file else _installed(module_name, ask=ask)
    return module, attribute, _attribute(module, attribute, shown(Path(str(getattr(module, "__file__", module_name)))))


def _line_of(file: Path, name: str) -> int:
    """The line at which a module sets a name; 1 where it does so otherwise than at its top level."""
    for node in ast.parse(file.read_bytes()).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        if any(name in (getattr(target, "id", None), getattr(target, "name", None)) for target in targets):
            return node.lineno
    return 1


def sources_of(found: type) -> dict[str, str]:
    """The sha256 of the files of an imported class, as `UserFunction.sources` has them."""
    return _sources(_source_of(sys.modules[found.__module__]))


def merged_sources(*sources: Mapping[str, str]) -> dict[str, str]:
    """All the files with their hashes. Raises UserCodeError if two different files have the same path."""
    merged: dict[str, str] = {}
    for file, sha256 in (item for one in sources for item in one.items()):
        if merged.setdefault(file, sha256) != sha256:
            raise UserCodeError(f"{file}: two different files have this name, and a run tells files by it: rename one")
    return merged


def require_arguments(function: UserFunction, count: int, names: Mapping[str, object], example: str) -> None:
    """Raises UserCodeError unless the function takes `count` positional arguments and these keyword arguments;
    `example` shows how it should be defined."""
    parameters = list(signature_of(function).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    own = {one.name: one for one in parameters if one not in positional[:count] and one.kind in NAMED}
    if len(positional) < count and not any(one.kind == one.VAR_POSITIONAL for one in parameters):
        raise function.error(f"takes {len(positional)} arguments; expected {example}")
    missing = [name for name, one in own.items() if one.default is one.empty and name not in names]
    if missing:
        raise function.error(f"needs a value of {missing[0]}, and parameters has none")
    if any(one.kind == one.VAR_KEYWORD for one in parameters):
        return
    for name in names:
        if name not in own:
            near = difflib.get_close_matches(name, own, n=1, cutoff=0.5)
            hint = f"the nearest is {near[0]}" if near else f"it has {', '.join(own) or 'none'}"
            raise function.error(f"has no parameter {name}; {hint}")


NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of parameters that a caller can name."""


def signature_of(function: UserFunction) -> inspect.Signature:
    """How it is called. Raises UserCodeError if Python does not know that."""
    try:
        return inspect.signature(function.call)
    except (TypeError, ValueError):  # functions written in C have none
        raise function.error("has no signature; wrap it in a function of your own") from None


def parameters_of(function: UserFunction) -> list[str]:
    """The names of its parameters."""
    return list(signature_of(function).parameters)


def first_parameter(function: UserFunction) -> inspect.Parameter | None:
    """The first positional parameter, with its annotation as an object where it can be evaluated."""
    signature = signature_of(function)
    with suppress(NameError, SyntaxError, TypeError, AttributeError):  # an annotation for type checkers alone
        signature = inspect.signature(function.call, eval_str=True)
    return next(iter(signature.parameters.values()), None)


def shown(file: Path) -> str:
    """The path as messages and resolved recipes show it: relative, if it is in the working directory."""
    path, here = Path(os.path.abspath(file)), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


# -- importing ---------------------------------------------------------------------------------------------------------


class _SourceLoader(SourceFileLoader):
    """Compiles the source that is there now: a cached file of the same second and size could be older."""

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


_IMPORTED: dict[str, tuple[Path, Mapping[str, str]]] = {}
"""Modules imported from files, by name: the file and the sources that it had."""
_READ: dict[str, dict[str, str]] = {}
"""The files that their functions read, and the hashes that these had, likewise."""


def file_hash(file: Path) -> str:
    """The sha256 of a file. Raises UserCodeError if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UserCodeError(f"{file}: {error.strerror}") from None


def _module_in(file: Path, read: Mapping[str, str] | None = None) -> ModuleType:
    """The module of a file, whose functions `read` files with these hashes. One that others have imported, such as the
    cells of a notebook, is imported again: its source may have changed since."""
    file = Path(os.path.abspath(file))
    if not file.is_file():
        raise UserCodeError(f"{shown(file)}: no such file")
    root, name = _root_of(file)
    CODE.announce(f"imports {shown(file)} (module {name})")
    sources = _sources(file)
    known = sys.modules.get(name)
    seen = _READ.get(name, {})
    is_same = all(seen.get(path, sha256) == sha256 for path, sha256 in (read or {}).items())
    if known is not None and _IMPORTED.get(name) == (file, sources) and is_same and _file_of(known) == file:
        _READ[name] = {**seen, **(read or {})}
        return known
    if known is not None and name not in _IMPORTED and _file_of(known) != file:
        raise UserCodeError(
            f"{shown(file)}: a module named {name} is already imported from {known.__file__ or 'Python'}; "
            "give yours another name"
        )
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise UserCodeError(f"{shown(file)}: {name} is a module of Python itself; give yours another name")
    files = {root / source for source in sources}
    for imported in [key for key, module in sys.modules.items() if _file_of(module) in files]:
        del sys.modules[imported]
    importlib.invalidate_caches()
    if str(root) not in sys.path:
        sys.path.append(str(root))  # at the end: nothing that is installed is hidden from others
    parent = file.parent.parent if file.name == "__init__.py" else file.parent
    if parent != root:
        _module_in(parent / "__init__.py")
    folder = [str(file.parent)] if file.name == "__init__.py" else None
    loader = _SourceLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folder)
    assert spec is not None  # the loader is given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with prints_to_stderr():
            loader.exec_module(module)
        _require_own(root, sources)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt | UserCodeError):
            raise
        raise _import_error(error, file, files) from None
    _READ[name] = dict(read or {})
    for source in files:  # what it imports is the user's too
        if (imported := _root_of(source)[1]) in sys.modules:
            _IMPORTED[imported] = (source, _sources(source))
    return module


def _require_own(root: Path, sources: Mapping[str, str]) -> None:
    """Raises UserCodeError if another module was imported instead of a file whose hash is recorded."""
    for source in sources:
        name = _root_of(root / source)[1]
        imported = sys.modules.get(name)
        if imported is not None and _file_of(imported) != root / source:
            raise UserCodeError(
                f"{shown(root / source)}: a module named {name} is imported from "
                f"{imported.__file__ or 'Python'} instead; give yours another name"
            )


def _installed(name: str, *, ask: bool = True) -> ModuleType:
    if ask:
        CODE.announce("calls this program" if name == "__main__" else f"imports {name}, an installed module")
    try:
        with prints_to_stderr():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            file = name.replace(".", "/") + SOURCE
            raise UserCodeError(
                f"there is no module {name}: {file} is neither beside the recipe nor in the current folder, and no "
                "installed package has it"
            ) from None
        raise _import_error(error, Path(name), set()) from None
    except Exception as error:
        raise _import_error(error, Path(name), set()) from None


def _import_error(error: BaseException, file: Path, files: set[Path]) -> UserCodeError:
    if isinstance(error, SyntaxError) and error.filename:
        return UserCodeError(f"{shown(Path(error.filename))}:{error.lineno}: {type(error).__name__}: {error.msg}")
    where = _line_in(error.__traceback__, files) or (shown(file) if file.suffix == SOURCE else str(file))
    return UserCodeError(f"{where}: cannot be imported: {error_line(error)}")


def _attribute(module: ModuleType, attribute: str, place: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, n=1, cutoff=0.5)
            raise UserCodeError(f"{place} has no {attribute}" + (f"; the nearest is {near[0]}" if near else ""))
        found = getattr(found, part)
    return found


def _root_of(file: Path) -> tuple[Path, str]:
    """The folder to import a file from, and the name of its module: the packages around it are those folders that have
    an `__init__.py`."""
    parts = [] if file.name == "__init__.py" else [file.stem]
    root = file.parent
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _source_of(module: ModuleType) -> Path:
    if (place := _file_of(module)) is None or place.suffix != SOURCE:
        raise UserCodeError(f"{module.__name__} is no module of Python source, so that its source cannot be recorded")
    return place


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) else None


# -- source ------------------------------------------------------------------------------------------------------------


def _sources(file: Path) -> dict[str, str]:
    """The sha256 of a module's file and of the files that it imports from its own folder, or, of an installed package,
    from that package; by path from the folder that contains the module."""
    root, module = _root_of(file)
    installed = "site-packages" in root.parts or "dist-packages" in root.parts
    only = module.partition(".")[0] if installed else None
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        source = waiting.pop()
        name = source.relative_to(root).as_posix()
        if name in found:
            continue
        text = source.read_bytes()
        found[name] = hashlib.sha256(text).hexdigest()
        waiting += [
            other
            for imported in _imported_by(text, _root_of(source)[1], is_package=source.name == "__init__.py")
            if only is None or imported.partition(".")[0] == only
            for other in _files_of(imported, root)
        ]
    return dict(sorted(found.items()))


def _imported_by(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """The modules that a source imports, and what may be one: `from a import b` yields `a` and `a.b`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the import reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _files_of(module: str, root: Path) -> Iterator[Path]:
    """The files of a module in a folder, and those of the packages around it."""
    place = root
    for part in module.split("."):
        place /= part
        for file in (place / "__init__.py", place.with_name(place.name + SOURCE)):
            if file.is_file():
                yield file


# -- messages ----------------------------------------------------------------------------------------------------------


def _first_line(call: Callable[..., Any]) -> int:
    try:
        return inspect.getsourcelines(inspect.unwrap(call))[1] or 1
    except (OSError, TypeError):  # an instance, or code without source
        return 1


def _line_in(traceback: TracebackType | None, files: set[Path]) -> str:
    """The innermost line of a traceback that is in one of these files: `my_rewards.py:7`; empty if none is."""
    where = ""
    while traceback is not None:
        file = Path(traceback.tb_frame.f_code.co_filename)
        if file in files:
            where = f"{shown(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where


def error_line(error: BaseException) -> str:
    """The kind and the text of an error, in one line."""
    text = replace_surrogates(" ".join(str(error).split())[:300])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
