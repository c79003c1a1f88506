"""Training of DiffMask's gates: their schedule, the loop over minibatches, its history and its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from diffmask.core.checkpoints import (
    Checkpoints,
    current_folder,
    optimizer_tensors,
    restore_optimizer,
    under_prefix,
    with_prefix,
)
from diffmask.core.config import digest_of
from diffmask.core.distributions import divergence
from diffmask.core.explainer import ForwardTrace
from diffmask.core.store import Artefact
from diffmask.core.task import Task
from diffmask.core.training import cosine_decay, generator, infinite_minibatches
from diffmask.errors import ConfigError
from diffmask.methods.diffmask.hard_concrete import HardConcrete
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController, critical_multiplier
from diffmask.methods.diffmask.probe import GateProbe

if TYPE_CHECKING:
    from diffmask.methods.diffmask.gated import DiffMask, GatedMaskExplainer

LARGEST_LOGIT = 2.0
"""Log-odds of z > 0 above which the sparsity term keeps its gradient."""
RECORDS = 50
"""Records of the training history, at most, per site."""
CHECKPOINTS = 10
"""Checkpoints of a fit."""


@dataclass(frozen=True, kw_only=True)
class GateSchedule:
    """How gates, probes and multipliers start and change during a fit of `DiffMask`."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    probe_init_scale: float | None = None
    """Standard deviation of a probe's hidden units before their nonlinearity, at the start.

    By default 3 for states of two dimensions, whose units would otherwise be linear, falling to 0.7 for states of
    hundreds of dimensions, where larger values overfit."""
    initial_keep_probability: float = 0.7
    """Probability that a token is kept in the mask of the last site before training."""
    min_keep_probability: float = 0.03
    """Smallest probability with which training samples a token kept, so that a shut gate can open again."""
    temperature: float = 0.33
    """Temperature of the gates. At the published 0.2 most samples are nearly 0 or 1 and pass little gradient; at 1 most
    are half open, which some models cannot read."""
    logit_range: tuple[float, float] = (2.0, 14.0)
    """Bound of a gate's logit at the start and once the margin is at its target.

    The first is raised to twice the initial logit if that is larger."""
    margin_anneal_fraction: float = 0.4
    """Share of the fit after which the margin has shrunk from the first divergence to its target."""
    controller_gains: tuple[float, float] = (0.02, 1.0)
    """Integral and proportional gain of the multiplier's logarithm on the relative violation."""
    initial_multiplier: float = 1.0
    """First multiplier, in units of the one below which masking everything is optimal."""
    multiplier_floor: tuple[float, float] = (0.7, 1.0)
    """Smallest multiplier at the start and once the margin is at its target, in the same units. A higher one stops a
    fit whose margin would allow to mask more."""
    joint_baseline: bool = False
    """Whether a learned baseline is learned together with the gates (De Cao's code), not before them on random masks.
    On transformers the gates then encode the answer in the pattern of the erased tokens, and hard masks fail."""
    site_sampling: Literal["uniform", "adaptive"] = "uniform"
    """Adaptive draws a site with a sparse mask that satisfies the margin a tenth as often (De Cao's code)."""

    def __post_init__(self) -> None:
        if not 0 < self.initial_keep_probability < 1 or not 0 <= self.min_keep_probability < 0.5:
            raise ConfigError("schedule: initial_keep_probability must be in (0, 1), min_keep_probability in [0, 0.5)")
        positive = (self.temperature, *self.logit_range, self.margin_anneal_fraction, self.probe_init_scale or 1.0)
        if not all(value > 0 for value in positive):
            raise ConfigError(
                "schedule: temperature, logit_range, margin_anneal_fraction and probe_init_scale must be above 0"
            )

    def controller(self, margin: float) -> PIController:
        """Return the rule of the multipliers."""
        integral, proportional = self.controller_gains
        return PIController(
            margin,
            integral=integral,
            proportional=proportional,
            memory=0.5,
            max_violation=3.0,
            start=self.initial_multiplier,
            floor=self.multiplier_floor,
            anneal_fraction=self.margin_anneal_fraction,
        )

    def init_scale(self, state_width: int) -> float:
        """Return the deviation of the hidden units of a probe that reads states of this width.

        >>> [round(GateSchedule().init_scale(width), 2) for width in (2, 32, 768)]
        [3.0, 1.5, 0.7]
        """
        if self.probe_init_scale is not None:
            return self.probe_init_scale
        return min(3.0, max(0.7, 3 * (2 / state_width) ** 0.25))


DEFAULT_SCHEDULE = GateSchedule()
"""Schedule that serves the toy task, text classifiers and recommenders alike."""


class GateTrainer:
    """Training loop: Adam on probes and baselines, one multiplier per site."""

    def __init__(self, method: "DiffMask", explainer: "GatedMaskExplainer", task: Task, seed: int) -> None:
        self.method, self.explainer, self.task = method, explainer, task
        self.source = generator(seed, "diffmask")
        learned = [value for value in explainer.parameters() if value.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=method.learning_rate, betas=(0.9, 0.99))
        self.batches = infinite_minibatches(
            task.data["train"], method.batch_size, generator(seed, "diffmask minibatches"), method.length_pool
        )
        controller = method.schedule.controller(method.margin)
        first = task.data["train"][: method.batch_size].trim()
        self.multipliers = {
            site: Multiplier(controller, critical_multiplier(explainer.full_mask_divergence(first, site)))
            for site in explainer.sites
        }
        self.initial_bound = float(cast(GateProbe, explainer.probes[0]).logit_range)
        self.site_weights = dict.fromkeys(explainer.sites, 1.0)
        self.history: list[dict[str, Any]] = []
        self.recent: dict[str, list[tuple[float, float]]] = {}
        folder = current_folder()
        self.checkpoints = None if folder is None else Checkpoints(folder, "fit-checkpoint", self._key(seed), "step")

    def step(self, number: int) -> None:
        """Run one forward pass, one masked pass per drawn site, and one update of all parameters."""
        progress = number / self.method.steps
        self._set_schedule(progress)
        batch = next(self.batches)
        trace = ForwardTrace.of(self.task, batch)
        self.optimizer.zero_grad()
        for site in self._draw_sites():
            votes = self.explainer.all_votes(trace, site)
            masked = self.explainer.predict_masked(trace, site, self._gates(votes).sample(self.source))
            caused = divergence(trace.answer, masked).mean()
            # The sparsity term of a site closes only its own vote, while the divergence may open every vote. Otherwise
            # early votes close for the sake of later sites and violate their own margin.
            earlier = [replace(vote, logits=vote.logits.detach()) for vote in votes[:-1]]
            kept = self._sparsity(self._gates([*earlier, votes[-1]]), batch.maskable)
            weight = self.multipliers[site].update(caused.item(), progress)
            ((kept + weight * caused) / (1 + weight)).backward()
            self._note(site, kept.item(), caused.item())
        self.optimizer.step()
        self._record(number + 1)

    def resume(self) -> int:
        """Load the last checkpoint of this same fit, if there is one, and return the number of steps that it had."""
        checkpoint = None if self.checkpoints is None else self.checkpoints.latest()
        if checkpoint is None:
            return 0
        done, artefact = checkpoint
        self._restore(artefact)
        for _ in range(done):
            next(self.batches)
        return done

    def _gates(self, votes: Sequence[HardConcrete]) -> HardConcrete:
        """Combine the votes of several probes into gates that open with at least the smallest probability."""
        gates = self.explainer.rule.combine(votes)
        smallest = self.method.schedule.min_keep_probability
        return gates.at_least(smallest) if smallest else gates

    def _set_schedule(self, progress: float) -> None:
        """Set the learning rate (linear warm-up, cosine decay) and the bound of the logits."""
        schedule = self.method.schedule
        warm_up = min(1.0, progress * self.method.steps / 30 + 0.03)
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.learning_rate * warm_up * cosine_decay(progress)
        growth = schedule.logit_range[1] / self.initial_bound
        bound = self.initial_bound * growth ** min(1.0, progress / schedule.margin_anneal_fraction)
        for probe in self.explainer.probes.children():
            cast(GateProbe, probe).logit_range.fill_(bound)

    def _sparsity(self, gates: HardConcrete, maskable: Bool[Tensor, "row token"]) -> Float[Tensor, ""]:
        """Return the mean over rows of the mean over a row's maskable tokens of P(z > 0), or of its logarithm.

        A gate that is almost surely open has the gradient of one that is open with probability 0.88. Its own would
        vanish, and a fit that has once opened every gate could not close any.
        """
        logit = gates.open_logit()
        log_open = logsigmoid(logit + (logit.clamp(max=LARGEST_LOGIT) - logit).detach())
        cost = log_open if self.method.sparsity == "log" else log_open.exp()
        return ((cost * maskable).sum(dim=1) / maskable.sum(dim=1).clamp(min=1)).mean()

    def _draw_sites(self) -> list[str]:
        """Draw the sites of this step without replacement.

        The last mask of inputs, which is the explanation's score and to which every probe contributes, is always one.
        """
        sites = self.explainer.sites
        always = sites[-1:] if self.method.mask == "inputs" else ()
        others = sites[: len(sites) - len(always)]
        count = min(self.method.sites_per_step - len(always), len(others))
        if count <= 0:
            return list(always)
        weights = torch.tensor([self.site_weights[site] for site in others])
        drawn = torch.multinomial(weights, count, generator=self.source)
        return [*(others[index] for index in drawn.tolist()), *always]

    def _note(self, site: str, kept: float, caused: float) -> None:
        """Remember one step of a site, and draw it less often once it is solved, if sampling is adaptive."""
        self.recent.setdefault(site, []).append((kept, caused))
        if self.method.schedule.site_sampling == "adaptive":
            done = kept < 0.1 and caused <= self.method.margin
            self.site_weights[site] = 0.9 * self.site_weights[site] + 0.1 * (0.1 if done else 1.0)

    def _record(self, done: int) -> None:
        """Add means of the last steps to the history, and write a checkpoint, whenever either is due."""
        steps = self.method.steps
        if done % max(1, steps // RECORDS) == 0 or done == steps:
            for site in self.explainer.sites:
                recent = self.recent.pop(site, ())
                if recent:
                    kept, caused = (sum(values) / len(recent) for values in zip(*recent, strict=True))
                    weight = self.multipliers[site].value
                    record = {"step": done, "site": site, "kept": kept, "divergence": caused, "multiplier": weight}
                    self.history.append(record)
        if self.checkpoints is not None and (done % max(1, steps // CHECKPOINTS) == 0 or done == steps):
            self._save(self.checkpoints, done)

    def _key(self, seed: int) -> str:
        """Return the digest of what must be equal for two fits to be the same."""
        return digest_of([self.method.digest, self.task.fingerprint(), len(self.task.data["train"]), seed])

    def _save(self, checkpoints: Checkpoints, done: int) -> None:
        tensors = with_prefix("explainer", self.explainer.state_dict())
        tensors |= with_prefix("adam", optimizer_tensors(self.optimizer))
        tensors |= {"random": self.source.get_state(), "dropout": torch.get_rng_state()}
        values = {
            "multipliers": {site: multiplier.state for site, multiplier in self.multipliers.items()},
            "site_weights": self.site_weights,
            "history": self.history,
            "recent": self.recent,
        }
        checkpoints.save(done, tensors, values)

    def _restore(self, artefact: Artefact) -> None:
        self.explainer.load_state_dict(under_prefix("explainer", artefact.tensors))
        restore_optimizer(self.optimizer, under_prefix("adam", artefact.tensors))
        self.source.set_state(artefact.tensors["random"])
        if self.method.uses_dropout:
            torch.set_rng_state(artefact.tensors["dropout"])
        for site, state in artefact.values["multipliers"].items():
            self.multipliers[site].state = state
        self.site_weights = dict(artefact.values["site_weights"])
        self.history = list(artefact.values["history"])
        self.recent = {site: [tuple(pair) for pair in pairs] for site, pairs in artefact.values["recent"].items()}
