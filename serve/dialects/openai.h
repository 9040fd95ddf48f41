/* OpenAI's dialects: types and functions that chat and completions share. */
#ifndef LLMC_SERVE_DIALECTS_OPENAI_H
#define LLMC_SERVE_DIALECTS_OPENAI_H

#include "serve/dialects/generation.h"
#include "base/json.h"
#include "serve/http/route.h"
#include "serve/dialects/fields.h"
#include "serve/dialects/tokenize.h"

typedef struct OpenAi { /* per-generation state of the dialect */
	char id[48];
	const char *object; /* "object" of a complete answer */
	const char *chunk;  /* "object" of a frame */
	time_t created;
	bool include_usage, echo, logprobs;
	bool is_chat; /* parts of the prompt follow the choices instead of being in them */
	bool token_ids, tokens_as_ids, usage_per_frame, timings_per_token,
	    verbose; /* request fields */
	/* tokens of a prompt that are kept; -1: as many as fit; NO_CUT: all, a longer one is an
	 * error */
	int32_t keep;
	bool keep_first; /* keep the first tokens instead of the last ones */
	int32_t n_top;   /* alternatives per token of the answer */
	/* alternatives per prompt token; -1: no log probabilities of the prompt */
	int32_t prompt_top;
} OpenAi;

static inline OpenAi *
openai_own(const Generation *g)
{
	return gen_own(g);
}

enum { NO_CUT = -2 };
enum { OPENAI_MAX_STOP = 4, OTHERS_MAX_STOP = 64 };
typedef struct OpenAiRoute {
	const char *id_prefix, *object, *chunk;
	size_t max_stop; /* stop strings per request */
	/* translate: returns the body as an OpenAI chat body (new reference) or NULL with a
	 * Problem; NULL: no translation. fields: the route in the table of fields, by which
	 * Problems name fields as in the client's body. */
	json_t *(*translate)(const json_t *in, Problem *p);
	int fields;
	bool (*read)(Generation *g, const json_t *o,
	             /* reads the route's own fields and prompts, after the shared ones */
	             Problem *p);
} OpenAiRoute;

/* Handle a request of an OpenAI route. */
void openai_handle(Req *r, const Dialect *d, const OpenAiRoute *route);
bool openai_read_chat(Generation *g, const json_t *o, Problem *p);
/* chat's logprobs and top_logprobs */
bool openai_read_logprobs(Generation *g, const json_t *o, Problem *p);
/* Check that "model" is absent or a model of this server. */
bool openai_model(Req *r, const json_t *o, Problem *p);
bool openai_missing(Problem *p, const char *key);
/* Like field_text, for a field that the request must have. */
bool openai_text(const json_t *o, const char *key, const char **out, Problem *p);
/* Read a list of token ids; *n stays 0 if the field is absent or, with `empty`, holds none. */
bool openai_ids(const Generation *g, const json_t *o, const char *key, size_t most, bool empty,
                int32_t **out, int32_t *n, Problem *p);
/* Count the tokens of a translated body's prompt. If false is returned, the request has been
 * answered with a Problem. */
bool openai_count(Req *r, int fields, json_t *(*translate)(const json_t *in, Problem *p),
                  int64_t *count);
/* Check the number of prompts of a request. */
bool openai_prompts_allowed(const Generation *g, size_t n, Problem *p);
/* Answer with the number of tokens of a translated body's prompt. */
void openai_input_tokens(Req *r, int fields, json_t *(*translate)(const json_t *in, Problem *p));
/* Check prompt and new tokens against the limits. max_new -1 becomes the number of tokens that are
 * left. what: name of the field with the prompt. */
bool openai_fits(const Generation *g, size_t n_tok, const char *what, Problem *p);

/* Answers. A frame is opened, filled with choices, closed and sent. */
void openai_open(const Generation *g, Strbuf *b, bool chunk); /* through "choices":[ */
/* appends the choice up to its index */
void openai_frame_open(const Generation *g, const Choice *c, Strbuf *b);
void openai_frame_close(const Generation *g, Choice *c, Strbuf *b, const char *finish);
/* Append the number of prompt tokens that stand for images, if any, to the details of the usage. */
void openai_image_tokens(const Generation *g, Strbuf *b);
void openai_usage(const Generation *g, Strbuf *b);
void openai_stream_end(Generation *g); /* usage if requested, then [DONE] */
const char *openai_finish(const Choice *c);
/* Store a token's log probability and its alternatives, in chat form, in the first two columns of
 * the choice. Call it before the text is passed to the reader. */
void openai_place(const Generation *g, Choice *c, const llmc_event *ev);
/* append to `out` the log probabilities of the next n bytes of text; drops those of earlier text */
void openai_places_of(Choice *c, size_t n, Strbuf *out);

/* openai_extensions.c: parts of vLLM's and llama.cpp's answers. Functions that append do so only if
 * a field of the request enables it. */
bool openai_read_extensions(Generation *g, const json_t *o, Problem *p);
void openai_set_top(Generation *g);
/* Return the maximum number of tokens of a prompt, for tokenize_prompt. */
size_t openai_most(const Generation *g);
/* Cut a tokenized prompt as the request's fields specify. Returns true if it was cut. Call it after
 * max_new is set.
 */
bool openai_cut(const Generation *g, SubRequest *sub);
void openai_logprob(Strbuf *b, float x);
void openai_token_bytes(Strbuf *b, const Strbuf *raw); /* appends ,"bytes":[...] */
void openai_prompt_token(const Generation *g, SubRequest *sub, const llmc_event *ev);
void openai_new_token(const Generation *g, Choice *c, const llmc_event *ev);
/* Append a token of log probabilities as a JSON string. */
void openai_put_token(const Generation *g, Strbuf *b, int32_t id, const Strbuf *bytes);
void openai_choice_ids(const Generation *g, Choice *c, Strbuf *b); /* inside a choice */
void openai_prompt_logprobs(const Generation *g, const SubRequest *sub, Strbuf *b);
void openai_chat_prompt(const Generation *g, Strbuf *b); /* after the choices of a whole chat */
/* Append llama.cpp's timings: of all choices, or of one that has ended. */
void openai_timings(const Generation *g, bool last, Strbuf *b);
/* Append llama.cpp's __verbose with the prompt, if the request has the field. */
void openai_verbose(const Generation *g, const SubRequest *sub, Strbuf *b);
/* Append the prompt of a sub-request as a JSON string, with its special tokens. */
void openai_put_prompt(const Generation *g, const SubRequest *sub, Strbuf *b);
void openai_choice_timings(const Generation *g, const SubRequest *sub, const Choice *c, Strbuf *b);
void openai_frame_extensions(const Generation *g, Choice *c, bool last, Strbuf *b);

#endif
