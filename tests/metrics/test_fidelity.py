"""Fidelity: F1 against scikit-learn, the rest row by row against one forward pass."""

from pathlib import Path
from typing import cast

import pytest
import torch
from sklearn.metrics import f1_score

from diffmask.core.distributions import divergence
from diffmask.core.scores import macro_f1_score
from diffmask.core.store import Store
from diffmask.errors import FitWarning
from diffmask.methods.diffmask.base import MaskExplainer
from diffmask.methods.diffmask.nested import NestedDiffMask
from diffmask.methods.diffmask.surrogate import SurrogateMask
from diffmask.methods.gradients import Gradient
from diffmask.metrics.fidelity import Fidelity, evaluate_hard_masks
from diffmask.workspace.workspace import Workspace
from support.transformer import TransformerTask


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_equals_scikit_learn(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    decided, gold = torch.randint(4, (2, 30), generator=source)
    assert macro_f1_score(decided, gold) == pytest.approx(f1_score(gold, decided, average="macro"))


def test_rows_without_a_label_are_ignored() -> None:
    assert macro_f1_score(torch.tensor([1, 0, 1]), torch.tensor([1, -1, 0])) == pytest.approx(1 / 3)


def test_each_row_is_measured_under_its_own_hard_mask() -> None:
    task = TransformerTask()
    with pytest.warns(FitWarning):
        explainer = cast(MaskExplainer, SurrogateMask(steps=2, margin=0.2).fit(task))
    batch = task.data["test"][:5].trim()
    table = evaluate_hard_masks(explainer, batch)["block 1"]
    answer = task.predict(batch)
    open_probability = explainer(batch).by_layer[:, explainer.sites.index("block 1")]
    kept = (open_probability > 0.5) & batch.maskable
    torch.testing.assert_close(table["kept"], kept.double().sum(dim=1) / batch.maskable.sum(dim=1))
    masked = task.predict(
        batch,
        {
            "embedding": lambda state: torch.where(
                kept[..., None] | ~batch.maskable[..., None], state, explainer.baseline("block 1")
            )
        },
    )
    torch.testing.assert_close(table["divergence"], divergence(answer, masked))
    assert table["gold"].tolist() == batch.target.tolist()


@pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")
def test_every_margin_of_a_nested_mask_has_its_numbers(tmp_path: Path) -> None:
    workspace = Workspace.over(Store(tmp_path), TransformerTask())
    method = NestedDiffMask(margins=(0.1, 0.5), steps=5, batch_size=8)
    records = list(Fidelity().run(method, workspace))
    metrics = ("divergence", "agreement", "kept", "f1_before", "f1_after")
    assert [(record.site, record.metric) for record in records] == [
        (site, metric) for site in ("margin 0.1", "margin 0.5") for metric in metrics
    ]
    kept = {record.site: record.value for record in records if record.metric == "kept"}
    assert kept["margin 0.5"] <= kept["margin 0.1"], "a looser margin keeps no more"


def test_a_method_without_masks_has_no_fidelity(tmp_path: Path) -> None:
    assert list(Fidelity().run(Gradient(), Workspace.over(Store(tmp_path), TransformerTask()))) == []
