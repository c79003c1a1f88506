"""A split explained part by part, each kept as it is done: a kill loses one part at most."""

from collections.abc import Callable
from dataclasses import asdict

import torch
from jaxtyping import Int
from torch import Tensor

from diffmask.batch import Attribution, Batch
from diffmask.cost import Cost
from diffmask.explainer import Explainer
from diffmask.recipe import digest_of
from diffmask.store import Artefact, Store


def explain_in_parts(
    store: Store, digest: str, batch: Batch, rows_each: int, explainer: Callable[[], Explainer]
) -> Artefact:
    """The scores of a batch with what they cost; the explainer is made when the first part is missing."""
    order = batch.present.sum(dim=1).argsort(stable=True)
    made: list[Explainer] = []

    def explain(rows: Int[Tensor, " row"]) -> Artefact:
        if not made:
            made.append(explainer())
        made[0].cost = Cost()
        return explained_artefact(made[0], made[0](batch[rows]))

    parts = [
        store.get_or_make("part", part_digest(digest, number, rows_each), lambda rows=rows: explain(rows))  # type: ignore[misc]  # mypy cannot type a default of a lambda
        for number, rows in enumerate(order.split(rows_each))
    ]
    back = order.argsort()
    tensors = {name: torch.cat([part.tensors[name] for part in parts])[back] for name in parts[0].tensors}
    spent = sum((Cost(**part.values["cost"]) for part in parts), Cost())
    return Artefact(tensors, {**parts[0].values, "cost": asdict(spent)})


def part_digest(digest: str, number: int, rows_each: int) -> str:
    """A name for one part of a split's attributions."""
    return digest_of(["part", digest, number, rows_each])


def explained_artefact(explainer: Explainer, found: Attribution) -> Artefact:
    """An attribution and its cost as they are kept."""
    layers = {} if found.by_layer is None else {"by_layer": found.by_layer}
    return Artefact(
        {"scores": found.scores, **layers},
        {"layers": list(found.layers), "cost": asdict(explainer.cost), "fit_cost": asdict(explainer.fit_cost)},
    )
