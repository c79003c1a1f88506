"""Captum's attribution methods as configs of this package. Kokhlikyan et al. 2020.

Gradient methods attribute to the states of a site. Perturbation methods attribute to one switch per maskable token: 1
keeps the token's state, 0 replaces it by the baseline. Classes are registered as `captum:<name in captum.attr>`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from diffmask.core.baseline_states import Baseline, baseline_state
from diffmask.core.distributions import Quantity
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError, ExtraError
from diffmask.methods.captum_explainers import (
    CaptumGradientExplainer,
    CaptumLayerExplainer,
    CaptumPerturbationExplainer,
)


@dataclass(frozen=True, kw_only=True)
class CaptumMethod(Method, ABC):
    """Config shared by all Captum methods."""

    site: str | None = None
    """Site whose states are perturbed or differentiated. Default: the token embedding."""
    quantity: Quantity = "log-odds"
    """Quantity of the target outcome that is explained."""
    internal_batch_size: int = 256
    """Rows per forward pass, if the Captum method has this option."""

    def __post_init__(self) -> None:
        for name, value in self.to_dict().items():
            if isinstance(value, int) and value < 1 and not isinstance(value, bool):
                raise ConfigError(f"{self.name}: {name} must be at least 1; got {value}")

    def build(self, task: Task, seed: int) -> Explainer:
        """Check the site and that Captum is installed."""
        site = self.site_of(task, self.site)
        return self.explainer(task, site, seed)

    @abstractmethod
    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Return the explainer of this kind of method."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return further arguments of Captum's `attribute`, for texts of `tokens` tokens."""
        return {}

    def algorithm(self) -> Any:
        """Return Captum's class of this name."""
        try:
            module = import_module("captum.attr")
        except ImportError as error:
            raise ExtraError(f"{self.name} needs Captum: pip install 'diffmask[captum]'") from error
        return getattr(module, self.name.removeprefix("captum:"))


@dataclass(frozen=True, kw_only=True)
class CaptumGradientMethod(CaptumMethod, ABC):
    """Methods that differentiate at the text; scores are summed over the width."""

    is_stochastic: ClassVar[bool] = False
    """Whether the method draws random numbers; rows are then explained one by one, each from the same seed."""

    signed: bool = False
    """Whether scores keep their sign; without it they are absolute values."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Return an explainer without a baseline."""
        return CaptumGradientExplainer(self, task, site, None, seed)


@dataclass(frozen=True, kw_only=True)
class CaptumPathMethod(CaptumGradientMethod, ABC):
    """Methods that differentiate between a baseline and the text."""

    baseline: Baseline = "zero"
    """State of an absent token."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Return an explainer with a baseline."""
        return CaptumGradientExplainer(self, task, site, baseline_state(task, site, self.baseline), seed)


@dataclass(frozen=True, kw_only=True)
class CaptumPerturbationMethod(CaptumMethod, ABC):
    """Methods that erase tokens; rows are explained one by one, with all perturbations of a row in a batch."""

    baseline: Baseline = "auto"
    """State of an erased token."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Return an explainer that starts every row from the same seed."""
        return CaptumPerturbationExplainer(self, task, site, baseline_state(task, site, self.baseline), seed)


@dataclass(frozen=True, kw_only=True)
class CaptumSaliency(CaptumGradientMethod):
    """score_t = sum over the width of |d f / d h_t|. Simonyan et al. 2014."""

    name: ClassVar[str] = "captum:Saliency"


@dataclass(frozen=True, kw_only=True)
class CaptumInputXGradient(CaptumGradientMethod):
    """score_t = h_t . d f / d h_t. Shrikumar et al. 2017."""

    name: ClassVar[str] = "captum:InputXGradient"


@dataclass(frozen=True, kw_only=True)
class CaptumIntegratedGradients(CaptumPathMethod):
    """score_t = (h_t - b) . mean of grad f on the line from b to h, by Gauss-Legendre. Sundararajan et al. 2017."""

    name: ClassVar[str] = "captum:IntegratedGradients"
    n_steps: int = 50
    """Points on the path."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of points and the batch size."""
        return {"n_steps": self.n_steps, "internal_batch_size": self.internal_batch_size}


@dataclass(frozen=True, kw_only=True)
class CaptumLayerIntegratedGradients(CaptumMethod):
    """Integrated gradients from the site's states in a text of mask tokens (or padding) to its states in the text."""

    name: ClassVar[str] = "captum:LayerIntegratedGradients"
    n_steps: int = 50
    """Points on the path."""
    signed: bool = False
    """Whether scores keep their sign; without it they are absolute values."""

    def explainer(self, task: Task, site: str, seed: int) -> Explainer:
        """Return an explainer whose baseline is a text, not a state."""
        return CaptumLayerExplainer(self, task, site)

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of points and the batch size."""
        return {"n_steps": self.n_steps, "internal_batch_size": self.internal_batch_size}


@dataclass(frozen=True, kw_only=True)
class CaptumDeepLift(CaptumPathMethod):
    """Rescale rule of Shrikumar et al. 2017; it handles only activations that are modules, each used once."""

    name: ClassVar[str] = "captum:DeepLift"


@dataclass(frozen=True, kw_only=True)
class CaptumGradientShap(CaptumPathMethod):
    """Mean gradient at random points between baseline and text, times their difference. Lundberg and Lee 2017."""

    name: ClassVar[str] = "captum:GradientShap"
    is_stochastic: ClassVar[bool] = True
    n_samples: int = 25
    """Random points."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of random points."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class CaptumFeatureAblation(CaptumPerturbationMethod):
    """score_t = f(x) - f(x without token t)."""

    name: ClassVar[str] = "captum:FeatureAblation"


@dataclass(frozen=True, kw_only=True)
class CaptumOcclusion(CaptumPerturbationMethod):
    """Mean drop over the windows of tokens that contain token t. Zeiler and Fergus 2014."""

    name: ClassVar[str] = "captum:Occlusion"
    window: int = 2
    """Tokens erased together."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return a window no longer than the text."""
        return {"sliding_window_shapes": (min(self.window, tokens),)}


@dataclass(frozen=True, kw_only=True)
class CaptumShapleyValueSampling(CaptumPerturbationMethod):
    """Mean contribution of a token as tokens are added in random orders. Castro et al. 2009."""

    name: ClassVar[str] = "captum:ShapleyValueSampling"
    n_samples: int = 25
    """Random orders."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of random orders."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class CaptumLime(CaptumPerturbationMethod):
    """Weights of a sparse linear model of f near the text. Ribeiro et al. 2016."""

    name: ClassVar[str] = "captum:Lime"
    n_samples: int = 100
    """Perturbed texts."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of perturbed texts."""
        return {"n_samples": self.n_samples}


@dataclass(frozen=True, kw_only=True)
class CaptumKernelShap(CaptumPerturbationMethod):
    """Shapley values by weighted least squares. Lundberg and Lee 2017."""

    name: ClassVar[str] = "captum:KernelShap"
    n_samples: int = 100
    """Perturbed texts."""

    def options(self, tokens: int) -> Mapping[str, Any]:
        """Return the number of perturbed texts."""
        return {"n_samples": self.n_samples}
