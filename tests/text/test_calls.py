"""Outputs in each format of configs/formats/calls.yaml, parsed whole and cut at every byte. The grammar that forces a call must agree with the parser.

It is one file because the tables of outputs come first and every test runs over them.
"""

import ctypes as C
import json
import os
import pathlib

import pytest

import text_lib
from small_tokenizer import CONFIG, SMALL

LIB = text_lib.LIB
PIECE = C.CFUNCTYPE(None, C.c_void_p, C.c_int, C.c_int32, C.POINTER(C.c_char), C.c_size_t)
TEXT, REASONING, CALL, ARGUMENTS, DONE = range(5)
LIB.llmc_calls_open.argtypes = [
    C.c_void_p,
    C.c_char_p,
    C.c_size_t,
    C.c_char_p,
    C.POINTER(C.c_void_p),
    C.POINTER(text_lib.Error),
]
LIB.llmc_calls_feed.argtypes = [
    C.c_void_p,
    C.c_char_p,
    C.c_size_t,
    C.c_bool,
    PIECE,
    C.c_void_p,
    C.POINTER(text_lib.Error),
]
LIB.llmc_calls_close.argtypes = [C.c_void_p]
LIB.llmc_calls_mark.argtypes = [C.c_void_p, C.c_int]
LIB.llmc_calls_mark.restype = C.c_char_p
LIB.llmc_calls_rules.argtypes = [
    C.c_void_p,
    C.c_char_p,
    C.c_int,
    C.c_char_p,
    C.c_size_t,
    C.POINTER(C.c_size_t),
    C.POINTER(text_lib.Error),
]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    },
]
ARGS = '{"city": "Zürich \\"x\\" }", "days": 3}'
WANT = [("weather", json.loads(ARGS))]
BOTH = WANT + [("now", {})]

# row, words of its templates, answer, (text, reasoning, calls)
CASES = [
    (
        "hermes",
        '<tool_call> "arguments" </think>',
        '<tool_call>\n{"name": "weather", "arguments": ' + ARGS + "}\n</tool_call>",
        ("", "", WANT),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": '
        + ARGS
        + '}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ("Let me see.", "", BOTH),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        "<think>\nhm <b\n</think>\n\nIt is 5 < 7 <tool_",
        ("It is 5 < 7 <tool_", "\nhm <b\n", []),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        '<tool_call>{"arguments": ' + ARGS + ', "name": "weather"}</tool_call>',
        ("", "", WANT),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        "<tool_call>\nno call at all\n</tool_call>",
        ("<tool_call>\nno call at all\n</tool_call>", "", []),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        '<tool_call>\n{"name": "now"}\n</tool_call>',
        ("", "", [("now", {})]),
    ),
    (
        "hermes",
        '<tool_call> "arguments"',
        '<tool_call>\n{"name": "now", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        ("", "", [("now", {"a": 1})]),
    ),
    (
        "llama3",
        '"parameters" <|eot_id|>',
        '{"name": "weather", "parameters": ' + ARGS + "}",
        ("", "", WANT),
    ),
    (
        "llama3",
        '"parameters" <|eot_id|>',
        '<|python_tag|>{"name": "weather", "parameters": '
        + ARGS
        + '}; {"name": "now", "parameters": {}}',
        ("", "", BOTH),
    ),
    (
        "llama3",
        '"parameters" <|eot_id|>',
        '{"colour": "red"} is JSON',
        ('{"colour": "red"} is JSON', "", []),
    ),
    (
        "mistral",
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "weather", "arguments": '
        + ARGS
        + ', "id": "abc"}, {"name": "now", "arguments": {}}]',
        ("", "", BOTH),
    ),
    (
        "mistral-named",
        "[TOOL_CALLS] [ARGS]",
        "[TOOL_CALLS]weather[ARGS]" + ARGS + "[TOOL_CALLS]now[ARGS]{}",
        ("", "", BOTH),
    ),
    (
        "deepseek-r1",
        "<｜tool▁calls▁begin｜> ```json",
        "<think>a</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        + ARGS
        + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("ok", "a", BOTH),
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        + ARGS
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", "", WANT),
    ),
    (
        "qwen3-coder",
        "<function= <parameter=",
        'Sure.\n<tool_call>\n<function=weather>\n<parameter=city>\nZürich "x" }\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>',
        ("Sure.", "", WANT),
    ),
    (
        "qwen3-coder",
        "<function= <parameter=",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ("", "", [("now", {})]),
    ),
    (
        "glm",
        "<arg_key> <arg_value>",
        '<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich "x" }</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>',
        ("", "", WANT),
    ),
    (
        "kimi",
        "<|tool_call_begin|> <|tool_call_argument_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        + ARGS
        + "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ("", "", BOTH),
    ),
    (
        "harmony",
        "<|channel|> <|message|> functions.",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        + ARGS
        + "<|call|>",
        ("", "hm", WANT),
    ),
    (
        "harmony",
        "<|channel|> <|message|> functions.",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello",
        ("Hello", "hm", []),
    ),
    (
        "minimax-m2",
        "<minimax:tool_call> <parameter name=",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Zürich "x" }</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
        ("", "", WANT),
    ),
    (
        "granite",
        "<|tool_call|>",
        '<|tool_call|>[{"name": "weather", "arguments": ' + ARGS + "}]",
        ("", "", WANT),
    ),
    (
        "command",
        "<|START_ACTION|>",
        '<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": '
        + ARGS
        + "}]<|END_ACTION|>",
        ("", "a", WANT),
    ),
    (
        "gemma",
        "<|tool_call> call:",
        '<|channel>thought\nhm<channel|>Ok.<|tool_call>call:weather{city:<|"|>Zürich "x" }<|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>',
        ("Ok.", "\nhm", BOTH),
    ),
    (
        "gemma",
        "<|tool_call> call:",
        '<|tool_call>call:now{a:{b:[<|"|>x,}<|"|>,-1.5e3,true,{}],"c d":null},e:<|"|><|"|>}<tool_call|>',
        ("", "", [("now", {"a": {"b": ["x,}", -1500.0, True, {}], "c d": None}, "e": ""})]),
    ),
    ("gemma", "<|tool_call> call:", "It is 5 < 7 <|tool", ("It is 5 < 7 <|tool", "", [])),
    (
        "function-gemma",
        "<start_function_call> <escape>",
        '<start_function_call>call:weather{city:<escape>Zürich "x" }<escape>,days:3}<end_function_call>',
        ("", "", WANT),
    ),
    (
        "lfm2",
        "<|tool_call_start|>",
        'Ok.<|tool_call_start|>[weather(city="Zürich \\"x\\" }", days=3), now()]<|tool_call_end|>',
        ("Ok.", "", BOTH),
    ),
    (
        "lfm2",
        "<|tool_call_start|>",
        "<|tool_call_start|>[now(a={'b': [True, None, (1, 2,)], \"c\": 'it\\'s \\x41\\u00e9\\U0001F600\\ud83d\\ude00'}, d='''x\n'y' ''', e=-2.5)]<|tool_call_end|>Done",
        (
            "Done",
            "",
            [
                (
                    "now",
                    {
                        "a": {"b": [True, None, [1, 2]], "c": "it's A\u00e9\U0001f600\U0001f600"},
                        "d": "x\n'y' ",
                        "e": -2.5,
                    },
                )
            ],
        ),
    ),
    (
        "lfm2",
        "<|tool_call_start|>",
        "<|tool_call_start|>[now(7, a=b, c=f(1, x), d='\\ud83d')]<|tool_call_end|>",
        ("", "", [("now", {"a": "b", "c": "f(1, x)", "d": "'\\ud83d'"})]),
    ),
    (
        "olmo3",
        "<function_calls>",
        "<function_calls>\nweather(city='Zürich \"x\" }', days=3)\nnow()\n</function_calls>",
        ("", "", BOTH),
    ),
    (
        "llama-pythonic",
        "[func_name1(",
        '[weather(city="Zürich \\"x\\" }", days=3), now()]',
        ("", "", BOTH),
    ),
    (
        "llama-pythonic",
        "[func_name1(",
        '<|python_start|>[weather(city="Zürich \\"x\\" }", days=3)]<|python_end|>',
        ("", "", WANT),
    ),
    (
        "llama-pythonic",
        "[func_name1(",
        "[1, 2] is a list, [now()] too",
        ("[1, 2] is a list, [now()] too", "", []),
    ),
    ("llama-pythonic", "[func_name1(", "[other()] is not ours", ("[other()] is not ours", "", [])),
    (
        "harmony",
        "<|channel|> <|message|> functions.",
        " to=functions.weather<|channel|>commentary json<|message|>" + ARGS + "<|call|>",
        ("", "", WANT),
    ),
    (
        "harmony",
        "<|channel|> <|message|> functions.",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather<|message|>"
        + ARGS,
        ("", "hm", WANT),
    ),
    (
        "deepseek-v3.2",
        "｜DSML｜ function_calls>",
        'so</think>Ok.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Zürich "x" }</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        ("so</think>Ok.", "", BOTH),
    ),
    (
        "deepseek-v3.2",
        "｜DSML｜ function_calls>",
        '<｜DSML｜function_calls><｜DSML｜invoke name="now"><｜DSML｜parameter name="a" string="true">3</｜DSML｜parameter><｜DSML｜parameter name="b" string="false">[1, {"c": null}]'
        '</｜DSML｜parameter><｜DSML｜parameter name="d" string="true">\nx\n</｜DSML｜parameter><｜DSML｜parameter name="e" string="false">no JSON</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>',
        ("", "", [("now", {"a": "3", "b": [1, {"c": None}], "d": "\nx\n", "e": "no JSON"})]),
    ),
    (
        "deepseek-v4",
        "｜DSML｜ tool_calls>",
        '<think>so</think><｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Zürich "x" }</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        ("", "so", WANT),
    ),
    ("deepseek-v4", "｜DSML｜ tool_calls>", "5 <｜DSML｜ 7", ("5 <｜DSML｜ 7", "", [])),
    (
        "seed-oss",
        "<seed:tool_call> <parameter=",
        '<seed:think>so</seed:think>\nOk.\n\n<seed:tool_call>\n<function=weather>\n<parameter=city>Zürich "x" }</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        ("Ok.", "so", BOTH),
    ),
    (
        "hunyuan-3",
        "<tool_sep <arg_key <arg_value",
        '<think></think><tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Zürich "x" }</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n'
        "<tool_call>now<tool_sep>\n</tool_call>\n</tool_calls>",
        ("", "", BOTH),
    ),
    (
        "hunyuan-3",
        "<tool_sep <arg_key <arg_value",
        '<tool_calls><tool_call>weather<tool_sep><arg_key>city</arg_key><arg_value>Zürich "x" }</arg_value><arg_key>days</arg_key> <arg_value>3</arg_value></tool_call></tool_calls>',
        ("", "", WANT),
    ),
    (
        "hunyuan-4",
        "<tool_calls <arg_key <arg_value",
        '<tool_calls><tool_call>weather<arg_key>city</arg_key><arg_value>Zürich "x" }</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call></tool_calls>',
        ("", "", BOTH),
    ),
    (
        "hunyuan-a13b",
        "<tool_calls>[{",
        '<think>\nso\n</think>\n<tool_calls>[{"name": "weather", "arguments": '
        + ARGS
        + '}, {"name": "now", "arguments": {}}]</tool_calls>',
        ("", "\nso\n", BOTH),
    ),
    (
        "hunyuan-a13b",
        "<tool_calls>[{",
        "<think>\nso\n</think>\n<answer>\nIt is 5.\n</answer>",
        ("It is 5.", "\nso\n", []),
    ),
    (
        "think-answer",
        "</think> <answer> </answer>",
        "<think>\nso\n</think>\n<answer>\nIt is <b\n</answer>",
        ("It is <b", "\nso\n", []),
    ),
    (
        "glm-4.7",
        "</arg_key><arg_value>",
        '<tool_call>weather<arg_key>city</arg_key><arg_value>Zürich "x" }</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call>',
        ("", "", BOTH),
    ),
    ("glm", "<arg_key> <arg_value>", "<tool_call>now</tool_call>", ("", "", [("now", {})])),
    (
        "mistral-named",
        "[TOOL_CALLS] [ARGS]",
        "[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]" + ARGS,
        ("", "", WANT),
    ),
    (
        "apertus",
        "<|tools_prefix|>",
        '<|inner_prefix|>so<|inner_suffix|>Ok.<|tools_prefix|>[{"weather": '
        + ARGS
        + '}, {"now": {}}]<|tools_suffix|>',
        ("Ok.", "so", BOTH),
    ),
    (
        "apertus",
        "<|tools_prefix|>",
        '<|tools_prefix|>[{"name": "weather", "arguments": '
        + ARGS
        + '}, {"now": {}}]<|tools_suffix|>',
        ("", "", BOTH),
    ),
    (
        "apertus",
        "<|tools_prefix|>",
        '<|tools_prefix|>[{"": {}}, {"now": "x"}]<|tools_suffix|>',
        ('<|tools_prefix|>[{"": {}}, {"now": "x"}]<|tools_suffix|>', "", []),
    ),
    ("apertus", "<|tools_prefix|>", "<|tools_prefix|>no list", ("<|tools_prefix|>no list", "", [])),
    (
        "solar",
        "<|tool_calls|> <|tool_call:name|>",
        "<|think|>so<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>weather<|tool_call:args|>"
        + ARGS
        + "<|tool_call:end|><|tool_call:begin|>c3<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ("", "so", BOTH),
    ),
    (
        "solar",
        "<|tool_calls|> <|tool_call:name|>",
        "<|tool_calls|><|tool_call:begin|>"
        + "x" * 600
        + "<|tool_call:name|>now<|tool_call:args|>{}",
        ("<|tool_call:begin|>" + "x" * 600 + "<|tool_call:name|>now<|tool_call:args|>{}", "", []),
    ),
    (
        "harmony",
        "<|channel|> <|message|> functions.",
        "<|channel|>commentary to=functions.now" + " " * 600 + "<|message|>{}",
        ("<|channel|>commentary to=functions.now" + " " * 600 + "<|message|>{}", "", []),
    ),
    (
        "solar",
        "<|tool_calls|> <|tool_call:name|>",
        "<|think|>so<|end|><|begin|>assistant<|content|>Yes.<|end|>",
        ("Yes.", "so", []),
    ),
    (
        "lfm2.5",
        "List of tools: [",
        "<think>so</think>Ok.<|tool_call_start|>[weather(city='Zürich \"x\" }', days=3)]<|tool_call_end|>",
        ("Ok.", "so", WANT),
    ),
    (
        "minimax-m1",
        "<tool_calls></tool_calls> <end_of_sentence>",
        '<think>so</think><tool_calls>\n{"name": "weather", "arguments": '
        + ARGS
        + '}\n{"name": "now", "arguments": {}}\n</tool_calls>',
        ("", "so", BOTH),
    ),
    (
        "nemotron-v2",
        "<TOOLCALL>[",
        '<think>so</think><TOOLCALL>[{"name": "weather", "arguments": '
        + ARGS
        + '}, {"name": "now", "arguments": {}}]</TOOLCALL>',
        ("", "so", BOTH),
    ),
    (
        "gigachat-3.1",
        "<|function_call|> <|message_sep|>",
        'Ok.<|function_call|>{"name": "weather", "arguments": ' + ARGS + "}",
        ("Ok.", "", WANT),
    ),
    (
        "gigachat-3",
        "function call <|role_sep|>",
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": '
        + ARGS
        + "}<|message_sep|>\n\n",
        ("", "", WANT),
    ),
    (
        "minicpm5",
        "<function name= <param name=",
        '<think>\nso\n</think>\n\n<function name="weather"><param name="city">Zürich "x" }</param><param name="days">3</param></function>\n<function name="now"></function>',
        ("", "\nso\n", BOTH),
    ),
    (
        "functionary-3.1",
        "<function= </function>",
        "<function=weather>" + ARGS + "</function><function=now>{}</function>",
        ("", "", BOTH),
    ),
    (
        "apriel",
        "[BEGIN FINAL RESPONSE] <tool_calls>[",
        'Here are my reasoning steps:\nso\n[BEGIN FINAL RESPONSE]\nOk.\n<tool_calls>[{"name": "weather", "arguments": '
        + ARGS
        + "}]</tool_calls>\n[END FINAL RESPONSE]",
        ("Ok.", "\nso\n", WANT),
    ),
    (
        "lfm2-list",
        "<|tool_list_start|>",
        '<|tool_call_start|>[weather(city="Zürich \\"x\\" }", days=3), now()]<|tool_call_end|>',
        ("", "", BOTH),
    ),
    (
        "generic",
        "nothing",
        '<tool_call>\n{"name": "weather", "arguments": ' + ARGS + "}\n</tool_call>",
        ("", "", WANT),
    ),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """tokenizer(template) opens a tokenizer with this chat template."""
    opened = {}

    def get(template):
        if template not in opened:
            folder = tmp_path_factory.mktemp("calls")
            (folder / "tokenizer.json").write_text(json.dumps(SMALL))
            (folder / "tokenizer_config.json").write_text(
                json.dumps({**CONFIG, "chat_template": template})
            )
            opened[template] = text_lib.Tokenizer(folder)
        return opened[template]

    yield get
    for t in opened.values():
        t.close()


PEER = sorted(
    pathlib.Path(
        os.environ.get("LLMC_CACHE")
        or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"),
        "peer",
    ).glob("llama_cpp_python-*/vendor/llama.cpp/models/templates/*.jinja")
)
REAL = (
    sorted(pathlib.Path(os.environ["LLMC_TEST_DATA"], "chat-templates").glob("*.jinja"))
    if os.environ.get("LLMC_TEST_DATA")
    else []
)
# templates that cannot render both calls: they refuse several calls, have no calls, need other
# fields, or use a format that has no row
NO_CALLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "LFM2-8B-A1B",
    "LFM2.5-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "fireworks-ai-llama-3-firefunction-v2",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "meetkai-functionary-medium-v3.2",
    "microsoft-Phi-3.5-mini-instruct",
    "Kimi-K3",
    "MiniMax-M3",
    "muse-glimmer",
}
ONE_CALL = {
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
}


@pytest.mark.parametrize(
    "path",
    [p for p in REAL + PEER if p.stem not in NO_CALLS],
    ids=lambda p: getattr(p, "stem", "none"),
)
def test_calls_as_real_templates_write_them_are_read(tmp_path, path):
    """The assistant turn that a template renders for some calls is parsed as these calls."""
    source, arguments = (
        path.read_text(),
        {"city": "Zürich", "days": 3, "deep": {"a": [1, True, None]}, "flag": True},
    )
    small = json.loads(json.dumps(SMALL))
    if ":opensource" in source:
        small["added_tokens"].append(
            {**small["added_tokens"][0], "id": 4, "content": "<tool_calls:opensource>"}
        )
        small["model"]["vocab"]["<tool_calls:opensource>"] = 4
    (tmp_path / "tokenizer.json").write_text(json.dumps(small))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "chat_template": source}))
    types = {"city": "string", "days": "integer", "deep": "object", "flag": "boolean"}
    about = {
        "type": "object",
        "properties": {k: {"type": v, "description": "d"} for k, v in types.items()},
        "required": ["city"],
    }
    tools = [
        {
            "type": "function",
            "function": {"name": "weather", "description": "d", "parameters": about},
        },
        {
            "type": "function",
            "function": {
                "name": "now",
                "description": "d",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
    want = [("weather", arguments), ("now", {})][: 1 if path.stem in ONE_CALL else 2]
    user = {"role": "user", "content": "hi"}
    answer = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "so",
        "tool_calls": [
            {"id": f"abcdef12{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(want)
        ],
    }
    t = text_lib.Tokenizer(tmp_path)
    for thinks in (True, False):
        whole = t.chat([user, answer], tools=tools, enable_thinking=thinks)
        prompt = next(
            p
            for p in (
                t.chat([user], tools=tools, enable_thinking=thinks, add_generation_prompt=begun)
                for begun in (True, False)
            )
            if whole.startswith(p) or len(p) < 40 or not thinks
        )
        said = (
            whole[len(prompt) :]
            if whole.startswith(prompt)
            else whole[len(os.path.commonprefix([whole, prompt])) :]
        )
        got = Reader(t, prompt, tools).read([said.encode()])
        assert got[2] == want, (said, got)
        for at in range(1, len(said), 7):
            assert Reader(t, prompt, tools).read([said[:at].encode(), said[at:].encode()]) == got
    t.close()


@pytest.mark.parametrize("suffix", [":opensource", ":6124c78e", ""])
def test_marks_have_the_suffix_of_the_tokenizer(tmp_path, suffix):
    """The markers of Hunyuan checkpoints carry a suffix, which comes from the added tokens."""
    small = json.loads(json.dumps(SMALL))
    small["added_tokens"].append(
        {**small["added_tokens"][0], "id": 4, "content": f"<tool_calls{suffix}>"}
    )
    small["model"]["vocab"][f"<tool_calls{suffix}>"] = 4
    (tmp_path / "tokenizer.json").write_text(json.dumps(small))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**CONFIG, "chat_template": "{# <tool_sep{}> <arg_key{}> <arg_value{}> #}"})
    )
    t = text_lib.Tokenizer(tmp_path)
    said = "so</think{}>Ok.<tool_calls{}>\n<tool_call{}>weather<tool_sep{}>\n<arg_key{}>city</arg_key{}>\n<arg_value{}>Rome</arg_value{}>\n</tool_call{}>\n</tool_calls{}>".replace(
        "{}", suffix
    )
    for at in range(1, len(said)):
        assert Reader(t, f"<think{suffix}>").read([said[:at].encode(), said[at:].encode()]) == (
            "Ok.",
            "so",
            [("weather", {"city": "Rome"})],
        )
    buf, need, err = C.create_string_buffer(1 << 16), C.c_size_t(), text_lib.Error()
    assert (
        LIB.llmc_calls_rules(Reader(t).h, b"weather", 1, buf, len(buf), C.byref(need), C.byref(err))
        == 0
    )
    assert f"<tool_call{suffix}>weather<tool_sep{suffix}>" in buf.value.decode()
    t.close()


def test_prompt_may_continue_after_the_reasoning_marker(tokenizer):
    t = tokenizer("{# <seed:tool_call> <parameter= #}")
    said = b"I will answer at once.</seed:cot_budget_reflect></seed:think>Yes."
    assert Reader(t, "<seed:bos>assistant\n<seed:think><seed:cot_budget_reflect>").read([said]) == (
        "Yes.",
        "I will answer at once.</seed:cot_budget_reflect>",
        [],
    )


def test_values_as_python_writes_them_are_what_the_schema_has(tokenizer):
    """If a template renders values with str(), the model writes Python literals."""
    types = {"a": "boolean", "b": "object", "c": "string", "d": "array", "e": "integer"}
    tools = [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {
                    "type": "object",
                    "properties": {k: {"type": v} for k, v in types.items()},
                },
            },
        }
    ]
    said = (
        "<seed:tool_call><function=f>"
        + "".join(
            f"<parameter={k}>{v}</parameter>"
            for k, v in {
                "a": "True",
                "b": "{'x': [None, 'y']}",
                "c": "True",
                "d": "what?",
                "e": "3",
            }.items()
        )
        + "</function></seed:tool_call>"
    )
    t = tokenizer("{# <seed:tool_call> <parameter= #}")
    said = said.replace("><function", ">\n<function")
    assert Reader(t, "", tools).read([said.encode()]) == (
        "",
        "",
        [("f", {"a": True, "b": {"x": [None, "y"]}, "c": "True", "d": "what?", "e": 3})],
    )


class Reader:
    def __init__(self, tokenizer, prompt="", tools=TOOLS):
        self.h, err = C.c_void_p(), text_lib.Error()
        data = prompt.encode()
        handle = getattr(tokenizer, "_t", None) or tokenizer.handle
        assert (
            LIB.llmc_calls_open(
                handle,
                data,
                len(data),
                json.dumps(tools).encode() if tools else None,
                C.byref(self.h),
                C.byref(err),
            )
            == 0
        ), err.text

    def read(self, pieces):
        """Returns (text, reasoning, calls) and joins the fragments of arguments."""
        text, reasoning, calls, open_ = b"", b"", [], [False]

        @PIECE
        def on_piece(user, kind, call, data, n):
            nonlocal text, reasoning
            # the text may end within a character if the input ends within one
            s = C.string_at(data, n)
            if kind == TEXT:
                text += s
            elif kind == REASONING:
                reasoning += s
            elif kind == CALL:
                assert call == len(calls) and not open_[0]
                calls.append([s, b""])
                open_[0] = True
            elif kind == ARGUMENTS:
                assert open_[0]
                calls[call][1] += s
            else:
                open_[0] = False

        err = text_lib.Error()
        for i, p in enumerate(pieces):
            assert (
                LIB.llmc_calls_feed(
                    self.h, p, len(p), i == len(pieces) - 1, on_piece, None, C.byref(err)
                )
                == 0
            )
        assert not open_[0]
        LIB.llmc_calls_close(self.h)
        return text.decode(), reasoning.decode(), [(n.decode(), json.loads(a)) for n, a in calls]


@pytest.mark.parametrize(
    "row,template,answer,want", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_an_answer_is_read_whole_and_in_pieces(tokenizer, row, template, answer, want):
    t = tokenizer("{# " + template + " #}")
    r = Reader(t)
    assert LIB.llmc_calls_mark(r.h, 0).decode() == row
    assert r.read([answer.encode()]) == want
    chars = [c.encode() for c in answer]
    assert Reader(t).read(chars) == want
    for at in range(1, len(answer)):
        assert Reader(t).read([answer[:at].encode(), answer[at:].encode()]) == want, answer[:at]


def test_a_prompt_may_have_opened_the_reasoning(tokenizer):
    t = tokenizer('{# <tool_call> "arguments" #}')
    assert Reader(t, "<|im_start|>assistant\n<think>\n").read(
        [b"so ", b"be it</thi", b"nk>\n\nyes"]
    ) == ("yes", "so be it", [])
    assert Reader(t, "<|im_start|>assistant\n<think>\n", None).read(
        [b"a</think>b <tool_call>"]
    ) == ("b <tool_call>", "a", [])


def test_a_call_that_breaks_off_stays_one(tokenizer):
    t = tokenizer('{# <tool_call> "arguments" #}')
    r = Reader(t)
    got = []

    @PIECE
    def on_piece(user, kind, call, data, n):
        got.append((kind, C.string_at(data, n)))

    text = b'<tool_call>\n{"name": "weather", "arguments": {"city": "Zur'
    LIB.llmc_calls_feed(r.h, text, len(text), True, on_piece, None, None)
    LIB.llmc_calls_close(r.h)
    assert (
        got[0] == (CALL, b"weather")
        and b"".join(s for k, s in got if k == ARGUMENTS) == b'{"city": "Zur'
        and got[-1][0] == DONE
    )


@pytest.mark.parametrize(
    "row,template", sorted({(c[0], c[1]) for c in CASES if c[0] != "think-answer"})
)
@pytest.mark.parametrize("only", [None, "weather"])
def test_what_forces_calls_is_what_the_reading_takes(
    tokenizer, smollm2_tokenizer, row, template, only
):
    """A walk through the call grammar, shortest token first, yields output that is parsed as calls."""
    import llmc

    r = Reader(tokenizer("{# " + template + " #}"))
    buf, need, err = C.create_string_buffer(1 << 16), C.c_size_t(), text_lib.Error()
    assert (
        LIB.llmc_calls_rules(
            r.h, only and only.encode(), 1, buf, len(buf), C.byref(need), C.byref(err)
        )
        == 0
    ), err.text
    tok = smollm2_tokenizer
    out, end = b"", {"gemma": b'<|"|>', "function-gemma": b"<escape>"}.get(row, b"")
    with llmc.Grammar(tok, "parts", buf.value.decode()) as g, g.matcher() as m:
        singles = [tok.encode(bytes([b]), special=0) for b in range(32, 127)]
        singles = [(s[0], bytes([b])) for b, s in zip(range(32, 127), singles) if len(s) == 1] + [
            (tok.encode("\n", special=0)[0], b"\n")
        ]
        byte_tokens = [(tok.encode(c, special=0), c.encode()) for c in "｜▁"]
        for _ in range(400):
            if m.ended or (m.may_end and out.rstrip().endswith((b"}", b"]", b">"))):
                break
            begun = next((n for n in range(len(end) - 1, 0, -1) if out.endswith(end[:n])), 0)
            order = end[begun : begun + 1] + b'"}]<>/'
            for t, b in sorted(singles, key=lambda x: order.find(x[1]) if x[1] in order else 99):
                if m.allows(t):
                    m.accept(t)
                    out += b
                    break
            else:
                for ids, b in byte_tokens:
                    if m.allows(ids[0]):
                        for t in ids:
                            m.accept(t)
                        out += b
                        break
                else:
                    raise AssertionError(out)
    _, _, calls = r.read([out])
    assert calls and calls[0][0] in ("weather", "now") and (not only or calls[0][0] == only), out


PATCH = '*** Begin\n+a "b" \\\\ <c>\n'


@pytest.mark.parametrize(
    "row,template", sorted({(c[0], c[1]) for c in CASES if c[0] != "think-answer"})
)
@pytest.mark.parametrize("flags", [1, 3])
def test_the_one_text_of_a_tool_may_have_a_grammar(
    tokenizer, smollm2_tokenizer, row, template, flags
):
    """In each format, output forced by the grammar of a one-string tool is parsed as a call with this string."""
    import llmc

    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    format = {
        "type": "grammar",
        "syntax": "lark",
        "definition": "start: "
        + "".join(json.dumps(line) + " " for line in PATCH.splitlines(True)),
    }
    tools = [
        {
            "type": "function",
            "function": {"name": "patch", "parameters": parameters},
            "format": format,
        }
    ]
    r = Reader(tokenizer("{# " + template + " #}"), "", tools)
    mark = LIB.llmc_calls_mark(r.h, 3)
    if flags & 2 and not mark:
        return
    buf, need, err = C.create_string_buffer(1 << 16), C.c_size_t(), text_lib.Error()
    assert (
        LIB.llmc_calls_rules(r.h, None, flags, buf, len(buf), C.byref(need), C.byref(err)) == 0
    ), err.text
    tok, out = smollm2_tokenizer, b""
    letters = [
        (tok.encode(c, special=0), c.encode())
        for c in [chr(c) for c in range(32, 127)] + ["\n", "｜", "▁"]
    ]
    with llmc.Grammar(tok, "parts", buf.value.decode()) as g, g.matcher() as m:
        while not m.ended:
            ids, b = next((ids, b) for ids, b in letters if m.allows(ids[0]))
            for t in ids:
                m.accept(t)
            out += b
    if flags & 2:
        out = mark + out
    got = r.read([out])
    assert got == ("", "", [("patch", {"input": PATCH})]), out


def region(open_, close, **more):
    return {
        **({"open_pattern": open_[1:]} if open_[0] == "~" else {"open": open_}),
        "close": close,
        **more,
    }


NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
WITHIN = {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.args}"}}
EACH = {"type": "function", "function": {"name": "{tool}", "arguments": "{args}"}}
# fields of a checkpoint's response_template, answer, (text, reasoning, calls); what transformers' parse_response makes of the answers is the same
OWN = [
    (
        {
            "thinking": region("<hm>", "</hm>"),
            "content": {"close": "<end>"},
            "tool_calls": region("<do>", "</do>", repeats=True, content="json", transform=WITHIN),
        },
        '<hm>so</hm>Ok.<do>{"tool": "weather", "args": '
        + ARGS
        + '}</do><do>{"tool": "now", "args": {}}</do><end>',
        ("Ok.", "so", BOTH),
    ),
    (
        {
            "content": {},
            "tool_calls": region(
                "[do]", "[/do]", content="json", transform=EACH, transform_each=True
            ),
        },
        '[do][{"tool": "weather", "args": ' + ARGS + '}, {"tool": "now", "args": {}}][/do]',
        ("", "", BOTH),
    ),
    (
        {
            "reasoning_content": region("<hm>", ["</hm>", "</hmm>"]),
            "content": {},
            "tool_calls": region(
                "~<do>\\s*(?P<name>[\\w.-]+)\\s*<with>",
                "</do>",
                repeats=True,
                content="json",
                transform=NAMED,
            ),
        },
        "<hm>so</hm><do>\nweather\n<with>" + ARGS + "</do><do>\nnow<with>{}</do>",
        ("", "so", BOTH),
    ),
    (
        {
            "content": {},
            "tool_calls": region(
                "~<do (?P<name>\\w+)>",
                "</do>",
                repeats=True,
                content="xml-inline",
                transform=NAMED,
                content_args={
                    "tag_pattern": "<arg (?P<key>\\w+)>\\s*(?P<value>.*?)\\s*</arg>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
            ),
        },
        '<do weather>\n<arg city>Zürich "x" }</arg>\n<arg days>\n3\n</arg>\nand so on\n</do>\n<do now></do>',
        ("", "", BOTH),
    ),
    (
        {
            "thinking": region("<|channel>thought\n", "<channel|>"),
            "content": {"close": ["<turn|>", "<|tool_response>"]},
            "tool_calls": region(
                "~<\\|do>call:(?P<name>\\w+)",
                "<do|>",
                repeats=True,
                content="json",
                transform=NAMED,
                content_args={"unquoted_keys": True, "string_delims": [["<|q|>", "<|q|>"]]},
            ),
        },
        '<|channel>thought\nso<channel|><|do>call:weather{city:<|q|>Zürich "x" }<|q|>,days:3}<do|><|do>call:now{}<do|><turn|>',
        ("", "\nso", BOTH),
    ),
]


def own(folder, fields, template="{# nothing #}"):
    (folder / "tokenizer.json").write_text(json.dumps(SMALL))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                **CONFIG,
                "chat_template": template,
                "response_template": {"start_anchor": "<|im_start|>assistant\n", "fields": fields},
            }
        )
    )
    return text_lib.Tokenizer(folder)


@pytest.mark.parametrize("fields,answer,want", OWN)
def test_response_template_of_a_checkpoint_defines_its_format(tmp_path, fields, answer, want):
    t = own(tmp_path, fields)
    assert LIB.llmc_calls_mark(Reader(t).h, 0) == b"response_template"
    assert Reader(t).read([answer.encode()]) == want
    for at in range(1, len(answer)):
        assert Reader(t).read([answer[:at].encode(), answer[at:].encode()]) == want, answer[:at]
    buf, need, err = C.create_string_buffer(1 << 16), C.c_size_t(), text_lib.Error()
    assert (
        LIB.llmc_calls_rules(Reader(t).h, None, 1, buf, len(buf), C.byref(need), C.byref(err)) == 0
    ), err.text
    t.close()


@pytest.mark.parametrize(
    "field",
    [
        region("~<do>.*?(?P<name>\\w+)>", "</do>", content="json", transform=NAMED),
        region("~<do (?P<name>\\w+)|x>", "</do>", content="json", transform=NAMED),
        region("<do>", "</do>", content="kv-lines", transform=WITHIN),
        region("~<do (?P<name>\\w+", "</do>", content="json", transform=NAMED),
        region("<do>", "</do>"),
        {},
        7,
        None,
    ],
)
def test_response_templates_that_no_row_can_express_are_ignored(tmp_path, field):
    t = own(
        tmp_path,
        {"thinking": region("<hm>", "</hm>"), "tool_calls": field},
        '{# <tool_call> "arguments" #}',
    )
    assert LIB.llmc_calls_mark(Reader(t).h, 0) == b"hermes"
    assert Reader(t).read(
        [b'<hm>so</hm><tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>']
    ) == ("", "so", [("now", {})])
    t.close()
