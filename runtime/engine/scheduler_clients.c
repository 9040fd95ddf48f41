/* Turns of clients, by a virtual token counter per client. The next request to start is that of the
 * client with the smallest count, regardless of how many requests another client has sent.
 *
 * A client gets no credit for time without waiting requests. Its count is raised to the smallest
 * one of the clients with waiting requests, or further to their average progress. Without the
 * average, new clients that arrive all the time with the smallest count would keep a client with a
 * larger count waiting forever. */
#include <float.h>
#include <stdlib.h>

#include "runtime/engine/scheduler.h"
#include "runtime/engine/scheduler_internal.h"

/* Raise the count of a client that begins to wait. */
static void
raise_count(const Sched *s, SchedClient *c)
{
	double least = DBL_MAX, most = 0, to = s->turn;

	for (const SchedClient *o = s->client; o; o = o->next)
		if (o != c && o->n_waiting) {
			least = o->served < least ? o->served : least;
			most = o->served > most ? o->served : most;
		}
	if (least <= most) {
		to = to < most ? to : most;
		to = to > least ? to : least;
	}
	c->served = c->served > to ? c->served : to;
}

void
sched_client_add(Sched *s, SchedReq *r)
{
	SchedClient *c = s->client;

	while (c && c->id != r->client)
		c = c->next;
	if (!c && (c = calloc(1, sizeof *c)) != NULL) {
		c->id = r->client;
		c->next = s->client;
		s->client = c;
	}
	if (!c)
		c = s->client ? s->client : &s->spare_client;
	if (c->n_waiting++ == 0) {
		s->n_turns++;
		raise_count(s, c);
	}
	c->n_req++;
	r->of = c;
}

void
sched_client_remove(Sched *s, SchedReq *r)
{
	SchedClient **at = &s->client, *c = r->of;

	r->of = NULL;
	if (!c || --c->n_req > 0 || c == &s->spare_client)
		return;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free(c);
}

void
sched_client_charge(Sched *s, SchedReq *r, int32_t n_tok)
{
	r->of->served += n_tok;
	s->turn += (double)n_tok / (s->n_turns ? s->n_turns : 1);
}

SchedReq *
sched_next(const Sched *s)
{
	SchedReq *best = s->first;

	if (!best || !s->client || !s->client->next) /* one client: in order of arrival */
		return best;
	for (SchedReq *r = best->next; r && r->priority == best->priority; r = r->next)
		if (r->of->served < best->of->served)
			best = r;
	return best;
}

SchedSeq *
sched_yields_to(const Sched *s, const SchedReq *r)
{
	const int32_t need = r->n_seq - (s->lim.seqs - s->running.n - s->reserved),
	              most = r->of->n_held + r->n_seq; /* after the start */
	int32_t surplus = 0;
	SchedSeq *best = NULL;

	for (const SchedClient *o = s->client; o; o = o->next)
		if (o != r->of && o->n_held > most)
			surplus += o->n_held - most;
	if (surplus < need)
		return NULL;
	for (SchedSeq *c = s->running.youngest; c; c = c->older)
		if (c->req->priority == r->priority && c->req->of != r->of && c->req->forked &&
		    c->req->of->n_held > most &&
		    (!best || c->req->of->n_held > best->req->of->n_held))
			best = c;
	return best;
}

bool
sched_would_yield(const SchedSeq *c, const SchedReq *next)
{
	return next->may_yield && next->priority == c->req->priority && next->of != c->req->of &&
	       c->req->of->n_held + 1 > next->of->n_held + next->n_seq;
}
