/* The public calls: a server over a real engine. */
#include <stdio.h>
#include <string.h>

#include "serve/serve.h"

static llmc_status
engine_submit(void *self, const llmc_request *r, int64_t *id, llmc_error *err)
{
	return llmc_submit(self, r, id, err);
}

static llmc_status
engine_next(void *self, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	return llmc_next(self, LLMC_ANY, timeout_ms, ev, err);
}

static void
engine_cancel(void *self, int64_t id)
{
	llmc_cancel(self, id);
}

static void
engine_stats(void *self, llmc_counts *out)
{
	llmc_engine_stats(self, out);
}

llmc_status
llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt, llmc_server **out, llmc_error *err)
{
	Backend b = { .self = e, .submit = engine_submit, .next = engine_next, .release = llmc_event_release, .cancel = engine_cancel, .stats = engine_stats };
	char dtype[16] = "";
	size_t need;

	b.tok = llmc_model_tokenizer(m);
	b.limits = *llmc_engine_limits(e);
	b.info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &b.info);
	llmc_get(m, "dtype", dtype, sizeof dtype, &need, NULL);
	snprintf(b.dtype, sizeof b.dtype, "%s", !strcmp(dtype, "f32") ? "float32" : !strcmp(dtype, "f16") ? "float16" : !strcmp(dtype, "bf16") ? "bfloat16" : dtype);
	const llmc_engine_options *eo = opt ? opt->engine : NULL;
	b.max_concurrent = eo && eo->max_concurrent_requests ? eo->max_concurrent_requests : LLMC_DEFAULT_CONCURRENT_REQUESTS;
	b.max_waiting_tokens = eo && eo->max_waiting_tokens ? eo->max_waiting_tokens : LLMC_DEFAULT_WAITING_TOKENS;
	b.waiting_served_ratio = eo ? eo->waiting_served_ratio : 0;
	b.max_batch_total = eo && eo->max_batch_total_tokens ? eo->max_batch_total_tokens : b.limits.kv_tokens;
	return server_open(&b, opt, out, err);
}

int
llmc_serve_port(const llmc_server *s)
{
	return s->port;
}

const char *
llmc_serve_url(const llmc_server *s)
{
	return s->url;
}

void
llmc_serve_leave(llmc_server *s)
{
	server_leave(s);
}

void
llmc_serve_stop(llmc_server *s)
{
	server_stop(s);
}

bool
llmc_serve_wait(llmc_server *s, int timeout_ms)
{
	return server_wait(s, timeout_ms);
}

void
llmc_serve_close(llmc_server *s)
{
	server_close(s);
}
