"""Imports point one way, and what should be light is light."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import diffmask

SOURCE = Path(diffmask.__file__).parent
ORDER = (
    "errors", "imports", "registry", "results", "report", "explanation", "core", "datasets", "tasks", "methods",
    "workspace", "metrics", "experiments", "benchmarking", "cli",
)  # fmt: skip


# A board shows itself, and its views are the report's.
VIEWS = {"results": {"report"}}


def imports(file: Path) -> set[str]:
    """The parts of this package that a file imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("diffmask."):
            found.add((node.module or "").split(".")[1])
    return found


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if part_of(file) not in ("__init__", "__main__")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_what_stands_before_it(file: Path) -> None:
    here = part_of(file)
    assert here in ORDER, f"give '{here}' a place in ORDER"
    later = {name for name in imports(file) if ORDER.index(name) > ORDER.index(here)} - VIEWS.get(here, set())
    assert not later, f"{here} imports {later}, which stand after it"


def test_no_two_modules_have_the_same_name() -> None:
    names = Counter(file.stem for file in FILES if file.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


HEAVY = {"torch", "numpy", "pydantic", "jinja2", "matplotlib", "transformers", "pandas"}


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import diffmask") & HEAVY


def test_the_command_line_and_its_listing_load_nothing_heavy() -> None:
    code = "from diffmask.cli import app; from diffmask.registry import entries; entries('method')"
    assert not loaded_by(code) & HEAVY


def test_the_report_does_not_load_torch() -> None:
    assert "torch" not in loaded_by(
        "import diffmask.report.page, diffmask.results.comparison, diffmask.results.verdict"
    )


def test_a_board_loads_nothing_heavy_until_it_is_shown() -> None:
    assert (
        not loaded_by("import diffmask.results.benchmark_result, diffmask.report.page, diffmask.report.result_tables")
        & HEAVY
    )


def test_every_public_name_is_there() -> None:
    for name in diffmask.__all__:
        assert getattr(diffmask, name) is not None


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DifMask'"):
        diffmask.DifMask  # noqa: B018
