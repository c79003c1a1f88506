"""Any function of a model and a batch as a method, so that other libraries can compete."""

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from diffmask import registry
from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, InputError

Score = Callable[[nn.Module, Batch], Any]
"""Takes the model and a batch, gives a number for each token of each row; `batch.target` is what to explain."""


@dataclass(frozen=True, kw_only=True)
class FunctionMethod(Method):
    """score = f(model, batch). Subclasses are made by `method`, one a function."""

    function: ClassVar[Score]
    written: ClassVar[str]

    code: str = ""
    """Digest of the function's source, filled in: scores of an earlier version are not taken for this one's."""

    def __post_init__(self) -> None:
        if self.code not in ("", self.written):
            raise ConfigError(f"'{self.name}' was written by code {self.code}, and is now {self.written}; fit it again")
        object.__setattr__(self, "code", self.written)

    def build(self, task: Task, seed: int) -> "OwnExplainer":
        """Nothing to allocate."""
        return OwnExplainer(self, task)


class OwnExplainer(Explainer):
    """Calls the function, with the model as it is and `batch.target` the outcome asked for."""

    def __init__(self, method: FunctionMethod, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """What the function gives is checked: a finite number for each token."""
        given = type(self.method).function(self.task.model, replace(batch, target=target))
        scores = torch.as_tensor(given).detach().to(batch.tokens.device)
        if scores.shape != batch.tokens.shape:
            raise InputError(
                f"{self.method.name} gave scores of shape {tuple(scores.shape)} for tokens of shape "
                f"{tuple(batch.tokens.shape)}; give one number for each token of each row"
            )
        return Attribution(scores if scores.is_floating_point() else scores.float())


def method(function: Score, *, name: str | None = None) -> FunctionMethod:
    """A method that scores by `function(model, batch)`; from now on experiments know it by its name.

    >>> def length(model, batch):
    ...     return batch.tokens.float()
    >>> method(length).name
    'length'
    """
    chosen = name if name is not None else str(getattr(function, "__name__", "")).replace("_", "-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:_-]*", chosen, flags=re.IGNORECASE):
        raise ConfigError(f"'{chosen}' cannot name a method; pass name='...' of letters, digits and -_.:")
    parts = {
        "name": chosen,
        "function": staticmethod(function),
        "written": _digest(function),
        "__doc__": FunctionMethod.__doc__,
    }
    made: type[FunctionMethod] = dataclass(frozen=True, kw_only=True)(
        type("FunctionMethod", (FunctionMethod,), {**parts, "__module__": __name__})
    )
    summary = (inspect.getdoc(function) or "a function of the model and a batch").splitlines()[0]
    registry.register("method", chosen, made, summary)
    return made()


def _digest(function: Score) -> str:
    """Of the source, or of the bytecode where there is none to read."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(getattr(getattr(function, "__code__", None), "co_code", type(function).__qualname__))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
