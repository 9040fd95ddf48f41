/* OpenAI's dialects: what chat and completions share. */
#ifndef LLMC_SERVE_DIALECTS_OPENAI_H
#define LLMC_SERVE_DIALECTS_OPENAI_H

#include "serve/dialects/generation.h"
#include "base/json.h"
#include "serve/http/route.h"
#include "serve/dialects/tokenize.h"

typedef struct OpenAi { /* of a generation, beside what the engine knows */
	char id[48];
	const char *object; /* of a whole answer */
	const char *chunk;  /* of a frame */
	time_t created;
	bool include_usage, echo, logprobs;
} OpenAi;

static inline OpenAi *
openai_own(const Generation *g)
{
	return gen_own(g);
}

enum { OPENAI_MAX_STOP = 4, OTHERS_MAX_STOP = 64 };
typedef struct FieldName {
	const char *theirs, *ours;
} FieldName; /* of a dialect that becomes a chat, and the chat's */

typedef struct OpenAiRoute {
	const char *id_prefix, *object, *chunk;
	size_t max_stop; /* stop strings of a request */
	/* The body as OpenAI's chat would have it, a new object or NULL with a Problem; NULL: it is
	 * one. names: what a Problem of the chat calls otherwise, longer ones before those they
	 * begin with, and an empty row; NULL: nothing. */
	json_t *(*translate)(const json_t *in, Problem *p);
	const FieldName *names;
	bool (*read)(Generation *g, const json_t *o,
	             Problem *p); /* its own fields and its prompts, after those that all have */
} OpenAiRoute;

/* A request from body to engine. */
void openai_handle(Req *r, const Dialect *d, const OpenAiRoute *route);
void openai_rename(const FieldName *names, Problem *p);
bool openai_read_chat(Generation *g, const json_t *o, Problem *p);
bool openai_read_logprobs(Generation *g, const json_t *o,
                          Problem *p); /* a chat's: logprobs, top_logprobs */
/* "model" is one of ours, or not said. */
bool openai_model(Req *r, const json_t *o, Problem *p);
bool openai_missing(Problem *p, const char *key);
/* Prompt and new tokens against the limits; max_new -1: what is left. what: the field that holds
 * the prompt. */
bool openai_fits(const Generation *g, size_t n_tok, const char *what, Problem *p);

/* Answers. A frame is opened, gets its choice, and is closed and sent. */
void openai_open(const Generation *g, Strbuf *b, bool chunk); /* up to and with "choices":[ */
void openai_frame_open(const Generation *g, const Choice *c,
                       Strbuf *b); /* and the choice's index */
void openai_frame_close(const Generation *g, Strbuf *b, const char *finish);
void openai_usage(const Generation *g, Strbuf *b);
void openai_stream_end(Generation *g);               /* usage when asked for, [DONE] */
void openai_failed(Generation *g, const Problem *p); /* Dialect.problem */
const char *openai_finish(const Choice *c);
void openai_logprob(Strbuf *b, float x);
/* A token with its log probability and the likeliest, as the chat has them, waits in the choice's
 * first two columns; before its text goes to the reader. */
void openai_place(const Generation *g, Choice *c, const llmc_event *ev);
void openai_places_of(Choice *c, size_t n,
                      Strbuf *out); /* those of the n bytes of text that are told now, behind others
                                       in out; what stands before them is gone */

#endif
