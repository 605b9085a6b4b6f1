"""What a module says it exports exists, is defined or re-exported there, and is documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import llmrouter

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(llmrouter.__path__, "llmrouter.")
    if not name.endswith(("__main__", "llama_cpp_server", "guard"))
]


PUBLIC = ["llmrouter.types", "llmrouter.errors", "llmrouter.protocols", "llmrouter.registry", "llmrouter.testing"]
"""What plugin authors build on."""


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_exports_what_exists(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported), f"{name} exports {exported}, which does not exist"


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_that_plugins_may_use_is_explained(name):
    module = importlib.import_module(name)
    for exported in module.__all__:
        value = getattr(module, exported)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{exported} has no docstring"
