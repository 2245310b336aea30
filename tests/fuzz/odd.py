"""Odd arguments: whatever is good becomes something that a person might give instead."""

from dataclasses import is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAN, INF = float("nan"), float("inf")
NUMBERS = (0, -1, 1, 2, 10**9, 2**63, -(2**70), 1.5, NAN, INF, True, "3", None, np.int64(2), [1])
THINGS = (None, "x", 3, 1.5, [], {}, (), object(), np.zeros(3), torch.zeros(0), NAN)
WORDS = (
    "", " ", "-1", "0", "1.5", "nan", "inf", "1e400", "1000000000", "9" * 30, "x", "r999999999", "u" * 3_000, "[bold]",
    "[/]", "a\nb", "\udcff", "é", "None", "cuda", "cuda:99", "images.npz", "run/config.yaml/x", "run", "folder", "-",
    "--", "--help", "--run", "--seed=1.5", "--nosuch", "x" * 300, "{}", "(1,)", "True", "...",
)  # fmt: skip

# A word may become the name of a file that is written: never one outside of the folder of its case.
assert not any(Path(word).is_absolute() or ".." in Path(word).parts for word in WORDS)


def odd(rng: Random, good: Any) -> Any:
    """Another value for `good`; sometimes one that is allowed."""
    if rng.random() < 0.1:
        return rng.choice(THINGS)
    if isinstance(good, Tensor):
        return _odd_tensor(rng, good)
    if isinstance(good, bool | int | float):
        return rng.choice(NUMBERS)
    if isinstance(good, str):
        return rng.choice(WORDS)
    if isinstance(good, list):
        which = rng.randrange(len(good))
        changed = [*good[:which], rng.choice((1e39, 1e300, 10**400, *NUMBERS)), *good[which + 1 :]]
        return rng.choice([changed, changed, good[1:], [*good, *good], [good]])
    parts = good if isinstance(good, dict) else vars(good) if is_dataclass(good) else {}
    names = [name for name, part in parts.items() if part is not None]
    if not names:
        return rng.choice(THINGS)
    changes = {(name := rng.choice(names)): odd(rng, parts[name])}
    return good | changes if isinstance(good, dict) else replace(good, **changes)


def _odd_tensor(rng: Random, good: Tensor) -> Any:
    """Another type, shape, device or value."""
    is_float = good.is_floating_point()
    values = [NAN, INF, -INF, -0.5, 2.0, 255.0, 1e30, 3e38] if is_float else [-1, -2, 7, 10**6, 2**62]
    one = good.detach().clone().flatten()
    one[rng.randrange(len(one))] = rng.choice(values)
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
    return rng.choice([
        *[one.view(good.shape)] * 3, good.to(rng.choice([*types, torch.complex64])), good * rng.choice([255, -1, 1000]),
        good[:0], good[:, :0] if good.dim() > 1 else good[None], good[..., :-1], good[0], good[None], good.flatten(),
        good.transpose(0, -1), torch.cat([good, good]), good.flip(-1), good.to("meta"), good.numpy(), good.tolist(),
        good.clone().requires_grad_(is_float),
    ])  # fmt: skip


def odd_words(rng: Random, good: list[str], may_lose: bool) -> list[str]:
    """A command with one or two words wrong; the verb stays."""
    verb, *rest = good
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(rest))
        way = rng.choice(["replace", "replace", "replace", "insert", "twice"] + ["lose"] * may_lose)
        if way == "lose" and len(rest) > 1:
            del rest[at]
        else:
            rest[at : at + (way == "replace")] = [rest[at] if way == "twice" else rng.choice(WORDS)]
    return [verb, *rest]
