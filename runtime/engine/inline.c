/* One request at a time on the caller's thread: the engine's steps without its thread, inbox and
 * event queue. */
#include "runtime/engine/engine_internal.h"

/* Pass the events of the last step to fn. Events after a cancellation are dropped. *status receives
 * the status of an error event. */
static void
deliver(EngineRequest *j, engine_event_fn fn, void *user, bool *cancelled, llmc_status *status,
        llmc_error *err)
{
	for (const Event *v = j->out.first; v; v = v->next) {
		if (v->ev.kind == LLMC_EVENT_ERROR)
			*status = error_set(err, v->ev.status, "%s", v->ev.text);
		else if (!*cancelled || v->ev.kind == LLMC_EVENT_FINISH)
			*cancelled |= !fn(user, &v->ev);
	}
	event_list_free(&j->out);
}

llmc_status
engine_run_request(Engine *e, const llmc_request *r, engine_event_fn fn, void *user,
                   llmc_error *err)
{
	llmc_status status = LLMC_OK;
	bool cancelled = false;
	EngineRequest *j;

	TRY(request_open(e, r, &j, err));
	j->id = ++e->last_id;
	e->work = j;
	/* the next request may run: if the device is lost, the session returns the error */
	e->dead.code = LLMC_OK;
	sched_submit(e->sched, j->req);
	while (!j->over) {
		if (!engine_step(e))
			request_fail(e, j, LLMC_E_FULL,
			             "other sequences of the session leave too few pages or no "
			             "sequence for this request");
		deliver(j, fn, user, &cancelled, &status, err);
		if (cancelled && !j->over) {
			engine_end_job(e, j, LLMC_FINISH_CANCEL);
			deliver(j, fn, user, &cancelled, &status, err);
		}
	}
	session_drop_sampled(e->session);
	e->is_ahead = false;
	e->work = NULL;
	request_free(j);
	return status;
}
