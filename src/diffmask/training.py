"""Seeds, minibatches and progress: what every optimisation loop here shares."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from diffmask.batch import Batch
from diffmask.errors import InputError

Item = TypeVar("Item")


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A stream of random numbers for one purpose; streams of two purposes are unrelated."""
    text = repr((seed, *purpose)).encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))


@contextmanager
def seeded(seed: int, *purpose: object) -> Iterator[None]:
    """Within this block torch's own generator is at a fixed state, for initialising modules; then as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(generator(seed, *purpose).initial_seed())
        yield


def normal_noise(shape: tuple[int, ...], source: torch.Generator) -> Float[Tensor, "..."]:
    """Standard normal numbers of which a longer first axis continues a shorter one.

    Each value is the normal quantile of one uniform draw, so padding at the end changes no earlier value; `torch.randn`
    promises no such thing.
    """
    uniform = torch.rand(shape, generator=source, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    return torch.special.ndtri(uniform).float()


def minibatches(data: Batch, size: int, source: torch.Generator) -> Iterator[Batch]:
    """The rows once, in random order, `size` at a time, without columns of padding."""
    if len(data) == 0:
        raise InputError("there are no rows to learn from")
    order = torch.randperm(len(data), generator=source)
    for rows in order.split(size):
        yield data[rows].trim()


def endless(data: Batch, size: int, source: torch.Generator) -> Iterator[Batch]:
    """Minibatches, epoch after epoch."""
    while True:
        yield from minibatches(data, size, source)


def track(items: Iterable[Item], label: str, total: int | None = None) -> "tqdm[Item]":
    """The same items with a progress bar, where somebody is looking."""
    return tqdm(items, desc=label, total=total, disable=None, leave=False, dynamic_ncols=True)
