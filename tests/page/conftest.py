import pytest
import torch
import toys  # noqa: F401  (shapes are checked in what is imported after it)

pytest.importorskip("fastapi", reason="the page needs fastapi: pip install 'gtmsm[play]'")

from gtmsm.page.catalogue import Catalogue  # noqa: E402


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """The shipped weights."""
    return Catalogue(None, torch.device("cpu"))
