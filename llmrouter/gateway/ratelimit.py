"""Rate limits as response headers."""

from __future__ import annotations

from llmrouter.types import Standing

__all__ = ["ratelimit_headers"]


def ratelimit_headers(standings: tuple[Standing, ...]) -> list[tuple[bytes, bytes]]:
    """The tightest limit of each rate, in the headers that OpenAI's clients know."""
    # What others have used of a tier's or a group's limit is not this tenant's business.
    own = [each for each in standings if not each.limit.scope.startswith(("tier:", "group:"))]
    headers = []
    for kind, word in (("requests_per_minute", b"requests"), ("tokens_per_minute", b"tokens")):
        of_kind = [each for each in own if each.limit.kind == kind]
        if of_kind:
            least = min(of_kind, key=lambda each: each.remaining)
            headers += [
                (b"x-ratelimit-limit-" + word, b"%d" % least.limit.most),
                (b"x-ratelimit-remaining-" + word, b"%d" % least.remaining),
                (b"x-ratelimit-reset-" + word, b"%.3fs" % least.reset_s),
            ]
    return headers
