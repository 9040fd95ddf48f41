/* Calls that run on the engine's thread while no request runs. */
#include "base/error.h"
#include "runtime/engine/engine_internal.h"

void
engine_run_idle_call(Engine *e)
{
	IdleCall *b = e->idle_call;

	pthread_mutex_unlock(&e->lock);
	b->status = b->fn(b->user, &b->err);
	pthread_mutex_lock(&e->lock);
	if (b->status == LLMC_E_DEVICE)
		e->dead = b->err; /* there is no request to fail */
	e->idle_call = NULL;
	b->done = true;
	pthread_cond_broadcast(&e->idle);
}

llmc_status
engine_call_when_idle(Engine *e, bool cut, llmc_status (*fn)(void *user, llmc_error *err),
                      void *user, llmc_error *err)
{
	IdleCall b = { .fn = fn, .user = user, .cut = cut };

	pthread_mutex_lock(&e->lock);
	const bool taken = e->idle_call;
	if (!taken) {
		e->idle_call = &b;
		pthread_cond_signal(&e->wake);
		while (!b.done)
			pthread_cond_wait(&e->idle, &e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	if (taken)
		return error_set(err, LLMC_E_RANGE, "another such call waits for the engine");
	if (b.status != LLMC_OK && err)
		*err = b.err;
	return b.status;
}
