"""What every registered method must keep, on a recurrent counter and on a transformer."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from diffmask import registry
from diffmask.core.batch import Attribution, Batch, ranking
from diffmask.core.config import parse
from diffmask.core.explainer import Explainer, Method
from diffmask.core.task import Task
from diffmask.errors import TaskError
from diffmask.tasks.toy import ToyTaskConfig
from diffmask.workspace.persistence import load_explainer, save_explainer
from support.transformer import TransformerTask

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

FAST: dict[str, dict[str, Any]] = {
    "amortised": {"budget": "64 texts", "width": 32, "held_out": 16},
    "attributive-masking": {"steps": 3, "width": 32, "statistics_rows": 32},
    "bottleneck": {"steps": 4},
    "captum:KernelShap": {"n_samples": 12},
    "captum:Lime": {"n_samples": 12},
    "captum:ShapleyValueSampling": {"n_samples": 2},
    "captum:GradientShap": {"n_samples": 4},
    "captum:IntegratedGradients": {"n_steps": 6},
    "captum:LayerIntegratedGradients": {"n_steps": 6},
    "diffmask": {"steps": 3, "batch_size": 16},
    "nested-diffmask": {"steps": 3, "batch_size": 16},
    "surrogate-mask": {"steps": 3, "batch_size": 16},
    "diffmask-per-input": {"steps": 4},
    "diffmask-reinforce": {"steps": 4, "samples": 2},
    "subset-search": {"budget": 30, "beam": 2},
    "integrated-gradients": {"n_steps": 6},
    "noise-tolerance": {"max_steps": 3, "samples": 4},
}
"""Settings that take little time; what is kept with them is kept with more steps."""
SEED = 3
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def small_toy() -> Task:
    task = ToyTaskConfig(rows=600, epochs=3, width=16).load(seed=0)
    task.model.double()
    return task


TASKS: dict[str, Callable[[], Task]] = {"toy": cache(small_toy), "transformer": cache(TransformerTask)}
NAMES = [entry.name for entry in registry.entries("method")]

each_method = pytest.mark.parametrize("name", NAMES)
each_task = pytest.mark.parametrize("task_name", TASKS)


def config(name: str) -> Method:
    found: Method = parse("method", {"name": name, **FAST.get(name, {})}, "contract")
    return found


@cache
def fitted(name: str, task_name: str) -> Explainer | str:
    """The explainer, or why the task cannot serve it; fitted once for all checks."""
    try:
        return config(name).fit(TASKS[task_name](), SEED)
    except TaskError as error:
        return str(error)


def explainer_of(name: str, task_name: str) -> Explainer:
    found = fitted(name, task_name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def explained(name: str, task_name: str) -> Attribution:
    """Forty rows, explained once for all checks."""
    return explainer_of(name, task_name)(rows(task_name))


def rows(task_name: str) -> Batch:
    return TASKS[task_name]().data["test"][:40]


def assert_same(first: Attribution, second: Attribution) -> None:
    torch.testing.assert_close(first.scores, second.scores, **CLOSE)
    assert first.layers == second.layers
    if first.by_layer is not None and second.by_layer is not None:
        torch.testing.assert_close(first.by_layer, second.by_layer, **CLOSE)


@each_task
@each_method
def test_every_token_of_every_row_has_a_finite_score(name: str, task_name: str) -> None:
    found, batch = explained(name, task_name), rows(task_name)
    assert found.scores.shape == batch.tokens.shape
    assert found.scores.isfinite().all()
    if found.by_layer is not None:
        assert found.by_layer.shape == (len(batch), len(found.layers), batch.tokens.shape[1])
        assert found.by_layer.isfinite().all()


@each_task
@each_method
def test_scores_are_not_all_the_same(name: str, task_name: str) -> None:
    batch = rows(task_name)
    values = explained(name, task_name).scores[batch.maskable]
    assert name == "uniform" or values.std() > 0


@each_task
@each_method
def test_what_may_not_be_masked_scores_zero_and_never_ranks(name: str, task_name: str) -> None:
    found, batch = explained(name, task_name), rows(task_name)
    assert (found.scores[~batch.maskable] == 0).all()
    order = ranking(found.scores, batch.maskable)
    ranked = batch.maskable.gather(1, order)
    assert (ranked[:, :-1] | ~ranked[:, 1:]).all()


@each_task
@each_method
def test_the_same_seed_gives_the_same_scores_and_a_second_fit_changes_nothing(name: str, task_name: str) -> None:
    explainer_of(name, task_name)
    config(name).fit(TASKS[task_name](), SEED)
    again = config(name).fit(TASKS[task_name](), SEED)
    assert torch.equal(again(rows(task_name)[:3]).scores, explainer_of(name, task_name)(rows(task_name)[:3]).scores)


@each_task
@each_method
def test_seven_rows_score_as_they_do_among_forty(name: str, task_name: str) -> None:
    alone = explainer_of(name, task_name)(rows(task_name)[5:12])
    assert_same(alone, explained(name, task_name)[5:12])


@each_task
@each_method
def test_rows_in_small_portions_score_the_same(name: str, task_name: str) -> None:
    portions = explainer_of(name, task_name)(rows(task_name)[:5], rows_at_once=2)
    assert_same(portions, explained(name, task_name)[:5])


@each_task
@each_method
def test_padding_changes_nothing(name: str, task_name: str) -> None:
    batch = rows(task_name)
    width = batch.tokens.shape[1]
    # One long row keeps the padding of the others from being trimmed away.
    long = _lengthened(batch[:1], width + 3)
    short = batch[:8]
    together = Batch(**{key: _stack(value, vars(long)[key]) for key, value in vars(short.pad(width + 3)).items()})
    padded = explainer_of(name, task_name)(together)[:8]
    torch.testing.assert_close(padded.scores[:, :width], explained(name, task_name).scores[:8], **CLOSE)
    assert (padded.scores[:, width:] == 0).all()


@each_task
@each_method
def test_a_class_can_be_asked_for(name: str, task_name: str) -> None:
    batch = rows(task_name)[:3]
    explainer = explainer_of(name, task_name)
    assert_same(explainer(batch, 1), explainer(batch, torch.ones_like(batch.target)))


@each_task
@each_method
def test_the_model_is_left_as_it_was_found(name: str, task_name: str) -> None:
    explainer, task = explainer_of(name, task_name), TASKS[task_name]()
    before = picture(task.model)
    explainer(rows(task_name)[:3])
    config(name).fit(task, SEED)
    assert picture(task.model) == before


@each_task
@each_method
def test_the_model_is_left_as_it_was_found_when_it_fails(name: str, task_name: str) -> None:
    explainer, task = explainer_of(name, task_name), TASKS[task_name]()
    before = picture(task.model)
    # The first pass answers what to explain; a later one fails inside the model, with edits in place.
    with failing(task.model, after=1):
        try:
            explainer(rows(task_name)[:3])
        except ZeroDivisionError:
            pass
        else:
            assert explainer.cost.forwards >= 1
    assert picture(task.model) == before


@pytest.mark.slow
@each_method
@pytest.mark.parametrize("after", [0, 3])
def test_the_model_is_left_as_it_was_found_when_a_fit_or_an_explanation_is_interrupted(name: str, after: int) -> None:
    explainer, task = explainer_of(name, "transformer"), TASKS["transformer"]()
    before = picture(task.model)
    for work in (lambda: explainer(rows("transformer")[:3]), lambda: config(name).fit(task, SEED)):
        with failing(task.model, after, KeyboardInterrupt), contextlib.suppress(KeyboardInterrupt):
            work()
        assert picture(task.model) == before


@each_task
def test_the_model_is_left_as_it_was_found_when_an_edit_raises(task_name: str) -> None:
    task = TASKS[task_name]()
    before = picture(task.model)

    def fail(state: Tensor) -> Tensor:
        raise ZeroDivisionError

    for site in task.sites:
        with pytest.raises(ZeroDivisionError):
            task.predict(rows(task_name), {task.sites[0]: lambda state: state, site: fail})
    assert picture(task.model) == before


@each_task
@each_method
def test_what_is_saved_and_loaded_gives_the_same_scores(name: str, task_name: str, tmp_path: Path) -> None:
    save_explainer(explainer_of(name, task_name), config(name), tmp_path / "kept")
    loaded = load_explainer(tmp_path / "kept", TASKS[task_name]())
    assert torch.equal(loaded(rows(task_name)[:3]).scores, explainer_of(name, task_name)(rows(task_name)[:3]).scores)


@each_method
def test_the_recipe_survives_yaml(name: str) -> None:
    kept = config(name)
    again = parse("method", yaml.safe_load(yaml.safe_dump(kept.to_dict())), "contract")
    assert again == kept
    assert again.digest == kept.digest


@each_method
def test_every_choice_has_a_default(name: str) -> None:
    assert parse("method", name, "contract").name == name


def test_global_random_numbers_are_left_alone() -> None:
    before = torch.random.get_rng_state()
    for name in NAMES:
        found = fitted(name, "transformer")
        if not isinstance(found, str):
            found(rows("transformer")[:2])
    assert torch.equal(torch.random.get_rng_state(), before)


def picture(model: nn.Module) -> tuple[Any, ...]:
    """Everything about a model that an explanation could leave behind."""
    modules = [
        (name, module.training, len(module._forward_hooks), len(module._forward_pre_hooks), len(module._backward_hooks))
        for name, module in model.named_modules()
    ]
    values = [(name, value.sum().item(), value.requires_grad, value.grad) for name, value in model.named_parameters()]
    return modules, values


@contextmanager
def failing(model: nn.Module, after: int, error: type[BaseException] = ZeroDivisionError) -> Iterator[None]:
    """Within this block the model's last layer fails once it has answered `after` times."""
    calls = 0

    def count(module: nn.Module, given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error

    hook = model.get_submodule("answer").register_forward_pre_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _lengthened(batch: Batch, width: int) -> Batch:
    """The first row's text with its last word repeated up to `width` tokens."""
    wide = batch.pad(width)
    first = int(batch.maskable[0].nonzero()[0])
    return Batch(
        tokens=wide.tokens[:, :first].new_full((1, width), int(batch.tokens[0, first])),
        present=torch.ones_like(wide.present),
        maskable=torch.ones_like(wide.maskable),
        target=wide.target,
        inputs=wide.inputs,
    )


def _stack(first: Any, second: Any) -> Any:
    if isinstance(first, Tensor):
        return torch.cat([first, second])
    return {key: torch.cat([value, second[key]]) for key, value in first.items()}
