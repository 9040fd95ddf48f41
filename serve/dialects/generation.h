/* A generation: its prompts go to the engine, and the engine's events become an answer in one HTTP
 * dialect. */
#ifndef LLMC_SERVE_DIALECTS_GENERATION_H
#define LLMC_SERVE_DIALECTS_GENERATION_H

#include "serve/dialects/chat_images.h"

typedef struct Generation Generation;
typedef struct SubRequest SubRequest;
typedef struct Choice Choice;

/* Callbacks that turn events into an answer; NULL: nothing to do. They run on the event thread,
 * without the lock. */
typedef struct Dialect {
	bool pieces;      /* choices have readers, which separate reasoning and calls from text */
	size_t own_bytes; /* bytes of the dialect's own state per generation, zeroed: gen_own() */
	llmc_option_default defaults; /* sampling fields that a request omits */
	const char *stream_type;      /* content type of a stream; NULL: server-sent events */
	void (*prompt)(Generation *g, SubRequest *sub,
	               const llmc_event *ev); /* log probability of a prompt token */
	void (*token)(Generation *g, SubRequest *sub, Choice *c,
	              const llmc_event *ev); /* a new token */
	void (*finish)(Generation *g, SubRequest *sub, Choice *c,
	               const llmc_event *ev); /* end of a choice, with the remaining text */
	void (*done)(Generation *g); /* all choices ended: complete the answer or the stream */
	void (*problem)(Generation *g,
	                const Problem *p); /* called instead of `done` if the generation failed;
	                                    * NULL: req_problem() */
	void (*release)(Generation *g);    /* frees what gen_own() holds */
} Dialect;

struct Choice {
	Strbuf text;     /* all text so far */
	Strbuf col[4];   /* columns of log probabilities, as JSON without brackets */
	Strbuf ids;      /* token ids that no frame has contained yet, as JSON without brackets */
	bool ids_begun;  /* a frame has contained the token ids of the prompt */
	int64_t n_chars; /* characters of text */
	size_t n_bytes;  /* bytes passed to the reader, including marks */
	int32_t n_new, last_id;
	double sum_logprob;
	bool started, done;
	bool enough; /* the dialect has ended it: later tokens are no part of it */
	llmc_finish finish;
	int32_t stop;               /* index of the stop string that ended it, else -1 */
	double prefill_s, decode_s; /* durations, once it has ended */
	llmc_calls *calls; /* reader that separates reasoning and calls; NULL: all output is text */
	Strbuf reasoning, call;       /* all reasoning; calls as JSON without brackets */
	int32_t n_calls, n_reasoning; /* number of calls; tokens of reasoning */
	/* for a custom call: offset in `held` of the next byte of its input; 0: the input has not
	 * begun */
	size_t n_input;
	bool input_over, custom; /* custom: the call is one of a custom tool */
	Strbuf input;            /* input of the custom call so far */
	/* TGI stream: the frame of the latest token, held back until it is known whether it is the
	 * last one */
	Strbuf held;
};

struct SubRequest { /* one engine request: one prompt */
	Generation *gen;
	int32_t index;
	int64_t id; /* 0: not submitted */
	bool over;
	int32_t *tok;
	size_t n_tok;
	size_t n_first; /* tokens of the first sequence of a pair; 0: no pair */
	char *echo;     /* prompt text, for echo and return_full_text */
	size_t n_echo;
	int64_t echo_chars;
	int32_t n_seen; /* prompt tokens reported so far */
	Strbuf col[4];  /* columns of the prompt, for echo; TGI uses the first for prefill */
	/* log probabilities of the prompt in vLLM's form, as JSON without brackets */
	Strbuf prompt_logprobs;
	int32_t n_cached;
};

struct Generation {
	Req *req;
	Server *srv;
	ServedModel *model; /* holds a reference */
	/* list of ServedModel.running, and the pointer to this one; under Server.lock */
	Generation *next, **from;
	const Dialect *dialect;
	bool stream;

	llmc_request er; /* template of the engine requests */
	llmc_params ep;
	int32_t *stop_tokens, *allowed; /* owned lists of ep */
	int32_t *report;                /* owned storage of er.pool_tok */
	llmc_bias *bias;
	llmc_sequence *bad_words; /* [ep.n_bad_words], owns the tokens */
	char **stop;              /* NULL-terminated, owned */
	char **breakers;          /* dry_sequence_breakers, NULL-terminated, owned */
	char *samplers;           /* order of samplers; NULL: the default order */
	llmc_grammar *grammar;    /* owned; NULL: none */
	/* the request's constraint in a form that another grammar can include; empty: none */
	Strbuf form;
	bool compact;             /* compact option of that constraint */
	const char *reasoning[2]; /* marks of the reasoning, to which stop strings do not apply */
	llmc_calls *marks;        /* owner of these marks if no choice has a reader; NULL: none */
	bool hide_reasoning;      /* the answer omits the reasoning */
	bool join_reasoning;      /* the reasoning stays in the text, with its marks */
	char *after[3]; /* owned, NULL-terminated: strings after which the grammar applies */
	/* the answer has calls only: any text is the remains of broken marks and is dropped */
	bool calls_only;
	int32_t n; /* choices per prompt */
	int32_t best_of;
	/* requested number of new tokens; 0: generate one and hide it (hide_new); -1: up to the end
	 * of the context */
	int32_t max_new;
	bool clip_new; /* max_new may exceed what is left of the context */
	bool hide_new;
	double t_valid; /* time when validation ended */
	double t_first; /* time of the first new token; 0: none yet */
	double queue_s, prefill_s, decode_s;
	int64_t key_tokens; /* tokens charged to the API key's in-flight limit */
	bool key_taken;     /* under the lock */
	Strbuf asked;       /* request fields that the answer repeats, as JSON */

	ChatImages images; /* images of the prompt; a request with images has one prompt only */
	SubRequest *sub;
	int32_t n_sub;
	Choice *choice; /* [n_sub * n] */
	/* under the lock */
	int32_t n_open; /* sub-requests submitted and not over */
	bool submitting;
	bool silent; /* submitting failed: the caller reports it */
	bool failed; /* an error was reported or will be: no more output */
	llmc_status fail_status;
	char fail_text[512];
	max_align_t own[]; /* dialect state, own_bytes long */
};

static inline void *
gen_own(const Generation *g)
{
	return (void *)(uintptr_t)g->own;
}

#define MODEL_PAUSED "The request was cancelled: the model is paused."
/* Set a Problem for a request that was cancelled before it was submitted: by /pause, by its time
 * limit or by the end of the server. Returns false. */
bool gen_stopped(Req *r, Problem *p);

Generation *gen_new(Req *r, const Dialect *d); /* NULL: out of memory */
void gen_free(Generation *g);
void gen_count(Req *r);                                 /* count a generation request */
bool gen_prompts(Generation *g, int32_t n, Problem *p); /* allocate n prompts; g->n must be set */
/* Handle a generation request. read() fills g and its prompts from the body's object, and returns
 * false with a Problem on a mistake; `how` is passed to it. */
typedef bool (*GenReadFn)(Generation *g, const json_t *o, const void *how, Problem *p);
void gen_handle(Req *r, const Dialect *d, GenReadFn read, const void *how);
/* Submit all prompts; the answer is then made by events. If false is returned, nothing runs, g has
 * been freed, and the caller reports the Problem. */
bool gen_start(Generation *g, Problem *p);
void gen_event(Server *s, const llmc_event *ev); /* on the event thread */
/* End a choice before its limit, on the event thread; its finish reason is LLMC_FINISH_LENGTH.
 * request: id of the event. */
void gen_enough(const Generation *g, const SubRequest *sub, Choice *c, int64_t request);
/* Split the text of an event by the choice's reader, and call fn for each part. Without a reader
 * all of the output is text. Also counts tokens of reasoning. last: the event ends the choice. */
typedef void (*GenPieceFn)(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call,
                           const char *text, size_t n);
void gen_pieces(Generation *g, Choice *c, const llmc_event *ev, bool last, GenPieceFn fn);
void gen_sums(const Generation *g, int32_t *n_prompt, int32_t *n_new, int32_t *n_cached);

#endif
