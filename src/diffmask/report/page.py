"""What every page is made with."""

import base64
import hashlib
from importlib.resources import files
from typing import Any


def environment() -> Any:
    """Jinja templates that escape everything and miss nothing silently."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("diffmask.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(name: str) -> str:
    """A stylesheet or a script of ours."""
    return files("diffmask.report").joinpath("templates", name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The name by which a content security policy allows an inline element, and only this one.

    >>> digest("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
