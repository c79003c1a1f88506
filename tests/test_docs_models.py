"""The page of models says what is found today."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_of_models_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate_models.py"))["page"]()
    assert made == (ROOT / "docs" / "models.md").read_text(), "run python docs/generate_models.py"
