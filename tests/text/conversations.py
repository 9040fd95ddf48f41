"""Message lists of every kind that chat templates handle differently."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Look up the weather "now" in a city <b>&amp;</b> größer ☂',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": " The city's name "},
                "days": {"type": "integer", "description": "How many days", "default": 3},
                "units": {
                    "type": ["string", "null"],
                    "enum": ["metric", "imperial"],
                    "description": "Units",
                },
                "tags": {"type": "array", "items": {"type": "number"}, "description": "Tags"},
                "extra": {
                    "type": "object",
                    "additionalProperties": {"type": "boolean"},
                    "description": "Extra",
                },
            },
            "required": ["city"],
        },
        "return": {"type": "string", "description": "A sentence"},
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "Time",
        "parameters": {"type": "object", "properties": {}},
    },
}

SYSTEM = {"role": "system", "content": "You are terse.\n  Keep 'quotes' and \"quotes\". "}
USER = {"role": "user", "content": "  What's up, 世界? 🦙\n"}
ASSISTANT = {"role": "assistant", "content": "\nNot much. <think>\nhm\n</think>\n\nIndeed. "}
THINKING = {"role": "assistant", "content": "Sure.", "reasoning_content": "They asked.\n"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcDEF123",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": {"city": "Köln", "days": 2, "x": [1.5, None, True]},
            },
        }
    ],
}
CALLS = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [
        {
            "id": "abcDEF123",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Oslo"}},
        },
        {"id": "abcDEF124", "type": "function", "function": {"name": "clock", "arguments": {}}},
    ],
}
RESULT = {
    "role": "tool",
    "name": "get_weather",
    "tool_call_id": "abcDEF123",
    "content": '{"sun": "yes & no"}',
}
RESULT2 = {"role": "tool", "name": "clock", "tool_call_id": "abcDEF124", "content": "12:00"}
RICH = {
    "role": "tool",
    "name": "clock",
    "tool_call_id": "abcDEF124",
    "content": {"content": {"a": [1, "it's"]}, "z": 0.1},
}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}],
}

LISTS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, USER, THINKING, USER],
    "turns with system": [SYSTEM, USER, ASSISTANT, USER],
    "ends with the assistant": [USER, ASSISTANT],
    "no_think": [{"role": "system", "content": "Be brief /no_think"}, USER],
    "call": [USER, CALL, RESULT, ASSISTANT, USER],
    "calls": [SYSTEM, USER, CALLS, RESULT, RESULT2, ASSISTANT],
    "one call": [SYSTEM, USER, CALL],
    "rich result": [USER, CALL, RICH, ASSISTANT],
    "parts": [PARTS],
    "two users": [USER, USER],
    "assistant first": [ASSISTANT],
    "unknown role": [{"role": "ghost", "content": "boo"}],
    "empty content": [{"role": "user", "content": ""}],
    "null content": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": CALL["tool_calls"]},
    ],
    "empty": [],
}

OPTIONS = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "tools": [WEATHER, CLOCK]},
    {"add_generation_prompt": True, "enable_thinking": False, "date_string": "26 Jul 2024"},
    {
        "tools": [WEATHER],
        "enable_thinking": True,
        "thinking": True,
        "date_string": "26 Jul 2024",
        "custom_tools": [CLOCK],
        "builtin_tools": ["code_interpreter", "brave_search"],
        "tools_in_user_message": False,
        "documents": [{"title": "T", "text": "x"}],
    },
]
