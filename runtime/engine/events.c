/* Interface between callers and the engine's thread: requests in, events out. All functions take
 * the engine's lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/engine/engine_internal.h"
#include "base/sized_struct.h"
#include "base/wakeup.h"

/* Keep the descriptor readable exactly while there are events. */
static void
count_events(Engine *e, int64_t change)
{
	int64_t before = e->n_events;

	e->n_events += change;
	if (!before && e->n_events)
		wakeup_add(e->fd, 1);
	else if (before && !e->n_events)
		(void)wakeup_take(e->fd);
}

static void
unref(EngineRequest *j)
{
	if (--j->refs == 0)
		request_free(j);
}

static EngineRequest *
find(Engine *e, int64_t id)
{
	EngineRequest *j = id > 0 ? e->bucket[id % N_BUCKET] : NULL;

	while (j && j->id != id)
		j = j->chain;
	return j;
}

static void
remove_ready(Engine *e, EngineRequest *j)
{
	EngineRequest **at = &e->ready, *before = NULL;

	if (!j->is_ready)
		return;
	while (*at != j) {
		before = *at;
		at = &before->ready_next;
	}
	*at = j->ready_next;
	if (e->ready_last == j)
		e->ready_last = before;
	j->is_ready = false;
	j->ready_next = NULL;
}

static void
add_ready(Engine *e, EngineRequest *j)
{
	if (j->is_ready)
		return;
	j->is_ready = true;
	j->ready_next = NULL;
	*(e->ready ? &e->ready_last->ready_next : &e->ready) = j;
	e->ready_last = j;
}

/* Remove a request from the table: callers can no longer take its events, so drop them. */
static void
forget_request(Engine *e, EngineRequest *j)
{
	EngineRequest **at = &e->bucket[j->id % N_BUCKET];
	int64_t n = 0;

	if (!j->in_table)
		return;
	while (*at != j)
		at = &(*at)->chain;
	*at = j->chain;
	j->in_table = false;
	j->gone = true;
	e->n_table--;
	remove_ready(e, j);
	for (const Event *v = j->events.first; v; v = v->next)
		n++;
	event_list_free(&j->events);
	count_events(e, -n);
	if (j->n_waiting)
		pthread_cond_broadcast(&j->cond);
	if (!e->n_table)
		pthread_cond_broadcast(&e->any);
	unref(j);
}

llmc_status
engine_submit(Engine *e, const llmc_request *r, int64_t *id, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	EngineRequest *j = NULL;

	*id = 0;
	/* check for a full queue before the request is built, and again when it is inserted */
	for (int pass = 0; pass < 2 && status == LLMC_OK; pass++) {
		if (pass)
			TRY(request_open(e, r, &j, err));
		pthread_mutex_lock(&e->lock);
		if (e->dead.code != LLMC_OK) {
			status = error_set(err, e->dead.code, "%s", e->dead.text);
		} else if (e->draining) {
			status = error_set(err, LLMC_E_CANCELLED,
			                   "the engine is shutting down: no new request "
			                   "is accepted");
		} else if (e->n_jobs >= e->max_jobs) {
			e->refused++;
			status = error_set(
			    err, LLMC_E_BUSY,
			    "overloaded: %d requests are in progress (max_concurrent_requests)",
			    e->n_jobs);
		} else if (pass) {
			*id = j->id = ++e->last_id;
			j->refs = 2;
			j->in_table = true;
			j->chain = e->bucket[j->id % N_BUCKET];
			e->bucket[j->id % N_BUCKET] = j;
			e->n_table++;
			e->n_jobs++;
			*(e->inbox ? &e->inbox_last->next : &e->inbox) = j;
			e->inbox_last = j;
			pthread_cond_signal(&e->wake);
		}
		pthread_mutex_unlock(&e->lock);
	}
	if (status != LLMC_OK && j)
		request_free(j);
	return status;
}

/* False: the timeout has passed. */
static bool
wait_for(Engine *e, pthread_cond_t *cond, int timeout_ms, const struct timespec *until)
{
	if (timeout_ms < 0)
		return pthread_cond_wait(cond, &e->lock) == 0;
	return timeout_ms > 0 && pthread_cond_timedwait(cond, &e->lock, until) != ETIMEDOUT;
}

/* Remove the first event of a request and pass it to the caller. */
static void
pop(Engine *e, EngineRequest *j, llmc_event *ev)
{
	Event *v = j->events.first;

	j->events.first = v->next;
	count_events(e, -1);
	remove_ready(e, j);
	if (j->events.first)
		add_ready(e, j); /* requeue it after the other requests with events */
	bool last = v->ev.last;
	SIZED_GIVE(ev, v->ev);
	if (last)
		forget_request(e, j);
}

llmc_status
engine_next(Engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	struct timespec until = { 0 };
	llmc_status status = LLMC_OK;
	bool time = true;

	llmc_event_release(ev);
	if (timeout_ms > 0)
		clock_after(&until, timeout_ms);
	pthread_mutex_lock(&e->lock);
	if (id == LLMC_ANY) {
		while (!e->ready && time &&
		       !((e->draining || e->dead.code != LLMC_OK) && !e->n_table))
			time = wait_for(e, &e->any, timeout_ms, &until);
		if (e->ready)
			pop(e, e->ready, ev);
		else if (e->dead.code != LLMC_OK && !e->n_table)
			status = error_set(err, e->dead.code, "%s", e->dead.text);
		else if (e->draining && !e->n_table)
			status =
			    error_set(err, LLMC_E_CANCELLED,
			              "the engine is shutting down and all events have been taken");
	} else {
		EngineRequest *j = find(e, id);
		if (j) {
			j->refs++;
			j->n_waiting++;
			while (!j->gone && !j->events.first && time)
				time = wait_for(e, &j->cond, timeout_ms, &until);
			j->n_waiting--;
			if (!j->gone && j->events.first)
				pop(e, j, ev);
			else if (j->gone)
				status = LLMC_E_RANGE;
			unref(j);
		}
		if (!j || status != LLMC_OK)
			status =
			    error_set(err, LLMC_E_RANGE,
			              "there is no request %lld, or its last event has been taken",
			              (long long)id);
	}
	pthread_mutex_unlock(&e->lock);
	return status;
}

void
llmc_event_release(llmc_event *ev)
{
	size_t size = ev->size;

	if (size >= offsetof(llmc_event, memory_) + sizeof ev->memory_)
		free(ev->memory_);
	memset(ev, 0, size < sizeof *ev ? size : sizeof *ev);
	ev->size = size;
}

void
engine_cancel(Engine *e, int64_t id, bool forget)
{
	pthread_mutex_lock(&e->lock);
	EngineRequest *j = find(e, id);
	if (j && !j->cancel) {
		j->cancel = true;
		e->n_cancel++;
		pthread_cond_signal(&e->wake);
	}
	if (j && forget)
		forget_request(e, j);
	pthread_mutex_unlock(&e->lock);
}

void
events_flush(Engine *e)
{
	pthread_mutex_lock(&e->lock);
	for (EngineRequest **at = &e->work, *j; (j = *at);) {
		if (j->out.first && j->gone) {
			event_list_free(&j->out);
		} else if (j->out.first) {
			int64_t n = 0;
			for (const Event *v = j->out.first; v; v = v->next)
				n++;
			*(j->events.first ? &j->events.last->next : &j->events.first) =
			    j->out.first;
			j->events.last = j->out.last;
			j->out = (EventList){ 0 };
			add_ready(e, j);
			count_events(e, n);
			if (j->n_waiting)
				pthread_cond_broadcast(&j->cond);
			pthread_cond_broadcast(&e->any);
		}
		if (!j->over) {
			at = &j->next;
			continue;
		}
		*at = j->next;
		e->n_jobs--;
		pthread_cond_broadcast(&e->idle);
		unref(j);
	}
	e->counts = e->now;
	pthread_mutex_unlock(&e->lock);
}

llmc_status
engine_drain(Engine *e, int drain_ms, llmc_error *err)
{
	struct timespec until = { 0 };
	bool time = true;

	if (drain_ms > 0)
		clock_after(&until, drain_ms);
	pthread_mutex_lock(&e->lock);
	e->draining = true;
	pthread_cond_broadcast(&e->any);
	while (e->n_jobs && time)
		time = wait_for(e, &e->idle, drain_ms, &until);
	bool cut = e->n_jobs > 0;
	if (cut) {
		e->cut = true;
		pthread_cond_signal(&e->wake);
		while (e->n_jobs) /* at most one step */
			pthread_cond_wait(&e->idle, &e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	return cut ? error_set(err, LLMC_E_CANCELLED,
	                       "requests that did not finish in time were cancelled")
	           : LLMC_OK;
}

/* Called after the thread has ended. */
void
events_close(Engine *e)
{
	for (int i = 0; i < N_BUCKET; i++)
		while (e->bucket[i])
			forget_request(e, e->bucket[i]);
}

int
engine_fd(const Engine *e)
{
	return e->fd;
}

void
engine_counts(Engine *e, llmc_counts *out)
{
	pthread_mutex_lock(&e->lock);
	llmc_counts c = e->counts;
	c.refused = e->refused;
	for (const EngineRequest *j = e->inbox; j; j = j->next) {
		c.waiting++;
		c.requests++;
	}
	pthread_mutex_unlock(&e->lock);
	SIZED_GIVE(out, c);
}
