/* Engines: the runtime's, with the session and the model that they keep alive. */
#include "runtime/engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized.h"

struct llmc_engine {
	llmc_session *session;
	Engine       *e;
};

llmc_status
llmc_engine_open(llmc_model *m, const llmc_engine_options *opt, llmc_engine **out, llmc_error *err)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(o, opt);
	llmc_engine *e = calloc(1, sizeof *e);
	if (!e)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an engine");
	if (!model_rows_alike(m)) {
		if (o.speculate > 0) {
			status = error_set(err, LLMC_E_INPUT, "speculate is %d: on a GPU guessed tokens change nothing only where the description says deterministic: true",
			                   o.speculate);
			goto fail;
		}
		o.speculate = -1;
	}
	llmc_limits lim = engine_limits(m->plan, &o);
	TRY_GOTO(llmc_session_open(m, &lim, &e->session, err));
	TRY_GOTO(session_prepare(e->session->s, err)); /* nothing is made while serving */
	TRY_GOTO(engine_open(e->session->s, m->tokenizer, &o, &e->e, err));
	*out = e;
	return LLMC_OK;
fail:
	llmc_engine_close(e, 0);
	return status;
}

llmc_status
llmc_engine_drain(llmc_engine *e, int drain_ms, llmc_error *err)
{
	return engine_drain(e->e, drain_ms, err);
}

void
llmc_engine_close(llmc_engine *e, int drain_ms)
{
	if (!e)
		return;
	engine_close(e->e, drain_ms);
	llmc_session_close(e->session);
	free(e);
}

const llmc_limits *
llmc_engine_limits(const llmc_engine *e)
{
	return session_limits_of(e->session->s);
}

llmc_status
llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id, llmc_error *err)
{
	return engine_submit(e->e, r, id, err);
}

llmc_status
llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	return engine_next(e->e, id, timeout_ms, ev, err);
}

void
llmc_cancel(llmc_engine *e, int64_t id)
{
	engine_cancel(e->e, id, false);
}

void
llmc_forget(llmc_engine *e, int64_t id)
{
	engine_cancel(e->e, id, true);
}

int
llmc_engine_fd(const llmc_engine *e)
{
	return engine_fd(e->e);
}

void
llmc_engine_stats(llmc_engine *e, llmc_counts *out)
{
	engine_counts(e->e, out);
}
