"""Seeds, minibatches and progress: what every optimisation loop here shares."""

import hashlib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from diffmask.core.batch import Batch
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


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within this block torch uses one thread: on a tiny model more of them mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def normal_noise(
    shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "..."]:
    """Sample standard normal numbers such that a longer first axis continues a shorter one.

    Each is sqrt(2) erfinv(2u - 1) of one uniform draw u in the given precision, so padding changes no earlier value.
    `torch.randn` fills blocks of 16: its values depend on how many are drawn.
    """
    uniform = torch.rand(shape, generator=source, dtype=dtype)
    # Half a step of the grid of u makes the values symmetric about 0 and excludes -1, where erfinv is infinite.
    half_step = torch.finfo(dtype).eps / 2
    return uniform.mul_(2).add_(half_step - 1).erfinv_().mul_(math.sqrt(2)).float()


def minibatches(data: Batch, size: int, source: torch.Generator, pool: int = 1) -> Iterator[Batch]:
    """The rows once, in random order, `size` at a time, without columns of padding.

    With a pool, rows of like length go together: as many rows as fill `pool` minibatches are drawn, sorted by length,
    cut, and the minibatches taken in random order.
    """
    if len(data) == 0:
        raise InputError("there are no rows to learn from")
    order = torch.randperm(len(data), generator=source)
    if pool == 1:
        yield from (data[rows].trim() for rows in order.split(size))
        return
    length = data.present.sum(dim=1)
    for drawn in order.split(size * pool):
        sorted_rows = drawn[length[drawn].argsort(stable=True)].split(size)
        for index in torch.randperm(len(sorted_rows), generator=source).tolist():
            yield data[sorted_rows[index]].trim()


def infinite_minibatches(data: Batch, size: int, source: torch.Generator, pool: int = 1) -> Iterator[Batch]:
    """Minibatches, epoch after epoch."""
    while True:
        yield from minibatches(data, size, source, pool)


def progress_bar(items: Iterable[Item], label: str, total: int | None = None) -> "tqdm[Item]":
    """The same items with a progress bar, where somebody is looking."""
    return tqdm(items, desc=label, total=total, disable=None, leave=False, dynamic_ncols=True)
