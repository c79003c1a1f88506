"""Importance measures by the names that Madsen et al. 2022 give them, computed as they do."""

from typing import Any

from diffmask.explainer import Method
from diffmask.recipe import parse

PUBLISHED: dict[str, dict[str, Any]] = {
    "gradient": {"name": "gradient", "one_hot": True, "quantity": "logit"},
    "times-input-gradient": {"name": "input-x-gradient", "quantity": "logit"},
    "integrated-gradient": {
        "name": "integrated-gradient",
        "as_published": True,
        "path": "right",
        "quantity": "logit",
    },
}
SIGNED = ("times-input-gradient", "integrated-gradient")


def measure(name: str, riemann_samples: int = 50, signed: bool = False) -> Method:
    """The method of that name; any other method by its own."""
    chosen = dict(PUBLISHED.get(name, {"name": name}))
    if name == "integrated-gradient":
        chosen["n_steps"] = riemann_samples
    if signed and name in SIGNED:
        chosen["signed"] = True
    found: Method = parse("method", chosen, "roar")
    return found
