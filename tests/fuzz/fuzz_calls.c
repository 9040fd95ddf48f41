/* Arbitrary bytes as model output, in each format of tool calls. The first byte selects the format
 * (the last one: the text up to a NUL is the checkpoint's own response_template). The whole text
 * and its chunks must give equal results, each call must end, and output without calls and
 * reasoning may lose only white space. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const templates[] = {
	"<|channel|> <|message|> functions.",
	"<|tool_call_begin|> <|tool_call_argument_begin|>",
	"<｜tool▁calls▁begin｜> ```json",
	"<｜tool▁calls▁begin｜>",
	"<minimax:tool_call> <parameter name=",
	"<|tool_call> call:",
	"<start_function_call> <escape>",
	"<|tool_call_start|>",
	"<function_calls>",
	"<function= <parameter=",
	"<arg_key> <arg_value>",
	"<tool_call> arguments",
	"[TOOL_CALLS] [ARGS]",
	"[TOOL_CALLS]",
	"<|START_ACTION|>",
	"<|tool_call|>",
	"functools",
	"func_name1(",
	"\"parameters\" <|eot_id|>",
	"</think>",
	"nothing",
	"｜DSML｜ function_calls>",
	"<seed:tool_call> <parameter=",
	"<tool_sep <arg_key <arg_value",
	"<tool_calls <arg_key <arg_value",
	"<tool_calls></tool_calls> <end_of_sentence>",
	"</arg_key><arg_value>",
	"<|tools_prefix|>",
	"<|tool_calls|> <|tool_call:name|>",
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };
static const char tokens[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[]}";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":[\"integer\",\"null\"]},"
    "\"c\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}}},\"required\":[\"b\"]}}},{"
    "\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

typedef struct Read {
	Strbuf text, calls;
	int open, n;
} Read;

static void
check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_calls: %s\n", what);
		abort();
	}
}

static void
on_piece(void *user, llmc_piece_kind kind, int32_t call, const char *s, size_t n)
{
	Read *r = user;

	if (kind < LLMC_PIECE_CALL) {
		check(call == -1, "a text with the number of a call");
		strbuf_putc(&r->text, (char)kind);
		strbuf_add(&r->text, s, n);
		return;
	}
	if (kind == LLMC_PIECE_CALL) {
		check(!r->open && call == r->n, "a call begins within another");
		strbuf_printf(&r->calls, "|%d ", call);
	}
	check(kind == LLMC_PIECE_CALL || (r->open && call == r->n),
	      "part of a call that was not started");
	strbuf_add(&r->calls, s, n);
	r->open = kind != LLMC_PIECE_DONE;
	r->n += kind == LLMC_PIECE_DONE;
}

/* Feed chunks of `each` bytes; returns the number of calls */
static void
read_answer(const llmc_tokenizer *t, const char *s, size_t n, size_t each, Read *r)
{
	llmc_calls *c = NULL;

	check(llmc_calls_open(t, "", 0, tools, &c, NULL) == LLMC_OK, "llmc_calls_open failed");
	for (size_t at = 0; at < n || at == 0; at += each) {
		size_t k = n - at < each ? n - at : each;
		check(llmc_calls_feed(c, s + at, k, at + k >= n, on_piece, r, NULL) == LLMC_OK,
		      "an output is rejected");
	}
	check(!r->open, "a call is never closed");
	llmc_calls_close(c);
}

/* Appends the output to b without chunk boundaries and white space. */
static void
join(Strbuf *b)
{
	size_t n = 0;
	char last = -1;

	for (size_t i = 0; i < b->len; i++) {
		if (b->data[i] == LLMC_PIECE_TEXT || b->data[i] == LLMC_PIECE_REASONING) {
			if (b->data[i] == last)
				continue;
			last = b->data[i];
		}
		if (!strchr(" \n\t\r", b->data[i]) || !b->data[i])
			b->data[n++] = b->data[i];
	}
	b->len = n;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static llmc_tokenizer *t;
	static char rules[1 << 16];
	llmc_error err = { 0 };
	llmc_calls *c = NULL;
	Read whole = { 0 }, cut = { 0 };
	size_t need;

	if (!t)
		check(text_open_json(tokens, strlen(tokens), "fuzz", &t, &err) == LLMC_OK,
		      err.text);
	if (size < 2)
		return 0;
	size_t which = data[0] % (N_TEMPLATES + 1), each = 1 + data[1] % 16;
	char *s = malloc(size - 1);
	memcpy(s, data + 2, size - 2);
	s[size - 2] = 0;
	t->chat = templates[which < N_TEMPLATES ? which : N_TEMPLATES - 1];
	t->response = which < N_TEMPLATES ? NULL : s;
	const char *answer = which < N_TEMPLATES ? s : s + strlen(s);
	size_t n = (size_t)(s + size - 2 - answer);
	for (size_t i = 0; i < n; i++) /* two bytes of the input select the chunk size */
		if (answer[i] == LLMC_PIECE_TEXT || answer[i] == LLMC_PIECE_REASONING)
			s[answer - s + (ptrdiff_t)i] = ' ';
	read_answer(t, answer, n, n ? n : 1, &whole);
	read_answer(t, answer, n, each, &cut);
	join(&whole.text);
	join(&cut.text);
	check(whole.calls.len == cut.calls.len &&
	          !memcmp(strbuf_str(&whole.calls), strbuf_str(&cut.calls), cut.calls.len),
	      "calls differ when fed in chunks");
	check(whole.text.len == cut.text.len &&
	          !memcmp(strbuf_str(&whole.text), strbuf_str(&cut.text), cut.text.len),
	      "text differs when fed in chunks");
	check(llmc_calls_open(t, "", 0, tools, &c, NULL) == LLMC_OK, "llmc_calls_open failed");
	llmc_calls_rules(c, NULL, data[1] & 3, rules, sizeof rules, &need, &err);
	llmc_calls_close(c);
	t->chat = t->response = NULL;
	strbuf_release(&whole.text);
	strbuf_release(&whole.calls);
	strbuf_release(&cut.text);
	strbuf_release(&cut.calls);
	free(s);
	return 0;
}
