"""The policy of an artefact that somebody has changed."""

import dataclasses

import pytest

from llmrouter.errors import ArtefactError
from llmrouter.routing.artifact import generic_artefact
from llmrouter.routing.policy import policy_of


@pytest.mark.parametrize("parameters", [None, 1, "x", []])
def test_parameters_that_are_no_table_are_refused(parameters):
    artefact = generic_artefact()
    changed = dataclasses.replace(artefact, manifest={**artefact.manifest, "policy_parameters": parameters})
    with pytest.raises(ArtefactError, match="policy"):
        policy_of(changed)
