"""An experiment of seconds, with a method of every kind."""

from typing import Any

SMALL: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "tasks": [{"name": "toy", "rows": 200, "epochs": 1}],
    "methods": [
        {"name": "surrogate-mask", "mask": "states", "steps": 3, "batch_size": 32},
        "exact-erasure",
        {"name": "integrated-gradients", "site": "hidden", "n_steps": 4},
        "random",
    ],
    "metrics": ["divergence-to-truth", "fidelity"],
}
