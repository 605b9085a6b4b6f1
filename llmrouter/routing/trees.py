"""Gradient-boosted trees as flat arrays: all nodes of all trees of all heads are compared at once.

Every tree is complete to one depth of at most three: node i has the children 2i + 1 and 2i + 2. A branch that ends
earlier is filled up with nodes whose bound nothing reaches, so that everything goes left, to its value.

No tree is walked down. Each node whose number is above its bound rules out the leaves to its left, as bits of a byte;
the first leaf that no node has ruled out is the one that a walk ends at (Lucchese et al., "QuickScorer", SIGIR 2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrouter.types import value

__all__ = ["MOST_DEPTH", "Trees"]

MOST_DEPTH = 3
"""With it, the leaves of a tree are the bits of a byte."""


@value
class Trees:
    """Trees of one depth for several heads."""

    features: NDArray[np.intp]
    """Shape (nodes, trees): which number each node looks at."""
    bounds: NDArray[np.float64]
    """Shape (nodes, trees): a number up to this goes left."""
    left: NDArray[np.uint8]
    """Shape (nodes, 1): the leaves that a number above the bound rules out."""
    values: NDArray[np.float64]
    """Shape (trees * leaves,)."""
    leaves: NDArray[np.intp]
    """Shape (trees,): where each tree's leaves begin."""
    starts: NDArray[np.intp]
    """Shape (heads,): the first tree of each head; every head has one at least."""

    @classmethod
    def of(cls, features: NDArray[Any], bounds: NDArray[Any], values: NDArray[Any], heads: NDArray[Any]) -> Trees:
        """From arrays of shape (trees, nodes), (trees, nodes) and (trees, leaves), with the number of trees per head.

        Raises:
            ValueError: the shapes are not those of complete trees of a depth up to `MOST_DEPTH`.
        """
        trees = len(values)
        depth = int(values.shape[1]).bit_length() - 1 if values.ndim == 2 else 0
        nodes = (trees, (1 << depth) - 1)
        fit = values.shape == (trees, 1 << depth) and features.shape == nodes and bounds.shape == nodes
        if not fit or not 1 <= depth <= MOST_DEPTH:
            raise ValueError(f"the arrays are not those of complete trees of a depth up to {MOST_DEPTH}")
        if int(heads.sum()) != trees or (len(heads) and heads.min() < 1):
            raise ValueError("the heads do not have the trees")
        return cls(
            features=np.ascontiguousarray(features.T.astype(np.intp)),
            bounds=np.ascontiguousarray(bounds.T.astype(np.float64)),
            left=_leaves_to_the_left(depth),
            values=values.astype(np.float64).ravel(),
            leaves=np.arange(trees, dtype=np.intp) << depth,
            starts=np.concatenate(([0], np.cumsum(heads.astype(np.intp))[:-1])).astype(np.intp),
        )

    def scores(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shape (heads,): the sum of each head's trees for one row of numbers."""
        above = numbers.take(self.features) > self.bounds
        ruled_out = np.bitwise_or.reduce(above * self.left, axis=0)
        leaf = self.leaves + _FIRST_LEFT.take(ruled_out)
        return np.add.reduceat(self.values.take(leaf), self.starts)


def _leaves_to_the_left(depth: int) -> NDArray[np.uint8]:
    """For each node, a bit for each leaf under its left child."""
    found = []
    for level in range(depth):
        width = 1 << (depth - level)
        found += [((1 << (width // 2)) - 1) << (width * at) for at in range(1 << level)]
    return np.array(found, dtype=np.uint8)[:, None]


_FIRST_LEFT = np.array(
    [next((bit for bit in range(8) if not byte >> bit & 1), 0) for byte in range(256)], dtype=np.intp
)
"""For each byte, its lowest bit that is not set."""
