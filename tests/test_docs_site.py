"""The documentation site builds without a warning, and its API reference holds every public name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import diffmask

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    build = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def test_the_home_page_is_the_readme(site: Path) -> None:
    assert "What does a trained model need" in (site / "index.html").read_text()


def test_the_api_reference_documents_every_public_name(site: Path) -> None:
    page = (site / "reference/api/index.html").read_text()
    missing = [name for name, home in diffmask._HOMES.items() if f'id="diffmask.{home}.{name}"' not in page]
    assert not missing
