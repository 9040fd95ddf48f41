/* Internal declarations of tool_calls*.c: format rows of configs/formats/calls.yaml and the output
 * parser. */
#ifndef LLMC_TEXT_TOOL_CALLS_H
#define LLMC_TEXT_TOOL_CALLS_H

#include "text/text.h"
#include "text/tool_params.h"

typedef enum CallBody {
	BODY_NONE,
	BODY_JSON,
	BODY_ARRAY,
	BODY_NAMED,
	BODY_PAIRS,
	BODY_LITERALS
} CallBody;
enum {
	MAX_DROP = 8,
	MAX_ALSO = 2,
	MAX_NAME = 256,
	MAX_HEAD = 512
}; /* length of a name; length up to the end of the marker that follows */
typedef struct CallRow { /* strings as the model writes them; NULL: the format has none */
	const char *name, *open, *close, *between, *name_from, *name_end, *name_until, *number,
	    *bare, *quote, *system;
	const char *think[3], *section[2], *key[2], *pair[4], *also[MAX_ALSO], *drop[MAX_DROP];
	int n_also, n_drop;
	CallBody body;
	bool to_close; /* ignore everything between the arguments and `close` */
} CallRow;

/* State of the parser. J_ states are positions in a JSON object. */
typedef enum CallState {
	AT_TEXT,
	AT_REASONING,
	AT_BETWEEN,
	AT_NAME,
	AT_ARGUMENTS,
	AT_PAIR,
	AT_LITERAL,
	AT_CLOSE,
	J_LIST,
	J_NEXT,
	J_OBJECT,
	J_KEY,
	J_IN_KEY,
	J_COLON,
	J_VALUE,
	J_NAME,
	J_ARGUMENTS,
	J_ARGUMENTS_TEXT,
	J_OTHER,
} CallState;

/* A resumable search for the end of a value of BODY_LITERALS. Zero-initialised. */
typedef struct LiteralScan {
	size_t at, value;  /* value: start of the value, if `param` is known */
	const char *param; /* name of the parameter; NULL: unknown */
	int depth;
	enum { SCAN_OUT, SCAN_QUOTED, SCAN_TRIPLE, SCAN_MARKED } in;
	char quote;
} LiteralScan;

struct llmc_calls {
	Arena arena;
	CallRow row;
	const char *mark; /* opening marker of a call without surrounding whitespace; NULL: none */
	json_t *tools;    /* NULL: none */
	const Tool *tool; /* [n_tool] resolved `tools` */
	size_t n_tool;
	const Tool *now; /* tool of the current call; NULL: unknown */
	/* marks around reasoning, without surrounding whitespace; NULL: none */
	const char *reasoning[2];
	bool in_prompt; /* the prompt has already opened the reasoning */
	CallState state;
	Strbuf hold; /* input that is not consumed yet */
	size_t gone, raw_at,
	    at;     /* offsets in the output: of `hold`, of `raw`, and of the last emitted text */
	Strbuf raw; /* source of a call whose name is not known yet; emitted as text if it is not a
	               call */
	Strbuf word, early; /* word: key or name; early: arguments that came before the name */
	Strbuf out;         /* arguments to emit */
	bool named, any, said, escaped, in_list,
	    trim;  /* trim: skip whitespace after reasoning or a call */
	int depth; /* nesting depth of the current value */
	bool in_text, started;
	LiteralScan scan;
	int32_t call; /* index of the current call; -1: there was none yet */
	llmc_piece_fn fn;
	void *user;
};

/* tool_calls_formats.c: finds the format of a tokenizer's calls, which is valid as long as the
 * tokenizer. Any thread may call. */
llmc_status call_format(const llmc_tokenizer *t, const CallRow **out, llmc_error *err);
void call_format_free(CallFormat *f);
/* tool_calls_response_template.c: overrides fields of the row; may jump to the arena's oom, too */
void call_row_own(const char *response_template, Arena *a, CallRow *row);

static inline bool
is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* tool_calls.c: emit events to the caller */

/* emits the name of the call, then arguments that came before the name */
void call_name(llmc_calls *c, const char *s, size_t n);
void call_emit_pending(llmc_calls *c); /* emits c->out as arguments */
void call_end(llmc_calls *c);
/* gives up parsing a call; text without a name so far is emitted as text */
void call_fail(llmc_calls *c);

/* tool_calls_json.c */
void call_value_begin(llmc_calls *c);
/* handles one byte of a JSON value; returns 0: the value continues, 1: last byte, 2: the byte
 * follows the value */
int call_value_byte(llmc_calls *c, char x);
/* appends to c->out, or to c->early if the name is not known yet */
void call_argument_byte(llmc_calls *c, char x);
/* handles one byte in a J_ state; returns false if it did not consume the byte */
bool call_json_byte(llmc_calls *c, char x);

/* tool_calls_python.c. quote: delimiter of strings; NULL: strings are Python literals */

/* advances s->at to the terminator; returns false if more input is needed */
bool literal_ends(LiteralScan *s, const char *p, size_t n, const char *quote);
/* writes the value as JSON; an unknown value becomes a string */
void literal_put(Strbuf *out, ByteSpan value, const char *quote);

#endif
