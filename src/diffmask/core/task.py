"""A `Task`: a frozen model, its data and the named sites at which its states can be read and edited."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.distributions import Distribution

from diffmask.core import hooks
from diffmask.core.batch import Batch
from diffmask.core.config import Config
from diffmask.core.distributions import require_finite
from diffmask.core.hooks import Edit, Site
from diffmask.errors import InputError, SiteError, TaskError, nearest
from diffmask.explanation.text_units import ReadRow


class Splits(dict[str, Batch]):
    """Rows by split; one that is not there is asked for in words."""

    def __missing__(self, split: str) -> Batch:
        has = f"it has {', '.join(self)}" if self else "it has none"
        raise InputError(f"the task has no '{split}' rows, and {has}; give it {split}=...")


class Task(ABC):
    """One model on one data set, every row of which is one decision.

    The model is in eval mode, its parameters ask for no gradient, and nothing here changes it.
    """

    mask_token: int | None = None
    """The token that stands for an erased one, where the vocabulary has one."""
    pad_token: int = 0
    attention_masked: bool = False
    """Whether a token with `present` False is ignored wherever it stands, as by an attention mask."""
    trained_with_masks: bool = False
    """Whether the model met erased input when it was trained, so that erasing is nothing new to it."""

    def __init__(self, model: nn.Module, places: Mapping[str, Site], data: Mapping[str, Batch]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.site_map = dict(places)
        self.data = data

    @property
    def data(self) -> Splits:
        """The rows: to learn from, to choose by and to explain."""
        return self._data

    @data.setter
    def data(self, rows: Mapping[str, Batch]) -> None:
        self._data = Splits(rows)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, from the token embedding to the last state."""
        return tuple(self.site_map)

    @abstractmethod
    def forward(self, batch: Batch) -> Distribution:
        """One pass of the model over the batch; the answer has one entry a row."""

    @abstractmethod
    def score(self, batch: Batch) -> float:
        """The task's own score against the batch's targets: accuracy, F1, AUC."""

    def per_example_score(self, batch: Batch) -> Float[Tensor, " row"] | None:
        """Each row's part in `score`, where that is their mean, as accuracy is; of F1 there are no such parts."""
        return None

    def describe(self, batch: Batch) -> list[list[str]]:
        """Each row's tokens as a person reads them, padding left out."""
        return [
            [str(token) for token in row[real].tolist()] for row, real in zip(batch.tokens, batch.present, strict=True)
        ]

    def read_row(self, split: str, row: int) -> ReadRow:
        """A row's words and where their tokens stand; here every token is a word."""
        words = self.describe(self.data[split][row : row + 1])[0]
        columns = self.data[split].present[row].nonzero().flatten().tolist()
        return ReadRow(tuple(words), ("", *[" "] * (len(words) - 1), ""), tuple((column,) for column in columns))

    def outcomes(self, target: Shaped[Tensor, "row *event"]) -> list[str | None]:
        """Outcomes as a person calls them; None for one that is not known."""
        return [str(value) for value in target.tolist()]

    def subset(self, split: str, rows: Int[Tensor, " row"]) -> "Task":
        """The same task with only some rows of a split, in the order given."""
        found = copy(self)
        found.data = {**self.data, split: self.data[split][rows].trim()}
        return found

    def example(self, batch: Batch) -> int:
        """The row that shows best what the task is about."""
        return 0

    def title(self, batch: Batch) -> str:
        """What the first row of the batch asks, and what the model answers, in words."""
        return ""

    def ground_truth(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The tokens each answer really depends on, where that is known; a row of zeros where nothing is."""
        raise TaskError(f"{type(self).__name__} has no known truth; use a task that plants one, such as 'toy'")

    def smallest_evidence(self, batch: Batch) -> Float[Tensor, "row token"]:
        """The smallest set of tokens that decides each row, where that is known."""
        raise TaskError(
            f"{type(self).__name__} does not know its smallest evidence; use a task that does, such as 'toy'"
        )

    def roar_maskable(self, batch: Batch) -> Bool[Tensor, "row token"]:
        """The tokens that ROAR may mask: of a text and a question, the text's."""
        return batch.maskable

    def attentions(self, batch: Batch) -> Float[Tensor, "row layer head query key"]:
        """The share of attention each query pays each key; a model that pools by attention once has one query."""
        raise TaskError(
            f"{type(self).__name__} gives no attention weights; write its attentions(batch), and load a transformer of "
            'Hugging Face with attn_implementation="eager": the faster kernels never hold the weights'
        )

    def require_labels(self, data: Mapping[str, Batch]) -> None:
        """Models are trained and scored by labels: every row has one."""
        for split, batch in data.items():
            missing = self.outcomes(batch.target).count(None)
            if missing:
                raise InputError(f"{missing} of {len(batch)} rows of '{split}' have no label, which ROAR trains by")

    @property
    def training_choices(self) -> Mapping[str, Any]:
        """What decides how `retrain` trains, as plain values: other choices are other models."""
        return {}

    def retrain(self, data: Mapping[str, Batch], seed: int) -> "Task":
        """The same task with a fresh model trained on other data."""
        raise TaskError(
            f"{type(self).__name__} cannot be trained again, which ROAR asks for; give it a retrain(data, seed)"
        )

    def forward_train(self, batch: Batch) -> Distribution:
        """One pass in whatever mode the model is: what training differentiates."""
        return self.forward(batch)

    def copy(self) -> "Task":
        """The same task with a model of its own, which may be trained; the rows are shared."""
        return deepcopy(self, {id(self.data): Splits(self.data)})

    def predict(self, batch: Batch, edits: Mapping[str, Edit] | None = None) -> Distribution:
        """The model's answer with some sites edited: p(y | x, h_site <- edit(h_site))."""
        self.check(batch)
        with hooks.editing(self.model, {self.site(name): edit for name, edit in (edits or {}).items()}):
            answer = self.forward(batch)
        require_finite(answer, f"predicting {len(batch)} rows with edits at {', '.join(edits or {}) or 'no site'}")
        return answer

    def resume(
        self, batch: Batch, states: Mapping[str, Float[Tensor, "row token width"]], edits: Mapping[str, Edit]
    ) -> Distribution:
        """What `predict` answers, given the clean states: a task that can need not compute what is below the edits."""
        return self.predict(batch, edits)

    @torch.no_grad()
    def trace(self, batch: Batch) -> tuple[Distribution, dict[str, Float[Tensor, "row token width"]]]:
        """The clean answer and the state at every site, in one pass."""
        states: dict[str, Tensor] = {}

        def keep(name: str) -> Edit:
            def edit(state: Tensor) -> Tensor:
                states[name] = state
                return state

            return edit

        answer = self.predict(batch, {name: keep(name) for name in self.sites})
        return answer, {name: states[name] for name in self.sites}

    def explain(self, explainer: Any, inputs: Any) -> Any:
        """What an explainer says of inputs that are not a batch, where a task reads such."""
        raise TaskError(f"{type(self).__name__} reads batches only; found {type(inputs).__name__}")

    def site(self, name: str) -> Site:
        """Where in the model a site is."""
        if name not in self.site_map:
            raise SiteError(f"'{name}' is not a site of {type(self).__name__}; {nearest(name, self.site_map)}")
        return self.site_map[name]

    def check(self, batch: Batch) -> None:
        """Stop before the model sees a batch that it could only crash on."""
        if len(batch) == 0:
            raise InputError("the batch has no rows")
        if not batch.present.any(dim=1).all():
            row = int((~batch.present.any(dim=1)).nonzero()[0])
            raise InputError(f"row {row} has no tokens; drop empty texts or give them at least one token")

    def fingerprint(self) -> str:
        """A name for this very model: its class, its sites and every number in it."""
        digest = hashlib.sha256(repr((type(self.model).__name__, self.site_map)).encode())
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Config, ABC):
    """The choices that make a task; `load` makes it."""

    kind: ClassVar[str] = "task"

    @property
    def panel(self) -> tuple[str, str]:
        """The data set and the model, for figures and tables with a row for the one and a column for the other."""
        return self.label, ""

    @property
    def training_digest(self) -> str:
        """A name for all that a method may learn from."""
        return self.digest

    @abstractmethod
    def build(self, seed: int) -> Task:
        """The task's data and an untrained model."""

    def train(self, task: Task, seed: int) -> None:
        """Train the model in place, where the recipe brings none that is trained."""

    def load(self, seed: int = 0) -> Task:
        """The task, ready to be explained."""
        task = self.build(seed)
        self.train(task, seed)
        return task
