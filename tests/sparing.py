"""Checks of shapes that cost little: a call is checked unless the same file of tests made one just like it.

A check costs as much as ten small operations of PyTorch, and physics makes thousands of calls of one kind. What is
checked are types, shapes and numbers' kinds, so calls that agree in these are of one kind.
"""

import math
from collections.abc import Callable, Hashable
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import jaxtyping
import numpy as np
import torch
from tyro import _docstrings, _unsafe_cache

MANY = 50
"""Calls of one function in a test, after which only every eighth is looked at."""

_made: set[Hashable] = set()
_calls: dict[int, int] = {}
_file: list[Hashable] = []
_always = jaxtyping.jaxtyped


def begin_test(file: Hashable) -> None:
    """Calls are counted anew in every test, and their kinds in every file of tests."""
    _calls.clear()
    if _file != [file]:
        _file[:] = [file]
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
    # A function within a function is a new one at each call, but of the same code; to hash that itself takes long.
    code = id(fn.__code__)

    @wraps(fn)
    def sparing(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_dynamo_compiling():  # which cannot look into checks
            return fn(*args, **kwargs)
        calls = _calls[code] = _calls.get(code, 0) + 1
        if calls > MANY and calls % 8:  # to tell their kinds takes longer than some of these calls
            return fn(*args, **kwargs)
        try:
            kind = code, *map(kind_of, args), *kwargs, *map(kind_of, kwargs.values())
            known = kind in _made
            _made.add(kind)
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


def parse_faster() -> None:
    """tyro without what it does in tests only, every tenth thing twice, and reading the source of a class once."""
    _unsafe_cache.sys = SimpleNamespace(modules={})  # it looks for pytest there
    read = _docstrings._ClassTokenization.make.__wrapped__
    _docstrings._ClassTokenization.make = staticmethod(cache(read))


def interpret_faster() -> None:
    """Triton's interpreter with less to do for every operation, and with scans that are computed as on a GPU."""
    from triton.language import core, semantic
    from triton.runtime import interpreter

    _patch_once_a_launch(interpreter)
    _agree_at_once(core, semantic.TritonSemantic)
    number_kinds, kind_of_numbers = dict[str, Any](), interpreter._get_np_dtype
    blocks, make_block = dict[Hashable, tuple[Any, ...]](), core.block_type.__init__

    def get_np_dtype(dtype: Any) -> Any:
        if dtype.name not in number_kinds:
            number_kinds[dtype.name] = kind_of_numbers(dtype)
        return number_kinds[dtype.name]

    def as_of_tensors(shape: Any) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, *(size.value if isinstance(size, core.constexpr) else size for size in shape)
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = self.shape, self.numel, self.name, as_of_tensors(self.shape), key[1:]
        self.element_ty, (self.shape, self.numel, self.name, self.of_tensors, self.sizes) = element_ty, blocks[key]

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = getattr(type, "of_tensors", of_scalars)

    def scan(self: Any, elements: Any) -> list[Any]:
        """In log2(n) rounds of all elements: `gtmsm.kernels.scans.prefix`."""
        found, (axis, kinds) = [each.handle.data for each in elements], (self.axis, [each.dtype for each in elements])
        at = np.indices(found[0].shape)[axis]
        for length in (2**i for i in range((found[0].shape[axis] - 1).bit_length())):
            earlier = [np.roll(part, length, axis) for part in found]
            pair = (
                self.to_tensor(part, kind) for half in (earlier, found) for part, kind in zip(half, kinds, strict=True)
            )
            both = self.combine_fn.fn(*pair)
            both = both if isinstance(both, tuple) else (both,)
            found = [np.where(at < length, part, new.handle.data) for part, new in zip(found, both, strict=True)]
        return [self.to_tensor(part, kind) for part, kind in zip(found, kinds, strict=True)]

    of_scalars = as_of_tensors(())
    interpreter._get_np_dtype = get_np_dtype
    core.block_type.__init__, core.tensor.__init__ = init_block, init_tensor
    interpreter.ScanOps.generic_scan = scan


def _patch_once_a_launch(interpreter: Any) -> None:
    """Triton's language is patched once a launch, not for every call of a function in a kernel."""
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


def _agree_at_once(core: Any, semantic: Any) -> None:
    """A short way for operands that agree in type and shape, which are most; all others go the way of Triton."""
    broadcast, cast, check = semantic.broadcast_impl_value, semantic.cast, semantic.binary_op_type_checking_impl
    equal, unwrap, as_they_are = core.dtype.__eq__, core._unwrap_if_constexpr, {core.tensor, int, float, bool, str}

    def broadcast_value(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        left, right = getattr(lhs.type, "sizes", None), getattr(rhs.type, "sizes", None)
        return (lhs, rhs) if left == right else broadcast(self, lhs, rhs)  # None is a scalar's

    def cast_value(self: Any, input: Any, dst_ty: Any, *rounding: Any, **more: Any) -> Any:
        return input if input.dtype is dst_ty.scalar else cast(self, input, dst_ty, *rounding, **more)

    def check_types(self: Any, lhs: Any, rhs: Any, *allowed: Any, **more: Any) -> tuple[Any, Any]:
        if type(lhs) is type(rhs) is core.tensor and lhs.dtype is rhs.dtype and lhs.dtype in stay:
            return broadcast_value(self, lhs, rhs)
        return check(self, lhs, rhs, *allowed, **more)

    def equal_types(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    def unwrapped(value: Any) -> Any:
        return value if type(value) in as_they_are else unwrap(value)

    stay = {core.float32, core.float64, core.int32, core.int64}  # whatever is done with two of them
    semantic.broadcast_impl_value, semantic.cast = broadcast_value, cast_value
    semantic.binary_op_type_checking_impl = check_types
    core.dtype.__eq__, core._unwrap_if_constexpr = equal_types, unwrapped
