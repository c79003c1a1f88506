"""Do two methods say the same? Rank correlation, and how many of their highest tokens they share."""

from jaxtyping import Bool, Float
from torch import Tensor

from diffmask.evaluate.ranks import rank_correlation, top_overlap



def agreement_table(scores: list[Float[Tensor, "row token"]], maskable: Bool[Tensor, "row token"]) -> dict[str, list[list[float]]]:
    """Every pair of methods, means over texts."""
    kinds = {"rank correlation": rank_correlation, "overlap of the highest fifth": top_overlap}
    return {
        name: [[_mean(kind(one, other, maskable)) for other in scores] for one in scores]
        for name, kind in kinds.items()
    }


def _mean(values: Float[Tensor, " row"]) -> float:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else 0.0
