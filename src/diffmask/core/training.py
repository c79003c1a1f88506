"""Parts of every training loop: seeds, held-out rows, minibatches, noise and a learning rate schedule."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.task import Task
from diffmask.errors import InputError

_GLOBAL_GENERATOR = RLock()


def generator(seed: int, *purpose: object) -> torch.Generator:
    """Return a random generator for one purpose; generators of two purposes are independent."""
    text = repr((seed, *purpose)).encode()
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))


@contextmanager
def seeded(seed: int, *purpose: object) -> Iterator[None]:
    """Seed torch's global generator, for the initialisation of modules, and restore its state afterwards.

    The generator belongs to the process, so only one thread at a time is in such a block. A block that runs a model
    must hold the model's lock before it begins, as `Method.fit` does.
    """
    with _GLOBAL_GENERATOR, torch.random.fork_rng():
        torch.manual_seed(generator(seed, *purpose).initial_seed())
        yield


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use that many threads of torch; on a tiny model one is fastest, because several mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
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


def cosine_decay(progress: float, floor: float = 0.02) -> float:
    """Return the learning rate factor max(floor, (1 + cos(pi * progress)) / 2), progress from 0 to 1.

    >>> [cosine_decay(progress) for progress in (0.0, 0.5, 1.0)]
    [1.0, 0.5, 0.02]
    """
    return max(floor, 0.5 * (1 + math.cos(math.pi * progress)))


def minibatches(data: Batch, size: int, source: torch.Generator, pool: int = 1) -> Iterator[Batch]:
    """Yield the rows once, in random order, `size` at a time, trimmed.

    With a pool, rows of similar length share a minibatch: `pool * size` rows are drawn, sorted by length and cut, and
    the minibatches are yielded in random order.
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
    """Yield minibatches, epoch after epoch."""
    while True:
        yield from minibatches(data, size, source, pool)


def split_held_out(task: Task, count: int) -> tuple[Batch, Batch]:
    """Return training rows and held-out rows, which are validation rows or, without these, the last training rows."""
    rows = task.data["train"]
    if "valid" in task.data:
        return rows, task.data["valid"][:count]
    if len(rows) < 2:
        raise InputError(f"{len(rows)} training text; give at least two, or valid=..., to check the fit on others")
    count = min(count, len(rows) // 2)
    return rows[: len(rows) - count], rows[len(rows) - count :]
