r"""The built-in labeller: what a request asks for, told from signs in its last user turn.

It is a table, not a model: it looks at the first and the last few hundred characters for a few dozen signs (words,
shapes of code or formulas), lets each sign or pair of signs vote for a label, and names the label with the most votes.
It does not understand the text; it reads no other turn, no system prompt and no image; it knows neither subject nor
difficulty, gives no probability, and speaks English only (code, formulas and stack traces look the same everywhere).
Asks without a verb or a question, role play, and texts that talk about a task instead of asking for it mislead it.
Good enough to seed rules. Where a label decides about money, let the client send it (`x-llmrouter-intent` or
`metadata.intent`), which wins over this one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import re2

__all__ = ["INTENTS", "label"]

INTENTS = (
    "translation",
    "summarization",
    "rewriting",
    "classification",
    "extraction",
    "code",
    "math",
    "writing",
    "qa",
    "chat",
    "tool_use",
    "unknown",
)
"""All labels, closed; with equal votes the earlier one wins."""

_HEAD, _TAIL = 600, 300
"""Characters looked at: an ask stands before or behind what is pasted with it."""
_ENOUGH = 2
_SURE = 5
"""Votes with which a label stands although tools are offered."""

_ASK = r"(?:^|[.!?:;\n]\s*|\b(?:please|you|to|and|me|just|then)\s+)"

# Signs have no open gaps such as `.*` or `(\S+ ){0,4}` between words: together in one automaton they would multiply its
# states until building them costs more than the scan. What belongs together but stands apart is a pair of votes.
_SIGNS: Mapping[str, str] = {
    "translate": _ASK + r"translate\b",
    "translated": r"\btranslat(?:e|ion|ed)\b",
    "say": r"\b(?:put|say|render|mean)\b",
    "how to say": r"\bhow (?:do|would|can) (?:you|i|we|one) say\b",
    "language": (
        r"\b(?:in|into|to|from) (?:english|french|german|spanish|portuguese|italian|dutch|polish|russian|ukrainian|"
        r"chinese|mandarin|japanese|korean|arabic|hindi|turkish|swedish|norwegian|danish|finnish|greek|hebrew|latin|"
        r"vietnamese|thai|czech|hungarian|romanian|indonesian|bengali|persian|swahili)\b"
    ),
    "summarize": _ASK + r"(?:summari[sz]e|condense|recap|sum up)\b",
    "summary": r"\b(?:summary|gist|tl;? ?dr|takeaways|main points|key points|nutshell|abstract of|synopsis)\b",
    "rewrite": _ASK + r"(?:rewrite|rephrase|reword|paraphrase|proofread|polish)\b",
    "fix": r"\b(?:fix|correct|check|improve)\b",
    "grammar": r"\b(?:grammar|spelling|typos|punctuation|wording)\b",
    "make this": r"\bmake (?:this|it|my|the|these|them)\b",
    "manner": r"\b(?:sound|more|less|shorter|longer|clearer|friendlier|formal|concise)\b",
    "shorten this": r"\b(?:shorten|simplify|edit|improve|tighten) (?:this|it|my|the|these)\b",
    "turn this": r"\bturn (?:this|these|the|my)\b",
    "into": r"\binto\b",
    "tone": r"\b(?:formal|friendlier|polite|professional|casual) (?:tone|style|register)\b",
    "classify": _ASK + r"(?:classify|categori[sz]e|label)\b",
    "assign": r"\b(?:assign|pick|choose|one of|which of)\b",
    "classes": r"\b(?:labels?|categor(?:y|ies)|class(?:es)?|tags?|topics|intents)\b",
    "polarity": r"\b(?:positive|negative)(?:,| or) (?:or )?(?:negative|positive|neutral)\b",
    "closed answer": r"\b(?:yes or no|one word|true or false)\b",
    "judged": r"\b(?:sentiment|spam|hate speech|toxic|sarcastic|offensive)\b",
    "extract": _ASK + r"(?:extract|pull out|(?:list|identify|find) (?:all|every))\b",
    "entities": r"\b(?:all|every|the) (?:names?|dates?|e-?mails?|phone|address|entit|pe(?:rson|ople)|compan)",
    "as data": r"\b(?:as|a|valid|into) (?:json|csv|table|yaml)\b",
    "found in": r"\b(?:mentioned|found|named|contained|listed) in\b",
    "names": r"\bnames?\b",
    "given text": (
        r"\b(?:in|from|is|of) (?:this|the) (?:following )?(?:text|article|paragraph|passage|sentence|e-?mail|message|"
        r"review|tweet|ticket|note|receipt|invoice|document|report|contract|transcript|headline|comment|letter)\b"
    ),
    "fence": r"```",
    "make": r"\b(?:write|create|give|need|implement|make|build|generate|develop|show)\b",
    "program": (
        r"\b(?:function|script|code|program|class|method|module|algorithm|query|regex|regular expression|unit tests?|"
        r"one-?liner|command|makefile|dockerfile|api|endpoint|parser|decorator|schema|migration|plugin|app)\b"
    ),
    "debug": _ASK + r"(?:debug|refactor|implement)\b",
    "programming language": (
        r"\b(?:python|javascript|typescript|java|rust|golang|bash|sql|html|css|regex|react|django|flask|php|vue|swift|"
        r"kotlin|ruby|node(?:\.?js)?|vb\.net|mysql|yaml|js)\b|\bc(?:\+\+|#)"
    ),
    "programmer's tool": (
        r"\b(?:docker|kubernetes|git|pandas|numpy|postgres|linux|npm|webpack|terraform|pytest|sklearn|pytorch|"
        r"tensorflow|opencv)\b"
    ),
    "programmer's word": (
        r"\b(?:bugs?|compiler?|stack trace|exception|pull request|commit|deadlocks?|variable|loop|array)\b"
    ),
    "error": r"(?-i:[a-z.](?:Error|Exception)\b|Traceback|\bsegfault|\bSELECT\b|\bpublic static\b)",
    "syntax": r"(?-i:\bdef \w+\(|\bfunction \w*\(|\bfunc \w+\(|=>|#include|console\.log|\w\.\w+\(|\w\[\w+\])",
    "code line": r"[;{]\s*\n|:\n +\S|\b(?:for|if|while) ?\(|\bin range\(",
    "operator": r"==|!=|&&|\|\||\n@@ -\d|\n\s+at \w+\.",
    "formula": r"\\(?:frac|int|sum|sqrt|sin|cos|lim|cdot|begin|\(|\[)|[√∫∑π≤≥]",
    "arithmetic": r"\d\s*[*^=÷]\s*\d|\d\s+[-+/]\s+\d|\b\d*[xyn]\s*[-+*^=]\s*\d|\)/\(?[a-z]",
    "solve": _ASK + r"(?:solve|calculate|compute|evaluate|prove|integrate|differentiate|factori[sz]e)\b",
    "mathematics": (
        r"\b(?:equation|derivative|integral|probability|polynomial|theorem|triangle|matrix|eigenvalues?|irrational|"
        r"square root|logarithm|remainder|divisible|perimeter|average speed|arithmetic|limit of|prime numbers?)\b"
    ),
    "number": r"\d",
    "how many": r"\b(?:how (?:many|much|far|fast|old|long)|by what)\b",
    "quantity": r"\d ?%|\bpercent\b|\d (?:km|miles|hours|minutes|dollars|euros)\b",
    "write": _ASK + r"(?:write|draft|compose|create|invent|craft|brainstorm|design|plan|suggest|come up with)\b",
    "come up": r"\b(?:come up with|provide me with|give me|suggest|plan|craft|draft|compose)\b",
    "piece": (
        r"\b(?:poem|story|essay|e-?mail|letter|blog|post|speech|song|lyrics|haiku|article|slogan|tagline|toast|caption|"
        r"novel|dialogue|description|proposal|itinerary|plan|ideas|names|press release|tweet|trip|menu|outline|agenda|"
        r"limerick|sonnet|monologue|recipe)\b"
    ),
    "for whom": r"\b(?:about|announcing|for|asking|inviting|thanking) (?:an?|my|our|the|him|her|them)\b",
    "play": _ASK + r"(?:act as|pretend|imagine|role-?play|play)\b",
    "question": r"(?:^|[.!?:,\n])\W*(?:in |at |for |by |to )?(?:what|who|whose|when|where|why|how|which)\b",
    "yes-no question": r"^\W*(?:is|are|was|were|do|does|did|can|could|should|will|would|has|have)\b",
    "explain": r"\b(?:explain|describe|define|tell me (?:more )?about|difference between)\b",
    "understand": r"\b(?:help me understand|show me how|pros and cons|steps (?:to|for))\b",
    "choice a": r"\n\(?a[.):] ",
    "choice b": r"\n\(?b[.):] ",
    "from context": (
        r"\b(?:according to|based on|using) (?:only )?the (?:passage|text|context|article|document)\b|\bquestion:"
    ),
    "question mark": r"\?\s*$",
    "greeting": (
        r"^\W*(?:hi|hello|hey|good (?:morning|evening|afternoon|night)|thanks|thank you|thx|haha|lol|bye|goodbye)\b"
    ),
    "small talk": r"\b(?:how are you|how's it going|who are you|tell me a joke|some(?:one|body) to talk)\b",
    "feeling": r"\b(?:i'm|i am|i feel|feeling) (?:so |very |really )?(?:bored|sad|lonely|tired|happy|down|anxious)\b",
}

_VOTES: tuple[tuple[str, int, str, str | None], ...] = (
    ("translation", 9, "translate", None),
    ("translation", 3, "translated", None),
    ("translation", 5, "how to say", None),
    ("translation", 3, "language", None),
    ("translation", 4, "language", "say"),
    ("summarization", 7, "summarize", None),
    ("summarization", 5, "summary", None),
    ("rewriting", 6, "rewrite", None),
    ("rewriting", 5, "grammar", "fix"),
    ("rewriting", 5, "make this", "manner"),
    ("rewriting", 4, "shorten this", None),
    ("rewriting", 4, "turn this", "into"),
    ("rewriting", 2, "tone", None),
    ("classification", 6, "classify", None),
    ("classification", 5, "assign", "classes"),
    ("classification", 4, "polarity", None),
    ("classification", 4, "closed answer", None),
    ("classification", 3, "judged", None),
    ("extraction", 6, "extract", None),
    ("extraction", 4, "entities", None),
    ("extraction", 3, "as data", None),
    ("extraction", 4, "found in", None),
    ("extraction", 3, "given text", None),
    ("extraction", 2, "given text", "names"),
    ("code", 4, "fence", None),
    ("code", 4, "program", "make"),
    ("code", 1, "program", None),
    ("code", 4, "debug", None),
    ("code", 3, "programming language", None),
    ("code", 3, "programmer's tool", None),
    ("code", 2, "programmer's word", None),
    ("code", 4, "error", None),
    ("code", 4, "syntax", None),
    ("code", 3, "code line", None),
    ("code", 2, "operator", None),
    ("math", 4, "formula", None),
    ("math", 4, "arithmetic", None),
    ("math", 4, "solve", None),
    ("math", 4, "mathematics", None),
    ("math", 5, "how many", "number"),
    ("math", 3, "how many", "quantity"),
    ("math", 1, "quantity", None),
    ("writing", 3, "write", None),
    ("writing", 2, "come up", None),
    ("writing", 3, "piece", "write"),
    ("writing", 3, "piece", "come up"),
    ("writing", 2, "piece", "make"),
    ("writing", 1, "for whom", None),
    ("writing", 2, "play", None),
    ("qa", 2, "question", None),
    ("qa", 2, "yes-no question", None),
    ("qa", 3, "explain", None),
    ("qa", 2, "understand", None),
    ("qa", 2, "choice b", "choice a"),
    ("qa", 5, "from context", None),
    ("qa", 1, "question mark", None),
    ("chat", 4, "greeting", None),
    ("chat", 5, "small talk", None),
    ("chat", 3, "feeling", None),
)
"""Label, votes, sign, and a second sign that must be there too."""


class _Labeller:
    """The tables compiled: all signs as one automaton, so that a text is scanned once."""

    def __init__(self) -> None:
        options = re2.Options()
        options.never_capture = True
        options.log_errors = False
        options.case_sensitive = False
        self._signs = re2.Set.SearchSet(options)
        names = list(_SIGNS)
        for name in names:
            self._signs.Add(_SIGNS[name])
        self._signs.Compile()
        self._votes: list[list[tuple[str, int, int | None]]] = [[] for _ in names]
        for intent, weight, sign, other in _VOTES:
            pair = None if other is None else names.index(other)
            self._votes[names.index(sign)].append((intent, weight, pair))

    def votes(self, text: str) -> dict[str, int]:
        found: list[int] = self._signs.Match(text.encode("utf-8", "replace")) or []
        votes: dict[str, int] = {}
        for index in found:
            for intent, weight, pair in self._votes[index]:
                if pair is None or pair in found:
                    votes[intent] = votes.get(intent, 0) + weight
        return votes


@functools.cache
def _labeller() -> _Labeller:
    return _Labeller()


def label(text: str, *, has_tools: bool = False) -> str:
    """The intent of a user turn, one of `INTENTS`.

    With tools on offer, an ask that is not clearly about text itself is `tool_use`: to look something up or to act.
    """
    asked = text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"
    votes = _labeller().votes(asked)
    best = max(INTENTS, key=lambda intent: votes.get(intent, 0))
    most = votes.get(best, 0)
    if has_tools and (best == "qa" or most < _SURE):
        return "tool_use"
    return best if most >= _ENOUGH else "unknown"
