"""Custom methods: any function of a model and a batch becomes a method, so that other libraries can be compared."""

import hashlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from diffmask import registry
from diffmask.core.batch import Attribution, Batch
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, DiffMaskError, InputError, MethodError, NumericsError

ScoreFunction = Callable[[nn.Module, Batch], Any]
"""Function of the model and a batch that returns one number per token and row; `batch.target` is the outcome."""


@dataclass(frozen=True, kw_only=True)
class FunctionMethod(Method):
    """score = function(model, batch). Subclasses are made by `from_function`, one per function."""

    function: ClassVar[ScoreFunction]
    source_digest: ClassVar[str]

    code: str = ""
    """Digest of the function's source, filled in automatically: cached scores of an earlier version are not reused."""

    def __post_init__(self) -> None:
        if self.code not in ("", self.source_digest):
            raise ConfigError(
                f"'{self.name}' was saved with code {self.code}, and the code is now {self.source_digest}; fit it again"
            )
        object.__setattr__(self, "code", self.source_digest)

    def build(self, task: Task, seed: int) -> "FunctionExplainer":
        """Return an explainer that calls the function."""
        return FunctionExplainer(self, task)


class FunctionExplainer(Explainer):
    """Explainer that calls the function with the model and a batch whose `target` is the explained outcome."""

    def __init__(self, method: FunctionMethod, task: Task) -> None:
        super().__init__(task)
        self.method = method

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Call the function and check its scores: one finite number per token."""
        return Attribution(self._check(batch, self._call(replace(batch, target=target))))

    def _call(self, batch: Batch) -> Shaped[Tensor, "..."]:
        try:
            return torch.as_tensor(type(self.method).function(self.task.model, batch)).detach().to(batch.tokens.device)
        except (DiffMaskError, MemoryError, torch.OutOfMemoryError):
            raise  # an error that already has a remedy, or one that a smaller batch may cure
        except Exception as error:
            # The function is the user's, so any exception may come out of it.
            raise MethodError(
                f"the function of method '{self.method.name}' raised {type(error).__name__}: {error}; "
                "it is called as function(model, batch) and returns one number per token"
            ) from error

    def _check(self, batch: Batch, scores: Shaped[Tensor, "..."]) -> Float[Tensor, "row token"]:
        if scores.shape != batch.tokens.shape:
            raise InputError(
                f"{self.method.name} returned scores of shape {tuple(scores.shape)} for tokens of shape "
                f"{tuple(batch.tokens.shape)}; return one number per token and row"
            )
        scores = scores if scores.is_floating_point() else scores.float()
        bad = ~scores.isfinite() & batch.maskable
        if bad.any():
            row, token = bad.nonzero()[0].tolist()
            raise NumericsError(
                f"{self.method.name} returned scores that are not finite: {scores[row, token]} at token {token} of "
                f"row {row}, and {int(bad.sum())} in total; return finite numbers at maskable tokens"
            )
        return scores.masked_fill(~batch.maskable, 0.0)


def from_function(function: ScoreFunction, *, name: str | None = None) -> FunctionMethod:
    """Make a method that scores by `function(model, batch)`, and register it so that experiments find it by name.

    >>> def length(model, batch):
    ...     return batch.tokens.float()
    >>> from_function(length).name
    'length'
    """
    method_name = name if name is not None else str(getattr(function, "__name__", "")).replace("_", "-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:_-]*", method_name, flags=re.IGNORECASE):
        raise ConfigError(f"'{method_name}' cannot name a method; pass name='...' of letters, digits and -_.:")
    attributes = {
        "name": method_name,
        "function": staticmethod(function),
        "source_digest": _source_digest(function),
        "__doc__": FunctionMethod.__doc__,
        "__module__": __name__,
    }
    method_class: type[FunctionMethod] = dataclass(frozen=True, kw_only=True)(
        type("FunctionMethod", (FunctionMethod,), attributes)
    )
    summary = (inspect.getdoc(function) or "a function of the model and a batch").splitlines()[0]
    registry.register("method", method_name, method_class, summary)
    return method_class()


def _source_digest(function: ScoreFunction) -> str:
    """Return a digest of the source, or of the bytecode if the source is not available."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(getattr(getattr(function, "__code__", None), "co_code", type(function).__qualname__))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
