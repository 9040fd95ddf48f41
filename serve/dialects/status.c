/* /status.json: what the status page plots. */
#include <string.h>

#include "base/json.h"
#include "serve/models/model.h"
#include "serve/http/route.h"

/* Sample the totals once per second into a ring; rates are computed from it. */
void
status_tick(Server *s, double now)
{
	llmc_counts c = LLMC_INIT(llmc_counts);

	pthread_mutex_lock(&s->lock); /* called by every event thread */
	bool due = now - s->ticked >= 1;
	if (due)
		s->ticked = now;
	pthread_mutex_unlock(&s->lock);
	if (!due)
		return;
	models_counts(s, &c);
	pthread_mutex_lock(&s->lock);
	s->speed_at = (s->speed_at + 1) % N_SPEED;
	s->speed[s->speed_at].at = now;
	s->speed[s->speed_at].prompt = c.prompt_tokens;
	s->speed[s->speed_at].fresh = c.new_tokens;
	if (!s->n_past || now - s->past[(s->n_past - 1) % N_PAST].at >= PAST_SECONDS)
		s->past[s->n_past++ % N_PAST] = (HistorySample){
			.at = now,
			.running = c.running,
			.waiting = c.waiting + c.preempted,
			.pages = c.kv_pages_used,
			.prompt = c.prompt_tokens,
			.fresh = c.new_tokens,
			.queries = c.prefix_queries,
			.hits = c.prefix_hits,
			.drafted = c.drafted,
			.accepted = c.accepted,
		};
	pthread_mutex_unlock(&s->lock);
}

static void
put_share(Strbuf *b, uint64_t some, uint64_t all)
{
	if (all)
		json_printf(b, "%g", (double)some / (double)all);
	else
		strbuf_puts(b, "null");
}

/* Write the last hour, oldest first: gauges at each sample and rates since the one before. */
void
info_history(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };
	double now = clock_now();
	HistorySample past[N_PAST];
	int64_t pages = 0;
	int seqs = 0;

	pthread_mutex_lock(&s->lock);
	int n = s->n_past < N_PAST ? (int)s->n_past : N_PAST;
	for (int i = 0; i < n; i++)
		past[i] = s->past[(s->n_past - (uint64_t)(n - i)) % N_PAST];
	for (int i = 0; i < s->n_slots; i++)
		if (s->slot[i]->model || s->n_slots == 1) {
			pages += s->slot[i]->about.limits.kv_tokens / LLMC_KV_PAGE;
			seqs += s->slot[i]->about.limits.seqs;
		}
	pthread_mutex_unlock(&s->lock);
	json_printf(&b, "{\"seconds\":%d,\"pages_total\":%lld,\"max_running\":%d,\"samples\":[",
	            PAST_SECONDS, (long long)pages, seqs);
	for (int i = 0; i < n; i++) {
		const HistorySample *p = &past[i], *q = i ? p - 1 : p;
		double dt = p->at - q->at;
		json_printf(&b,
		            i ? ",{\"ago\":%g,\"running\":%d,\"waiting\":%d,\"pages\":%lld,"
		              : "{\"ago\":%g,\"running\":%d,\"waiting\":%d,\"pages\":%lld,",
		            now - p->at, p->running, p->waiting, (long long)p->pages);
		json_printf(&b, "\"prompt_per_s\":%g,\"new_per_s\":%g,\"prefix_hits\":",
		            dt > 0 ? (double)(p->prompt - q->prompt) / dt : 0,
		            dt > 0 ? (double)(p->fresh - q->fresh) / dt : 0);
		put_share(&b, p->hits - q->hits, p->queries - q->queries);
		json_printf(&b, ",\"drafted\":%lld,\"accepted\":%lld,\"guesses_true\":",
		            (long long)(p->drafted - q->drafted),
		            (long long)(p->accepted - q->accepted));
		put_share(&b, p->accepted - q->accepted, p->drafted - q->drafted);
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, "]}");
	req_head(r, "Cache-Control", "no-store");
	req_answer(r, 200, type_json, &b);
}

void
info_status(Req *r)
{
	Server *s = r->srv;
	llmc_counts c = LLMC_INIT(llmc_counts);
	Strbuf b = { 0 };
	double now = clock_now();

	models_counts(s, &c);
	pthread_mutex_lock(&s->lock);
	int last = s->speed_at, before = (last + N_SPEED - 5) % N_SPEED;
	double dt = s->speed[before].at > 0 ? now - s->speed[before].at
	            : s->speed[1].at > 0    ? now - s->speed[1].at
	                                    : 0;
	uint64_t from_new = s->speed[before].at > 0 ? s->speed[before].fresh : s->speed[1].fresh;
	uint64_t from_prompt =
	    s->speed[before].at > 0 ? s->speed[before].prompt : s->speed[1].prompt;
	int active = s->n_active, conns = s->n_conns;
	size_t held = s->held;
	bool draining = s->draining;
	uint64_t requests = 0, success = 0, failures = 0;
	int max_waiting = 0, max_running = 0;
	for (int k = 0; k < s->n_slots; k++) {
		const Slot *at = s->slot[k];
		requests += at->metrics.requests;
		success += at->metrics.success;
		for (int i = 0; i < ERR_KINDS; i++)
			failures += at->metrics.failure[i];
		max_waiting += at->model || s->n_slots == 1 ? at->about.max_concurrent : 0;
		max_running += at->model || s->n_slots == 1 ? at->about.limits.seqs : 0;
	}
	json_printf(&b, "{\"model\":%s,\"version\":%s,\"target\":%s,\"uptime_s\":%lld,\"models\":[",
	            s->slot[0]->name, llmc_version(), s->slot[0]->about.info.target,
	            (long long)(time(NULL) - s->started));
	for (int k = 0, n = 0; k < s->n_slots; k++) {
		const Slot *at = s->slot[k];
		if (at->removed)
			continue;
		strbuf_puts(&b, n++ ? "," : "");
		json_printf(
		    &b,
		    "{\"name\":%s,\"state\":%s,\"bytes\":%lld,\"waiting\":%d,\"requests\":%lld}",
		    at->name, slot_state(at), (long long)at->bytes, at->n_waiting,
		    (long long)at->metrics.requests);
	}
	json_printf(&b, "],\"memory_bytes\":%lld,\"draining\":", (long long)s->opt.memory_bytes);
	pthread_mutex_unlock(&s->lock);
	strbuf_puts(&b, draining ? "true" : "false");
	json_printf(&b, ",\"connections\":%d,\"memory\":{\"held\":%lld,\"max\":%lld}", conns,
	            (long long)held, (long long)s->max_held);
	json_printf(
	    &b, ",\"requests\":{\"active\":%d,\"total\":%lld,\"success\":%lld,\"failure\":%lld}",
	    active, (long long)requests, (long long)success, (long long)failures);
	json_printf(&b, ",\"queue\":{\"waiting\":%d,\"preempted\":%d,\"max\":%d}", c.waiting,
	            c.preempted, max_waiting);
	json_printf(&b,
	            ",\"batch\":{\"running\":%d,\"max\":%d,\"last_size\":%d,\"max_tokens\":%lld,"
	            "\"last_step_ms\":%g}",
	            c.running, max_running, c.batch_size, (long long)c.batch_max_tokens,
	            1e3 * c.last_step_s);
	json_printf(&b,
	            ",\"kv\":{\"pages_total\":%lld,\"pages_used\":%lld,\"pages_cached\":%lld,"
	            "\"swap_bytes\":%lld,\"host_pages_total\":%lld,\"host_pages_used\":%lld}",
	            (long long)c.kv_pages_total, (long long)c.kv_pages_used,
	            (long long)c.kv_pages_cached, (long long)c.swap_bytes_used,
	            (long long)c.host_pages_total, (long long)c.host_pages_used);
	json_printf(
	    &b, ",\"tokens\":{\"prompt\":%lld,\"new\":%lld,\"prompt_per_s\":%g,\"new_per_s\":%g}",
	    (long long)c.prompt_tokens, (long long)c.new_tokens,
	    dt > 0 ? (double)(c.prompt_tokens - from_prompt) / dt : 0,
	    dt > 0 ? (double)(c.new_tokens - from_new) / dt : 0);
	json_printf(&b,
	            ",\"prefix_cache\":{\"queries\":%lld,\"hits\":%lld},\"preemptions\":%lld,"
	            "\"steps\":%lld",
	            (long long)c.prefix_queries, (long long)c.prefix_hits, (long long)c.preemptions,
	            (long long)c.steps);
	json_printf(&b, ",\"speculation\":{\"drafts\":%lld,\"drafted\":%lld,\"accepted\":%lld}",
	            (long long)c.drafts, (long long)c.drafted, (long long)c.accepted);
	json_printf(&b,
	            ",\"latency\":{\"first_token_mean_s\":%g,\"inter_token_mean_s\":%g,\"queue_"
	            "mean_s\":%g}}",
	            c.first_token_s.n ? c.first_token_s.sum / (double)c.first_token_s.n : 0,
	            c.inter_token_s.n ? c.inter_token_s.sum / (double)c.inter_token_s.n : 0,
	            c.queue_s.n ? c.queue_s.sum / (double)c.queue_s.n : 0);
	req_head(r, "Cache-Control", "no-store");
	req_answer(r, 200, type_json, &b);
}
