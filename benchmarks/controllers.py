"""Compare five rules for the multiplier: DiffMask on the toy task, all else equal."""

import argparse
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from cooper.optim.torch_optimizers.nupi_optimizer import nuPI

from diffmask.core.capabilities import HasGroundTruth, require
from diffmask.core.task import Task
from diffmask.experiments.experiment import Experiment
from diffmask.methods.diffmask.gated import DiffMask
from diffmask.methods.diffmask.lagrangian import Multiplier, PIController
from diffmask.metrics.ground_truth import kl_rows, normalise
from diffmask.tasks.toy import ToyTaskConfig

TOY = Experiment.read(Path(__file__).parents[1] / "experiments/toy.yaml")
METHOD = next(method for method in TOY.methods if isinstance(method, DiffMask))


@dataclass
class Ascent(Multiplier):
    """Multiplier by gradient ascent on the signed violation, clipped to [0, 200], started at 1."""

    parameter: torch.Tensor = field(default_factory=lambda: torch.ones(1, requires_grad=True))

    def __post_init__(self) -> None:
        self.optimizer = self.make()

    def make(self) -> torch.optim.Optimizer:
        """Return the published optimiser: RMSprop at 0.3."""
        return torch.optim.RMSprop([self.parameter], lr=0.3, maximize=True)

    @property
    def value(self) -> float:
        """Multiplier, at least 1e-6."""
        return max(self.parameter.item(), 1e-6)

    def update(self, divergence: float, progress: float) -> float:
        """Ascend the violation by one step."""
        self.parameter.grad = torch.tensor([divergence - self.controller.margin])
        self.optimizer.step()
        self.parameter.data.clamp_(0.0, 200.0)
        self.history.append(self.value)
        return self.value


class NuPI(Ascent):
    """Cooper's nuPI controller."""

    def make(self) -> torch.optim.Optimizer:
        """Return the optimiser with the gains of the library's examples: proportional ten times integral."""
        gain = torch.tensor([10.0])
        return nuPI([self.parameter], lr=0.1, Kp=gain, Ki=torch.tensor([1.0]), ema_nu=0.0, maximize=True)


@dataclass
class FixedMargin(Multiplier):
    """Our rule with a margin that is at its target from the first step."""

    def __post_init__(self) -> None:
        self.controller = replace(self.controller, anneal_fraction=1e-9)
        super().__post_init__()


@dataclass
class NoFloor(Multiplier):
    """Our rule without a floor."""

    def __post_init__(self) -> None:
        self.controller = replace(self.controller, floor=(1e-3, 1e-3))
        super().__post_init__()


RULES: dict[str, type[Multiplier]] = {
    "gradient ascent, as published": Ascent,
    "nuPI (cooper)": NuPI,
    "ours, margin not shrunk": FixedMargin,
    "ours, no floor": NoFloor,
    "ours": Multiplier,
}


def measure(rule: type[Multiplier], seed: int, loaded: Task) -> tuple[float, float]:
    """KL to the truth and divergence under hard masks, at the hidden state."""
    with patch("diffmask.methods.diffmask.gate_training.Multiplier", rule), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = METHOD.fit(loaded, seed)
    batch = loaded.data["test"]
    truth = require(loaded, HasGroundTruth, "controllers").ground_truth(batch)
    known = truth.sum(dim=1) > 0
    by_layer = explainer(batch).by_layer
    assert by_layer is not None
    far = kl_rows(normalise(truth[known], batch.maskable[known]), normalise(by_layer[known, 1], batch.maskable[known]))
    return far.mean().item(), explainer.diagnostics["hidden"]["hard_divergence"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    tasks = [ToyTaskConfig().load(seed) for seed in seeds]
    print(f"margin {PIController(METHOD.margin).margin}, {len(seeds)} seeds\n")
    print("| rule | KL to truth: median | worst | divergence: worst |\n|---|---|---|---|")
    for name, rule in RULES.items():
        measurements = [measure(rule, seed, task) for seed, task in zip(seeds, tasks, strict=True)]
        far, caused = zip(*measurements, strict=True)
        print(f"| {name} | {median(far):.5f} | {max(far):.5f} | {max(caused):.4f} |", flush=True)


if __name__ == "__main__":
    main()
