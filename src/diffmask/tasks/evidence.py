"""Marked characters as marked tokens, kept beside the tokens they belong to."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from diffmask.batch import Batch
from diffmask.data.eraser import Marked
from diffmask.data.tables import Example

EVIDENCE = "evidence"
"""Name of the marks among a batch's inputs a token; the model is not given them."""


def with_evidence(batch: Batch, examples: Sequence[Example], sources: Sequence[int], encodings: Sequence[Any]) -> Batch:
    """The batch with 1 at each token of the first text that shares a character with the evidence; 0 elsewhere.

    Where no example is marked the batch stays as it is.
    """
    if not any(isinstance(example, Marked) for example in examples):
        return batch
    marks = torch.zeros(batch.tokens.shape)
    for row, (number, encoding) in enumerate(zip(sources, encodings, strict=True)):
        found = _marks(examples[number], encoding)
        marks[row, : len(found)] = torch.tensor(found)
    marks = marks.to(batch.tokens.device) * batch.maskable
    return replace(batch, token_inputs={**batch.token_inputs, EVIDENCE: marks})


def _marks(example: Example, encoding: Any) -> list[float]:
    if not isinstance(example, Marked):
        return [0.0] * len(encoding.ids)
    inside = [0] * (len(example.text) + 1)
    for first, last in example.evidence:
        inside[first:last] = [1] * (last - first)
    so_far = list(accumulate(inside, initial=0))
    return [
        float(segment == 0 and so_far[last] > so_far[first])
        for (first, last), segment in zip(encoding.offsets, encoding.sequence_ids, strict=True)
    ]
