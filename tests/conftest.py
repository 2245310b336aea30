"""What all tests share is in toys.py."""

import pytest

pytest.register_assert_rewrite("toys")  # which the conftest of a folder may import before this one is told to


def pytest_configure(config: pytest.Config) -> None:
    """Wherever tests run: the process that only hands them out would import PyTorch for nothing while others wait."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("toys")
