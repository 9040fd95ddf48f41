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
}; /* bytes of a name, and up to the end of the marker after it */
typedef struct CallRow { /* strings as the model writes them; NULL: none */
	const char *name, *open, *close, *between, *name_from, *name_end, *name_until, *number,
	    *bare, *quote, *system;
	const char *think[3], *section[2], *key[2], *pair[4], *also[MAX_ALSO], *drop[MAX_DROP];
	int n_also, n_drop;
	CallBody body;
	bool to_close; /* ignore everything between the arguments and `close` */
} CallRow;

/* Parser state. J_ states are positions in a JSON object. */
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

/* Search for the end of a BODY_LITERALS value, resumable. Zero-initialised. */
typedef struct LiteralScan {
	size_t at, value;  /* start of the value, if `param` is known */
	const char *param; /* the parameter; NULL: unknown */
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
	const Tool *now;          /* tool of the current call; NULL: unknown */
	const char *reasoning[2]; /* marks around reasoning without white space; NULL: none */
	bool in_prompt;           /* the prompt has opened the reasoning */
	CallState state;
	Strbuf hold; /* input that is not consumed yet */
	size_t gone, raw_at,
	    at;     /* output offsets of `hold`, of `raw` and of the last emitted text */
	Strbuf raw; /* source of a call without a name so far, to emit as text if it is no call */
	Strbuf word, early; /* key or name; arguments that came before the name */
	Strbuf out;         /* arguments to emit */
	bool named, any, said, escaped, in_list,
	    trim;  /* trim: skip whitespace after reasoning or a call */
	int depth; /* nesting depth of the current value */
	bool in_text, started;
	LiteralScan scan;
	int32_t call; /* index of the call; -1: none yet */
	llmc_piece_fn fn;
	void *user;
};

/* tool_calls_formats.c. Finds the format of a tokenizer's calls, which lives as long as the
 * tokenizer. Any thread. */
llmc_status call_format(const llmc_tokenizer *t, const CallRow **out, llmc_error *err);
void call_format_free(CallFormat *f);
/* grammar of a tool whose only parameter is a string; NULL: none */
void call_row_own(const char *response_template, Arena *a,
                  /* tool_calls_response_template.c: overrides fields of the row; same jump */
                  CallRow *row);

static inline bool
is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* tool_calls.c: emit events to the caller */
void call_name(llmc_calls *c, const char *s,
               size_t n);              /* name of the call and arguments that came before it */
void call_emit_pending(llmc_calls *c); /* emits c->out as arguments */
void call_end(llmc_calls *c);
void call_fail(llmc_calls *c); /* gives up parsing a call: what has no name yet is text */

/* tool_calls_json.c */
void call_value_begin(llmc_calls *c);
int call_value_byte(llmc_calls *c,
                    char x); /* JSON value: 0 continues, 1 last byte, 2 past the end */
void call_argument_byte(llmc_calls *c,
                        char x); /* appends to c->out, or to c->early before the name is known */
bool call_json_byte(llmc_calls *c, char x); /* handles a byte in a J_ state; false: not consumed */

/* tool_calls_python.c. quote: delimiter of strings; NULL: Python string literals */
bool literal_ends(LiteralScan *s, const char *p, size_t n,
                  /* advances s->at to the terminator; false: more input is needed */
                  const char *quote);
void literal_put(Strbuf *out, ByteSpan value,
                 const char *quote); /* writes JSON; an unknown value becomes a string */

#endif
