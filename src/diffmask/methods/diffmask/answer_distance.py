"""Distance of every token to the answer, as an input of the networks of `SurrogateMask`.

Which words an answer needs depends on where the answer is: words near it, and words near its rivals. A task that reads
its answer at some tokens says which (`HasAnswerTokens`). If these are predicted, as the span of a question's answer is,
an early layer may not know them: a linear probe then predicts them from the states of that layer alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from diffmask.core.capabilities import HasAnswerTokens
from diffmask.core.explainer import ForwardTrace, States
from diffmask.core.task import Task

SCALES = (1.5, 5.0, 15.0, 50.0)
"""Tokens over which the weight of an answer's token decays by a factor of e."""
FLOOR = 1e-4
"""Weight added before logarithms."""
ITERATIONS = 25
"""Steps of L-BFGS that fit the probe of one site."""
PENALTY = 1e-3
"""Weight decay of the probes."""


def distance_features(weights: Float[Tensor, "row token"]) -> Float[Tensor, "row token feature"]:
    """Return the log weight of each token, the log of the weights around it at each scale, and the weight before it."""
    position = torch.arange(weights.shape[1], device=weights.device, dtype=weights.dtype)
    distance = (position[:, None] - position).abs()
    around = [weights @ (-distance / scale).exp() for scale in SCALES]
    logs = (torch.stack([weights, *around], dim=-1) + FLOOR).log()
    return torch.cat([logs, weights.cumsum(dim=1)[..., None]], dim=-1)


class AnswerProbe(nn.Module):
    """P(the answer is read at token t) = softmax over tokens of w h_t."""

    weight: Tensor

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(width, dtype=dtype))

    def forward(
        self, state: Float[Tensor, "row token width"], present: Bool[Tensor, "row token"]
    ) -> Float[Tensor, "row token"]:
        """Return the predicted weights of a row's tokens, which sum to 1."""
        return (state @ self.weight).masked_fill(~present, -torch.inf).softmax(dim=1)


class AnswerDistances(nn.Module):
    """Features of the distance to the answer for every site, empty for a task that does not read answers at tokens."""

    def __init__(self, task: Task, probes: dict[str, AnswerProbe | None]) -> None:
        super().__init__()
        self.task = task
        self.sites = tuple(probes)
        self.probes = nn.ModuleList(probe or nn.Identity() for probe in probes.values())
        self.exact = frozenset(site for site, probe in probes.items() if probe is None)
        """Sites whose features are those of the answer itself."""

    def names(self, site: str) -> tuple[str, ...]:
        """Return the names under which the features of a site are found beside the model's states."""
        return (_name(site, site in self.exact),) if site in self.sites else ()

    def states(self, trace: ForwardTrace) -> States:
        """Return the model's states and the features of all sites."""
        return {**trace.states, **{self.names(site)[0]: self._features(trace, site) for site in self._distinct()}}

    def _distinct(self) -> Iterable[str]:
        """Return the sites without repetitions: those that know the answer share their features."""
        return {self.names(site): site for site in self.sites}.values()

    def _features(self, trace: ForwardTrace, site: str) -> Float[Tensor, "row token feature"]:
        state = trace.states[site]
        if site in self.exact:
            return distance_features(answer_tokens(self.task, trace).to(state))
        return distance_features(self.probes[self.sites.index(site)](state, trace.rows.present))


def _name(site: str, exact: bool) -> str:
    return "distance to the answer" + ("" if exact else f" as of {site}")


def answer_tokens(task: Task, trace: ForwardTrace) -> Float[Tensor, "row token"]:
    """Return the weights of the tokens at which the answer of a trace is read."""
    assert isinstance(task, HasAnswerTokens)
    return task.answer_tokens(trace.rows, trace.answer)


def fit_answer_distances(
    task: Task, traces: Sequence[ForwardTrace], sites: Iterable[str], exact: Iterable[str]
) -> AnswerDistances:
    """Fit a probe for every site that has to predict where the answer is; the `exact` sites may read it."""
    if not isinstance(task, HasAnswerTokens):
        return AnswerDistances(task, {})
    known = set(sites) if task.answer_tokens_given else set(exact)
    targets = [answer_tokens(task, trace) for trace in traces]
    return AnswerDistances(task, {site: None if site in known else _fit(traces, targets, site) for site in sites})


def _fit(traces: Sequence[ForwardTrace], targets: Sequence[Tensor], site: str) -> AnswerProbe:
    """Minimise the cross-entropy of the predicted weights, over standardised states."""
    state = traces[0].states[site]
    real = torch.cat([trace.states[site][trace.rows.present] for trace in traces])
    deviation = real.std(dim=0, correction=0).clamp(min=1e-6)
    probe = AnswerProbe(state.shape[-1], real.dtype)
    weight = torch.zeros_like(deviation, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=ITERATIONS, line_search_fn="strong_wolfe")
    rows = sum(len(trace.rows) for trace in traces)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = PENALTY * weight.square().sum()
        for trace, target in zip(traces, targets, strict=True):
            values = (trace.states[site] @ (weight / deviation)).masked_fill(~trace.rows.present, -30.0)
            loss = loss - (target.to(values) * values.log_softmax(dim=1)).sum() / rows
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch has no annotation here
    probe.weight.copy_(weight.detach() / deviation)
    return probe


def with_distances(trace: ForwardTrace, distances: AnswerDistances) -> ForwardTrace:
    """Return the trace with the features beside its states."""
    return replace(trace, states=distances.states(trace))
