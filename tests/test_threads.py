"""Calls from several threads give the scores of serial calls, for every registered method and any mix of them."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from diffmask import registry
from diffmask.core.batch import Batch
from diffmask.core.explainer import Explainer
from diffmask.core.hooks import Site, edit_sites, exclusive, frozen, on_output, skip_modules
from diffmask.errors import TaskError
from diffmask.methods.gradients import Gradient, IntegratedGradients
from diffmask.methods.leave_one_out import LeaveOneOut
from support.linear import LinearTask, Sum
from support.transformer import TransformerTask
from test_contract import config

pytestmark = pytest.mark.filterwarnings("ignore::diffmask.errors.FitWarning")

THREADS = 8


def in_threads(jobs: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
    """Run the jobs on eight threads that start at the same moment."""
    start = Barrier(THREADS)
    interval = sys.getswitchinterval()

    def run(thread: int) -> list[Tensor]:
        start.wait()
        return [job() for job in jobs[thread::THREADS]]

    sys.setswitchinterval(2e-4)  # threads interrupt each other often, so that a race is seen
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            shares = list(pool.map(run, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    return [shares[index % THREADS][index // THREADS] for index in range(len(jobs))]


def job(explainer: Explainer, batch: Batch) -> Callable[[], Tensor]:
    return lambda: explainer(batch).scores


@pytest.fixture(scope="module")
def task() -> TransformerTask:
    return TransformerTask()


@pytest.mark.parametrize("name", [entry.name for entry in registry.entries("method")])
def test_every_method_gives_the_serial_scores(name: str, task: TransformerTask) -> None:
    try:
        explainer = config(name).fit(task, 3)
    except TaskError as error:
        pytest.skip(str(error))
    jobs = [job(explainer, task.data["test"][row : row + 1].trim()) for row in range(2 * THREADS)]
    serial = [call() for call in jobs]
    for expected, scores in zip(serial, in_threads(jobs), strict=True):
        torch.testing.assert_close(scores, expected, rtol=0, atol=0)


def test_many_calls_of_several_explainers_on_one_model_give_the_serial_scores() -> None:
    task = LinearTask([[1, 2, 3], [3, 1], [2], [1, 1, 2], [3], [3, 2], [2, 2, 1], [1, 3]])
    explainers = (Gradient().fit(task), LeaveOneOut().fit(task), IntegratedGradients(n_steps=2).fit(task))
    rows = [task.data["test"][row : row + 1].trim() for row in range(8)]
    jobs = [job(explainers[index % 3], rows[index % 8]) for index in range(12 * THREADS)]
    serial = [call() for call in jobs[:24]]
    passes = [explainer.cost.forwards for explainer in explainers]
    for index, scores in enumerate(in_threads(jobs)):
        torch.testing.assert_close(scores, serial[index % 24], rtol=0, atol=0)
    # Every explainer counts its own passes only.
    assert explainers[0].cost.forwards - passes[0] == len(jobs[::3]) * passes[0] // 8


class DropoutTask(LinearTask):
    """A model that its owner left in train mode: only `frozen` passes are deterministic."""

    def __init__(self, rows: list[list[int]]) -> None:
        model = Sum()
        super().__init__(rows, model)
        model.embedding = nn.Sequential(model.embedding, nn.Dropout(0.5))  # type: ignore[assignment]  # same call
        model.train()

    def forward(self, batch: Batch) -> Bernoulli:
        with frozen(self.model):
            return super().forward(batch)


def test_a_model_in_train_mode_has_no_dropout_in_any_thread() -> None:
    task = DropoutTask([[1, 2, 3], [3, 1]])
    batch = task.data["test"]
    expected = LinearTask([[1, 2, 3], [3, 1]]).predict(batch).mean
    for mean in in_threads([lambda: task.forward(batch).mean] * 64 * THREADS):
        torch.testing.assert_close(mean, expected, rtol=0, atol=0)
    assert all(module.training for module in task.model.modules())


def test_fits_in_several_threads_are_the_serial_fit(task: TransformerTask) -> None:
    method, batch = config("diffmask"), task.data["test"][:4]
    expected = method.fit(task, 1)(batch).scores
    for scores in in_threads([lambda: method.fit(task, 1)(batch).scores] * 3):
        torch.testing.assert_close(scores, expected, rtol=0, atol=0)


def test_an_edit_does_not_reach_another_thread_that_runs_the_model_directly() -> None:
    task = LinearTask([[1, 2], [3]])
    batch = task.data["test"]
    original = task.model(batch.tokens, batch.present)
    outputs: list[Tensor] = []
    with (
        ThreadPoolExecutor(1) as pool,
        edit_sites(task.model, {Site("embedding"): torch.zeros_like}),
        on_output(task.model, outputs.append),
    ):
        edited = task.model(batch.tokens, batch.present)
        direct = pool.submit(task.model, batch.tokens, batch.present).result()
    assert edited.tolist() == [0.0, 0.0] and len(outputs) == 1
    torch.testing.assert_close(direct, original)
    with ThreadPoolExecutor(1) as pool, skip_modules(task.model, ["embedding"], members=0):
        torch.testing.assert_close(pool.submit(task.model, batch.tokens, batch.present).result(), original)


def test_two_models_do_not_wait_for_each_other() -> None:
    first, second = LinearTask([[1, 2]]), LinearTask([[1, 2]])
    with exclusive(first.model), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(second.predict, second.data["test"]).result(timeout=60)
    assert len(answer.mean) == 1
