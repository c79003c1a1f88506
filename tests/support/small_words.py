"""The additive task with enough rows to learn from: what each token adds is known."""

import torch

from diffmask.core.training import generator
from support.linear import LinearTask, batch_of


class WordsTask(LinearTask):
    """Random rows of one to eight of the tokens 1, 2 and 3; token 4 is the mask."""

    def __init__(self, rows: int = 1600, model: torch.nn.Module | None = None) -> None:
        source = generator(0, "words")
        lengths = torch.randint(1, 9, (rows,), generator=source).tolist()
        texts = [torch.randint(1, 4, (length,), generator=source).tolist() for length in lengths]
        super().__init__(texts, model)
        parts = {"train": texts[: rows // 2], "valid": texts[rows // 2 : 3 * rows // 4], "test": texts[3 * rows // 4 :]}
        self.data = {name: batch_of(part) for name, part in parts.items()}
