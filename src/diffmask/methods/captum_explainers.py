"""Explainers that call Captum on the states of a site, on switches of tokens, or on a layer of the model."""

import os
import random
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
from diffmask.core.hooks import interpolate, undone
from diffmask.core.resources import AdaptiveBatchSize
from diffmask.core.task import Task
from diffmask.core.training import generator, seeded
from diffmask.errors import TaskError

State = Float[Tensor, "row token width"]


class CaptumGradientExplainer(Explainer):
    """Attributions to the site's states, summed over the width."""

    seed: Tensor

    baseline: Tensor | None

    def __init__(self, method: Any, task: Task, site: str, baseline: Float[Tensor, " width"] | None, seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.algorithm = method, site, method.algorithm()
        self.register_buffer("baseline", baseline)
        self.register_buffer("seed", torch.tensor(seed))

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Explain rows together, or one by one if the method is stochastic, so that no row depends on another."""
        scores = []
        for rows in torch.arange(len(batch)).split(1 if self.method.is_stochastic else len(batch)):
            chunk = batch[rows].trim()
            missing = batch.tokens.shape[1] - chunk.tokens.shape[1]
            scores.append(pad(self._attribute(chunk, target[rows]), (0, missing)))
        return Attribution(torch.cat(scores) if self.method.signed else torch.cat(scores).abs())

    def _attribute(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Float[Tensor, "row token"]:
        _, states = self.task.trace(batch)
        state = states[self.site]
        options = dict(self.method.options(state.shape[1]))
        if self.baseline is not None:
            options["baselines"] = torch.where(batch.present[..., None], self.baseline, state)
        algorithm = self.algorithm(StateFunction(self.task, self.site, batch, target, self.method.quantity))
        with isolated(int(self.seed)):
            attribution = algorithm.attribute(state, additional_forward_args=(torch.arange(len(batch)),), **options)
        return attribution.detach().sum(dim=-1)


class StateFunction(nn.Module):
    """f(states, rows): the explained number as a module, as Captum's DeepLift requires."""

    def __init__(
        self, task: Task, site: str, batch: Batch, target: Shaped[Tensor, "row *event"], quantity: Any
    ) -> None:
        super().__init__()
        self.model = task.model
        self.task, self.site, self.batch, self.target, self.quantity = task, site, batch, target, quantity

    def forward(self, state: State, rows: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
        """Return the score of the target outcome per row."""
        prediction = self.task.predict(self.batch[rows], {self.site: lambda _: state})
        return target_score(prediction, self.target[rows], self.quantity)


class CaptumPerturbationExplainer(Explainer):
    """Attributions to switches s: h <- s h + (1 - s) b at each maskable token, s = 1 in the text itself."""

    seed: Tensor

    def __init__(self, method: Any, task: Task, site: str, baseline: Float[Tensor, " width"], seed: int) -> None:
        super().__init__(task)
        self.method, self.site, self.algorithm = method, site, method.algorithm()
        self.baseline = nn.Parameter(baseline, requires_grad=False)
        self.register_buffer("seed", torch.tensor(seed))
        self.portion = AdaptiveBatchSize(method.internal_batch_size)

    @torch.no_grad()
    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Explain rows one by one, each without its padding."""
        scores = self.baseline.new_zeros(batch.tokens.shape)
        for row in range(len(batch)):
            text = batch[row : row + 1].trim()
            tokens = text.maskable[0].nonzero().flatten()
            if len(tokens):
                scores[row, tokens] = self._attribute(text, target[row : row + 1], tokens).to(scores)
        return Attribution(scores)

    def _attribute(
        self, batch: Batch, target: Shaped[Tensor, "row *event"], tokens: Int[Tensor, " feature"]
    ) -> Float[Tensor, " feature"]:
        _, states = self.task.trace(batch)
        state = states[self.site]

        def value(switches: Float[Tensor, "copy feature"]) -> Float[Tensor, " copy"]:
            return torch.cat(self.portion.split(len(switches), lambda items: switched(switches[items])))

        def switched(switches: Float[Tensor, "copy feature"]) -> Float[Tensor, " copy"]:
            gates = state.new_ones(len(switches), state.shape[1]).index_copy(1, tokens, switches.to(state))
            mixed = interpolate(gates, self.baseline)(state)
            prediction = self.task.predict(batch.repeat(len(switches)), {self.site: lambda _: mixed})
            return target_score(prediction, target.repeat_interleave(len(switches), dim=0), self.method.quantity)

        on = state.new_ones(1, len(tokens))
        if len(tokens) == 1:
            # Some of Captum's samplers need two features; with one, every method gives f(x) - f(baseline).
            return value(on) - value(1 - on)
        options = {"perturbations_per_eval": self.method.internal_batch_size, **self.method.options(len(tokens))}
        with isolated(int(self.seed)):
            return self.algorithm(value).attribute(on, baselines=0, **options)[0].detach()


class CaptumLayerExplainer(Explainer):
    """Attributions to the states of a layer, with a text of mask tokens as the baseline."""

    def __init__(self, method: Any, task: Task, site: str) -> None:
        super().__init__(task)
        self.method, self.layer, self.algorithm = method, task.site(site), method.algorithm()

    def explain(self, batch: Batch, target: Shaped[Tensor, "row *event"]) -> Attribution:
        """Explain all rows together; Captum places its own hooks on the layer and removes them."""

        def value(tokens: Int[Tensor, "copy token"], rows: Int[Tensor, " copy"]) -> Float[Tensor, " copy"]:
            prediction = self.task.predict(replace(batch[rows], tokens=tokens))
            return target_score(prediction, target[rows], self.method.quantity)

        baseline_token = self.task.pad_token if self.task.mask_token is None else self.task.mask_token
        with isolated(0):
            attribution = self.algorithm(value, self.task.model.get_submodule(self.layer.module)).attribute(
                batch.tokens,
                baselines=batch.tokens.masked_fill(batch.maskable, baseline_token),
                additional_forward_args=(torch.arange(len(batch)),),
                attribute_to_layer_input=self.layer.side == "input",
                **self.method.options(batch.tokens.shape[1]),
            )
        scores = attribution.detach().sum(dim=-1)
        if scores.shape != batch.tokens.shape:
            raise TaskError(
                f"{self.method.name}: the layer has states of {tuple(scores.shape)} tokens for rows of "
                f"{tuple(batch.tokens.shape)}: the model reads a row as several sequences; use integrated-gradients"
            )
        return Attribution(scores if self.method.signed else scores.abs())


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Run Captum with seeded global generators and without warnings, then restore generators and environment.

    Lime and KernelShap import scikit-learn on first use, which draws from `random` and sets variables of OpenMP.
    """
    numpy_state, python_state, environment = np.random.get_state(), random.getstate(), dict(os.environ)

    def restore() -> None:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        for name in os.environ.keys() - environment.keys():
            os.environ.pop(name, None)
        os.environ.update(environment)

    with warnings.catch_warnings(), seeded(seed, "captum"), torch.enable_grad():
        warnings.simplefilter("ignore")
        with undone(restore):
            np.random.seed(generator(seed, "captum").initial_seed() % 2**32)
            yield
