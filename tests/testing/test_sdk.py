"""The official SDK takes what the rig says when it answers well, and stumbles where the wire contract says it does."""

import ast
import inspect
import textwrap
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import llmrouter.testing
from llmrouter.testing import (
    Answer,
    DialectName,
    ErrorInside,
    FakeBackend,
    HttpError,
    LineEnds,
    SplitData,
    Step,
    ToolCall,
    Truncate,
    WithLines,
    fold_chunks,
)

MESSAGES = [{"role": "user", "content": "Hi"}]
WEATHER = ToolCall("weather", '{"city": "Köln"}')
TIME = ToolCall("time", '{"zone": "CET"}')
DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])


def sdk(backend: FakeBackend) -> Any:
    # Any, because the SDK's types ask for its own message classes where a test says a plain dict.
    # Reading the certificates of all authorities takes longer than the whole test.
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=backend.url, api_key="any", http_client=plain, max_retries=0)


async def collect(step: Step, dialect: DialectName = "vllm", **fields: Any) -> tuple[Any, list[Any]]:
    """The completion that the SDK's stream helper gathers, and the chunks."""
    async with (
        FakeBackend(step, dialect=dialect) as backend,
        sdk(backend) as client,
        client.chat.completions.stream(model="m", messages=MESSAGES, **fields) as stream,
    ):
        chunks = [event.chunk async for event in stream if event.type == "chunk"]
        return await stream.get_final_completion(), chunks


def test_the_package_exports_what_it_names():
    public = {name: value for name, value in vars(llmrouter.testing).items() if name[0] != "_"}
    exported = {name: value for name, value in public.items() if not inspect.ismodule(value)}
    assert exported.keys() == set(llmrouter.testing.__all__)
    assert all(value.__doc__ for value in exported.values() if inspect.isclass(value) or inspect.isfunction(value))


async def test_the_five_lines_of_the_module_docstring_are_a_passing_test():
    docstring = llmrouter.testing.__doc__
    assert docstring is not None
    example = "\n".join(line for line in docstring.splitlines() if line.startswith("    "))
    scope = {**vars(llmrouter.testing), "AsyncOpenAI": AsyncOpenAI}
    exec(compile(ast.parse(textwrap.dedent(example)), "docstring", "exec"), scope)
    assert len(example.splitlines()) == 5
    await scope["test_a_busy_engine_is_asked_again"]()


@DIALECTS
async def test_plain_and_streamed_answers(dialect):
    wishes = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    async with FakeBackend(default=Answer("eins zwei"), dialect=dialect) as backend, sdk(backend) as client:
        plain = await client.chat.completions.create(**wishes)
        stream = await client.chat.completions.create(**wishes, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert (plain.choices[0].message.content, plain.choices[0].finish_reason) == ("eins zwei", "stop")
    assert plain.usage is not None
    assert plain.usage.total_tokens == 3
    assert [len(entry.top_logprobs) for entry in plain.choices[0].logprobs.content] == [2, 2]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "eins zwei"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 3


@DIALECTS
async def test_the_stream_helper_gathers_tool_calls_and_agrees_with_the_fold(dialect):
    final, chunks = await collect(Answer(tool_calls=(WEATHER, TIME)), dialect)
    raw = [chunk.to_dict() for chunk in chunks]
    calls = final.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", WEATHER.arguments),
        ("time", TIME.arguments),
    ]
    folded = fold_chunks(raw)["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in folded] == [call.id for call in calls]


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
async def test_the_stream_helper_gathers_two_choices_with_logprobs(dialect):
    final, _ = await collect(Answer(("a b", "c d")), dialect, n=2, logprobs=True)
    assert [choice.message.content for choice in final.choices] == ["a b", "c d"]
    assert [[entry.token for entry in choice.logprobs.content] for choice in final.choices] == [
        ["a", " b"],
        ["c", " d"],
    ]


def test_the_synchronous_client_completions_embeddings_and_models():
    with FakeBackend.in_thread(models=("m1",)) as backend, OpenAI(base_url=backend.url, api_key="any") as client:
        assert client.completions.create(model="m", prompt="x y").choices[0].text == "x y"
        assert len(client.embeddings.create(model="m", input="x").data[0].embedding) == 8
        assert [model.id for model in client.models.list()] == ["m1"]
        streamed = client.completions.create(model="m", prompt="x y", stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == "x y"


@pytest.mark.parametrize("form", ["vllm", "vllm_flat", "openai", "llama_cpp"])
async def test_error_statuses_become_the_sdks_errors(form):
    async with FakeBackend(HttpError(404, "gone", form=form)) as backend, sdk(backend) as client:
        with pytest.raises(openai.NotFoundError, match="gone"):
            await client.chat.completions.create(model="m", messages=MESSAGES)


async def test_harmless_bytes_pass_the_sdk():
    for step in (LineEnds(Answer("a")), WithLines(Answer("a"), between=(": ping",)), SplitData(Answer("a"))):
        _, chunks = await collect(step)
        assert len(chunks) == 3


@pytest.mark.parametrize(
    "step", [WithLines(Answer("a"), between=("retry: 9",)), WithLines(Answer("a"), between=("event: ping",))]
)
async def test_g018_the_sdk_chokes_on_retry_and_empty_events(step):
    with pytest.raises(ValueError, match="Expecting value"):
        await collect(step)


@pytest.mark.parametrize(
    ("shape", "kind"), [("index_from_one", IndexError), ("no_index", TypeError), ("repeated_id", None)]
)
async def test_g025_the_sdk_stumbles_over_tool_shapes_as_measured(shape, kind):
    step = Answer(tool_calls=(WEATHER,), tool_shape=shape)
    if kind is not None:
        with pytest.raises(kind):
            await collect(step)
        return
    final, _ = await collect(step)
    assert final.choices[0].message.tool_calls[0].id == "call_0_weather" * 4


async def test_g034_the_sdk_stumbles_over_a_later_choice_that_begins():
    with pytest.raises(IndexError):
        await collect(Answer(("a", "b"), choice_order="last_first"), n=2)


async def test_g014_an_error_event_is_seen_by_the_sdk_and_a_bare_truncation_is_not():
    with pytest.raises(openai.APIError, match="broke"):
        await collect(ErrorInside({"message": "broke"}, Answer("a b"), after=2))
    with pytest.raises(openai.APIConnectionError):
        await collect(Truncate(Answer("a b"), after=2))
