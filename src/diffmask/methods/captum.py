"""Methods of Captum behind this package's interface: features are tokens, and only those that may be masked.

Kokhlikyan et al. 2020. Captum's gradient methods are given the states of a site, its perturbation methods a switch for
each maskable token: 1 keeps the token's state, 0 puts the baseline in its place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from diffmask.core.baselines import Baseline, baseline_state
from diffmask.core.distributions import Quantity
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, ExtraError
from diffmask.methods.captum_explainers import GradientExplainer, LayerExplainer, SwitchExplainer


@dataclass(frozen=True, kw_only=True)
class CaptumMethod(Method, ABC):
    """What all of them share."""

    site: str | None = None
    """Where states are changed or differentiated; the token embedding where none is named."""
    quantity: Quantity = "log-odds"
    """What is explained."""
    internal_batch_size: int = 256
    """Rows the model is given at once, where Captum lets it be chosen."""

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if isinstance(value, int) and value < 1 and not isinstance(value, bool):
                raise ConfigError(f"{self.name}: {name} is at least 1; found {value}")

    def build(self, task: Task, seed: int) -> Explainer:
        """Captum must be installed, and the site be there."""
        site = self.site_of(task, self.site)
        return self.explainer(task, site, seed)

    @abstractmethod
    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """The kind of explainer that this method wants."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """What Captum's `attribute` is given besides states and baselines, for texts of so many tokens."""
        return {}

    def algorithm(self) -> Any:
        """Captum's own class of that name."""
        try:
            module = import_module("captum.attr")
        except ImportError as error:
            raise ExtraError(f"{self.name} needs Captum: pip install 'diffmask[captum]'") from error
        return getattr(module, self.name.removeprefix("captum:"))


@dataclass(frozen=True, kw_only=True)
class GradientMethod(CaptumMethod, ABC):
    """Methods that differentiate at the text; scores are summed over the width."""

    random: ClassVar[bool] = False
    """Whether it draws numbers: texts then go one by one, each from the same seed."""

    signed: bool = False
    """Whether tokens that speak against the outcome score below zero, or by their size."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Batched, unless it draws numbers."""
        return GradientExplainer(self, task, site, None, seed)


@dataclass(frozen=True, kw_only=True)
class PathMethod(GradientMethod, ABC):
    """Methods that differentiate between a baseline and the text."""

    baseline: Baseline = "zero"
    """The state of a token that is not there."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Batched, unless it draws numbers."""
        return GradientExplainer(self, task, site, baseline_state(task, site, self.baseline), seed)


@dataclass(frozen=True, kw_only=True)
class SwitchMethod(CaptumMethod, ABC):
    """Methods that switch tokens off; texts go one by one, their perturbations together."""

    baseline: Baseline = "auto"
    """The state of a token that is switched off."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """One text at a time, each from the same seed."""
        return SwitchExplainer(self, task, site, baseline_state(task, site, self.baseline), seed)


@dataclass(frozen=True, kw_only=True)
class Saliency(GradientMethod):
    """sum over the width of |d f / d h_t|."""

    name: ClassVar[str] = "captum:Saliency"


@dataclass(frozen=True, kw_only=True)
class InputXGradient(GradientMethod):
    """h_t . d f / d h_t."""

    name: ClassVar[str] = "captum:InputXGradient"


@dataclass(frozen=True, kw_only=True)
class IntegratedGradients(PathMethod):
    """Sundararajan et al. 2017, by Gauss-Legendre quadrature."""

    name: ClassVar[str] = "captum:IntegratedGradients"
    n_steps: int = 50

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Points of the path."""
        return {"n_steps": self.n_steps, "internal_batch_size": self.internal_batch_size}


@dataclass(frozen=True, kw_only=True)
class LayerIntegratedGradients(CaptumMethod):
    """The same from the site's states in a text of mask tokens (or padding) to its states in the text."""

    name: ClassVar[str] = "captum:LayerIntegratedGradients"
    n_steps: int = 50
    signed: bool = False
    """Whether tokens that speak against the outcome score below zero, or by their size."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """The baseline is a text, not a state."""
        return LayerExplainer(self, task, site)

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Points of the path."""
        return {"n_steps": self.n_steps, "internal_batch_size": self.internal_batch_size}


@dataclass(frozen=True, kw_only=True)
class DeepLift(PathMethod):
    """Shrikumar et al. 2017; sees through activations that are modules, and through each only once."""

    name: ClassVar[str] = "captum:DeepLift"


@dataclass(frozen=True, kw_only=True)
class GradientShap(PathMethod):
    """Lundberg and Lee 2017: the mean gradient at random places between baseline and text."""

    name: ClassVar[str] = "captum:GradientShap"
    random: ClassVar[bool] = True
    n_samples: int = 25

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Random places."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class FeatureAblation(SwitchMethod):
    """f(x) - f(x without token t)."""

    name: ClassVar[str] = "captum:FeatureAblation"


@dataclass(frozen=True, kw_only=True)
class Occlusion(SwitchMethod):
    """Zeiler and Fergus 2014: the mean drop over the windows of tokens that hold t."""

    name: ClassVar[str] = "captum:Occlusion"
    window: int = 2
    """Tokens switched off together."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """A window no longer than the text."""
        return {"sliding_window_shapes": (min(self.window, tokens),)}


@dataclass(frozen=True, kw_only=True)
class ShapleyValueSampling(SwitchMethod):
    """Castro et al. 2009: a token's mean contribution as tokens are switched on in random orders."""

    name: ClassVar[str] = "captum:ShapleyValueSampling"
    n_samples: int = 25
    """Orders."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Random orders."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class Lime(SwitchMethod):
    """Ribeiro et al. 2016: the weights of a sparse linear model of f near the text."""

    name: ClassVar[str] = "captum:Lime"
    n_samples: int = 100
    """Perturbed texts."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Random texts."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class KernelShap(SwitchMethod):
    """Lundberg and Lee 2017: Shapley values by weighted least squares."""

    name: ClassVar[str] = "captum:KernelShap"
    n_samples: int = 100
    """Perturbed texts."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Random texts."""
        return {"n_samples": self.n_samples}
