/* Worker threads. They do all work that takes more than a few microseconds, so that the HTTP thread
 * never waits. */
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>

#include "base/deadline.h"
#include "base/sum64.h"
#include "serve/dialects/generation.h"
#include "serve/http/api_keys.h"

enum { SMALL_BODY = 32 << 10 };

void
work_push(Server *s, Req *r)
{
	Queue *q = r->body.len <= SMALL_BODY ? &s->small : &s->large;

	atomic_fetch_add(&r->refs, 1);
	r->next = NULL;
	*q->end = r;
	q->end = &r->next;
	/* wake all workers, because not every worker takes every kind of request */
	pthread_cond_broadcast(&s->work);
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

/* Hash of the client of a request with images: its key, or its address */
static uint64_t
image_client(const Req *r)
{
	return key_hash(r) ? key_hash(r) : sum64(r->client, strlen(r->client), 1);
}

/* Queue a request with images for the image worker. False with a Problem: too many of this client
 * wait. */
static bool
move_to_images(Server *s, Req *r, Problem *p)
{
	const int32_t most = r->model->back.max_concurrent;
	const uint64_t client = image_client(r);
	int32_t n = 0;

	r->moved = false;
	pthread_mutex_lock(&s->lock);
	for (const Req *at = s->images.first; at; at = at->next)
		n += image_client(at) == client;
	bool full = n >= most;
	if (!full) {
		atomic_fetch_add(&r->refs, 1);
		r->on_images = true;
		r->next = NULL;
		*s->images.end = r;
		s->images.end = &r->next;
		pthread_cond_broadcast(&s->work);
	}
	pthread_mutex_unlock(&s->lock);
	if (!full)
		return true;
	problem(p, 429, NULL,
	        "%d requests of this client with images wait already; try again later.", most);
	p->code = "overloaded";
	return false;
}

/* Handle a request. False: it waits for its model, or for the image worker, and no longer belongs
 * to the worker. */
static bool
handle(Server *s, Req *r)
{
	size_t cost =
	    r->route->flags & RT_UPLOAD ? 0 : body_cost(strbuf_str(&r->body), r->body.len);
	Problem p = { 0 };

	/* lines of a batch have no time limit */
	if (s->opt.request_timeout_s > 0 && !r->answered && !(r->deadline > 0))
		r->deadline = clock_now() + s->opt.request_timeout_s;
	if (cost > s->max_held)
		problem(&p, 413, NULL,
		        "The body has too many values for this server: parsing it needs %zu bytes "
		        "of memory.",
		        cost);
	else if (!req_charge(r, cost))
		problem_busy(&p);
	else if (!(r->route->flags & RT_MODEL) || r->model || models_take(s, r, &p)) {
		deadline_set(r->deadline);
		r->route->handle(r);
		deadline_set(0);
		if (r->moved && move_to_images(s, r, &p)) {
			req_release(r, cost);
			return false;
		}
	} else if (!p.status) {
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

/* Run a worker. The first one handles small requests only, so that they never wait for large
 * ones. */
static void *
worker(void *arg)
{
	Server *s = arg;

	pthread_mutex_lock(&s->lock);
	bool first = pthread_equal(pthread_self(), s->worker[0]);
	/* lower this thread's priority: the engine's threads have precedence */
	if (!first && setpriority(PRIO_PROCESS, 0, 5) != 0)
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
			break; /* all requests have been handled */
		} else if (s->trim && !first) {
			s->trim = false;
			pthread_mutex_unlock(&s->lock);
#ifdef __GLIBC__
			/* otherwise the heap would keep the memory of the largest requests */
			malloc_trim(0);
#endif
			pthread_mutex_lock(&s->lock);
		} else {
			pthread_cond_wait(&s->work, &s->lock);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Remove the next request with images: the oldest one of the client whose last turn is longest ago;
 * lock held. */
static Req *
next_image(Server *s)
{
	enum { N = sizeof s->image_turn / sizeof *s->image_turn };
	Req **best = &s->images.first;

	if (!*best)
		return NULL;
	for (Req **at = best; *at; at = &(*at)->next)
		if (s->image_turn[image_client(*at) % N] < s->image_turn[image_client(*best) % N])
			best = at;
	Req *r = *best;
	s->image_turn[image_client(r) % N] = ++s->n_image_turn;
	*best = r->next;
	if (!r->next)
		s->images.end = best;
	return r;
}

/* Handle requests with images, one at a time: this bounds the memory of decoded images, and a
 * vision tower reads only one image at a time anyway. */
static void *
image_worker(void *arg)
{
	Server *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		Req *r = next_image(s);
		if (!r && s->images_over)
			break;
		if (!r) {
			pthread_cond_wait(&s->work, &s->lock);
			continue;
		}
		bool gone = r->gone;
		pthread_mutex_unlock(&s->lock);
		if (gone || handle(s, r))
			drop_model(r);
		req_unref(r);
		pthread_mutex_lock(&s->lock);
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
	s->images.end = &s->images.first;
	pthread_mutex_lock(&s->lock); /* the lock is needed because a worker reads this field */
	int rc = 0;
	for (; s->n_workers < n && rc == 0; s->n_workers += rc == 0)
		rc = pthread_create(&s->worker[s->n_workers], NULL, worker, s);
	if (rc == 0)
		rc = pthread_create(&s->image_worker, NULL, image_worker, s);
	s->has_image_worker = rc == 0;
	pthread_mutex_unlock(&s->lock);
	if (rc != 0)
		return error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
	return LLMC_OK;
}

void
work_close(Server *s) /* no thread pushes requests any more */
{
	pthread_mutex_lock(&s->lock);
	s->work_over = true;
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	for (int i = 0; i < s->n_workers; i++)
		pthread_join(s->worker[i], NULL);
	s->n_workers = 0;
	pthread_mutex_lock(&s->lock);
	s->images_over = true; /* no worker adds requests any more */
	pthread_cond_broadcast(&s->work);
	pthread_mutex_unlock(&s->lock);
	if (s->has_image_worker)
		pthread_join(s->image_worker, NULL);
	s->has_image_worker = false;
}
