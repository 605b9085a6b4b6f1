"""A plain text router's scores: TF-IDF of words and pairs of words, each row scored by a model that has not seen it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrouter.offline.labels import Floats

__all__ = ["losses_by_share", "out_of_fold"]

_FOLDS = 5


def out_of_fold(prompts: Sequence[str], gain: Floats, groups: Sequence[str]) -> Floats:
    """What the strong model is predicted to gain on each row; rows of a group are in the same fold."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold

    texts = np.array(prompts, dtype=object)
    scores = np.zeros(len(gain))
    for seen, unseen in GroupKFold(_FOLDS).split(texts, gain, groups):
        words = TfidfVectorizer(sublinear_tf=True, min_df=2, ngram_range=(1, 2))
        model = Ridge(alpha=3.0).fit(words.fit_transform(texts[seen]), gain[seen])
        scores[unseen] = model.predict(words.transform(texts[unseen]))
    return scores


def losses_by_share(score: Floats, gain: Floats, steps: int) -> Floats:
    """Losses of policies that send more and more rows to the weak model, the least needy ones first."""
    limits = np.quantile(score, np.linspace(0.0, 1.0, steps + 1))
    weak = score[None] <= limits[:, None]
    weak[0] = False
    return np.where(weak, gain, 0.0)
