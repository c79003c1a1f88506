"""DiffMask: which tokens, and which hidden states, can be erased without changing the answer. De Cao et al. 2020."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from diffmask.core.baselines import SiteStatistics, mask_state
from diffmask.core.explainer import Method
from diffmask.core.task import Task
from diffmask.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class DiffMask(Method):
    """Fewest tokens kept subject to KL(original || masked) <= margin, amortised over a data set."""

    name: ClassVar[str] = "diffmask"

    mask: Literal["inputs", "states"] = "inputs"
    """Erase input tokens, seen from every layer (what one layer drops is dropped for good), or each layer's states."""
    margin: float = 0.1
    """Largest divergence from the original answer that masking may cause, in nats."""
    by: Literal["copies", "gates"] = "copies"
    """How masks are learned: from the model's answers to masked copies of texts, or by gradients through gates.

    Gates are what was published. On transformers copies find smaller masks that hold better, in less time."""
    margins: tuple[float, ...] = ()
    """Several margins at once: nested masks, and so a ranking, in place of one margin seen from every site."""
    breaks: float = 0.0
    """With several margins, weight of a second term: the answer must break when what is kept is removed (AML, 2024)."""
    sites: tuple[str, ...] = ()
    """The sites to probe, in order; all of the task's where none is named."""
    reads: Literal["auto", "state", "both", "all"] = "auto"
    """What a site's network reads: its own state alone, both the first and its own, or all that is known in the end.

    By default both for inputs, as a site is to tell what it knows, and for copies of states all, as what is needed
    there shows in the end. Copies read the state before their own, too (a model's last states may tell little of their
    tokens), and with all the last two, and so the answer."""
    probe_width: int | None = None
    """Units of its hidden layer; 64, and for gates a quarter of the state's width, where none is given."""
    baseline: Literal["auto", "mean", "mask", "zero", "random"] = "auto"
    """What an erased state is replaced by, or starts from where it is learned.

    By default the mask token's for inputs, where the vocabulary has one, and the mean state otherwise."""
    learn_baseline: bool = False
    """Whether the baseline is learned, from `baseline` on, as in the paper.

    Copies: first, as what disturbs the answer least in place of tokens drawn at random. Gates: during the fit, where it
    may learn to imitate what it replaces."""
    learning_rate: float | None = None
    """Of what a fit learns; 0.003, and for gates and several margins 0.001, where none is given."""
    steps: int = 128
    """Batches of training texts that the fit learns from; gates want some hundreds."""
    batch_size: int = 32
    length_pool: int = 8
    """Minibatches' worth of rows that are sorted by length before they are cut, to compute little padding; 1: none."""
    sites_per_step: int = 2
    """How many sites, drawn at random, one clean pass serves; when copies of inputs are asked about, all."""
    settle_rows: int = 256
    """Rows on which, after a fit, hard masks are made to hold the margin: every other validation row, so many at most.

    Training rows, for gates; 0: left as learned. A model is surer of the rows it was trained on."""
    first_share: float = 0.15
    """Share of the margin that hard masks may use at the first site; each site has a multiple of the one before.

    For inputs only: what an early site erases is erased for all that follow, though they know better."""
    statistics_rows: int = 768
    """Training rows that the sites' means and deviations, and what they tell of the answer, are taken from."""

    pairs: int = 1
    """Copies: masks drawn a text, each asked with its complement. More texts teach more than more copies of each."""
    own: int = 2
    """Copies: masks a text that erase what is needed least by what has been learned so far."""
    updates: int = 4
    """Copies: steps of the optimiser for each batch of texts."""
    replay: int = 60_000
    """Copies: tokens whose states are kept to be learned from again, in half precision; the oldest go first."""
    held_out: int = 64
    """Copies: texts on which the error is followed during a fit, from the validation rows."""

    sparsity: Literal["l0", "log"] = "l0"
    """Gates, as all that follows: what is made small.

    The expected number of open gates (paper), or its mean logarithm (original code)."""
    steepness: float = 0.7
    """Deviation of what a probe's hidden units see, before they bend it, at the start of a fit.

    In a few dimensions, as on the toy task, they must bend within the cloud of states to tell its parts apart (3); in
    hundreds a random direction tells them apart already, and steep units learn the training rows by heart."""
    temperature: tuple[float, float] = (1.0, 0.5)
    """Temperature of the gates at the start of a fit and at its end.

    At 1 a half-open gate is uniform on (0, 1), and its gradient that of a path from erased to kept, as of integrated
    gradients; at 0.2, as published, draws are all but 0 or 1 and few pass a gradient that says much."""
    anneal: float = 0.5
    """Share of the fit after which the temperature is at its end."""
    explore: float = 0.03
    """Least probability with which a fit draws a token kept, and erased, whatever it has learned; 0: none."""
    start: float = 0.5
    """Probability that a token is kept, seen from the last site, before anything is learned."""
    reach: tuple[float, float] = (4.0, 7.0)
    """How far a probe can move a gate's logit, at the start and from the settling of the margin on.

    The first is at least twice the logit that a fit starts from."""
    settle: float = 0.3
    """Share of the fit after which the margin is the one asked for; until then it shrinks from the first divergence."""
    gains: tuple[float, float] = (0.15, 2.0)
    """Of the multiplier's logarithm on the relative violation: integral and proportional."""
    floor: tuple[float, float] = (0.1, 0.1)
    """Smallest multiplier, at the start and from the settling on, in units of the one below which all is masked."""
    first_multiplier: float = 3.0
    """In the same units."""
    site_sampling: Literal["uniform", "adaptive"] = "uniform"
    """Adaptive draws a site with a sparse mask that holds the margin a tenth as often."""

    def __post_init__(self) -> None:
        if min((self.margin, *self.margins, self.own)) < 0 or min(self._counts()) < 1:
            raise ConfigError("diffmask: margin and own must not be negative; steps, sizes and counts are at least 1")
        if self.by == "gates" and self.reading == "all":
            raise ConfigError("diffmask: reads='all' asks for by='copies'; gates read 'state' or 'both'")
        if self.by == "copies" and not self.margins and self.settle_rows < 1:
            raise ConfigError("diffmask: settle_rows=0 asks for by='gates'; copies without thresholds mask nothing")

    def _counts(self) -> tuple[int, ...]:
        copies = (self.pairs, self.updates, self.replay, self.held_out)
        return (self.steps, self.batch_size, self.sites_per_step, self.statistics_rows, *copies)

    @property
    def reading(self) -> Literal["state", "both", "all"]:
        """What a site's network does read."""
        if self.reads != "auto":
            return self.reads
        return "both" if self.mask == "inputs" else "state" if self.by == "gates" else "all"

    def reads_at(self, sites: tuple[str, ...], site: str) -> tuple[str, ...]:
        """Of a task's sites, those that copies read at one of them.

        >>> DiffMask().reads_at(("embedding", "1", "2", "3", "4"), "2")
        ('embedding', '1', '2')
        >>> DiffMask(mask="states").reads_at(("embedding", "1", "2", "3", "4"), "1")
        ('embedding', '1', '3', '4')
        """
        place = sites.index(site)
        before = () if self.reading == "state" else (sites[0], sites[max(place - 1, 0)])
        after = sites[-2:] if self.reading == "all" else ()
        return tuple(dict.fromkeys((*before, site, *after)))

    @property
    def rate(self) -> float:
        """The learning rate in use."""
        return self.learning_rate or (3e-3 if self.by == "copies" and not self.margins else 1e-3)

    def build(self, task: Task, seed: int) -> Any:
        """Everything kept, or every gate half open: nothing is known yet."""
        for site in self.sites:
            task.site(site)
        return self._variant()[0](self, task, seed)

    def train(self, explainer: Any, task: Task, seed: int) -> None:
        """Learn the votes, then make hard masks hold the margin."""
        self._variant()[1](self, explainer, task, seed)

    def _variant(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """How to build and how to train."""
        if self.margins:
            from diffmask.methods.diffmask.nested_fit import build_margins, train_margins

            return build_margins, train_margins
        if self.by == "gates":
            from diffmask.methods.diffmask.gated_fit import build_gates, train_gates

            return build_gates, train_gates
        from diffmask.methods.diffmask.surrogate_fit import build_copies, train_copies

        return build_copies, train_copies

    def site_margins(self, sites: tuple[str, ...]) -> dict[str, float]:
        """What each site's hard masks may use of the margin."""
        first = self.first_share if self.mask == "inputs" else 1.0
        height = torch.linspace(1, 0, len(sites)).tolist() if len(sites) > 1 else [0.0]
        return {site: self.margin * first**part for site, part in zip(sites, height, strict=True)}

    def start_baselines(
        self, task: Task, sites: tuple[str, ...], known: Mapping[str, SiteStatistics]
    ) -> dict[str, nn.Parameter]:
        """What a fit starts from at each place that is masked."""
        places = sites if self.mask == "states" else task.sites[:1]
        return {place: self._start_baseline(task, place, known[place]) for place in places}

    def _start_baseline(self, task: Task, site: str, known: SiteStatistics) -> nn.Parameter:
        """The baseline vector a fit starts from."""
        chosen = self.baseline
        if chosen == "auto":
            chosen = "mask" if self.mask == "inputs" and task.mask_token is not None else "mean"
        start = {
            "mean": lambda: known.mean.clone(),
            "mask": lambda: mask_state(task, site),
            "zero": lambda: torch.zeros_like(known.mean),
            "random": lambda: torch.randn_like(known.mean),
        }
        return nn.Parameter(start[chosen](), requires_grad=self.learn_baseline)
