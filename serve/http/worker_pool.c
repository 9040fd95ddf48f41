/* The workers: what takes longer than a few microseconds is done here, so that the HTTP thread
 * never waits. */
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>

#include "serve/dialects/generation.h"

enum { SMALL_BODY = 32 << 10 };

void
work_push(Server *s, Req *r)
{
	Queue *q = r->body.len <= SMALL_BODY ? &s->small : &s->large;

	atomic_fetch_add(&r->refs, 1);
	r->next = NULL;
	*q->end = r;
	q->end = &r->next;
	pthread_cond_broadcast(&s->work); /* not every worker takes everything */
}

static Req *
pop(Queue *q)
{
	Req *r = q->first;

	if (r)
		q->first = r->next;
	if (!q->first)
		q->end = &q->first;
	return r;
}

/* false: it has been put aside, and is no longer ours */
static bool
handle(Server *s, Req *r)
{
	size_t cost =
	    r->route->flags & RT_UPLOAD ? 0 : body_cost(strbuf_str(&r->body), r->body.len);
	Problem p = { 0 };

	if (cost > s->max_held)
		problem(&p, 413, NULL,
		        "The body has too many values for this server: reading it would take %zu "
		        "bytes of memory.",
		        cost);
	else if (!req_charge(r, cost))
		problem_busy(&p);
	else if (!(r->route->flags & RT_MODEL) || r->model || models_take(s, r, &p))
		r->route->handle(r);
	else if (!p.status) {
		req_release(r, cost);
		return false;
	}
	if (p.status)
		req_problem(r, &p);
	else
		req_release(r, cost);
	req_drop_body(r);
	return true;
}

static void
drop_model(Req *r)
{
	ServedModel *m = r->model;

	r->model = NULL;
	model_unref(m);
}

/* The first worker takes small requests alone, so that none waits behind large ones. */
static void *
worker(void *arg)
{
	Server *s = arg;

	pthread_mutex_lock(&s->lock);
	bool first = pthread_equal(pthread_self(), s->worker[0]);
	if (!first &&
	    setpriority(PRIO_PROCESS, 0, 5) != 0) /* of this thread: the engine's come first */
		serve_log(s, LLMC_LOG_DEBUG, "the priority of a worker could not be set");
	for (;;) {
		Queue *q =
		    first || (s->small.first && !(s->large.first && s->large.first->t_start <
		                                                        s->small.first->t_start))
		        ? &s->small
		        : &s->large;
		Req *r = pop(q);
		if (r) {
			bool gone = r->gone;
			pthread_mutex_unlock(&s->lock);
			if (gone || handle(s, r))
				drop_model(r);
			req_unref(r);
			pthread_mutex_lock(&s->lock);
		} else if (s->work_over) {
			break; /* all that came is handled */
		} else if (s->trim && !first) {
			s->trim = false;
			pthread_mutex_unlock(&s->lock);
#ifdef __GLIBC__
			malloc_trim(0); /* else the heap keeps what the largest requests took */
#endif
			pthread_mutex_lock(&s->lock);
		} else {
			pthread_cond_wait(&s->work, &s->lock);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

llmc_status
work_open(Server *s, llmc_error *err)
{
	int n = s->opt.validation_workers + 1;

	s->small.end = &s->small.first;
	s->large.end = &s->large.first;
	pthread_mutex_lock(&s->lock); /* a worker reads where it stands */
	int rc = 0;
	for (; s->n_workers < n && rc == 0; s->n_workers += rc == 0)
		rc = pthread_create(&s->worker[s->n_workers], NULL, worker, s);
	pthread_mutex_unlock(&s->lock);
	if (rc != 0)
		return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	return LLMC_OK;
}

void
work_close(Server *s) /* nobody hands them anything any more */
{
	pthread_mutex_lock(&s->lock);
	s->work_over = true;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	for (int i = 0; i < s->n_workers; i++)
		pthread_join(s->worker[i], NULL);
	s->n_workers = 0;
}
