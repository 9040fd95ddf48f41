/* The workers: what takes longer than a few microseconds is done here, so that the HTTP thread never waits. */
#include <string.h>

#include "runtime/serve/serve.h"

void
work_push(Server *s, Req *r)
{
	atomic_fetch_add(&r->refs, 1);
	r->next = NULL;
	*s->queue_end = r;
	s->queue_end = &r->next;
	pthread_cond_signal(&s->work);
}

static void *
worker(void *arg)
{
	Server *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		while (!s->queue && !s->closing)
			pthread_cond_wait(&s->work, &s->lock);
		Req *r = s->queue;
		if (!r)
			break; /* closing, and all that came is handled */
		s->queue = r->next;
		if (!s->queue)
			s->queue_end = &s->queue;
		bool gone = r->gone;
		pthread_mutex_unlock(&s->lock);
		if (!gone)
			r->route->handle(r);
		req_unref(r);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Events of the engine to requests, and the watch over clients. */
static void *
pump(void *arg)
{
	Server *s = arg;
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_error err = { 0 };
	double watched = 0;
	int dead = 0; /* calls in a row that failed */

	for (;;) {
		llmc_status status = s->back.next(s->back.self, 100, &ev, &err);
		dead = status == LLMC_OK ? 0 : dead + 1;
		if (status == LLMC_OK && ev.kind != LLMC_EVENT_NONE) {
			gen_event(s, &ev);
		} else if (status != LLMC_OK) {
			struct timespec rest = { 0, 50000000 }; /* an engine that cannot wait must not make us spin */
			nanosleep(&rest, NULL);
		}
		double now = clock_now();
		if (now - watched >= 0.1) {
			watched = now;
			watch_clients(s, now);
			status_tick(s, now);
			pthread_mutex_lock(&s->lock);
			bool end = s->closing && s->n_workers == 0 && (s->n_gens == 0 || dead > 20);
			pthread_mutex_unlock(&s->lock);
			if (end)
				break;
		}
	}
	s->back.release(&ev);
	return NULL;
}

llmc_status
work_open(Server *s, llmc_error *err)
{
	int n = s->opt.validation_workers;

	s->queue_end = &s->queue;
	if (pthread_create(&s->pump, NULL, pump, s) != 0)
		return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	s->has_pump = true;
	for (; s->n_workers < n; s->n_workers++)
		if (pthread_create(&s->worker[s->n_workers], NULL, worker, s) != 0)
			return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	return LLMC_OK;
}

void
work_close(Server *s) /* s->closing is set */
{
	pthread_mutex_lock(&s->lock);
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	for (int i = 0; i < s->n_workers; i++)
		pthread_join(s->worker[i], NULL);
	pthread_mutex_lock(&s->lock);
	s->n_workers = 0; /* nobody submits any more: the pump may end when nothing is left */
	pthread_mutex_unlock(&s->lock);
	if (s->has_pump)
		pthread_join(s->pump, NULL);
	s->has_pump = false;
}
