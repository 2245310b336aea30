"""DeepMind Lab's package labmaze, which is optional."""

from types import ModuleType

from gtmsm.errors import InputError


def import_labmaze(purpose: str) -> ModuleType:
    """The package with its assets; where it cannot be imported, an error that begins with `purpose`."""
    # Importing is the only test: a package can be found and still not load.
    try:
        import labmaze.assets
    except ImportError as problem:
        is_absent = isinstance(problem, ModuleNotFoundError) and problem.name == "labmaze"
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        trouble = "is not installed" if is_absent else f"cannot be imported ({reason})"
        raise InputError(f'{purpose} needs labmaze, which {trouble}; run: pip install "gtmsm[lab]"') from None
    return labmaze
