"""Sticky shares by weight: the same conversation keeps its rule, and a new weight moves as few of them as can be.

Weighted rendezvous hashing by the logarithmic method (C. Schindelhauer and G. Schomaker, "Weighted Distributed Hash
Tables", SPAA 2005; as a score also in J. Resch, "New Hashing Algorithms for Data Storage", SNIA SDC 2015): each rule of
weight w draws a number u in (0, 1) from a hash of its id and the sticky key, and the highest

    score = -w / ln(u)

wins. -ln(u) / w is exponential with rate w and the least of independent exponentials is theirs with probability
w / (sum of all w), which is the rule's share. A draw depends on its own rule only: raising one weight moves
conversations to that rule and nowhere else, and a rule that leaves gives up just its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["draw", "pick"]


def draw(rule_id: str, sticky_key: str) -> float:
    """A number in the open interval (0, 1), fixed for a rule and a sticky key in every process and release."""
    # The length keeps a rule id and a key from being read as another pair.
    named = f"{len(rule_id)}:{rule_id}:{sticky_key}".encode("utf-8", "replace")
    digest = blake2b(named, digest_size=8, person=b"llmrouter.share").digest()
    # 52 bits and a half: the float is exact, so it can be neither 0 nor 1, where the logarithm has no use for it.
    return ((int.from_bytes(digest) >> 12) + 0.5) / 2**52


def pick(weights: Iterable[tuple[str, float]], sticky_key: str) -> str:
    """The rule id that a sticky key belongs to, out of (rule id, positive weight) pairs in any order."""
    return max(((-weight / math.log(draw(rule_id, sticky_key)), rule_id) for rule_id, weight in weights))[1]
