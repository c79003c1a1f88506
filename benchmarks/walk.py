"""Modules whose functions run from `DiffMask(...).fit(task)` to `explainer(text).show()`: `python benchmarks/walk.py`.

A small random BERT stands in for the classifier; the path through the package is the same.
"""

import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import diffmask as dm

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.tiny_models import tiny_model, word_pieces

ROWS = [("the film is good", 1), ("a very dull mess , but it was fun !", 2), ("enjoyable", 0)] * 4


def main() -> None:
    warnings.simplefilter("ignore")
    task = dm.TextClassification(tiny_model("bert"), word_pieces(), train=ROWS)
    modules: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("diffmask.") and frame.f_code.co_name != "<module>":
            modules.add(name)

    # Created before the profile begins: importing a module runs its class bodies, which are not part of the walk.
    method = dm.DiffMask(steps=4, batch_size=4)
    sys.setprofile(record)
    method.fit(task)("the film is good").show()
    sys.setprofile(None)
    print(f"\n{len(modules)} modules:", *sorted(modules), sep="\n  ")


if __name__ == "__main__":
    main()
