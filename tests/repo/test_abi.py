"""Structs of llmc.h: each begins with its size, so that it may grow, or never changes."""

import pathlib
import re

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include/llmc.h"

# Programs that were compiled with an older header allocate these, or step through arrays of them.
# A new field needs another struct, or `size` and a new major version of the library.
FIXED = {
    "llmc_error": "llmc_status code; char text[2044];",
    "llmc_bias": "int32_t id; float value;",
    "llmc_sequence": "const int32_t *tok; size_t n;",
    "llmc_option": "llmc_option_kind kind; llmc_option_rule rule;"
    " const char *name, *alias, *hf, *gguf, *text; size_t offset; double least, most;"
    " double http_least, http_most, http_default[LLMC_DEFAULT_COUNT];",
    "llmc_input_prompt": "const char *name, *text; bool usual;",
    "llmc_chunk": "llmc_seq seq; const int32_t *tok; int32_t n_tok; int32_t n_out;",
    "llmc_op_time": "const char *op; int32_t n; double seconds; int64_t weight_bytes; bool library;"
    " int64_t cache_bytes; int64_t ops;",
    "llmc_logprob": "int32_t id; float logprob;",
    "llmc_histogram": "uint64_t bucket[LLMC_BUCKETS], n; double sum;",
    "llmc_verify_row": "int32_t layer; const char *value; const char *op;"
    " double max_err, range, tolerance; bool ok; const float *want; int64_t rows, width;",
    "llmc_interval": "double mean, low, high;",
}


def structs():
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.S)
    for m in re.finditer(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.S):
        yield m.group(1), " ".join(m.group(2).split())


def test_structs_begin_with_their_size_or_never_change():
    found = dict(structs())
    assert len(found) > 40
    fixed = {n: f for n, f in found.items() if not f.startswith("size_t size;")}
    assert fixed == FIXED


def test_an_option_has_the_same_number_of_defaults():
    """llmc_option has an array of them."""
    names = re.findall(r"^\tLLMC_DEFAULT_(\w+),?$", HEADER.read_text(), re.M)
    assert names == ["OPENAI", "LLAMA_CPP", "OLLAMA", "COUNT"]
