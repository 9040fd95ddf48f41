/* /status.json: the numbers that the status page plots. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/models/model.h"
#include "serve/http/route.h"

/* Return the growth of a total; 0 if the total fell, because a model was unloaded together with its
 * counts. */
static uint64_t
growth(uint64_t from, uint64_t to)
{
	return to > from ? to - from : 0;
}

/* Add up the engine steps, with prefill and without, by duration. */
static void
count_steps(const llmc_counts *c, uint64_t steps[LLMC_BUCKETS])
{
	for (int i = 0; i < LLMC_BUCKETS; i++)
		steps[i] = c->prefill_step_s.bucket[i] + c->decode_step_s.bucket[i];
}

/* Return the duration in milliseconds that a share `q` of the steps between two counts does not
 * exceed, interpolated within its bucket of ratio 1.5; NAN if there was no step. */
static double
step_quantile(const uint64_t *from, const uint64_t *to, double q)
{
	uint64_t n = 0;
	double below = 0, bound = 0.1;

	for (int i = 0; i < LLMC_BUCKETS; i++)
		n += growth(from[i], to[i]);
	for (int i = 0; i < LLMC_BUCKETS && n; i++, bound *= 1.5) {
		double in = (double)growth(from[i], to[i]);
		if (in > 0 && below + in >= q * (double)n)
			return bound * pow(1.5, (q * (double)n - below) / in);
		below += in;
	}
	return NAN;
}

static void
put_step_times(Strbuf *b, const uint64_t *from, const uint64_t *to)
{
	static const struct {
		const char *name;
		double q;
	} at[] = { { "step_p50_ms", 0.5 }, { "step_p99_ms", 0.99 } };

	for (int i = 0; i < 2; i++) {
		double ms = step_quantile(from, to, at[i].q);
		json_printf(b, ",%s:", at[i].name);
		if (isnan(ms))
			strbuf_puts(b, "null");
		else
			json_printf(b, "%g", ms);
	}
}

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
	count_steps(&c, s->speed[s->speed_at].steps);
	if (!s->n_past || now - s->past[(s->n_past - 1) % N_PAST].at >= PAST_SECONDS) {
		HistorySample *p = &s->past[s->n_past++ % N_PAST];
		*p = (HistorySample){
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
		count_steps(&c, p->steps);
	}
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

/* Write the last hour, oldest first: gauges at the time of each sample, and rates since the
 * previous sample. */
void
info_history(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };
	double now = clock_now();
	HistorySample *past = malloc(N_PAST * sizeof *past);
	int64_t pages = 0;
	int seqs = 0;

	if (!past) {
		Problem p;
		problem_memory(&p);
		req_problem(r, &p);
		return;
	}
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
		json_printf(
		    &b,
		    "\"prefill_tokens_per_s\":%g,\"decode_tokens_per_s\":%g,\"prefix_hit_rate\":",
		    dt > 0 ? (double)growth(q->prompt, p->prompt) / dt : 0,
		    dt > 0 ? (double)growth(q->fresh, p->fresh) / dt : 0);
		put_share(&b, growth(q->hits, p->hits), growth(q->queries, p->queries));
		json_printf(&b, ",\"drafted\":%lld,\"accepted\":%lld,\"acceptance_rate\":",
		            (long long)growth(q->drafted, p->drafted),
		            (long long)growth(q->accepted, p->accepted));
		put_share(&b, growth(q->accepted, p->accepted), growth(q->drafted, p->drafted));
		put_step_times(&b, q->steps, p->steps);
		strbuf_putc(&b, '}');
	}
	strbuf_puts(&b, "]}");
	free(past);
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
	int before = (s->speed_at + N_SPEED - 5) % N_SPEED;
	if (s->speed[before].at <= 0)
		before = 1;
	double dt = s->speed[before].at > 0 ? now - s->speed[before].at : 0;
	uint64_t from_new = s->speed[before].fresh, from_prompt = s->speed[before].prompt;
	uint64_t steps_from[LLMC_BUCKETS], steps[LLMC_BUCKETS];
	memcpy(steps_from, s->speed[before].steps, sizeof steps_from);
	count_steps(&c, steps);
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
	const Slot *shown = slot_shown(s);
	json_printf(&b, "{\"model\":%s,\"version\":%s,\"target\":%s,\"uptime_s\":%lld,\"models\":[",
	            shown->name, llmc_version(), shown->about.info.target,
	            (long long)(time(NULL) - s->started));
	for (int k = 0, n = 0; k < s->n_slots; k++) {
		const Slot *at = s->slot[k];
		if (at->removed)
			continue;
		strbuf_puts(&b, n++ ? "," : "");
		json_printf(&b, "{\"name\":%s,\"state\":%s,\"status\":", at->name, slot_state(at));
		slot_status(at, &b);
		json_printf(&b, ",\"bytes\":%lld,\"waiting\":%d,\"requests\":%lld}",
		            (long long)at->bytes, at->n_waiting, (long long)at->metrics.requests);
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
	            "\"last_step_ms\":%g",
	            c.running, max_running, c.batch_size, (long long)c.batch_max_tokens,
	            1e3 * c.last_step_s);
	put_step_times(&b, steps_from, steps);
	strbuf_putc(&b, '}');
	json_printf(&b,
	            ",\"kv\":{\"pages_total\":%lld,\"pages_used\":%lld,\"pages_cached\":%lld,"
	            "\"swap_bytes\":%lld,\"host_pages_total\":%lld,\"host_pages_used\":%lld}",
	            (long long)c.kv_pages_total, (long long)c.kv_pages_used,
	            (long long)c.kv_pages_cached, (long long)c.swap_bytes_used,
	            (long long)c.host_pages_total, (long long)c.host_pages_used);
	json_printf(&b,
	            ",\"tokens\":{\"prompt\":%lld,\"new\":%lld,\"prefill_tokens_per_s\":%g,"
	            "\"decode_tokens_per_s\":%g}",
	            (long long)c.prompt_tokens, (long long)c.new_tokens,
	            dt > 0 ? (double)growth(from_prompt, c.prompt_tokens) / dt : 0,
	            dt > 0 ? (double)growth(from_new, c.new_tokens) / dt : 0);
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
