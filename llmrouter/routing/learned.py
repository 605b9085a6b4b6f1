"""The learned strategies: `router` chooses a model from the prompt, `cascade` may also try cheaply and check.

An explicit wish wins over everything: first the request's own (`x-llmrouter-role`), then a rule that matches, then the
policy. A conversation stays with its model unless a change is cheaper although it loses the prompt cache, or better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from llmrouter.config import Config
from llmrouter.pricing.cost import cost_usd
from llmrouter.protocols import Candidate, Plan, PlanInput
from llmrouter.registry import LearnedParts
from llmrouter.routing.answer_kind import kind_of
from llmrouter.routing.ask import Ask, read_ask
from llmrouter.routing.cascade import CascadeOptions, CascadePlan
from llmrouter.routing.conversations import ConversationMemory
from llmrouter.routing.escalation import EscalationShare
from llmrouter.routing.evidence import Check, Move, Offers, Policy, Prediction
from llmrouter.routing.policy import policy_of
from llmrouter.routing.predictor import Predictor
from llmrouter.routing.rules import RuleSet
from llmrouter.routing.strategy import RulesStrategy
from llmrouter.types import ChatRequest, Decision, Hold, Price, Usage, value

__all__ = ["Considered", "LearnedOptions", "LearnedStrategy", "build_learned_strategy"]

_ROLES = ("small", "large", "frontier")
_WHOLE_CHECKS: frozenset[Check] = frozenset({"agreement", "self_check", "logprobs", "verifier"})


@value
class LearnedOptions:
    """What a tier lets its policy do."""

    checks: frozenset[Check]
    """Empty for the strategy `router`."""
    cascade: CascadeOptions
    max_peers: int = 3
    samples: int = 1
    """Answers of the small model that may be asked for; those beyond the first take the places of missing peers."""
    whole_tokens: int = 32
    """A stream with an output cap up to this may be answered whole, with every check."""
    sticky_saving: float = 1.0
    """A conversation changes to a cheaper model only where that saves more than so many times what reading the whole
    prompt anew costs there; 0 decides every turn anew."""


@value
class Considered:
    """What the policy saw and decided before any call."""

    prediction: Prediction
    offers: Offers
    wanted: Move
    """What the policy wants."""
    move: Move
    """What is done: the conversation's own model may win over it."""
    held: bool


class LearnedStrategy:
    """Plans for one tier by one artefact; implements `protocols.Strategy`.

    Args:
        capabilities: of each model of the tier.
        price: the price of a model's call with that many input tokens.
        observed: told each decision, for the drift monitor.
    """

    def __init__(
        self,
        rules: RulesStrategy,
        predictor: Predictor,
        policy: Policy,
        options: LearnedOptions,
        *,
        capabilities: Mapping[str, frozenset[str]],
        price: Callable[[str, int], Price],
        conversations: ConversationMemory,
        share: EscalationShare,
        observed: Callable[[Prediction, Move], None] = lambda _prediction, _move: None,
    ) -> None:
        self.rules = rules
        self.predictor = predictor
        self.policy = policy
        self.options = options
        self._capabilities = capabilities
        self._price = price
        self._conversations = conversations
        self._share = share
        self._observed = observed

    def plan(self, given: PlanInput) -> Plan:
        request = given.request
        chain = self._chain(given.candidates)
        wished = request.role is not None or self.rules.choose(given).rule_id is not None
        if wished or request.endpoint != "chat" or len(chain) == 1:
            return self.rules.plan(given)
        tenant_id = given.principal.tenant_id
        self._share.came(tenant_id)
        considered = self.consider(given)
        # Not what a conversation makes of it: that says nothing about the prompts.
        self._observed(considered.prediction, considered.wanted)
        move = self._capped(considered.move, chain, tenant_id)
        return CascadePlan(
            self._decision(move),
            self.policy,
            considered.prediction,
            considered.offers,
            request=request,
            chain=chain,
            peers=self._peers(given.candidates),
            first=move,
            options=self.options.cascade,
            deadline_s=given.deadline_s,
            at_once="n" in self._capabilities[chain[0].model_id],
            held=considered.held,
            may_escalate=lambda: self._share.take(tenant_id),
            ended=lambda role: self._answered(tenant_id, request.conversation, role),
        )

    def _answered(self, tenant_id: str, conversation: str, role: str) -> None:
        """Note whose answer a conversation got; a peer's says nothing about where it goes on."""
        if role in _ROLES:
            self._conversations.keep(tenant_id, conversation, role)

    def consider(self, given: PlanInput) -> Considered:
        """Predict and decide, without any trace left behind; `explain` shows it."""
        ask = read_ask(given.request)
        prediction = self.predictor.predict(ask)
        held = self._held(given.request)
        offers = self._offers(given, held)
        move = self.policy.first(prediction, offers)
        return Considered(prediction, offers, move, self._settled(move, given, ask), held)

    def _decision(self, move: Move) -> Decision:
        route = "cascade" if move.action == "check" else move.role
        name = "cascade" if self.options.checks else "router"
        return Decision(name, move.reason, None, self.rules.rule_set.version, route=route, score=move.score)

    def _held(self, request: ChatRequest) -> bool:
        """Whether the client must see the stream grow, so that only a prefix can be looked at."""
        cap = request.max_output_tokens
        return request.stream and (cap is None or cap > self.options.whole_tokens)

    def _chain(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The models by quality, each once."""
        chain: dict[str, Candidate] = {}
        for role in _ROLES:
            for candidate in candidates:
                if candidate.role == role:
                    chain.setdefault(candidate.model_id, candidate)
        return list(chain.values())

    def _peers(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Who may be asked beside the small model: the tier's peers, then itself for further samples."""
        peers = [each for each in candidates if each.is_peer][: self.options.max_peers]
        small = next((each for each in candidates if each.role == "small"), None)
        for number in range(len(peers) + 1, self.options.samples):
            if small is not None:
                peers.append(dataclasses.replace(small, role=f"peer{number}"))
        return peers

    def _offers(self, given: PlanInput, held: bool) -> Offers:
        request = given.request
        chain = self._chain(given.candidates)
        able = self._capabilities[chain[0].model_id]
        kind = kind_of(request)
        checks: set[Check] = set()
        if chain[0].role == "small" and request.n == 1:
            checks = set(self.options.checks & ({"logprobs"} if held else _WHOLE_CHECKS))
        if self.options.cascade.verifier is None:
            checks -= {"verifier"}
        if "logprobs" not in able or (held and "tools" in request.needs):
            checks -= {"logprobs", "self_check"}
        if kind == "tool_call" or "json_schema" in request.needs:
            checks -= {"self_check"}
        peers = len(self._peers(given.candidates)) if "agreement" in checks else 0
        if peers == 0:
            checks -= {"agreement"}
        return Offers(
            roles=frozenset(each.role for each in chain),
            checks=frozenset(checks),
            peers=peers,
            kind=kind,
            held=held,
        )

    def _capped(self, move: Move, chain: Sequence[Candidate], tenant_id: str) -> Move:
        """The move, or the cheapest model where it is dearer and the tenant has used up its escalations."""
        if move.action == "check" or move.role == chain[0].role or self._share.take(tenant_id):
            return move
        return Move("route", chain[0].role, score=None, reason="capped:escalation_share")

    def _settled(self, move: Move, given: PlanInput, ask: Ask) -> Move:
        """The move, or the conversation's own model where that is not worse and not dearer."""
        if self.options.sticky_saving == 0 or ask.turns < 2:
            return move
        request = given.request
        role = self._conversations.role(given.principal.tenant_id, request.conversation)
        by_role = {each.role: each for each in given.candidates}
        if role is None or role == move.role or role not in by_role or move.role not in by_role:
            return move
        if _ROLES.index(role) < _ROLES.index(move.role):
            return move
        callees = [by_role[move.role]]
        if move.action == "check":
            callees += self._peers(given.candidates)[: move.peers]
        anew = sum(self._cost_usd(each, request, cached=False) for each in callees)
        warm = sum(self._cost_usd(each, request, cached=True) for each in callees)
        saved = self._cost_usd(by_role[role], request, cached=True) - warm
        if saved > self.options.sticky_saving * (anew - warm):
            return move
        return Move("route", role, score=move.score, reason=f"sticky:{role}")

    def _cost_usd(self, candidate: Candidate, request: ChatRequest, *, cached: bool) -> float:
        """What a call is expected to cost, its earlier turns read from the engine's cache or not."""
        earlier = 1.0 - min(len(request.last_user_text.encode()) / max(request.text_bytes, 1), 1.0)
        usage = Usage(
            input_tokens=candidate.input_tokens,
            cached_tokens=int(candidate.input_tokens * earlier) if cached else 0,
            output_tokens=min(candidate.output_tokens, _USUAL_OUTPUT_TOKENS),
        )
        return float(cost_usd(self._price(candidate.model_id, candidate.input_tokens), usage))


_USUAL_OUTPUT_TOKENS = 400
"""Of an answer whose length nobody knows yet; both sides of a comparison use it."""


def build_learned_strategy(tier_id: str, config: Config, rule_set: RuleSet, parts: LearnedParts) -> LearnedStrategy:
    """The strategy of a tier with `strategy = "router"` or `"cascade"`."""
    tier = config.tiers[tier_id]
    cascade = tier.cascade
    options = LearnedOptions(
        checks=frozenset(cascade.checks if tier.strategy == "cascade" else ()),
        cascade=CascadeOptions(
            Hold(cascade.hold_back_tokens, cascade.hold_back_s),
            tier.retries,
            tier.max_wait_s,
            cascade.verifier,
            cascade.peer_wait_s,
        ),
        max_peers=cascade.max_peers,
        samples=cascade.samples,
        whole_tokens=cascade.whole_tokens,
        sticky_saving=tier.sticky_saving,
    )
    # A published version or a reload makes the strategy anew; what conversations and tenants did must outlive that.
    conversations = parts.memory.setdefault("conversations", ConversationMemory())
    share = parts.memory.get("share")
    if share is None or share.share != tier.escalation_share:
        share = parts.memory["share"] = EscalationShare(tier.escalation_share)
    return LearnedStrategy(
        RulesStrategy(tier_id, tier, rule_set),
        Predictor.of(parts.artefact),
        policy_of(parts.artefact, parts.point),
        options,
        capabilities={model_id: config.capabilities_of(model_id) for model_id in (*tier.roles.values(), *tier.peers)},
        price=parts.price,
        conversations=conversations,
        share=share,
        observed=parts.observed,
    )
