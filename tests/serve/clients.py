"""Tests of libraries on top of OpenAI's interface, unmodified: typed answers and tool loops. Runs
in the environment of `tools/venv.sh clients`; test_clients.py starts it.

    clients.py URL MODEL NAME...     names of the functions below; prints one line per function, exits with 1 if one failed

Grammars constrain the answers, so that the tests pass with any model: strings have a bounded
length, and the second turn of a loop is a choice between fixed answers.
"""

import asyncio
import json
import os
import sys
import traceback
from typing import Annotated, Literal

os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    OPENAI_AGENTS_DISABLE_TRACING="1",
    ANONYMIZED_TELEMETRY="False",
    LANGSMITH_TRACING="false",
)
from pydantic import BaseModel, Field  # noqa: E402

HOST, MODEL = sys.argv[1], sys.argv[2]
URL = HOST + "/v1"
ASK = "Tell me of Paris."
DONE = "It is sunny."
LAST = {"structured_outputs": {"choice": [DONE]}}  # constrains turns in which no call is required


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    people: int = Field(ge=1, le=99)
    kind: Literal["town", "village"]
    near: list[Literal["sea", "river"]] = Field(max_length=2)


class Weather(BaseModel):
    """The weather of some days."""

    city: str = Field(max_length=16)
    days: int = Field(ge=1, le=9)


def langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    def model(**more):
        return ChatOpenAI(
            base_url=URL,
            api_key="none",
            model=MODEL,
            temperature=0,
            max_tokens=300,
            max_retries=0,
            **more,
        )

    for method in ("function_calling", "json_schema"):
        assert isinstance(model().with_structured_output(City, method=method).invoke(ASK), City), (
            method
        )
        assert isinstance(
            model().with_structured_output(City, method=method, strict=True).invoke(ASK), City
        ), method
        assert isinstance(
            list(model().with_structured_output(City, method=method).stream(ASK))[-1], City
        ), method
    # this mode accepts any object, so the answer need not be a City
    raw = (
        model()
        .with_structured_output(City, method="json_mode", include_raw=True)
        .invoke(ASK + " As JSON.")["raw"]
    )
    assert raw.response_metadata["finish_reason"] == "length" or isinstance(
        json.loads(raw.content), dict
    )

    @tool
    def weather(city: str, days: int) -> str:
        """The weather."""
        return f"{days} days of sun in {city}"

    weather.args_schema = Weather
    messages = [HumanMessage(ASK)]
    for stream in (False, True):
        bound = model().bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
        if stream:
            answer = None
            for chunk in bound.stream(messages):
                answer = chunk if answer is None else answer + chunk
        else:
            answer = bound.invoke(messages)
        assert (
            len(answer.tool_calls) == 1
            and answer.tool_calls[0]["name"] == "weather"
            and not answer.invalid_tool_calls
        )
        result = weather.invoke(answer.tool_calls[0])
        assert isinstance(result, ToolMessage) and result.content.endswith(
            answer.tool_calls[0]["args"]["city"]
        )
        last = model(extra_body=LAST).bind_tools([weather]).invoke([*messages, answer, result])
        assert last.content == DONE and not last.tool_calls
    assert isinstance(model(use_responses_api=True).with_structured_output(City).invoke(ASK), City)


def instructor():
    import instructor as lib
    import openai

    for mode in (
        lib.Mode.TOOLS,
        lib.Mode.TOOLS_STRICT,
        lib.Mode.JSON_SCHEMA,
        lib.Mode.RESPONSES_TOOLS,
    ):
        client = lib.from_openai(
            openai.OpenAI(base_url=URL, api_key="none", max_retries=0), mode=mode
        )
        limit = (
            {"max_output_tokens": 300} if mode == lib.Mode.RESPONSES_TOOLS else {"max_tokens": 300}
        )
        assert isinstance(
            client.chat.completions.create(
                model=MODEL,
                response_model=City,
                max_retries=0,
                temperature=0,
                messages=[{"role": "user", "content": ASK}],
                **limit,
            ),
            City,
        )
    client = lib.from_openai(
        openai.OpenAI(base_url=URL, api_key="none", max_retries=0), mode=lib.Mode.TOOLS
    )
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL,
            response_model=City,
            temperature=0,
            max_tokens=300,
            messages=[{"role": "user", "content": ASK}],
        )
    )
    assert len(parts) > 2 and City.model_validate(parts[-1].model_dump())


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=URL, api_key="none")
    settings = {"temperature": 0, "max_tokens": 300, "parallel_tool_calls": False}
    for model in (OpenAIChatModel, OpenAIResponsesModel):
        for output in (ToolOutput(City), NativeOutput(City)):
            assert isinstance(
                Agent(
                    model(MODEL, provider=provider),
                    output_type=output,
                    model_settings=settings,
                    retries=0,
                )
                .run_sync(ASK)
                .output,
                City,
            )

    async def streamed():
        agent = Agent(
            OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none")),
            output_type=ToolOutput(City),
            model_settings=settings,
            retries=0,
        )
        async with agent.run_stream(ASK) as run:
            return [part async for part in run.stream_output()][-1]

    assert isinstance(asyncio.run(streamed()), City)


def llama_index():
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    def model(**more):
        return OpenAILike(
            model=MODEL,
            api_base=URL,
            api_key="none",
            is_chat_model=True,
            context_window=1024,
            max_tokens=300,
            temperature=0,
            max_retries=0,
            **more,
        )

    for more in (
        {"is_function_calling_model": True},
        {"is_function_calling_model": True, "strict": True},
        {"should_use_structured_outputs": True, "is_function_calling_model": True},
    ):
        assert isinstance(model(**more).as_structured_llm(City).complete(ASK).raw, City), more
        assert isinstance(
            model(**more).structured_predict(City, PromptTemplate("{ask}"), ask=ASK), City
        ), more
    # a model that streams when a call is required
    llm, last = model(is_function_calling_model=True), None
    for last in llm.stream_chat_with_tools(
        [FunctionTool.from_defaults(fn=City, name="City", fn_schema=City)],
        user_msg=ASK,
        tool_required=True,
    ):
        pass
    (call,) = llm.get_tool_calls_from_response(last)
    assert call.tool_name == "City" and City.model_validate(call.tool_kwargs)


def litellm():
    import litellm as lib

    lib.suppress_debug_info = True
    messages = [{"role": "user", "content": ASK}]
    tools = [
        {
            "type": "function",
            "function": {"name": "weather", "parameters": Weather.model_json_schema()},
        }
    ]
    choice = {"type": "function", "function": {"name": "weather"}}
    for provider in ("openai/", "hosted_vllm/"):
        common = {
            "model": provider + MODEL,
            "api_base": URL,
            "api_key": "none",
            "messages": messages,
            "temperature": 0,
            "max_tokens": 300,
            "num_retries": 0,
        }
        City.model_validate_json(
            lib.completion(**common, response_format=City).choices[0].message.content
        )
        call = (
            lib.completion(**common, tools=tools, tool_choice=choice).choices[0].message.tool_calls
        )
        assert len(call) == 1 and Weather.model_validate_json(call[0].function.arguments)
        whole = lib.completion(**{**common, "max_tokens": 12}).choices[0].message.content
        assert (
            "".join(
                c.choices[0].delta.content or ""
                for c in lib.completion(**{**common, "max_tokens": 12}, stream=True)
            )
            == whole
        )
    r = lib.responses(
        model="openai/" + MODEL, api_base=URL, api_key="none", input=ASK, max_output_tokens=8
    )
    assert r.output[0].content[0].text
    assert (
        lib.completion(
            model="anthropic/" + MODEL,
            api_base=HOST,
            api_key="none",
            messages=messages,
            max_tokens=8,
        )
        .choices[0]
        .message.content
    )
    assert (
        lib.completion(model="ollama_chat/" + MODEL, api_base=HOST, messages=messages, max_tokens=8)
        .choices[0]
        .message.content
    )


def openai_agents():
    import agents
    import openai

    told = []

    @agents.function_tool
    def weather(city: Annotated[str, Field(max_length=16)], days: Literal[1, 2, 3]) -> str:
        """The weather."""
        told.append((city, days))
        return "sun"

    async def run(kind, stream):
        client = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
        agent = agents.Agent(
            name="a",
            instructions="Be brief.",
            model=kind(MODEL, client),
            tools=[weather],
            tool_use_behavior="run_llm_again",
            model_settings=agents.ModelSettings(
                tool_choice="weather", max_tokens=400, temperature=0, extra_body=LAST
            ),
        )
        if not stream:
            return (await agents.Runner.run(agent, ASK, max_turns=3)).final_output
        r = agents.Runner.run_streamed(agent, ASK, max_turns=3)
        assert {e.type async for e in r.stream_events()} >= {
            "raw_response_event",
            "run_item_stream_event",
        }
        return r.final_output

    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        for stream in (False, True):
            told.clear()
            assert asyncio.run(run(kind, stream)) == DONE and len(told) == 1, (kind, stream)


def main():
    failed = 0
    for name in sys.argv[3:]:
        try:
            globals()[name]()
            print(name, "ok", flush=True)
        except Exception:
            failed = 1
            print(name, "FAILED\n" + traceback.format_exc(), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
