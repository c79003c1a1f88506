"""Generated pages of the site: home page from the README, changelog, and API reference from the docstrings."""

import re
from pathlib import Path
from typing import Any

import diffmask

ROOT = Path(__file__).parent.parent
TITLES = {
    "core": "Tasks, batches, explainers",
    "explanation": "Explanations",
    "datasets": "Data sets",
    "tasks": "Tasks",
    "methods": "Methods",
    "metrics": "Metrics",
    "workspace": "Workspaces and saved explainers",
    "experiments": "Experiments",
    "benchmarking": "Benchmark",
    "results": "Results",
    "errors": "Errors and warnings",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {
        "index.md": site_links((ROOT / "README.md").read_text()),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "reference/api.md": api_reference(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def site_links(readme: str) -> str:
    """Rewrite links of the README, which is read from the repository's root, for the site."""
    text = re.sub(r"\]\(docs/", "](", readme).replace("](CHANGELOG.md)", "](changelog.md)")
    # These are not part of the site.
    return re.sub(r"\[([^\]]+)\]\((CONTRIBUTING\.md|LICENSE|examples|notebooks)\)", r"\1", text)


def api_reference() -> str:
    """List every public name by package; mkdocstrings fills in signatures and docstrings."""
    lines = ["# API reference", "", "Every name below is imported as `diffmask.NAME`."]
    for package, title in TITLES.items():
        names = {name: home for name, home in diffmask._HOMES.items() if home.split(".")[0] == package}
        if names:
            lines += ["", f"## {title}"]
        for name, home in names.items():
            lines += ["", f"::: diffmask.{home}.{name}"]
    return "\n".join(lines)
