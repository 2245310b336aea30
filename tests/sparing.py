"""Checks of shapes that cost little: a call is checked unless the same test made one just like it before.

A check costs as much as ten small operations of PyTorch, and physics makes thousands of calls of one kind. What is
checked are types, shapes and numbers' kinds, so calls that agree in these are of one kind.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import jaxtyping
import torch

TIMES = 2
"""Calls of one kind that are checked in each test: what a function returns may differ where arguments are alike."""

_made: Counter[Hashable] = Counter()
_always = jaxtyping.jaxtyped


def forget_calls() -> None:
    """At the start of every test."""
    _made.clear()


def kind_of(value: Any) -> Hashable:
    """All of a value that a signature speaks of."""
    if isinstance(value, torch.Tensor):
        return type(value), value.shape, value.dtype
    if isinstance(value, (tuple, list, set)):
        return type(value), *map(kind_of, value)
    if isinstance(value, dict):
        return dict, *map(kind_of, value.values())
    if isinstance(value, (int, str)):  # axes may be counted, and names may be one of several
        return type(value), value
    return type(value)


def sparingly_jaxtyped(fn: Any = None, *, typechecker: Any = None) -> Any:
    """Stands for `jaxtyping.jaxtyped`; the check itself is built when it is needed first, which most never are."""
    if fn is None:
        return lambda later: sparingly_jaxtyped(later, typechecker=typechecker)
    if isinstance(fn, (type, classmethod, staticmethod, property)):
        return _always(fn, typechecker=typechecker)  # which comes back for every function in it
    checked: list[Callable[..., Any]] = []

    @wraps(fn)
    def sparing(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_dynamo_compiling():  # which cannot look into checks
            return fn(*args, **kwargs)
        try:
            kind = fn, *map(kind_of, args), *kwargs, *map(kind_of, kwargs.values())
            _made[kind] += 1
            known = _made[kind] > TIMES
        except TypeError:  # a size without a number yet has no hash
            known = False
        if known:
            return fn(*args, **kwargs)
        if not checked:
            checked.append(_always(fn, typechecker=typechecker))
        return checked[0](*args, **kwargs)

    return sparing


def spare() -> None:
    """From now on, wherever the import hook of jaxtyping finds a function."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = sparingly_jaxtyped


def interpret_faster() -> None:
    """Let Triton's interpreter patch Triton's language once a launch, not for every call of a function in a kernel."""
    from triton.runtime import interpreter

    patch, launch, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set[int]()

    def patch_once(fn: Any) -> Any:
        seen = id(fn.__globals__)  # holds the modules that are to be patched
        if seen not in patched:
            patched.add(seen)
            return patch(fn)

    def launch_anew(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()  # the last launch has put everything back
        return launch(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch_anew
