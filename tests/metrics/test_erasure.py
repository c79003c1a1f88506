"""Deletion, insertion, flips and infidelity, worked out by hand on tables; infidelity as Captum has it."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from captum.metrics import infidelity as captum_infidelity
from torch import Tensor
from torch.distributions import Bernoulli

from diffmask.core.batch import Batch
from diffmask.core.store import Artefact, write_artefact
from diffmask.core.task import Task
from diffmask.errors import ConfigError, InputError, TaskError
from diffmask.metrics.erasure import Eraser, _minibatches, tokens_to_erase, unmasked_predictions
from diffmask.metrics.perturbation_curves import DecisionFlip, DeletionInsertion, flip_share
from diffmask.metrics.robustness import Infidelity, infidelity, prediction_changes, random_sets
from diffmask.results.records import Record
from support.linear import LinearTask
from support.lookup import LookupTask
from support.transformer import TransformerTask
from support.workspaces import Written, workspace_of

YES = math.log(4)
"""The logit of p = 0.8."""
# p = .8 with everything, .5 without token 0, .2 without 0 and 1, .8 with 0 alone; nothing at all: .2.
TABLE = {
    frozenset({0, 1, 2}): YES,
    frozenset({1, 2}): 0.001,
    frozenset({2}): -YES,
    frozenset({0}): YES,
    frozenset({0, 1}): 0.0,
    frozenset(): -YES,
}
HALF = torch.sigmoid(torch.tensor(0.001)).item()
DOWN = Written(scores=(3.0, 2.0, 1.0))


@pytest.fixture
def task() -> LookupTask:
    return LookupTask(3, TABLE)


def value(records: list[Record], metric: str, at: float | None = None) -> float:
    (found,) = [record for record in records if record.metric == metric and record.at == at]
    return found.value


def test_areas_equal_those_of_the_curves_computed_by_hand(task: LookupTask, tmp_path: Path) -> None:
    shares = (0.0, 1 / 3, 2 / 3, 1.0)
    records = list(DeletionInsertion(shares=shares).run(DOWN, workspace_of(task, tmp_path)))
    # Deletion: .8, .5, .2, .2; insertion: .2, .8, .5, .8. Trapezes of width a third.
    assert value(records, "deletion_area", 1 / 3) == pytest.approx(HALF, abs=1e-6)
    assert value(records, "deletion_area") == pytest.approx((0.8 + 2 * HALF + 2 * 0.2 + 0.2) / 6, abs=1e-6)
    assert value(records, "insertion_area") == pytest.approx((0.2 + 2 * 0.8 + 2 * 0.5 + 0.8) / 6, abs=1e-6)
    assert len(records) == 2 * (1 + len(shares))
    assert all(len(record.per_row) == 1 for record in records)


def test_the_decision_flips_with_the_second_token(task: LookupTask, tmp_path: Path) -> None:
    (record,) = DecisionFlip().run(DOWN, workspace_of(task, tmp_path))
    assert record.value == pytest.approx(2 / 3)


def test_a_decision_that_never_flips_counts_as_all_tokens(tmp_path: Path) -> None:
    task = LookupTask(3, TABLE | {frozenset({2}): 1.0, frozenset(): 1.0})
    (record,) = DecisionFlip().run(DOWN, workspace_of(task, tmp_path))
    assert record.value == 1.0


def test_with_fewer_steps_the_flip_is_found_at_the_next_step(task: LookupTask) -> None:
    # Two looks at three tokens: after two of them, and after all.
    scores = torch.tensor([[3.0, 2.0, 1.0]])
    assert flip_share(Eraser(task, "mask"), task.data["test"], scores, steps=2).tolist() == pytest.approx([2 / 3])
    assert flip_share(Eraser(task, "mask"), task.data["test"], -scores, steps=1).tolist() == [1.0]


def test_rows_that_flip_at_different_steps_keep_their_order() -> None:
    # Tokens 1 to 4 add 1, -2, 4 and -.5; the mask is token 4.
    task = LinearTask([[1, 2], [3, 2, 1], [3, 3], [1]])
    scores = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    # -1 -> .5 after one of two; 3 -> -1.5 after one of three; 8, 3.5, -1 after two of two; 1 -> -.5 after one of one.
    found = flip_share(Eraser(task, "mask"), task.data["test"], scores, steps=10)
    assert found.tolist() == pytest.approx([1 / 2, 1 / 3, 1.0, 1.0])


@pytest.mark.parametrize("mode", ["delete", "attention-mask"])
def test_a_deleted_or_hidden_token_contributes_nothing(mode: str) -> None:
    task = LinearTask([[1, 3], [1, 2], [3]])
    gone = torch.tensor([[False, True], [True, False], [True, False]])
    answers = Eraser(task, mode).map_erased(task.data["test"], gone, lambda answer, _rows: answer.logits)  # type: ignore[arg-type, attr-defined]
    # The only token of a text is masked instead: -.5.
    assert answers.tolist() == pytest.approx([1.0, -2.0, -0.5])


def test_scores_that_add_up_have_no_infidelity(tmp_path: Path) -> None:
    task = LinearTask([[1, 2, 3], [3, 1, 1]])
    # Without the mask's -.5 a token adds 1.5, -1.5, 4.5 to the logit; the second row's first answer is yes as well.
    workspace = workspace_of(task, tmp_path)
    (own,) = Infidelity(quantity="log-odds").run(Written(scores=(1.5, -1.5, 4.5)), workspace)
    assert own.per_row[0] == pytest.approx(0.0, abs=1e-10)
    assert own.per_row[1] > 0.1
    (twice,) = Infidelity(quantity="log-odds").run(Written(scores=(3.0, -3.0, 9.0)), workspace)
    assert twice.per_row[0] == pytest.approx(0.0, abs=1e-10)
    (unscaled,) = Infidelity(quantity="log-odds", scaled=False).run(Written(scores=(3.0, -3.0, 9.0)), workspace)
    assert unscaled.per_row[0] > 1


@pytest.mark.parametrize("scaled", [False, True])
def test_infidelity_equals_captum(scaled: bool) -> None:
    task = TransformerTask()
    batch = task.data["test"][:6].trim()
    eraser = Eraser(task, "mask")
    sets = random_sets(batch, samples=7, seed=0)
    change = prediction_changes(eraser, batch, sets, "log-odds")
    scores = torch.randn(batch.tokens.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outcome = eraser.decisions(batch)

    def forward(kept: Tensor) -> Tensor:
        rows = torch.arange(len(batch)).repeat_interleave(len(kept) // len(batch))
        copies = batch[rows]
        from diffmask.core.distributions import target_score

        return target_score(eraser.predict(copies, (kept == 0) & copies.maskable), outcome[rows], "log-odds")

    def perturb(kept: Tensor) -> tuple[Tensor, Tensor]:
        gone = sets.transpose(0, 1).flatten(0, 1).double()
        return gone, kept - gone

    theirs = captum_infidelity(forward, perturb, torch.ones_like(scores), scores, n_perturb_samples=7, normalize=scaled)
    ours = infidelity((sets * scores).sum(dim=2), change, scaled)
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_errors_name_the_wrong_option() -> None:
    with pytest.raises(ConfigError, match="samples is at least 2"):
        Infidelity(samples=1)
    with pytest.raises(ConfigError, match="steps is at least 1"):
        DecisionFlip(steps=0)
    task = LookupTask(2, {})
    task.attention_masked = False
    with pytest.raises(TaskError, match="has no attention mask"):
        Eraser(task, "attention-mask")


@pytest.mark.parametrize("damaged", ["target", "probability"])
def test_stored_predictions_of_another_number_of_rows_are_computed_again(damaged: str, tmp_path: Path) -> None:
    workspace = workspace_of(LinearTask([[1, 3], [1, 2], [3]]), tmp_path)
    whole = unmasked_predictions(workspace, "test", "predicted")
    (folder,) = tmp_path.rglob("unmasked/*")
    tensors = {**vars(whole), damaged: vars(whole)[damaged][:2]}
    shutil.rmtree(folder)
    write_artefact(folder, "unmasked", folder.name, Artefact(tensors))
    again = unmasked_predictions(workspace, "test", "predicted")
    assert again.target.tolist() == whole.target.tolist() == [1.0, 0.0, 1.0]
    # The logits are 1 + 4, 1 - 2 and 4.
    expected = [torch.tensor(logit).sigmoid().item() for logit in (5.0, 1.0, 4.0)]
    assert again.probability.tolist() == whole.probability.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("make", [TransformerTask, lambda: LinearTask([[1, 3], [1, 2]])])
def test_the_gold_class_is_refused_if_a_text_has_no_label(make: Callable[[], Task], tmp_path: Path) -> None:
    """Class -1, or NaN where outcomes are floating-point numbers, stands for a missing label."""
    task = make()
    labels = task.data["test"].target.clone()
    labels[:2] = torch.tensor([1, 0])
    task.data["test"] = replace(task.data["test"], target=labels.clone())
    assert unmasked_predictions(workspace_of(task, tmp_path / "a"), "test", "gold").target[:2].tolist() == [1, 0]
    labels[1] = math.nan if labels.is_floating_point() else -1
    unlabelled = make()
    unlabelled.data["test"] = replace(unlabelled.data["test"], target=labels)
    workspace = workspace_of(unlabelled, tmp_path / "b")
    with pytest.raises(InputError, match="some texts have no label"):
        unmasked_predictions(workspace, "test", "gold")
    assert (unmasked_predictions(workspace, "test", "predicted").target >= 0).all()


def minibatches_by_hand(lengths: list[int]) -> list[list[int]]:
    """Rows sorted by length, cut where one more would make over 16,384 tokens, or over 1,024 with 10 % of padding."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    found, current = [], order[:1]
    for row in order[1:]:
        together = [*current, row]
        padded, real = len(together) * lengths[row], sum(lengths[each] for each in together)
        if padded > 16_384 or (padded > 1024 and padded > 1.1 * real):
            found.append(current)
            together = [row]
        current = together
    return [*found, current]


@pytest.mark.parametrize(
    "lengths",
    [
        [32] * 32 + [32] * 480,  # exactly 16,384 tokens
        [32] * 513,
        [4, 4, *[8] * 127],  # 1,032 padded tokens, 1,024 real ones
        [1, *[64] * 16],
        [1, *[64] * 15],  # exactly 1,024 padded tokens, with much padding
        torch.randint(1, 60, (700,), generator=torch.Generator().manual_seed(0)).tolist(),
        torch.randint(1, 400, (200,), generator=torch.Generator().manual_seed(1)).tolist(),
        [7],
    ],
)
def test_minibatches_are_sorted_limited_and_hardly_padded(lengths: list[int]) -> None:
    found = [rows.tolist() for rows in _minibatches(torch.tensor(lengths))]
    assert found == minibatches_by_hand(lengths)


class WatchedTask(LinearTask):
    """Notes the shape of every batch that the model sees."""

    def __init__(self, rows: list[list[int]]) -> None:
        super().__init__(rows)
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, batch: Batch) -> Bernoulli:
        self.shapes.append(tuple(batch.tokens.shape))
        return super().forward(batch)


def test_at_most_256_rows_go_through_the_model_at_once() -> None:
    task = WatchedTask([[1]] * 600)
    Eraser(task).decisions(task.data["test"])
    assert [rows for rows, _ in task.shapes] == [256, 256, 88]


@pytest.mark.parametrize(("mode", "widths"), [("delete", [1, 2, 3]), ("mask", [3, 3, 3])])
def test_copies_are_grouped_by_the_length_that_the_model_sees(
    mode: str, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffmask.metrics.erasure.MIN_TOKENS", 1)
    monkeypatch.setattr("diffmask.metrics.erasure.MAX_TOKENS", 3)
    task = WatchedTask([[1, 1, 1], [1, 1, 3], [3, 1, 1]])
    gone = torch.tensor([[False, False, False], [True, True, False], [True, False, False]])
    logits = Eraser(task, mode).map_erased(task.data["test"], gone, lambda answer, _: answer.logits)  # type: ignore[arg-type, attr-defined]
    assert [width for _, width in task.shapes] == widths
    assert logits.tolist() == ([3.0, 4.0, 2.0] if mode == "delete" else [3.0, 3.0, 1.5])


@pytest.mark.parametrize("mode", ["delete", "attention-mask"])
def test_a_deleted_token_gives_its_position_away_and_a_hidden_one_keeps_it(mode: str) -> None:
    task = TransformerTask()
    batch = task.data["test"]
    long = int(batch.present.sum(dim=1).argmax())
    single = batch[long : long + 1].trim()
    gone = torch.zeros_like(single.present)
    gone[0, 2] = True
    kept = ~gone[0]
    found = Eraser(task, mode).predict(single, gone).logits  # type: ignore[arg-type, attr-defined]
    if mode == "delete":
        expected = task.model(single.tokens[:, kept], single.present[:, kept])
    else:
        expected = task.model(single.tokens, single.present & ~gone)
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1))


def test_without_a_mask_token_an_erased_token_has_the_mean_embedding(tmp_path: Path) -> None:
    task = LinearTask([[1, 3, 2], [2, 1, 3]])
    task.mask_token = None  # type: ignore[assignment]  # a vocabulary without one
    batch = task.data["test"]
    # The embeddings (1, 0), (2, -1) and (0, 1) have the mean (1, 0), which adds 1 to the logit.
    gone = torch.tensor([[False, True, False], [False, False, False]])
    eraser = Eraser.on(workspace_of(task, tmp_path), "mask")
    assert eraser.baseline is not None and eraser.baseline.tolist() == pytest.approx([1.0, 0.0])
    for each in (eraser, Eraser(task)):
        assert each.predict(batch, gone).logits.tolist() == pytest.approx([0.0, 3.0])  # type: ignore[attr-defined]
    nothing = Eraser(task, "mask", torch.zeros(2)).predict(batch, gone)
    assert nothing.logits.tolist() == pytest.approx([-1.0, 3.0])  # type: ignore[attr-defined]
    # Deleted, a row without any token is a row of means; the other is shorter.
    gone = torch.tensor([[True, True, True], [False, True, False]])
    assert Eraser(task, "delete").predict(batch, gone).logits.tolist() == pytest.approx([3.0, 2.0])  # type: ignore[attr-defined]
    assert not list(tmp_path.rglob("unmasked/*")) and len(list(tmp_path.rglob("baseline/*"))) == 1


def test_with_a_mask_token_no_baseline_is_computed(tmp_path: Path) -> None:
    assert Eraser.on(workspace_of(LinearTask([[1]]), tmp_path), "mask").baseline is None
    assert not list(tmp_path.rglob("baseline/*"))


def test_shares_of_tokens_are_rounded_up_without_rounding_errors() -> None:
    maskable = torch.arange(30) < torch.tensor([[30], [11], [1]])
    found = tokens_to_erase(maskable, (0.0, 0.05, 0.1, 0.2, 0.5, 1.0))
    assert found.tolist() == [[0, 2, 3, 6, 15, 30], [0, 1, 2, 3, 6, 11], [0, 1, 1, 1, 1, 1]]


def test_predictions_on_whole_texts_are_computed_once(tmp_path: Path) -> None:
    task = WatchedTask([[1, 3], [2, 1]])
    workspace = workspace_of(task, tmp_path)
    first = unmasked_predictions(workspace, "test", "predicted")
    passes = len(task.shapes)
    assert unmasked_predictions(workspace, "test", "predicted").target.tolist() == first.target.tolist()
    assert len(task.shapes) == passes
