/* TGI's answers: details, one frame per token, errors with a type. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "serve/http/route.h"
#include "serve/dialects/tokenize.h"
#include "serve/dialects/tgi.h"

static const char *
error_type(const Problem *p)
{
	if (p->type)
		return p->type;
	switch (p->status) {
	case 400:
	case 404:
	case 405:
	case 413:
	case 415:
	case 422:
		return "validation";
	case 401:
		return "authentication";
	case 424:
		return "generation";
	case 429:
	case 503:
		return "overloaded";
	default:
		return "generation";
	}
}

static void
error_object(Strbuf *b, const Problem *p)
{
	json_printf(b, "{\"error\":%s,\"error_type\":%s}",
	            p->status == 429 ? "Model is overloaded" : p->text, error_type(p));
}

void
tgi_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };
	int status = p->status;

	/* in TGI its web framework refuses these requests, in plain text */
	if (status == 413 || status == 415 || (p->type && !strcmp(p->type, "plain"))) {
		req_text(r, status, "%s",
		         status == 413   ? "length limit exceeded"
		         : status == 415 ? "Expected request with `Content-Type: application/json`"
		                         : p->text);
		return;
	}
	if (r->generates && (status == 500 || status == 400)) {
		/* TGI answers 424 if the engine fails, and 422 if it refuses a request */
		Problem q;
		problem(&q, status == 500 ? 424 : 422, NULL,
		        status == 500 ? "Request failed during generation: %.900s"
		                      : "Input validation error: %.900s",
		        p->text);
		error_object(&b, &q);
		status = q.status;
	} else {
		error_object(&b, p);
	}
	req_answer(r, status, type_json, &b);
}

void
tgi_frame_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };
	Problem q = *p;

	if (p->status == 500)
		problem(&q, 424, NULL, "Request failed during generation: %.900s", p->text);
	else if (p->status == 400) /* the engine has refused the request: 422, as in tgi_problem */
		problem(&q, 422, NULL, "Input validation error: %.900s", p->text);
	strbuf_puts(&b, "data:");
	error_object(&b, &q);
	strbuf_puts(&b, "\n\n");
	req_push(r, strbuf_str(&b), b.len);
	strbuf_release(&b);
}

/* ---- tokens ---- */

/* Append the text of one token. Special tokens are shown here, but not in the output. */
static void
token_json(const Generation *g, Strbuf *b, int32_t id, const char *text, size_t n_text, float lp,
           bool with_special)
{
	const llmc_tokenizer *t = g->model->back.tok;
	bool special = llmc_token_is_special(t, id);
	Strbuf raw = { 0 };

	if (!text || (special && n_text == 0)) {
		token_bytes(t, id, &raw);
		text = strbuf_str(&raw);
		n_text = raw.len;
	}
	strbuf_printf(b, "{\"id\":%d,\"text\":", id);
	json_str(b, text, n_text);
	strbuf_puts(b, ",\"logprob\":");
	if (isnan(lp))
		strbuf_puts(b, "null");
	else
		json_num(b, isinf(lp) ? -9999.0 : (double)lp, 9);
	strbuf_puts(b, !with_special ? "}"
	               : special     ? ",\"special\":true}"
	                             : ",\"special\":false}");
	strbuf_release(&raw);
}

static void
top_json(const Generation *g, Strbuf *b, const llmc_event *ev)
{
	strbuf_putc(b, '[');
	for (int32_t i = 0; i < ev->n_top; i++) {
		if (i)
			strbuf_putc(b, ',');
		token_json(g, b, ev->top[i].id, NULL, 0, ev->top[i].logprob, true);
	}
	strbuf_putc(b, ']');
}

static const char *
finish_word(const Choice *c)
{
	switch (c->finish) {
	case LLMC_FINISH_LENGTH:
		return "length";
	case LLMC_FINISH_EOS:
	case LLMC_FINISH_TOKEN:
		return "eos_token";
	case LLMC_FINISH_STOP:
		return "stop_sequence";
	case LLMC_FINISH_CANCEL:
	case LLMC_FINISH_DEADLINE:
	case LLMC_FINISH_COUNT:
		break;
	}
	return "length";
}

static void
seed_json(const Generation *g, int32_t index, Strbuf *b)
{
	if (tgi_own(g)->seeded)
		strbuf_printf(b, "\"seed\":%llu",
		              (unsigned long long)(g->ep.seed + (uint64_t)index));
	else
		strbuf_puts(b, "\"seed\":null");
}

static void
full_text(const Generation *g, const Choice *c, Strbuf *b)
{
	Strbuf t = { 0 };

	if (tgi_own(g)->full_text)
		strbuf_add(&t, g->sub[0].echo, g->sub[0].n_echo);
	strbuf_add(&t, strbuf_str(&c->text), c->text.len);
	json_str(b, strbuf_str(&t), t.len);
	strbuf_release(&t);
}

static void
on_prompt(Generation *g, SubRequest *sub, const llmc_event *ev)
{
	if (!g->er.prompt_logprobs)
		return;
	if (sub->n_seen++)
		strbuf_putc(&sub->col[0], ',');
	token_json(g, &sub->col[0], ev->token, ev->text, ev->n_bytes,
	           sub->n_seen == 1 ? NAN : ev->logprob, false);
}

/* Open a token's frame. The end of the frame depends on whether the token is the last one. */
static void
frame_open(Generation *g, Choice *c, const llmc_event *ev)
{
	strbuf_clear(&c->held);
	strbuf_printf(&c->held, "data:{\"index\":%d,\"token\":", c->n_new); /* counts from 1 */
	token_json(g, &c->held, ev->token, ev->text ? ev->text : "", ev->n_bytes, ev->logprob,
	           true);
	if (g->er.n_top) {
		strbuf_puts(&c->held, ",\"top_tokens\":");
		top_json(g, &c->held, ev);
	}
}

static void
frame_close(Generation *g, Choice *c, bool last)
{
	Strbuf *b = &c->held;

	strbuf_puts(b, ",\"generated_text\":");
	if (last) {
		full_text(g, c, b);
		json_printf(b, ",\"details\":{\"finish_reason\":%s,\"generated_tokens\":%d,",
		            finish_word(c), c->n_new);
		seed_json(g, 0, b);
		strbuf_printf(b, ",\"input_length\":%zu}}\n\n", g->sub[0].n_tok);
	} else {
		strbuf_puts(b, "null,\"details\":null}\n\n");
	}
	if (!b->failed)
		req_push(g->req, b->data, b->len);
	strbuf_clear(b);
}

/* Report whether the output contains a stop string, after which the engine ends it. */
static bool
stop_seen(const Generation *g, const Choice *c, size_t n_fresh)
{
	for (char *const *s = g->stop; s && *s; s++) {
		size_t n = strlen(*s), window = n + n_fresh;
		size_t from = c->text.len > window ? c->text.len - window : 0;
		if (c->text.len >= n &&
		    memmem(strbuf_str(&c->text) + from, c->text.len - from, *s, n))
			return true;
	}
	return false;
}

static void
append_token(Generation *g, Choice *c, const llmc_event *ev)
{
	for (int i = 0; i < 2; i++)
		if (c->col[i].len)
			strbuf_putc(&c->col[i], ',');
	token_json(g, &c->col[0], ev->token, ev->text ? ev->text : "", ev->n_bytes, ev->logprob,
	           true);
	if (g->er.n_top)
		top_json(g, &c->col[1], ev);
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	strbuf_add(&c->text, ev->text ? ev->text : "", ev->n_bytes);
	if (!g->stream) {
		if (tgi_own(g)->details)
			append_token(g, c, ev);
		return;
	}
	frame_open(g, c, ev);
	/* The last frame must contain the whole text, so a frame that may be the last is held back:
	 * one at the token limit or with a stop string. Other frames are sent at once. */
	if (c->n_new < g->max_new && !stop_seen(g, c, ev->n_bytes))
		frame_close(g, c, false);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	llmc_event last = *ev;

	(void)sub;
	if (c->n_new >= g->max_new)
		c->finish = LLMC_FINISH_LENGTH; /* TGI checks the length first */
	strbuf_add(&c->text, ev->text ? ev->text : "", ev->n_bytes);
	if (ev->token >= 0) {
		last.text = NULL; /* text held back belongs to earlier tokens */
		last.n_bytes = 0;
		if (!g->stream && tgi_own(g)->details)
			append_token(g, c, &last);
		if (g->stream)
			frame_open(g, c, &last);
	} else if (g->stream && c->held.len == 0) {
		/* The end came after the last token was sent: send that token again without text.
		 */
		last.token = c->last_id;
		last.text = "";
		last.n_bytes = 0;
		last.n_top = 0;
		frame_open(g, c, &last);
	}
	if (g->stream)
		frame_close(g, c, true);
}

static void
sequence_json(const Generation *g, const Choice *c, Strbuf *b)
{
	json_printf(b, "\"finish_reason\":%s,\"generated_tokens\":%d,", finish_word(c), c->n_new);
	seed_json(g, (int32_t)(c - g->choice), b);
	strbuf_puts(b, ",\"prefill\":[");
	strbuf_add(b, strbuf_str(&g->sub[0].col[0]), g->sub[0].col[0].len);
	strbuf_puts(b, "],\"tokens\":[");
	strbuf_add(b, strbuf_str(&c->col[0]), c->col[0].len);
	strbuf_putc(b, ']');
	if (g->er.n_top) {
		strbuf_puts(b, ",\"top_tokens\":[");
		strbuf_add(b, strbuf_str(&c->col[1]), c->col[1].len);
		strbuf_putc(b, ']');
	}
}

static void
on_done(Generation *g)
{
	Req *r = g->req;
	Strbuf b = { 0 };
	int32_t best = 0;
	double now = clock_now();

	if (g->stream)
		return;
	for (int32_t i = 1; i < g->n; i++) {
		const Choice *a = &g->choice[best], *c = &g->choice[i];
		if (c->n_new &&
		    c->sum_logprob / c->n_new > a->sum_logprob / (a->n_new ? a->n_new : 1))
			best = i;
	}
	const Choice *c = &g->choice[best];
	strbuf_puts(&b, tgi_own(g)->in_list ? "[{\"generated_text\":" : "{\"generated_text\":");
	full_text(g, c, &b);
	if (tgi_own(g)->details) {
		strbuf_puts(&b, ",\"details\":{");
		sequence_json(g, c, &b);
		if (g->n > 1) {
			strbuf_puts(&b, ",\"best_of_sequences\":[");
			for (int32_t i = 0, listed = 0; i < g->n; i++) {
				if (i == best)
					continue;
				strbuf_puts(&b, listed++ ? ",{\"generated_text\":"
				                         : "{\"generated_text\":");
				full_text(g, &g->choice[i], &b);
				strbuf_putc(&b, ',');
				sequence_json(g, &g->choice[i], &b);
				strbuf_putc(&b, '}');
			}
			strbuf_putc(&b, ']');
		}
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, tgi_own(g)->in_list ? "}]" : "}");
	double inference = g->prefill_s + g->decode_s;
	req_head(r, "x-compute-time", "%.6f", now - r->t_start);
	req_head(r, "x-total-time", "%.0f", 1e3 * (now - r->t_start));
	req_head(r, "x-validation-time", "%.0f", 1e3 * (g->t_valid - r->t_start));
	req_head(r, "x-queue-time", "%.0f", 1e3 * g->queue_s);
	req_head(r, "x-inference-time", "%.0f", 1e3 * inference);
	req_head(r, "x-time-per-token", "%.0f", 1e3 * inference / (c->n_new ? c->n_new : 1));
	req_answer(r, 200, type_json, &b);
}

static void
on_problem(Generation *g, const Problem *p)
{
	(g->stream ? tgi_frame_problem : req_problem)(g->req, p);
}

const Dialect tgi_dialect = {
	.own_bytes = sizeof(Tgi),
	.prompt = on_prompt,
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = on_problem,
};
