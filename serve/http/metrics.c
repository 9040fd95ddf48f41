/* Metrics in Prometheus' text format: TGI's names, and vLLM's for the metrics that both have. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "serve/models/model.h"
#include "serve/http/route.h"

static void
hist_init(Histogram *h, int n, double first, double factor, double step)
{
	h->n_bounds = n;
	for (int i = 0; i < n; i++)
		h->bound[i] = factor > 0 ? first * pow(factor, i) : first + step * i;
}

void
metrics_init(Metrics *m, int32_t max_input, int32_t max_total)
{
	Histogram *seconds[] = { &m->duration, &m->validation, &m->queue, &m->inference,
		                 &m->per_token };

	for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
		hist_init(seconds[i], 35, 0.0001 * 1.5, 1.5, 0);
	/* 100 equal buckets up to the limit */
	hist_init(&m->input_length, 100, max_input / 100.0, 0, max_input / 100.0);
	hist_init(&m->max_new, 100, max_total / 100.0, 0, max_total / 100.0);
	hist_init(&m->generated, 100, max_total / 100.0, 0, max_total / 100.0);
}

void
hist_add(Histogram *h, double x)
{
	int k = 0;

	while (k < h->n_bounds && x > h->bound[k])
		k++;
	h->count[k]++;
	h->sum += x;
	h->n++;
}

static void
number(Strbuf *b, double x, int digits)
{
	char text[NUMBER_SIZE];

	number_plain(text, x, digits);
	strbuf_puts(b, text);
}

static void
head(Strbuf *b, const char *name, const char *kind, const char *help)
{
	strbuf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* Append one line: name{labels} value */
static void
line(Strbuf *b, const char *name, const char *end, const char *labels, double x)
{
	strbuf_printf(b, *labels ? "%s%s{%s} " : "%s%s%s ", name, end, labels);
	number(b, x, NUMBER_EXACT);
	strbuf_putc(b, '\n');
}

static void
hist_lines(Strbuf *b, const char *name, const char *labels, int n_bounds, const double *bound,
           const uint64_t *count, double sum)
{
	uint64_t n = 0;

	for (int i = 0; i <= n_bounds; i++) {
		n += count[i];
		strbuf_printf(b, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
		if (i < n_bounds)
			number(b, bound[i], 10);
		else
			strbuf_puts(b, "+Inf");
		strbuf_printf(b, "\"} %llu\n", (unsigned long long)n);
	}
	line(b, name, "_sum", labels, sum);
	line(b, name, "_count", labels, (double)n);
}

static void
hist(Strbuf *b, const char *name, const char *help, const Histogram *h)
{
	head(b, name, "histogram", help);
	hist_lines(b, name, "", h->n_bounds, h->bound, h->count, h->sum);
}

/* Append a histogram of the engine, of seconds or counts. */
static void
engine_lines(Strbuf *b, const char *name, const char *labels, const llmc_histogram *h, bool things)
{
	double bound[LLMC_BUCKETS];

	for (int k = 0; k < LLMC_BUCKETS; k++)
		bound[k] = things ? ldexp(1, k) : 0.0001 * pow(1.5, k + 1);
	hist_lines(b, name, labels, LLMC_BUCKETS - 1, bound, h->bucket, h->sum);
}

/* Append a label value. Prometheus has fewer escapes than JSON. */
static void
label_text(Strbuf *b, const char *s)
{
	Strbuf json = { 0 };

	json_str(&json, s, strlen(s)); /* from here on the text is valid UTF-8 */
	for (const char *c = strbuf_str(&json); *c; c++) {
		bool known = *c == '\\' && c[1] && strchr("\\\"n", c[1]);
		strbuf_putc(b, *c == '\\' && !known ? ' ' : *c);
		if (known)
			strbuf_putc(b, *++c);
	}
	b->failed |= json.failed;
	strbuf_release(&json);
}

static void
tgi_lines(Strbuf *b, const Metrics *m, const llmc_counts *c, const Backend *back)
{
	static const char *const kind[ERR_KINDS] = { "overloaded", "validation", "incomplete",
		                                     "dropped", "generation" };
	const struct {
		const char *label;
		const llmc_histogram *h;
		uint64_t n;
	} step[] = {
		{ "method=\"prefill\"", &c->prefill_step_s, c->prefill_steps },
		{ "method=\"decode\"", &c->decode_step_s, c->steps - c->prefill_steps },
	};

	head(b, "tgi_request_count", "counter", "Generation requests.");
	line(b, "tgi_request_count", "", "", (double)m->requests);
	head(b, "tgi_request_success", "counter", "Requests answered in full.");
	line(b, "tgi_request_success", "", "", (double)m->success);
	head(b, "tgi_request_failure", "counter", "Requests that failed, by reason.");
	for (int i = 0; i < ERR_KINDS; i++) {
		char label[40];
		snprintf(label, sizeof label, "err=\"%s\"", kind[i]);
		line(b, "tgi_request_failure", "", label, (double)m->failure[i]);
	}
	static const char *const steps[] = { "tgi_batch_inference_count",
		                             "tgi_batch_inference_success",
		                             "tgi_batch_inference_failure" };
	for (int k = 0; k < 3; k++) {
		head(b, steps[k], "counter",
		     k == 0   ? "Steps of the model."
		     : k == 1 ? "Steps that succeeded."
		              : "Steps that failed.");
		for (int i = 0; i < 2; i++)
			line(b, steps[k], "", step[i].label, k == 2 ? 0 : (double)step[i].n);
	}
	head(b, "tgi_batch_concat", "counter", "Starts of waiting requests while others run.");
	line(b, "tgi_batch_concat", "", "reason=\"backpressure\"", (double)c->start_size.n);
	line(b, "tgi_batch_concat", "", "reason=\"wait_exceeded\"", 0);
	head(b, "tgi_queue_size", "gauge", "Waiting requests.");
	line(b, "tgi_queue_size", "", "", c->waiting);
	head(b, "tgi_batch_current_size", "gauge", "Sequences in the batch.");
	line(b, "tgi_batch_current_size", "", "", c->running);
	head(b, "tgi_batch_current_max_tokens", "gauge", "Tokens that the batch may reach.");
	line(b, "tgi_batch_current_max_tokens", "", "", (double)c->batch_max_tokens);
	head(b, "tgi_batch_max_total_tokens", "gauge", "The batch's token budget.");
	line(b, "tgi_batch_max_total_tokens", "", "",
	     (double)(back->max_batch_total ? back->max_batch_total : back->limits.kv_tokens));
	hist(b, "tgi_request_duration", "Seconds from arrival to the last token.", &m->duration);
	hist(b, "tgi_request_validation_duration", "Seconds of parsing, checking and tokenizing.",
	     &m->validation);
	hist(b, "tgi_request_queue_duration", "Seconds in the queue.", &m->queue);
	hist(b, "tgi_request_inference_duration", "Seconds in the batch.", &m->inference);
	hist(b, "tgi_request_mean_time_per_token_duration", "Seconds per new token.",
	     &m->per_token);
	hist(b, "tgi_request_input_length", "Tokens of prompts.", &m->input_length);
	hist(b, "tgi_request_max_new_tokens", "New tokens requested.", &m->max_new);
	hist(b, "tgi_request_generated_tokens", "New tokens generated.", &m->generated);
	head(b, "tgi_batch_next_size", "histogram", "Requests that started together.");
	engine_lines(b, "tgi_batch_next_size", "", &c->start_size, true);
	head(b, "tgi_batch_inference_duration", "histogram", "Seconds of a step.");
	for (int i = 0; i < 2; i++)
		engine_lines(b, "tgi_batch_inference_duration", step[i].label, step[i].h, false);
	head(b, "tgi_batch_forward_duration", "histogram", "Seconds of a step.");
	for (int i = 0; i < 2; i++)
		engine_lines(b, "tgi_batch_forward_duration", step[i].label, step[i].h, false);
}

/* Append the adapters of a model that running requests use, and those that requests wait for.
 * Nothing is appended if the model is itself an adapter. places: number of adapter slots of the
 * model's engine; 0: each adapter has its own engine. */
static void
adapter_lines(Strbuf *b, Server *s, const Slot *t, int places, const char *label)
{
	Strbuf running = { 0 }, waiting = { 0 };
	int n = models_number(s), names = 0;

	head(b, "vllm:lora_requests_info", "gauge",
	     "Adapters that requests use and wait for; the value is the time.");
	for (int i = 0; i < n && !t->parent; i++) {
		Slot *a = s->slot[i];
		llmc_counts c = LLMC_INIT(llmc_counts);
		pthread_mutex_lock(&s->lock);
		bool ours = a->parent && !a->removed && !strcmp(a->parent, t->name);
		int aside = a->n_waiting;
		pthread_mutex_unlock(&s->lock);
		if (!ours)
			continue;
		model_counts(s, a, &c);
		int own = model_gens(s, a);
		c.running = own >= 0 ? own : c.running;
		names++;
		if (c.running)
			strbuf_printf(&running, "%s%s", running.len ? "," : "", a->name);
		if (c.waiting || c.preempted || aside)
			strbuf_printf(&waiting, "%s%s", waiting.len ? "," : "", a->name);
	}
	if (!t->parent) {
		strbuf_printf(
		    b, "vllm:lora_requests_info{%s,max_lora=\"%d\",running_lora_adapters=", label,
		    places ? places : names);
		label_text(b, strbuf_str(&running));
		strbuf_puts(b, ",waiting_lora_adapters=");
		label_text(b, strbuf_str(&waiting));
		strbuf_printf(b, "} %lld\n", (long long)time(NULL));
	}
	b->failed |= running.failed || waiting.failed;
	strbuf_release(&running);
	strbuf_release(&waiting);
}

/* Gauges and counters; l: labels of the model */
static void
vllm_numbers(Strbuf *b, const char *l, const llmc_counts *c)
{
	double pages = (double)c->kv_pages_total;
	const struct {
		const char *name, *kind, *help;
		double x;
	} one[] = {
		{ "vllm:num_requests_running", "gauge", "Sequences in the batch.", c->running },
		{ "vllm:num_requests_waiting", "gauge", "Waiting requests.",
		  c->waiting + c->preempted },
		{ "vllm:kv_cache_usage_perc", "gauge", "Fraction of the KV pages in use.",
		  pages > 0 ? (double)c->kv_pages_used / pages : 0 },
		{ "vllm:gpu_cache_usage_perc", "gauge",
		  "The same under the name that older routers read.",
		  pages > 0 ? (double)c->kv_pages_used / pages : 0 },
		{ "vllm:prompt_tokens_total", "counter", "Tokens of prompts.",
		  (double)c->prompt_tokens },
		{ "vllm:generation_tokens_total", "counter", "New tokens.", (double)c->new_tokens },
		{ "vllm:num_preemptions_total", "counter", "Times a request was preempted.",
		  (double)c->preemptions },
		{ "vllm:prefix_cache_queries_total", "counter",
		  "Prompt tokens looked up in the prefix cache.", (double)c->prefix_queries },
		{ "vllm:prefix_cache_hits_total", "counter",
		  "Prompt tokens found in the prefix cache.", (double)c->prefix_hits },
		{ "vllm:gpu_prefix_cache_queries_total", "counter",
		  "The same under the older name.", (double)c->prefix_queries },
		{ "vllm:gpu_prefix_cache_hits_total", "counter", "The same under the older name.",
		  (double)c->prefix_hits },
		{ "vllm:gpu_prefix_cache_hit_rate", "gauge",
		  "Prefix cache hit rate, for older routers.",
		  c->prefix_queries ? (double)c->prefix_hits / (double)c->prefix_queries : 0 },
		{ "llmc:host_cache_usage_perc", "gauge",
		  "Fraction of the KV pages in host memory in use.",
		  c->host_pages_total ? (double)c->host_pages_used / (double)c->host_pages_total
		                      : 0 },
		{ "llmc:host_cache_out_tokens_total", "counter",
		  "Tokens of KV pages copied to host memory.", (double)c->host_out },
		{ "llmc:host_cache_in_tokens_total", "counter",
		  "Tokens of KV pages copied back from host memory.", (double)c->host_in },
		{ "vllm:external_prefix_cache_hits_total", "counter",
		  "Prompt tokens read from prefix pages on disk.", (double)c->prefix_read },
		{ "llmc:prefix_dir_written_tokens_total", "counter",
		  "Tokens of prefix pages written to disk.", (double)c->prefix_written },
		{ "llmc:prefix_dir_wrong_tokens_total", "counter",
		  "Tokens of prefix pages on disk that were damaged, and deleted.",
		  (double)c->prefix_wrong },
		{ "vllm:spec_decode_num_drafts_total", "counter",
		  "Verified drafts, one per sequence and step.", (double)c->drafts },
		{ "vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens verified.",
		  (double)c->drafted },
		{ "vllm:spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted.",
		  (double)c->accepted },
	};
	for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
		head(b, one[i].name, one[i].kind, one[i].help);
		line(b, one[i].name, "", l, one[i].x);
	}
}

/* Cache and state of the model */
static void
vllm_model(Strbuf *b, Server *s, const Slot *t, const char *l, const char *state,
           const llmc_counts *c, const Backend *back)
{
	head(b, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
	     "Draft tokens accepted, by position in the draft.");
	for (int i = 0; i < LLMC_MAX_SPECULATE; i++)
		strbuf_printf(
		    b,
		    "vllm:spec_decode_num_accepted_tokens_per_pos_total{%s,position=\"%d\"} %.0f\n",
		    l, i, (double)c->accepted_at[i]);
	head(b, "vllm:cache_config_info", "gauge", "The KV cache.");
	strbuf_printf(b,
	              "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%lld\",kv_"
	              "tokens=\"%lld\"} 1\n",
	              l, LLMC_KV_PAGE, (long long)c->kv_pages_total,
	              (long long)back->limits.kv_tokens);
	head(b, "vllm:engine_sleep_state", "gauge", "Whether the model is in memory.");
	strbuf_printf(b, "vllm:engine_sleep_state{%s,sleep_state=\"awake\"} %d\n", l,
	              !strcmp(state, "loaded"));
	strbuf_printf(b, "vllm:engine_sleep_state{%s,sleep_state=\"discard_all\"} %d\n", l,
	              strcmp(state, "loaded") != 0);
	head(b, "llmc:model_failed", "gauge", "Whether the model's device has failed.");
	strbuf_printf(b, "llmc:model_failed{%s} %d\n", l, !strcmp(state, "failed"));
	adapter_lines(b, s, t, back->places, l);
}

static void
vllm_reasons(Strbuf *b, const char *l, const llmc_counts *c)
{
	head(b, "vllm:request_success_total", "counter", "Finished choices, by reason.");
	static const char *const reason[] = { "stop", "length", "abort", "error" };
	double ended[] = { (double)(c->finished[LLMC_FINISH_EOS] + c->finished[LLMC_FINISH_STOP] +
		                    c->finished[LLMC_FINISH_TOKEN]),
		           (double)c->finished[LLMC_FINISH_LENGTH],
		           (double)(c->finished[LLMC_FINISH_CANCEL] +
		                    c->finished[LLMC_FINISH_DEADLINE]),
		           (double)c->failed };
	for (int i = 0; i < 4; i++)
		strbuf_printf(b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %.0f\n", l,
		              reason[i], ended[i]);
}

static void
vllm_histograms(Strbuf *b, const char *l, const Metrics *m, const llmc_counts *c)
{
	static const llmc_histogram none;
	const struct {
		const char *name, *help;
		const llmc_histogram *h;
		bool things;
	} many[] = {
		{ "vllm:time_to_first_token_seconds", "Seconds to the first token.",
		  &c->first_token_s, false },
		{ "vllm:inter_token_latency_seconds", "Seconds between tokens.", &c->inter_token_s,
		  false },
		{ "vllm:time_per_output_token_seconds",
		  "Seconds between tokens, under the older name.", &c->inter_token_s, false },
		{ "vllm:e2e_request_latency_seconds", "Seconds from arrival to the end.",
		  &c->request_s, false },
		{ "vllm:request_queue_time_seconds", "Seconds in the queue.", &c->queue_s, false },
		{ "vllm:request_prefill_time_seconds", "Seconds of the prompt.", &c->prefill_s,
		  false },
		{ "vllm:request_decode_time_seconds", "Seconds from the first token on.",
		  &c->decode_s, false },
		{ "vllm:request_prompt_tokens", "Tokens of a prompt.", &c->request_prompt, true },
		{ "vllm:request_generation_tokens", "New tokens of a request.", &c->request_new,
		  true },
		{ "vllm:request_max_num_generation_tokens", "New tokens requested.",
		  &c->request_max_new, true },
		{ "vllm:request_params_max_tokens", "max_tokens of requests.", &c->request_max_new,
		  true },
		{ "vllm:request_params_n", "n of requests.", &c->request_n, true },
		{ "vllm:iteration_tokens_total", "Tokens of a step.", &c->step_tokens, true },
		{ "vllm:kv_block_lifetime_seconds", "Not sampled.", &none, false },
		{ "vllm:kv_block_idle_before_evict_seconds", "Not sampled.", &none, false },
		{ "vllm:kv_block_reuse_gap_seconds", "Not sampled.", &none, false },
	};
	for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
		head(b, many[i].name, "histogram", many[i].help);
		engine_lines(b, many[i].name, l, many[i].h, many[i].things);
	}
	head(b, "vllm:request_inference_time_seconds", "histogram", "Seconds in the batch.");
	hist_lines(b, "vllm:request_inference_time_seconds", l, m->inference.n_bounds,
	           m->inference.bound, m->inference.count, m->inference.sum);
}

static void
vllm_lines(Strbuf *b, Server *s, const Slot *t, const char *state, const Metrics *m,
           const llmc_counts *c, const Backend *back)
{
	Strbuf label = { 0 };

	strbuf_puts(&label, "engine=\"0\",model_name=");
	label_text(&label, t->name);
	const char *l = strbuf_str(&label);
	vllm_numbers(b, l, c);
	vllm_model(b, s, t, l, state, c, back);
	vllm_reasons(b, l, c);
	vllm_histograms(b, l, m, c);
	strbuf_release(&label);
}

/* Merge the metrics of several models. Each text has the same families in the same order; the
 * format demands that the lines of a family are contiguous. TGI's metrics have no model label, so
 * one is added. at: read position in each text. */
static void
merge_model_metrics(Strbuf *b, Strbuf *text, Slot *const *slot, int n)
{
	const char **at = calloc((size_t)n, sizeof *at);
	bool more = at != NULL;

	b->failed |= !at;
	for (int i = 0; at && i < n; i++) {
		at[i] = strbuf_str(&text[i]);
		b->failed |= text[i].failed;
	}
	while (more) {
		more = false;
		for (int i = 0; i < n; i++) {
			/* a family has two comments, then its samples, of which there may be
			 * none */
			int comments = 0;
			while (*at[i] && (*at[i] != '#' || comments < 2)) {
				size_t len = strcspn(at[i], "\n") + 1, name = strcspn(at[i], "{ ");
				comments = *at[i] == '#' ? comments + 1 : 2;
				if (*at[i] == '#') {
					if (i == 0)
						strbuf_add(b, at[i], len);
				} else if (strncmp(at[i], "tgi_", 4) != 0) {
					strbuf_add(b, at[i], len);
				} else {
					strbuf_add(b, at[i], name);
					strbuf_puts(b, "{model_name=");
					label_text(b, slot[i]->name);
					strbuf_puts(b, at[i][name] == '{' ? "," : "}");
					name += at[i][name] == '{';
					strbuf_add(b, at[i] + name, len - name);
				}
				at[i] += len;
			}
			more |= *at[i] != 0;
		}
	}
	free(at);
}

void
metrics_text(Req *r)
{
	Server *s = r->srv;
	int n = models_number(s), used = 0;
	Strbuf b = { 0 }, *text = calloc((size_t)n, sizeof *text);
	Slot **slot = calloc((size_t)n, sizeof *slot);

	for (int i = 0; text && slot && i < n; i++) {
		Slot *t = s->slot[i];
		llmc_counts c = LLMC_INIT(llmc_counts);
		model_counts(s, t, &c);
		pthread_mutex_lock(&s->lock);
		Metrics m = t->metrics;
		Backend about = t->about;
		const char *state = slot_state(t);
		bool removed = t->removed || t->unread;
		pthread_mutex_unlock(&s->lock);
		if (removed)
			continue;
		tgi_lines(&text[used], &m, &c, &about);
		vllm_lines(&text[used], s, t, state, &m, &c, &about);
		slot[used++] = t;
	}
	if (used == 1) {
		b = text[0];
		text[0] = (Strbuf){ 0 };
	} else if (used) {
		merge_model_metrics(&b, text, slot, used);
	}
	b.failed |= !text || !slot;
	for (int i = 0; text && i < n; i++)
		strbuf_release(&text[i]);
	free(text);
	free(slot);
	req_answer(r, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
