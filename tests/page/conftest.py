import pytest
import torch

pytest.importorskip("fastapi", reason="the page needs fastapi: pip install 'gtmsm[play]'")

from gtmsm.page.catalogue import Catalogue  # noqa: E402


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    """The shipped weights."""
    return Catalogue(None, torch.device("cpu"))
