"""How Captum is called: on the states of a site, on switches of tokens, or on a layer."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import pad

from diffmask.core.batch import Attribution, Batch
from diffmask.core.distributions import target_score
from diffmask.core.explainer import Explainer
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.core.training import generator

State = Float[Tensor, "row token width"]


class GradientExplainer(Explainer):
    """Attributions of the site's states, summed over the width."""

    seed: Tensor

    baseline: Tensor | None

    def __init__(self, method: Any, task: Task, site: str, baseline: Float[Tensor, " width"] | None, seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.algorithm = method, site, method.algorithm()
        self.register_buffer("baseline", baseline)
        self.register_buffer("seed", torch.tensor(seed))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """One by one where numbers are drawn, so that a text's numbers are its own."""
        parts = []
        for rows in torch.arange(len(batch)).split(1 if self.method.random else len(batch)):
            part = batch[rows].trim()
            missing = batch.tokens.shape[1] - part.tokens.shape[1]
            parts.append(pad(self._attribute(part, target[rows]), (0, missing)))
        scores = torch.cat(parts)
        return Attribution(scores if self.method.signed else scores.abs())

    def _attribute(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Float[Tensor, "row token"]:
        _, states = self.task.trace(batch)
        state = states[self.site]
        options = dict(self.method.options(state.shape[1]))
        if self.baseline is not None:
            options["baselines"] = torch.where(batch.present[..., None], self.baseline, state)
        explain = self.algorithm(Model(self.task, self.site, batch, target, self.method.quantity))
        with quiet(int(self.seed)):
            found = explain.attribute(state, additional_forward_args=(torch.arange(len(batch)),), **options)
        return found.detach().sum(dim=-1)


class Model(nn.Module):
    """f(states, rows): the number to explain, as a module, since Captum's DeepLift asks for one."""

    def __init__(
        self, task: Task, site: str, batch: Batch, target: Shaped[Tensor, "row *event"], quantity: Any
    ) -> None:
        super().__init__()
        self.model = task.model
        self.task, self.site, self.batch, self.target, self.quantity = task, site, batch, target, quantity

    def forward(self, state: State, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """A number a row."""
        answer = self.task.predict(self.batch[rows], {self.site: lambda _: state})
        return target_score(answer, self.target[rows], self.quantity)


class SwitchExplainer(Explainer):
    """Attributions of switches: h <- s h + (1 - s) b at each maskable token, s starting at 1."""

    seed: Tensor

    def __init__(self, method: Any, task: Task, site: str, baseline: Float[Tensor, " width"], seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.algorithm = method, site, method.algorithm()
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.register_buffer("seed", torch.tensor(seed))
        self.portion = AdaptiveBatchSize(method.internal_batch_size)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """One text after the other, each without its padding."""
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row in range(len(batch)):
            part = batch[row : row + 1].trim()
            places = part.maskable[0].nonzero().flatten()
            if len(places):
                scores[row, places] = self._attribute(part, target[row : row + 1], places).to(scores)
        return Attribution(scores)

    def _attribute(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], places: Int[Tensor, " feature"]
    ) -> Float[Tensor, " feature"]:
        _, states = self.task.trace(batch)
        state = states[self.site]

        def value(switches: Float[Tensor, "copy feature"]) -> Float[Tensor, " copy"]:
            return torch.cat(self.portion.split(len(switches), lambda items: switched(switches[items])))

        def switched(switches: Float[Tensor, "copy feature"]) -> Float[Tensor, " copy"]:
            kept = state.new_ones(len(switches), state.shape[1]).index_copy(1, places, switches.to(state))[..., None]
            mixed = kept * state + (1 - kept) * self.baseline
            answer = self.task.predict(batch.repeat(len(switches)), {self.site: lambda _: mixed})
            return target_score(answer, target.repeat_interleave(len(switches), dim=0), self.method.quantity)

        on = state.new_ones(1, len(places))
        if len(places) == 1:
            # Some of Captum's samplers need two features; with one, every method comes to the same.
            return value(on) - value(1 - on)
        options = {"perturbations_per_eval": self.method.internal_batch_size, **self.method.options(len(places))}
        with quiet(int(self.seed)):
            return self.algorithm(value).attribute(on, baselines=0, **options)[0].detach()


class LayerExplainer(Explainer):
    """Attributions of a layer's states, with texts of mask tokens as the baseline."""

    def __init__(self, method: Any, task: Task, site: str) -> None:
        super().__init__(task)
        self.method, self.place, self.algorithm = method, task.site(site), method.algorithm()

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Captum's own hooks, not ours."""

        def value(tokens: Int[Tensor, "copy token"], rows: Int[Tensor, " copy"]) -> Float[Tensor, " copy"]:
            answer = self.task.predict(replace(batch[rows], tokens=tokens))
            return target_score(answer, target[rows], self.method.quantity)

        filler = self.task.pad_token if self.task.mask_token is None else self.task.mask_token
        with quiet(0):
            found = self.algorithm(value, self.task.model.get_submodule(self.place.module)).attribute(
                batch.tokens,
                baselines=batch.tokens.masked_fill(batch.maskable, filler),
                additional_forward_args=(torch.arange(len(batch)),),
                attribute_to_layer_input=self.place.side == "input",
                **self.method.options(batch.tokens.shape[1]),
            )
        scores = found.detach().sum(dim=-1)
        return Attribution(scores if self.method.signed else scores.abs())


@contextmanager
def quiet(seed: int) -> Iterator[None]:
    """Captum draws from the global generators and warns of its own workings: here it finds a seed, and is not heard."""
    kept = np.random.get_state()
    with warnings.catch_warnings(), torch.random.fork_rng(), torch.enable_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(generator(seed, "captum").initial_seed())
        np.random.seed(generator(seed, "captum").initial_seed() % 2**32)
        try:
            yield
        finally:
            np.random.set_state(kept)
