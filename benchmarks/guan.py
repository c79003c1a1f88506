"""Guan et al.'s Interpreter: the published algorithm and ours, on the same problems, in one process.

    python benchmarks/guan.py            # everything, about six minutes on one core
    python benchmarks/guan.py --quick    # one seed of each

Times are CPU seconds of this process on one thread. The published algorithm is charged its documented 5,000 steps: it
has no stopping rule.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffmask.methods.noise.distortion import DistortionProblem, define_problem
from diffmask.methods.noise.interpreter import Interpreter
from diffmask.methods.noise.solver import SolverSettings, solve

WEIGHTS = torch.tensor([10.0, 20.0, 5.0, -20.0, -10.0])
STEPS = 5000
SentencePhi = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Run:
    """One method on one problem."""

    error: float
    """Largest relative error of sigma over the words."""
    seconds: float


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    figure: str
    published: str
    ours: str
    must_reach: str
    reached: bool


def published(
    phi: SentencePhi, x: Float[Tensor, "word width"], spread: Tensor | None, scale: float, seed: int
) -> Float[Tensor, " word"]:
    """The algorithm as released: one noise draw a step, Adam at 0.01, the state after the step of least noisy loss."""
    generator = torch.Generator().manual_seed(seed)
    ratio = torch.randn(len(x), 1, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([ratio], lr=0.01)
    least, best = float("inf"), ratio.detach().clone()
    for _ in range(STEPS):
        loss = published_loss(phi, x, spread, (ratio, scale), generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        if loss.item() < least:
            least, best = loss.item(), ratio.detach().clone()
    return scale * torch.sigmoid(best)[:, 0]


def published_loss(
    phi: SentencePhi, x: Tensor, spread: Tensor | None, sigma: tuple[Tensor, float], generator: torch.Generator
) -> Tensor:
    """mean(d^2 / R^2) - 0.1 mean(log r), with the clean state computed anew, as released."""
    ratio, scale = sigma
    part, clean = torch.sigmoid(ratio), phi(x)
    change = phi(x + scale * part * torch.randn(x.shape, generator=generator)) - clean
    distortion = change.square().mean() / clean.square().mean() if spread is None else (change / spread).square().mean()
    return distortion - 0.1 * part.log().mean()


def timed(answer: Callable[[], Tensor], wanted: Tensor, repeats: int = 1) -> Run:
    """The error of an answer, and its CPU seconds: the median of several calls where one is too short to time."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        sigma = answer()
        seconds.append(time.process_time() - start)
    return Run(error=float((sigma / wanted - 1).abs().max()), seconds=statistics.median(seconds))


def toy_phi(x: Float[Tensor, "word width"]) -> Float[Tensor, " width"]:
    """The README's toy: a weighted sum of five words."""
    return WEIGHTS @ x


def toy_sentences(seed: int, count: int) -> Float[Tensor, "row word width"]:
    """Sentences of the README's toy."""
    return torch.randn(count, 5, 256, generator=torch.Generator().manual_seed(seed)) / 10


def toy_closed_form(x: Float[Tensor, "row word width"]) -> Float[Tensor, "row word"]:
    """sigma_i = sqrt(rate M / 2S) / |W_i|, M the second moment of the state."""
    moment = (WEIGHTS @ x).square().mean(1, keepdim=True)
    return (0.1 * moment / 10).sqrt() / WEIGHTS.abs()


def solve_toy(x: Float[Tensor, "word width"], seed: int) -> Tensor:
    """Our drop-in class, as a user calls it."""
    interpreter = Interpreter(x=x, Phi=toy_phi)
    interpreter.optimize(seed=seed)
    return torch.from_numpy(interpreter.get_sigma())


def toy_pair(seed: int) -> tuple[Run, Run]:
    """The published algorithm and ours on one toy sentence."""
    x = toy_sentences(seed, 1)
    wanted = toy_closed_form(x)[0]
    old = timed(lambda: published(toy_phi, x[0], None, 0.5, seed), wanted)
    return old, timed(lambda: solve_toy(x[0], seed), wanted, repeats=5)


def toy_batch(seed: int) -> Run:
    """32 toy sentences in one call of ours."""
    x = toy_sentences(seed, 32)
    mask = torch.ones(32, 5, dtype=torch.bool)
    problem = define_problem(lambda noisy, rows: torch.einsum("s,csd->cd", WEIGHTS, noisy), x, mask)
    return timed(lambda: solve(problem, SolverSettings(seed=seed)).sigma, toy_closed_form(x))


def sharp_transformer(seed: int) -> nn.Module:
    """Three random layers of width 128 whose attention is sharp: query, key and value weights times three."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval().requires_grad_(False)
        for block in encoder.layers:
            nn.init.xavier_uniform_(block.linear1.weight), nn.init.xavier_uniform_(block.linear2.weight)
            nn.init.xavier_uniform_(block.self_attn.in_proj_weight).mul_(3)
    return encoder


def transformer_problem(encoder: nn.Module, seed: int) -> tuple[DistortionProblem, Tensor]:
    """14 random words of size 1, and the spread of the state over 200 such sentences."""
    x = torch.randn(201, 14, 128, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        spread = encoder(x[1:]).std(0, correction=0)
    mask = torch.ones(1, 14, dtype=torch.bool)
    return define_problem(lambda noisy, rows: encoder(noisy), x[:1], mask, regularization=spread), spread


def transformer_pair(seed: int, scale: float) -> tuple[Run, Run]:
    """Both against a solution on 512 samples a step, from noise that neither has seen."""
    encoder = sharp_transformer(seed)
    problem, spread = transformer_problem(encoder, seed)
    reference = SolverSettings(scale=scale, samples=512, tolerance=0.007, max_steps=40, seed=1000 + seed)
    wanted = solve(problem, reference).sigma[0]
    ours = timed(lambda: solve(problem, SolverSettings(scale=scale, seed=seed)).sigma[0], wanted)
    old = timed(lambda: published(lambda x: encoder(x[None])[0], problem.x[0], spread, scale, seed), wanted)
    return old, ours


def pair_rows(name: str, pairs: Sequence[tuple[Run, Run]], most_error: float, least_ratio: float) -> Iterator[Row]:
    """Two lines: the largest error, and the times with the ratio of their sums over seeds."""
    old, ours = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    error = max(run.error for run in ours)
    ratio = sum(run.seconds for run in old) / sum(run.seconds for run in ours)
    yield Row(
        f"{name}: largest error",
        span([100 * run.error for run in old], "%"),
        span([100 * run.error for run in ours], "%"),
        f"<= {100 * most_error:g} %",
        error <= most_error,
    )
    yield Row(
        f"{name}: CPU time",
        span([run.seconds for run in old], "s"),
        f"{span([1000 * run.seconds for run in ours], 'ms')}, {ratio:.0f}x less",
        f">= {least_ratio:g}x less",
        ratio >= least_ratio,
    )


def batch_rows(runs: Sequence[Run]) -> Iterator[Row]:
    """One line: milliseconds a sentence."""
    each = [1000 * run.seconds / 32 for run in runs]
    ours = f"{span(each, 'ms')}, error {span([100 * run.error for run in runs], '%')}"
    yield Row("32 toy sentences in one call: time each", "-", ours, "<= 10 ms", max(each) <= 10)


def span(values: Sequence[float], unit: str) -> str:
    """Smallest to largest."""
    low, high = min(values), max(values)
    return f"{low:.3g} {unit}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g}-{high:.3g} {unit}"


def print_table(rows: Sequence[Row]) -> None:
    """Markdown, so that it can be pasted."""
    print("| figure | published | ours | must reach | reached |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.figure} | {row.published} | {row.ours} | {row.must_reach} | {'yes' if row.reached else 'NO'} |")


def main() -> None:
    """Run all, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed instead of five (toy) and three (transformer)")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    for seed in range(3):  # Nobody is charged for what torch loads at the first call.
        solve_toy(toy_sentences(seed, 1)[0], seed)
    toys = [toy_pair(seed) for seed in range(1 if quick else 5)]
    batches = [toy_batch(seed) for seed in range(1 if quick else 5)]
    rows = [*pair_rows("README toy", toys, 0.02, 100), *batch_rows(batches)]
    for scale in (0.8, 10.0):
        pairs = [transformer_pair(seed, scale) for seed in range(1 if quick else 3)]
        rows += pair_rows(f"sharp transformer, scale {scale:g}", pairs, 0.08, 30)
    print_table(rows)


if __name__ == "__main__":
    main()
