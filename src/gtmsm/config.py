"""Configs: frozen dataclasses that can be read from a file and refuse what they do not know."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gtmsm.errors import InputError, did_you_mean, shown

T = TypeVar("T")

TOO_MANY = 10**9
"""Sizes, counts and numbers of steps must be below this; seeds may be larger."""
Device: TypeAlias = Literal["auto", "cpu", "cuda"]
"""Device that a user may choose; auto takes a GPU if there is one."""

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a name", Path: "a path"}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make a class a config: a frozen, keyword-only dataclass that forbids unknown keys when read.

    Values must have the declared types, numbers must be finite, integers except seeds must be below a thousand million,
    and a field of type Literal must hold one of its choices.
    """
    own_check: Callable[[Any], None] = getattr(cls, "__post_init__", lambda self: None)

    def check(self: Any) -> None:
        for name, kind in get_type_hints(cls).items():
            value, known = getattr(self, name), get_args(kind)
            if get_origin(kind) is Literal:
                require_choice(name, value, known)
            elif isinstance(kind, type):
                fits = isinstance(value, (float, int) if kind is float else kind)
                fits = fits and (kind is bool or not isinstance(value, bool))
                require(fits, f"{name} is {shown(value)}; give {WORDS.get(kind, f'a {kind.__name__}')}")
            require_count(name, value)
        own_check(self)
        for name, value in vars(self).items():
            require(not isinstance(value, float) or math.isfinite(value), f"{name} is {value}; give a finite number")

    cls.__post_init__ = check  # type: ignore[attr-defined]
    frozen = dataclass(frozen=True, kw_only=True)(cls)
    frozen.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return frozen


def require(condition: bool, message: str) -> None:
    """Refuse a config or an argument that makes no sense: raise an `InputError` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def require_choice(name: str, value: Any, known: Collection[str]) -> None:
    """Refuse a value that is not one of the known words."""
    if not (isinstance(value, str) and value in known):
        raise InputError(f'{name} is "{value!s:.60}"; {did_you_mean(str(value), known)}')


def require_count(name: str, value: object) -> None:
    """Refuse integers, also in a tuple, that are too large for a size or count, before anything is allocated."""
    for number in value if isinstance(value, tuple) else (value,):
        meant = not isinstance(number, int) or name == "seed" or abs(number) < TOO_MANY
        require(meant, f"{name} is {shown(number)}; no such setting is {TOO_MANY:,} or more: give a smaller number")


def require_whole(name: str, value: Any, least: int = 1, most: int = TOO_MANY - 1) -> None:
    """Refuse anything but a whole number from `least` to `most`."""
    if not (is_whole(value) and least <= value <= most):
        raise InputError(f"{name} is {shown(value)}; give a whole number from {least} to {most}")


def is_whole(value: Any) -> bool:
    """Whether this is a whole number, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def require_seed(seed: int) -> None:
    """Refuse anything that cannot seed a generator."""
    require_whole("seed", seed, 0, 2**63 - 1)


def as_plain(settings: Any) -> dict[str, Any]:
    """A config as nested dicts, lists and scalars, ready for JSON or YAML."""
    plain: dict[str, Any] = TypeAdapter(dict[str, Any]).dump_python(asdict(settings), mode="json")
    return plain


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    by_path: dict[str, Any] = {}
    for name, value in nested.items():
        by_path |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return by_path


def changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Replace values of a config (or of its class's defaults) by dotted names: {"training.optimiser": {"batch": 8}}.

    All changes are made at once, so that only the result has to make sense.
    """
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in flat(changes).items():
        name, _, rest = path.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            own[name] = value
    own |= {name: changed(getattr(settings, name), part) for name, part in inner.items()}
    return settings(**own) if isinstance(settings, type) else replace(settings, **own)


def read_config(cls: type[T], plain: Mapping[str, Any], source: str) -> T:
    """The inverse of `as_plain`; a wrong key or value is named with its path and, for a key, a suggestion."""
    require(isinstance(plain, Mapping), f"{source}: expected settings by name, found {shown(plain)}")
    try:
        return TypeAdapter(cls).validate_python({str(name): value for name, value in plain.items()})
    except ValidationError as problem:
        first = problem.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = _known_keys(cls, tuple(str(part) for part in first["loc"][:-1]))
            hint = did_you_mean(str(first["loc"][-1]), known)
            raise InputError(f'{source}: unknown setting "{path}"; {hint}') from None
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise InputError(f"{source}: {cause}") from None
        raise InputError(f"{source}: {path} is {shown(first['input'])}; {first['msg'].lower()}") from None


def _known_keys(cls: Any, path: tuple[str, ...]) -> list[str]:
    """Field names of the config found by walking `path` down from `cls`."""
    for name in path:
        types = get_type_hints(cls)
        if not is_dataclass(types.get(name)):
            break
        cls = types[name]
    return [field.name for field in fields(cls)] if is_dataclass(cls) else []
