/* /status.json: what the status page plots. */
#include <string.h>

#include "base/json.h"
#include "serve/req.h"
#include "serve/route.h"

/* Once a second the totals go into a ring, from which rates follow. */
void
status_tick(Server *s, double now)
{
	llmc_counts c = LLMC_INIT(llmc_counts);

	if (now - s->speed[s->speed_at].at < 1)
		return;
	s->back.stats(s->back.self, &c);
	pthread_mutex_lock(&s->lock);
	s->speed_at = (s->speed_at + 1) % N_SPEED;
	s->speed[s->speed_at].at = now;
	s->speed[s->speed_at].prompt = c.prompt_tokens;
	s->speed[s->speed_at].fresh = c.new_tokens;
	pthread_mutex_unlock(&s->lock);
}

void
info_status(Req *r)
{
	Server *s = r->srv;
	llmc_counts c = LLMC_INIT(llmc_counts);
	Strbuf b = { 0 };
	double now = clock_now();

	s->back.stats(s->back.self, &c);
	pthread_mutex_lock(&s->lock);
	int last = s->speed_at, before = (last + N_SPEED - 5) % N_SPEED;
	double dt = s->speed[before].at > 0 ? now - s->speed[before].at : s->speed[1].at > 0 ? now - s->speed[1].at : 0;
	uint64_t from_new = s->speed[before].at > 0 ? s->speed[before].fresh : s->speed[1].fresh;
	uint64_t from_prompt = s->speed[before].at > 0 ? s->speed[before].prompt : s->speed[1].prompt;
	int active = s->n_active, conns = s->n_conns;
	size_t held = s->held;
	bool draining = s->draining;
	uint64_t requests = s->metrics.requests, success = s->metrics.success, failures = 0;
	for (int i = 0; i < ERR_KINDS; i++)
		failures += s->metrics.failure[i];
	pthread_mutex_unlock(&s->lock);
	json_printf(&b, "{\"model\":%s,\"version\":%s,\"target\":%s,\"uptime_s\":%lld,\"draining\":", s->model_name, llmc_version(),
	            s->back.info.target, (long long)(time(NULL) - s->started));
	strbuf_puts(&b, draining ? "true" : "false");
	json_printf(&b, ",\"connections\":%d,\"memory\":{\"held\":%lld,\"max\":%lld}", conns, (long long)held, (long long)s->max_held);
	json_printf(&b, ",\"requests\":{\"active\":%d,\"total\":%lld,\"success\":%lld,\"failure\":%lld}", active,
	            (long long)requests, (long long)success, (long long)failures);
	json_printf(&b, ",\"queue\":{\"waiting\":%d,\"preempted\":%d,\"max\":%d}", c.waiting, c.preempted, s->back.max_concurrent);
	json_printf(&b, ",\"batch\":{\"running\":%d,\"max\":%d,\"last_size\":%d,\"max_tokens\":%lld,\"last_step_ms\":%g}", c.running,
	            s->back.limits.seqs, c.batch_size, (long long)c.batch_max_tokens, 1e3 * c.last_step_s);
	json_printf(&b, ",\"kv\":{\"pages_total\":%lld,\"pages_used\":%lld,\"pages_cached\":%lld,\"swap_bytes\":%lld}", (long long)c.kv_pages_total,
	            (long long)c.kv_pages_used, (long long)c.kv_pages_cached, (long long)c.swap_bytes_used);
	json_printf(&b, ",\"tokens\":{\"prompt\":%lld,\"new\":%lld,\"prompt_per_s\":%g,\"new_per_s\":%g}", (long long)c.prompt_tokens,
	            (long long)c.new_tokens, dt > 0 ? (double)(c.prompt_tokens - from_prompt) / dt : 0,
	            dt > 0 ? (double)(c.new_tokens - from_new) / dt : 0);
	json_printf(&b, ",\"prefix_cache\":{\"queries\":%lld,\"hits\":%lld},\"preemptions\":%lld,\"steps\":%lld", (long long)c.prefix_queries,
	            (long long)c.prefix_hits, (long long)c.preemptions, (long long)c.steps);
	json_printf(&b, ",\"latency\":{\"first_token_mean_s\":%g,\"inter_token_mean_s\":%g,\"queue_mean_s\":%g}}",
	            c.first_token_s.n ? c.first_token_s.sum / (double)c.first_token_s.n : 0,
	            c.inter_token_s.n ? c.inter_token_s.sum / (double)c.inter_token_s.n : 0,
	            c.queue_s.n ? c.queue_s.sum / (double)c.queue_s.n : 0);
	req_head(r, "Cache-Control", "no-store");
	req_answer(r, 200, type_json, &b);
}
