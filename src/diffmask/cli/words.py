"""What the commands about models of words ask for: the data set, its files, choices of the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffmask.bench import Bench

DataSet = Annotated[
    str, typer.Option("--task", help="babi-1, babi-2, babi-3, sst, snli, imdb, mimic-diabetes or mimic-anemia.")
]
Files = Annotated[
    str | None, typer.Option("--data", help="Folder of its files, or hub:OWNER/NAME; bABI is generated without.")
]
RiemannSamples = Annotated[int, typer.Option(help="Points on the path of integrated gradients.")]
Choices = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of the BiLSTM, such as rows=1000, epochs=3.")
]


def bench_of(data_set: str, files: str | None, choices: list[str] | None, seed: int, out: Path) -> "Bench":
    """The BiLSTM of a data set, with a store in `out`."""
    from diffmask.bench import Bench
    from diffmask.recipe import choices_of
    from diffmask.store import Store
    from diffmask.tasks.word_recipes import BiLSTM

    recipe: BiLSTM = BiLSTM.from_dict({"data": data_set, "folder": files, **choices_of(choices or [])}, "BiLSTM")
    return Bench(Store(out / "store"), recipe, seed)
