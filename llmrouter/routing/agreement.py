"""Who agrees with whom: answers in their canonical form, grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmrouter.routing.evidence import AnswerKind
from llmrouter.routing.text_form import like
from llmrouter.types import value

__all__ = ["Agreement", "agreement", "majority", "vote"]


def vote(
    canonicals: Sequence[str | None], kind: AnswerKind, *, similar: Callable[[str, str], bool] | None = None
) -> tuple[int, ...]:
    """The group of each answer: equal numbers agree, -1 is no usable answer; numbered in order of appearance.

    An answer belongs to the first group whose first answer it equals or is like, so the votes of the answers so far
    never change when more arrive. Other kinds than text go by equality alone, and then the order does not matter.

    Args:
        similar: instead of `text_form.like`, for texts; or for another kind, besides equality.
    """
    if similar is None and kind == "text":
        similar = like
    firsts: list[str] = []
    votes = []
    for each in canonicals:
        if each is None:
            votes.append(-1)
            continue
        group = _group(each, firsts, similar)
        if group == len(firsts):
            firsts.append(each)
        votes.append(group)
    return tuple(votes)


def _group(form: str, firsts: Sequence[str], similar: Callable[[str, str], bool] | None) -> int:
    if form in firsts:
        return firsts.index(form)
    if similar is not None:
        for group, first in enumerate(firsts):
            if similar(first, form):
                return group
    return len(firsts)


def majority(votes: Sequence[int]) -> int | None:
    """The largest group, the earliest of equals; None where there is no usable answer."""
    groups = [each for each in votes if each >= 0]
    return max(sorted(set(groups)), key=groups.count) if groups else None


@value
class Agreement:
    """How the votes fell."""

    largest: int
    """Votes of the largest group."""
    second: int
    """Votes of the next one."""
    groups: int
    """Different answers."""
    with_first: int
    """Votes of the first answer's group, its own included; 0 where it has no usable answer."""
    unusable: int
    votes: int

    @property
    def share(self) -> float:
        """The largest group's part of all votes; 0 where there are none."""
        return self.largest / self.votes if self.votes else 0.0


def agreement(votes: Sequence[int]) -> Agreement:
    """Count votes that `vote` gave."""
    usable = [each for each in votes if each >= 0]
    sizes = sorted((usable.count(group) for group in set(usable)), reverse=True)
    first = usable.count(votes[0]) if votes and votes[0] >= 0 else 0
    return Agreement(
        largest=sizes[0] if sizes else 0,
        second=sizes[1] if len(sizes) > 1 else 0,
        groups=len(sizes),
        with_first=first,
        unusable=len(votes) - len(usable),
        votes=len(votes),
    )
