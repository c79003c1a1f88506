"""How much a fit may cost: texts, seconds, or minutes."""

import math
import re
from dataclasses import dataclass

from diffmask.errors import RecipeError

UNITS = {"s": 1, "sec": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A number of texts or of seconds, whichever is spent first."""

    texts: float = math.inf
    seconds: float = math.inf

    def share(self, texts: int, seconds: float) -> float:
        """How much of it is spent, 1 being all."""
        return max(texts / self.texts, seconds / self.seconds)


def parse_budget(text: str) -> Budget:
    """A budget as people write it. Only one in texts gives the same explainer twice.

    >>> parse_budget("5min"), parse_budget("3000 texts")
    (Budget(texts=inf, seconds=300.0), Budget(texts=3000.0, seconds=inf))
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    amount, unit = (float(found[1]), found[2]) if found else (0.0, "")
    if amount > 0 and unit in ("", "text", "texts"):
        return Budget(texts=amount)
    if amount > 0 and unit in UNITS:
        return Budget(seconds=amount * UNITS[unit])
    raise RecipeError(f"'{text}' is no budget; write '5min', '90s' or '3000 texts'")
