/* A generation: its prompts go to the engine, its events come back and become an answer in a
 * dialect of HTTP. */
#ifndef LLMC_SERVE_DIALECTS_GENERATION_H
#define LLMC_SERVE_DIALECTS_GENERATION_H

#include "serve/models/model.h"

typedef struct Generation Generation;
typedef struct SubRequest SubRequest;
typedef struct Choice Choice;

/* How events become an answer. NULL: nothing to do. On the pump's thread, without the lock. */
typedef struct Dialect {
	bool pieces; /* tells reasoning and calls of tools apart from text: choices have readers */
	size_t own_bytes;        /* what it keeps for a generation, zeroed: gen_own() */
	const char *stream_type; /* content type of a stream; NULL: server-sent events */
	void (*prompt)(Generation *g, SubRequest *sub,
	               const llmc_event *ev); /* log probability of a token of a prompt */
	void (*token)(Generation *g, SubRequest *sub, Choice *c,
	              const llmc_event *ev); /* a new one */
	void (*finish)(Generation *g, SubRequest *sub, Choice *c,
	               const llmc_event *ev); /* the last of a choice, with what text is left */
	void (*done)(Generation *g);          /* of all: the answer, or the end of the stream */
	void (*problem)(Generation *g,
	                const Problem *p); /* in its place when the generation failed */
	void (*release)(Generation *g);    /* what its own holds */
} Dialect;

struct Choice {
	Strbuf text;     /* whole text so far */
	Strbuf col[4];   /* columns of log probabilities, as JSON without brackets */
	int64_t n_chars; /* of text */
	size_t n_bytes;  /* of the answer, marks and all, that its reader has had */
	int32_t n_new, last_id;
	double sum_logprob;
	bool started, done;
	llmc_finish finish;
	llmc_calls *calls;      /* reads its text: reasoning, calls of tools; NULL: it is text */
	Strbuf reasoning, call; /* whole; calls as JSON without brackets */
	int32_t n_calls, n_reasoning; /* calls; tokens of reasoning */
	Strbuf held; /* TGI stream: the frame of the last token, until the end is known */
};

struct SubRequest { /* one request of the engine: a prompt */
	Generation *gen;
	int32_t index;
	int64_t id; /* 0: not submitted */
	bool over;
	int32_t *tok;
	size_t n_tok;
	char *echo; /* text of the prompt, for echo and return_full_text */
	size_t n_echo;
	int64_t echo_chars;
	int32_t n_seen; /* prompt tokens told so far */
	Strbuf col[4];  /* columns of the prompt, for echo; of TGI the first: prefill */
	int32_t n_cached;
};

struct Generation {
	Req *req;
	Server *srv;
	ServedModel *model; /* with a reference */
	const Dialect *dialect;
	bool stream;

	llmc_request er; /* template of the engine requests */
	llmc_params ep;
	int32_t *stop_tokens;
	llmc_bias *bias;
	char **stop;           /* NULL-terminated, owned */
	llmc_grammar *grammar; /* owned; NULL: none */
	Strbuf form;    /* the request's own constraint as a part of another grammar; empty: none */
	bool compact;   /* option of that constraint */
	char *after[3]; /* owned: what it waits for; NULL-terminated */
	bool calls_only; /* the answer is held to calls: what else is read of it are marks that
	                    broke off */
	int32_t n;       /* choices of a prompt */
	int32_t best_of;
	int32_t
	    max_new; /* as asked: 0 runs one token and hides it, -1: what is left of the context */
	bool hide_new;
	double t_valid; /* when validation was over */
	double queue_s, prefill_s, decode_s;
	int64_t key_tokens; /* that it takes of what its key may have in work */
	bool key_taken;     /* under the lock */
	Strbuf asked;       /* what an answer repeats of its request, as JSON */

	SubRequest *sub;
	int32_t n_sub;
	Choice *choice; /* [n_sub * n] */
	/* under the lock */
	int32_t n_open; /* subs submitted and not over */
	bool submitting;
	bool silent; /* submitting failed: the caller tells */
	bool failed; /* an error was told, or is to be told: no more output */
	llmc_status fail_status;
	char fail_text[512];
	max_align_t own[]; /* the dialect's, own_bytes of it */
};

static inline void *
gen_own(const Generation *g)
{
	return (void *)(uintptr_t)g->own;
}

Generation *gen_new(Req *r, const Dialect *d); /* NULL: out of memory */
void gen_free(Generation *g);
void gen_count(Req *r); /* a request to generate has come */
bool gen_prompts(Generation *g, int32_t n,
                 Problem *p); /* room for n prompts, after g->n is known */
/* A request from its body to the engine. read: the body's object, as `how` says, into g and its
 * prompts; false with a Problem. */
typedef bool (*GenReadFn)(Generation *g, const json_t *o, const void *how, Problem *p);
void gen_handle(Req *r, const Dialect *d, GenReadFn read, const void *how);
/* Submit all prompts; then everything goes by events. On false nothing runs, g is gone, the caller
 * tells the Problem. */
bool gen_start(Generation *g, Problem *p);
void gen_event(Server *s, const llmc_event *ev); /* pump's thread */
/* The text of an event to fn in pieces: as the choice's reader tells them, as one of text where it
 * has none. Counts tokens of reasoning. last: the event that ends the choice. */
typedef void (*GenPieceFn)(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call,
                           const char *text, size_t n);
void gen_pieces(Generation *g, Choice *c, const llmc_event *ev, bool last, GenPieceFn fn);
void gen_sums(const Generation *g, int32_t *n_prompt, int32_t *n_new, int32_t *n_cached);
uint64_t random_seed(void);

#endif
