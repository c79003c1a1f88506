"""Edits reach the state, once, and leave no trace."""

import pytest
import torch
from torch import nn

from diffmask.core.hooks import Site, edit_sites
from diffmask.errors import SiteError


class Twice(nn.Module):
    """Calls its part twice."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.part(x))


class Tupled(nn.Module):
    """A block that answers with a tuple and takes its state by name."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, str]:
        return hidden_states + 1, "extra"


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Tupled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(hidden_states=x)[0] * 10


X = torch.ones(1, 2, 3)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize(("side", "expected"), [("input", 60.0), ("output", 70.0)])
def test_the_state_is_edited_where_it_goes_in_or_comes_out(side: str, expected: float) -> None:
    model = Stack()
    # in: (1 + 4) + 1 = 6; out: (1 + 1) + 5 = 7
    change = {"input": 4.0, "output": 5.0}[side]
    with edit_sites(model, {Site("block", side): lambda state: state + change}):  # type: ignore[arg-type]
        assert (model(X) == expected).all()
    assert (model(X) == 20.0).all()


def test_a_site_called_twice_is_an_error_that_says_what_would_work() -> None:
    model = Twice()
    with pytest.raises(SiteError, match=r"seen 2 times.*nn\.Identity"), edit_sites(model, {Site("part"): lambda h: h}):
        model(X)
    assert hooks_of(model) == 0


def test_a_site_never_called_is_an_error() -> None:
    model = Stack()
    with pytest.raises(SiteError, match="seen 0 times"), edit_sites(model, {Site("block"): lambda h: h}):
        pass


def test_an_unknown_module_is_an_error_with_the_nearest_name() -> None:
    model = Stack()
    with pytest.raises(SiteError, match="nearest: 'block'"), edit_sites(model, {Site("blok"): lambda h: h}):
        model(X)


def test_hooks_are_gone_when_an_edit_raises() -> None:
    model = Stack()

    def broken(state: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("edit")

    with pytest.raises(ArithmeticError, match="edit"), edit_sites(model, {Site("block"): broken}):
        model(X)
    assert hooks_of(model) == 0
