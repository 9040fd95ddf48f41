/* Inside of calls*.c: rows of configs/formats/calls.yaml, and an answer that is being read. */
#ifndef LLMC_TEXT_TOOL_CALLS_H
#define LLMC_TEXT_TOOL_CALLS_H

#include "text/text.h"

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
}; /* bytes of a name, and up to the end of the mark behind it */
typedef struct CallRow { /* texts as they are written; NULL: none */
	const char *name, *open, *close, *between, *name_from, *name_end, *name_until, *number,
	    *bare, *quote, *system;
	const char *think[3], *section[2], *key[2], *pair[4], *also[MAX_ALSO], *drop[MAX_DROP];
	int n_also, n_drop;
	CallBody body;
	bool to_close; /* what stands between the arguments and `close` is dropped */
} CallRow;

/* Where the reading is. J_ are places of a JSON object. */
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

/* A value of BODY_LITERALS whose end is looked for, from where it was left. All zero to begin. */
typedef struct LiteralScan {
	size_t at;
	int depth;
	enum { SCAN_OUT, SCAN_QUOTED, SCAN_TRIPLE, SCAN_MARKED } in;
	char quote;
} LiteralScan;

struct llmc_calls {
	Arena arena;
	CallRow row;
	const char *mark; /* what opens a call, without the blanks around it; NULL: none */
	json_t *tools;    /* NULL: none */
	bool in_prompt;   /* the prompt has opened the reasoning */
	CallState state;
	Strbuf hold; /* text that is not decided on */
	size_t gone, raw_at,
	    at; /* bytes of the answer before `hold`; where `raw` begins, and the text told last */
	Strbuf raw;         /* of a call without a name so far: text again when it is none */
	Strbuf word, early; /* a key or a name; arguments that came before the name */
	Strbuf out;         /* arguments to tell */
	bool named, any, said, escaped, in_list,
	    trim;  /* trim: blanks behind a reasoning or a call are not text */
	int depth; /* of the value that passes */
	bool in_text, started;
	LiteralScan scan;
	int32_t call; /* number of the call; -1: none yet */
	llmc_piece_fn fn;
	void *user;
};

llmc_status call_row(const llmc_tokenizer *t, Arena *a, CallRow *out,
                     llmc_error *err); /* tool_calls_formats.c; may jump to the arena's oom */
const json_t *call_format(const json_t *tool); /* of a tool whose one parameter is a text: the
                                                  grammar of that; NULL: it has none */
void call_row_own(const char *response_template, Arena *a,
                  CallRow *row); /* tool_calls_response_template.c: what it says takes the place of
                                    the row's; the same jump */

static inline bool
is_blank(char c)
{
	return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* tool_calls.c: what is found goes to the caller */
void call_name(llmc_calls *c, const char *s,
               size_t n);              /* the call's name, and arguments that came before it */
void call_emit_pending(llmc_calls *c); /* c->out as arguments */
void call_end(llmc_calls *c);
void call_fail(llmc_calls *c); /* it cannot be read as a call: what has no name yet is text */

/* tool_calls_json.c */
void call_value_begin(llmc_calls *c);
int call_value_byte(llmc_calls *c,
                    char x); /* of a JSON value: 0 goes on, 1 the last one, 2 behind the last */
void call_argument_byte(llmc_calls *c,
                        char x); /* into c->out, before the name is known into c->early */
bool call_json_byte(llmc_calls *c,
                    char x); /* at one of the J_ places; false: it has not been used up */

/* tool_calls_python.c. quote: the mark around texts; NULL: as Python writes them */
bool literal_ends(LiteralScan *s, const char *p, size_t n,
                  const char *quote); /* at s->at stands what ends it; false: not yet */
void literal_put(Strbuf *out, ByteSpan value,
                 const char *quote); /* as JSON; what is no value becomes a text */

#endif
