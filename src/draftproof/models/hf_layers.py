"""A private copy of a model's modules, and variants of it that run only some of the layers.

No weight is copied and no loop of transformers: a skipped layer is a copy of the layer object whose `forward` hands its
input on, so layer numbers, layer types and rotary tables stay as the architecture has them.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

from torch import Tensor, nn

from draftproof.models.hf_attention import KWARG, NAME, Call, Probe

_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
_BOOKKEEPING = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))
_PRE_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


@dataclass(eq=False)
class Trunk:
    """The modules of a causal language model and the way to its list of decoder layers.

    tapped  copies of the layer objects whose hooks keep the states that a call asks for in that call
    """

    net: Any
    path: tuple[str, ...]
    layers: Sequence[nn.Module]
    tapped: Sequence[nn.Module]


def private(model: Any) -> Any:
    """The same weights in module objects and a configuration of our own, attending through our function.

    What the caller's model has, hooks and adapters included, is there too; what is changed here is not there. Of all
    attributes only what leads to a module or to a configuration is made anew, the others are shared.
    """
    from transformers import PreTrainedConfig

    originals = list(model.modules())
    copies: dict[int, Any] = {id(module): object.__new__(type(module)) for module in originals}
    for value in [value for module in originals for value in vars(module).values()]:
        if isinstance(value, PreTrainedConfig):
            copy.deepcopy(value, copies)  # enters it, and those within it, into `copies`
    for module in originals:
        own = {name: _again(value, copies, name in _BOOKKEEPING) for name, value in vars(module).items()}
        own.pop("_compiled_call_impl", None)  # compiled code of the caller's module
        vars(copies[id(module)]).update(own)
    net = copies[id(model)]
    net.set_attn_implementation(NAME)
    _freeze_rope(net)
    return net


def _again(value: Any, copies: dict[int, Any], always: bool = False) -> Any:
    """The value with copies, found by the id of the original, in place of the modules and configurations it leads to.

    A container or callable that leads to none is shared, unless it is `always` to be a new one.
    """
    if id(value) in copies:
        return copies[id(value)]
    parts = _parts(value)
    if parts is None:
        return value
    copies[id(value)] = value  # ends a walk in circles
    made = [_again(part, copies) for part in parts]
    if always or any(new is not old for new, old in zip(made, parts, strict=True)):
        copies[id(value)] = _assembled(value, made)
    return copies[id(value)]


def _parts(value: Any) -> list[Any] | None:
    """What a container or callable leads to; None for everything else."""
    if isinstance(value, MethodType):
        return [value.__self__]
    if type(value) is partial:
        return [value.func, *value.args, *value.keywords.values()]
    if type(value) in (dict, OrderedDict):
        return list(value.values())
    return list(value) if type(value) in (list, tuple, set) else None


def _assembled(value: Any, parts: list[Any]) -> Any:
    """The like of a value from other parts."""
    if isinstance(value, MethodType):
        return MethodType(value.__func__, parts[0])
    if type(value) is partial:
        count = 1 + len(value.args)
        return partial(parts[0], *parts[1:count], **dict(zip(value.keywords, parts[count:], strict=True)))
    return type(value)(zip(value, parts, strict=True) if isinstance(value, dict) else parts)


def find_layers(net: nn.Module, count: int) -> Trunk | None:
    """The list of `count` decoder layers whose attention carries the numbers 0 ... count - 1."""
    for name, module in net.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and all(map(_numbered, module, range(count))):
            return Trunk(net, tuple(name.split(".")), list(module), _tapped(list(module)))
    return None


def same_layers(net: nn.Module, trunk: Trunk) -> Trunk:
    """The list of layers of a copy, where that of the original is."""
    layers: Any = net.get_submodule(".".join(trunk.path))
    return Trunk(net, trunk.path, list(layers), _tapped(list(layers)))


def whole(trunk: Trunk) -> Any:
    """Every layer, tapped."""
    return _with_layers(trunk, trunk.tapped)


def lower(trunk: Trunk, exit_layer: int, tuples: bool) -> Any:
    """The first `exit_layer` layers, tapped, then the final norm and the head."""
    skipped = [_replaced(layer, _pass_on(tuples)) for layer in trunk.layers[exit_layer:]]
    return _with_layers(trunk, [*trunk.tapped[:exit_layer], *skipped])


def upper(trunk: Trunk, exit_layer: int, tuples: bool) -> Any:
    """The layers behind the first `exit_layer`, tapped, started from the states the call carries."""
    skipped = [_replaced(layer, _pass_on(tuples)) for layer in trunk.layers[: exit_layer - 1]]
    start = _replaced(trunk.layers[exit_layer - 1], _inject(tuples))
    return _with_layers(trunk, [*skipped, start, *trunk.tapped[exit_layer:]])


def _numbered(layer: nn.Module, number: int) -> bool:
    return any(getattr(module, "layer_idx", None) == number for module in layer.modules())


def _with_layers(trunk: Trunk, layers: Sequence[nn.Module]) -> Any:
    """Shallow copies of the modules on the way to the list; everything else is shared."""
    root = node = _shell(trunk.net)
    for name in trunk.path[:-1]:
        child = _shell(node._modules[name])
        node._modules[name] = child
        node = child
    node._modules[trunk.path[-1]] = nn.ModuleList(layers)
    return root


def _shell(module: Any) -> Any:
    shell = object.__new__(type(module))
    shell.__dict__.update(module.__dict__)
    shell.__dict__["_modules"] = dict(module._modules)
    return shell


def _tapped(layers: Sequence[nn.Module]) -> list[nn.Module]:
    copies: list[nn.Module] = [_shell(layer) for layer in layers]
    for number, (layer, shell) in enumerate(zip(layers, copies, strict=True), 1):
        for name in (*_HOOKS, *_PRE_HOOKS):
            setattr(shell, name, OrderedDict(getattr(layer, name)))
        shell.register_forward_hook(_tap(number), with_kwargs=True)
    copies[0].register_forward_pre_hook(_tap_input, with_kwargs=True)
    return copies


def _replaced(layer: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    """A copy of the layer object that runs `forward` and no hooks: those belong to the real layer."""
    shell: nn.Module = _shell(layer)
    for name in (*_HOOKS, *_PRE_HOOKS):
        setattr(shell, name, OrderedDict())
    shell.forward = forward
    return shell


def _pass_on(tuples: bool) -> Callable[..., Any]:
    def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        return (hidden_states,) if tuples else hidden_states

    return forward


def _inject(tuples: bool) -> Callable[..., Any]:
    def forward(hidden_states: Tensor, *_: Any, **kwargs: Any) -> Any:
        states = kwargs[KWARG].injected
        return (states,) if tuples else states

    return forward


def _tap_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call = kwargs.get(KWARG)
    if isinstance(call, Call) and 0 in call.taps:
        call.states[0] = args[0] if args else kwargs["hidden_states"]


def _tap(number: int) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        call = kwargs.get(KWARG)
        if isinstance(call, Probe):
            call.tuples = isinstance(output, tuple)
            call.tapped += 1
        elif isinstance(call, Call) and number in call.taps:
            call.states[number] = output[0] if isinstance(output, tuple) else output

    return hook


def _freeze_rope(net: nn.Module) -> None:
    """Rotary frequencies that follow the longest position of a call would let one request change another's.

    Up to `max_context` (see `hf_check.context_limit`) they are the original ones, so those are set for good.
    """
    for module in net.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str) and _moves(kinds):
            module.inv_freq = module.original_inv_freq.clone()  # type: ignore[operator]
            module.rope_type = "default"  # type: ignore[assignment]
        elif isinstance(kinds, dict):
            for layer_type in [name for name, kind in kinds.items() if _moves(kind)]:
                original = getattr(module, f"{layer_type}_original_inv_freq")
                setattr(module, f"{layer_type}_inv_freq", original.clone())
            module.rope_type = {name: "default" if _moves(kind) else kind for name, kind in kinds.items()}  # type: ignore[assignment]


def _moves(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"
