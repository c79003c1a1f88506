"""Units: groups of tokens that are scored and erased as a whole, numbered from 1 in each row; 0 is no unit."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def unit_scores(scores: Float[Tensor, "row token"], numbers: Int[Tensor, "row token"]) -> Float[Tensor, "row unit"]:
    """Return the largest score of each unit's tokens; 0 where a row has fewer units.

    >>> unit_scores(torch.tensor([[5.0, 1.0, 3.0, 2.0]]), torch.tensor([[0, 1, 1, 2]]))
    tensor([[3., 2.]])
    """
    units = int(numbers.max())
    largest = scores.new_full((len(scores), units + 1), -torch.inf).scatter_reduce(1, numbers, scores, "amax")
    return largest[:, 1:].nan_to_num(neginf=0.0)


def spread_unit_scores(
    scores: Float[Tensor, "row unit"], numbers: Int[Tensor, "row token"]
) -> Float[Tensor, "row token"]:
    """Give every token the score of its unit; tokens of none get 0.

    >>> spread_unit_scores(torch.tensor([[3.0, 2.0]]), torch.tensor([[0, 1, 1, 2]]))
    tensor([[0., 3., 3., 2.]])
    """
    return torch.cat([scores.new_zeros(len(scores), 1), scores], dim=1).gather(1, numbers)


def unit_columns(numbers: Int[Tensor, "row token"]) -> list[list[list[int]]]:
    """Return for each row the token columns of each of its units.

    >>> unit_columns(torch.tensor([[0, 1, 1, 2]]))
    [[[1, 2], [3]]]
    """
    rows = []
    for row in numbers.tolist():
        units: list[list[int]] = [[] for _ in range(max(row, default=0))]
        for column, number in enumerate(row):
            if number:
                units[number - 1].append(column)
        rows.append(units)
    return rows


def tokens_of_units(
    chosen: Bool[Tensor, "copy unit"], numbers: Int[Tensor, "copy token"]
) -> Bool[Tensor, "copy token"]:
    """Return the tokens of the chosen units, one row of numbers per choice."""
    return torch.cat([chosen.new_zeros(len(chosen), 1), chosen], dim=1).gather(1, numbers)
