"""Gradient-boosted trees as flat arrays: all trees of all heads go down one level at a time, together.

Every tree is complete to one depth: node i has the children 2i + 1 and 2i + 2. A branch that ends earlier is filled up
with nodes whose bound nothing reaches, so that everything goes left, to its value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Trees"]


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees of one depth for several heads."""

    features: NDArray[np.intp]
    """Shape (trees * nodes,): which number each node looks at."""
    bounds: NDArray[np.float64]
    """Shape (trees * nodes,): a number up to this goes left."""
    values: NDArray[np.float64]
    """Shape (trees * leaves,)."""
    starts: NDArray[np.intp]
    """Shape (heads,): the first tree of each head; every head has one at least."""
    depth: int

    @classmethod
    def of(cls, features: NDArray[Any], bounds: NDArray[Any], values: NDArray[Any], heads: NDArray[Any]) -> Trees:
        """From arrays of shape (trees, nodes), (trees, nodes) and (trees, leaves), with the number of trees per head.

        Raises:
            ValueError: the shapes are not those of complete trees.
        """
        depth = int(values.shape[1]).bit_length() - 1
        trees = len(values)
        nodes = (trees, (1 << depth) - 1)
        if values.shape != (trees, 1 << depth) or features.shape != nodes or bounds.shape != nodes:
            raise ValueError("the arrays are not those of complete trees")
        if int(heads.sum()) != trees or (len(heads) and heads.min() < 1):
            raise ValueError("the heads do not have the trees")
        return cls(
            features=features.astype(np.intp).ravel(),
            bounds=bounds.astype(np.float64).ravel(),
            values=values.astype(np.float64).ravel(),
            starts=np.concatenate(([0], np.cumsum(heads.astype(np.intp))[:-1])).astype(np.intp),
            depth=depth,
        )

    def scores(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shape (heads,): the sum of each head's trees for one row of numbers."""
        leaves = 1 << self.depth
        trees = len(self.values) // leaves
        first = np.arange(trees, dtype=np.intp) * (leaves - 1)
        node = np.zeros(trees, dtype=np.intp)
        for _ in range(self.depth):
            at = first + node
            node += node + 1 + (numbers.take(self.features.take(at)) > self.bounds.take(at))
        leaf = node - (leaves - 1) + np.arange(trees, dtype=np.intp) * leaves
        return np.add.reduceat(self.values.take(leaf), self.starts)
