/* Reports load and capabilities of this replica to routers. SGLang's gateway calls GET /get_load
 * and GET /model_info. Envoy and others send the header endpoint-load-metrics-format with any
 * request (ORCA, Open Request Cost Aggregation), as with vLLM. */
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "serve/models/model.h"
#include "serve/http/route.h"

void
load_sglang(Req *r)
{
	llmc_counts c = LLMC_INIT(llmc_counts);
	Strbuf b = { 0 };

	models_counts(r->srv, &c);
	json_printf(&b,
	            "[{\"dp_rank\":0,\"num_reqs\":%d,\"num_waiting_reqs\":%d,\"num_tokens\":%lld}]",
	            c.running + c.waiting + c.preempted, c.waiting + c.preempted,
	            (long long)c.kv_pages_used * LLMC_KV_PAGE);
	req_answer(r, 200, type_json, &b);
}

void
load_model(Req *r)
{
	Server *s = r->srv;
	Strbuf b = { 0 };

	pthread_mutex_lock(&s->lock);
	const Slot *t = slot_shown(s);
	json_printf(&b, "{\"model_path\":%s,\"served_model_name\":%s,\"is_generation\":",
	            t->about.info.name, t->name);
	strbuf_puts(&b, "true");
	json_printf(&b, ",\"max_model_len\":%d,\"max_running_requests\":%d,\"version\":%s}",
	            t->max_total, t->about.limits.seqs, llmc_version());
	pthread_mutex_unlock(&s->lock);
	req_answer(r, 200, type_json, &b);
}

void
load_header(Req *r, Strbuf *b)
{
	const char *form = req_header(r, "endpoint-load-metrics-format");
	llmc_counts c = LLMC_INIT(llmc_counts);

	if (!form || (strcasecmp(form, "TEXT") != 0 && strcasecmp(form, "JSON") != 0))
		return;
	models_counts(r->srv, &c);
	double kv = c.kv_pages_total > 0 ? (double)c.kv_pages_used / (double)c.kv_pages_total : 0;
	strbuf_puts(b, "endpoint-load-metrics: ");
	if (!strcasecmp(form, "JSON"))
		json_printf(
		    b,
		    "JSON "
		    "{\"named_metrics\":{\"kv_cache_usage_perc\":%g,\"num_requests_waiting\":%d}}",
		    kv, c.waiting + c.preempted);
	else
		json_printf(b,
		            "TEXT named_metrics.kv_cache_usage_perc=%g, "
		            "named_metrics.num_requests_waiting=%d",
		            kv, c.waiting + c.preempted);
	strbuf_puts(b, "\r\n");
}
