"""Features of the parts of a prompt: how much each head attends to them from the states that predict the response."""

import torch
from jaxtyping import Float
from torch import Tensor

from diffmask.core.batch import Batch
from diffmask.core.capabilities import ErasesUnits, HasAttention, require
from diffmask.core.task import Task
from diffmask.methods.amortised.ablations import Features


def part_features(task: Task, batch: Batch) -> Features:
    """Return the features of all units of each row; zeros where a row has fewer units."""
    return attention_to_units(task, batch, require(task, HasAttention, "amortised").attentions(batch))


def attention_to_units(task: Task, batch: Batch, attentions: Float[Tensor, "row layer head query key"]) -> Features:
    """Return the attention to each unit, per layer and head, summed over its tokens and averaged over the response."""
    numbers = require(task, ErasesUnits, "amortised").unit_numbers(batch)
    scored = batch.inputs["scored"].sum(dim=1).clamp(min=1).view(-1, 1, 1, 1)
    received = (attentions.sum(dim=3) / scored).flatten(1, 2)
    units = torch.arange(1, int(numbers.max()) + 1, device=numbers.device)
    member = (numbers[:, None] == units[:, None]).to(received)
    return torch.einsum("rht,rut->ruh", received, member)
