"""Reading and editing the states of a model while it runs. No other file registers hooks on modules.

A hook, like train mode, belongs to the model and not to the caller. Every block in this file therefore holds a
re-entrant lock of the model: calls from several threads are correct and run one after another per model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from threading import Lock, RLock, get_ident
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from diffmask.errors import SiteError, nearest

State = Float[Tensor, "row token width"]
Edit = Callable[[State], State]

_LOCKS: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()
_LOCKS_GUARD = Lock()


@contextmanager
def exclusive(model: nn.Module) -> Iterator[None]:
    """Hold the model's re-entrant lock: within this block no other thread edits, freezes or explains the model."""
    with _LOCKS_GUARD:
        lock = _LOCKS.setdefault(model, RLock())
    with lock:
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode without parameter gradients; every module and parameter is restored at the end."""
    with exclusive(model):
        training = [module for module in model.modules() if module.training]
        learning = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def set_all(value: bool) -> None:
            for module in training:
                module.training = value
            for parameter in learning:
                parameter.requires_grad_(value)

        with undone(lambda: set_all(True)):
            set_all(False)
            yield


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` when the block ends. It may be called twice: Ctrl-C can cut the first call short."""
    try:
        try:
            yield
        finally:
            undo()
    except BaseException:
        undo()
        raise


class _Hooks:
    """Hooks to remove together. A hook is noted before it is registered, so that Ctrl-C in between leaves none."""

    def __init__(self) -> None:
        self.noted: list[tuple[nn.Module, Callable[..., Any]]] = []

    def on_output(self, module: nn.Module, hook: Callable[..., Any], *, with_kwargs: bool = False) -> None:
        """Call the hook after the module."""
        self.noted.append((module, hook))
        module.register_forward_hook(hook, with_kwargs=with_kwargs)

    def on_input(self, module: nn.Module, hook: Callable[..., Any], *, with_kwargs: bool = False) -> None:
        """Call the hook before the module."""
        self.noted.append((module, hook))
        module.register_forward_pre_hook(hook, with_kwargs=with_kwargs)

    def remove(self) -> None:
        """Remove all of them."""
        for module, hook in self.noted:
            for hooks, marks in (
                (module._forward_hooks, module._forward_hooks_with_kwargs),
                (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
            ):
                for key in [key for key, registered in hooks.items() if registered is hook]:
                    marks.pop(key, None)
                    hooks.pop(key, None)


@contextmanager
def _hooks_on(model: nn.Module) -> Iterator[_Hooks]:
    """Hold the model's lock and remove, when the block ends, the hooks that are registered within it."""
    hooks = _Hooks()
    with exclusive(model), undone(hooks.remove):
        yield hooks


@dataclass(frozen=True)
class Site:
    """A named state of a model that can be read and edited: the input or the output of a module."""

    module: str
    """Path of the module, as in `model.named_modules()`."""
    side: Literal["input", "output"] = "output"
    call: int | None = None
    """Index of the call, from 0, if one forward pass calls the module several times; None if it calls it once."""
    token_first: bool = False
    """Whether the module's states are [token, row, width]. Edits always see [row, token, width]."""


@contextmanager
def edit_sites(model: nn.Module, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Replace the state at each site by `edit(state)` during the one forward pass of this block.

    The hooks are removed when the block ends, also by an error.

    Raises:
        SiteError: The model has no such module, the pass does not reach a site, or it reaches a site without a call
            index more than once.
    """
    calls = dict.fromkeys(edits, 0)

    def counted(site: Site, edit: Edit) -> Edit:
        def edit_chosen_call(state: State) -> State:
            calls[site] += 1
            return _apply(site, edit, state) if site.call in (None, calls[site] - 1) else state

        return edit_chosen_call

    with _hooks_on(model) as hooks:
        for site, edit in edits.items():
            _attach(hooks, model, site, counted(site, edit))
        yield
    for site, count in calls.items():
        _require_reached(site, count)


@contextmanager
def persistent_edit(model: nn.Module, site: Site, edit: Edit) -> Iterator[None]:
    """Replace the state at one site in every forward pass of this block.

    An `edit_sites` of the same site runs afterwards and sees the replaced state.
    """
    if site.call is not None:
        raise SiteError(f"'{site.module}' is called several times per pass, so its calls cannot be distinguished here")
    with _hooks_on(model) as hooks:
        _attach(hooks, model, site, lambda state: _apply(site, edit, state))
        yield


def interpolate(
    gate: Float[Tensor, "row token"],
    baseline: Float[Tensor, "*state"],
    maskable: Bool[Tensor, "row token"] | None = None,
) -> Edit:
    """Return the edit h <- z h + (1 - z) b with gate z and baseline b; tokens that are not maskable have z = 1."""
    keep = (gate if maskable is None else torch.where(maskable, gate, 1.0))[..., None]
    return lambda state: keep * state + (1 - keep) * baseline


def erase_states(erased: Bool[Tensor, "row token"], baseline: Float[Tensor, " width"]) -> Edit:
    """Return the edit h <- b at the erased tokens."""
    return lambda state: torch.where(erased[..., None], baseline, state)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module with its first input and its first output; None for a value that is not a tensor."""

    module: str
    input: Tensor | None
    output: Tensor | None


@contextmanager
def record_calls(model: nn.Module, modules: Iterable[str]) -> Iterator[list[ModuleCall]]:
    """Collect every call of the named modules, in the order in which the calls end."""
    calls: list[ModuleCall] = []

    def recorder(path: str) -> Callable[..., None]:
        @_this_thread_only
        def hook(module: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
            state = arguments[0] if arguments else named.get("hidden_states")
            result = output[0] if isinstance(output, tuple) else output
            calls.append(ModuleCall(path, *(value if isinstance(value, Tensor) else None for value in (state, result))))

        return hook

    with _hooks_on(model) as hooks:
        for path in modules:
            hooks.on_output(model.get_submodule(path), recorder(path), with_kwargs=True)
        yield calls


@contextmanager
def on_output(model: nn.Module, callback: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `callback` with the first tensor of every output of the model."""

    @_this_thread_only
    def hook(module: nn.Module, arguments: Any, output: Any) -> None:
        callback(_first_tensor(output))

    with _hooks_on(model) as hooks:
        hooks.on_output(model, hook)
        yield


def on_gradient(state: Tensor, callback: Callable[[Tensor], None]) -> None:
    """Call `callback` with the gradient of `state` in every backward pass through it."""
    if state.requires_grad:
        state.register_hook(callback)


@contextmanager
def skip_modules(model: nn.Module, modules: Iterable[str], *, members: int) -> Iterator[None]:
    """Make the named modules return their input state unchanged, without any computation.

    A module whose output is a tuple returns one of `members` members, all None but the first; 0 means a bare tensor.
    """

    def return_input(*arguments: Any, **named: Any) -> Any:
        state = arguments[0] if arguments else named["hidden_states"]
        return (state, *[None] * (members - 1)) if members else state

    with exclusive(model), ExitStack() as patches:
        for path in modules:
            patches.enter_context(_replaced_forward(model.get_submodule(path), return_input))
        yield


@contextmanager
def edit_argument(model: nn.Module, modules: Iterable[str], name: str, edit: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an argument of the named modules by `edit(argument)`, whether it is passed by position or by name."""

    def hook(module: nn.Module, arguments: Any, named: dict[str, Any]) -> Any:
        parameters = list(signature(module.forward).parameters)
        place = parameters.index(name) if name in parameters else len(arguments)
        if place < len(arguments):
            return (*arguments[:place], edit(arguments[place]), *arguments[place + 1 :]), named
        return arguments, {**named, name: edit(named.get(name))}

    with _hooks_on(model) as hooks:
        for path in modules:
            hooks.on_input(model.get_submodule(path), _this_thread_only(hook), with_kwargs=True)
        yield


@contextmanager
def select_tokens(model: nn.Module, module: str, columns: Int[Tensor, "row selected"] | slice) -> Iterator[None]:
    """Let the named module see only some tokens of its input, such as a language model's head."""

    def hook(_module: nn.Module, arguments: Any) -> Any:
        state = arguments[0]
        if isinstance(columns, slice):
            return (state[:, columns], *arguments[1:])
        rows = torch.arange(len(state), device=state.device)[:, None]
        return (state[rows, columns], *arguments[1:])

    with _hooks_on(model) as hooks:
        hooks.on_input(model.get_submodule(module), _this_thread_only(hook))
        yield


@contextmanager
def remove_added_hooks(model: nn.Module) -> Iterator[None]:
    """Remove, when the block ends, every forward hook that a library added to the model within it.

    transformers installs hooks at the first pass with `output_attentions=True`, marks the module, and leaves both.
    """
    mark = "_output_capturing_hooks_installed"
    with exclusive(model):
        modules = list(model.modules())
        hooks_before = [(set(module._forward_hooks), set(module._forward_pre_hooks)) for module in modules]
        marked = [mark in module.__dict__ for module in modules]

        def remove() -> None:
            for module, (after, before), was_marked in zip(modules, hooks_before, marked, strict=True):
                for key in set(module._forward_hooks) - after:
                    module._forward_hooks.pop(key, None)
                for key in set(module._forward_pre_hooks) - before:
                    module._forward_pre_hooks.pop(key, None)
                if not was_marked:
                    module.__dict__.pop(mark, None)

        with undone(remove):
            yield


def _this_thread_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that does nothing in other threads, which may run the model directly, without the lock."""
    owner = get_ident()

    @wraps(hook)
    def guarded(*arguments: Any) -> Any:
        return hook(*arguments) if get_ident() == owner else None

    return guarded


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the module's `forward`; one that was set on this instance is restored."""
    owner, original, own = get_ident(), module.forward, module.__dict__.get("forward")

    def guarded(*arguments: Any, **named: Any) -> Any:
        return (forward if get_ident() == owner else original)(*arguments, **named)

    def restore() -> None:
        module.__dict__.pop("forward", None)
        if own is not None:
            module.__dict__["forward"] = own

    with undone(restore):
        module.__dict__["forward"] = guarded
        yield


def _apply(site: Site, edit: Edit, state: Tensor) -> Tensor:
    return edit(state.transpose(0, 1)).transpose(0, 1) if site.token_first else edit(state)


def _require_reached(site: Site, count: int) -> None:
    if site.call is None and count != 1:
        raise SiteError(
            f"the {site.side} of '{site.module}' was seen {count} times in one forward pass, not once; "
            "name the call to edit, or insert an nn.Identity of its own at this point of the model"
        )
    if site.call is not None and count <= site.call:
        raise SiteError(f"'{site.module}' was called {count} times in one forward pass; there is no call {site.call}")


def _attach(hooks: _Hooks, model: nn.Module, site: Site, edit: Edit) -> None:
    modules = dict(model.named_modules())
    if site.module not in modules:
        raise SiteError(f"'{site.module}' is not a module of {type(model).__name__}; {nearest(site.module, modules)}")
    module = modules[site.module]
    if site.side == "output":
        hooks.on_output(module, _this_thread_only(lambda _module, _arguments, output: _edit_output(output, edit)))
    else:
        edit_input = _this_thread_only(lambda _module, arguments, named: _edit_input(arguments, named, edit))
        hooks.on_input(module, edit_input, with_kwargs=True)


def _edit_output(output: Any, edit: Edit) -> Any:
    """Edit an output that is a tensor, or a tuple whose first member is the state."""
    return (edit(output[0]), *output[1:]) if isinstance(output, tuple) else edit(output)


def _edit_input(
    arguments: tuple[Any, ...], named: dict[str, Any], edit: Edit
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Edit the first argument, or the keyword argument `hidden_states`, as transformers calls it."""
    if arguments:
        return (edit(arguments[0]), *arguments[1:]), named
    if "hidden_states" not in named:
        raise SiteError(f"a block that takes {', '.join(named) or 'nothing'} has no state to edit: pass it first")
    return arguments, {**named, "hidden_states": edit(named["hidden_states"])}


def _first_tensor(output: Any) -> Tensor:
    """Return the output itself, or the first tensor of a tuple or of a library's output record."""
    while not isinstance(output, Tensor):
        output = next(
            value for value in (output.values() if isinstance(output, Mapping) else output) if value is not None
        )
    return output
