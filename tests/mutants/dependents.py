"""Which modules of the package import a module, directly or through others: all of them hold a part of a mutant."""

import ast
from pathlib import Path


def dependents(source: Path, changed: str) -> set[str]:
    """Return the changed module, those that import it anywhere in their code, those that import these, and so on."""
    imports = {_module_name(source, file): _imported(file) for file in source.rglob("*.py")}
    found = {changed}
    while True:
        more = {name for name, imported in imports.items() if name not in found and imported & found}
        if not more:
            return found
        found |= more


def _module_name(source: Path, file: Path) -> str:
    parts = file.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path) -> set[str]:
    """Return the modules that a file names in its imports; `from a import b` may import a module a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
