/* POST /v1/weights, and SGLang's name for it, /update_weights_from_disk: the weights of an open
 * model are replaced in place by a checkpoint below --weights-dir. Each call runs on a thread of
 * its own, because it waits for the disk and for running requests. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/thread.h"
#include "serve/dialects/openai.h"
#include "serve/http/route.h"
#include "serve/models/model.h"
#include "serve/models/sleep_wake.h"

typedef struct WeightsJob {
	Req *r; /* the call; holds a reference to it and to its model */
	ServedModel *m;
	char *path;
	bool cancel;
	char name[128];
} WeightsJob;

static void
answer(WeightsJob *j, llmc_status status, int64_t version, double seconds, const llmc_error *err)
{
	Problem p = { 0 };
	Strbuf b = { 0 };

	if (status == LLMC_OK) {
		json_printf(&b,
		            "{\"success\":true,\"message\":%s,\"model\":%s,\"version\":%lld,"
		            "\"name\":%s,\"seconds\":%g,\"num_paused_requests\":0}",
		            "the weights are replaced", j->m->name, (long long)version,
		            *j->name ? j->name : NULL, seconds);
		req_answer(j->r, 200, type_json, &b);
		return;
	}
	const int code = status == LLMC_E_INPUT || status == LLMC_E_IO ? 400 : 503;
	problem(&p, code, "path",
	        "The weights of '%.200s' are not replaced, the old ones stay in force: %.700s",
	        j->m->name, err->text);
	p.code = "weights_not_replaced";
	req_problem(j->r, &p);
}

static void *
replace(void *arg)
{
	WeightsJob *j = arg;
	ServedModel *m = j->m;
	Server *s = m->srv;
	llmc_error err = { 0 };
	const double t0 = clock_now();

	const llmc_status status = m->back.replace(m->back.self, j->path, j->cancel, &err);
	const double seconds = clock_now() - t0;
	pthread_mutex_lock(&s->lock);
	m->replacing = false;
	if (status == LLMC_OK) {
		m->n_replaced++;
		memcpy(m->weights_name, j->name, sizeof m->weights_name);
	}
	const int64_t version = m->n_replaced;
	pthread_mutex_unlock(&s->lock);
	if (status == LLMC_OK)
		serve_log(s, LLMC_LOG_INFO, "model %s: weights replaced in %.1f s, version %lld",
		          m->name, seconds, (long long)version);
	else
		serve_log(s, LLMC_LOG_WARNING, "warning: model %s: weights are not replaced: %s",
		          m->name, err.text);
	answer(j, status, version, seconds, &err);
	req_unref(j->r);
	free(j->path);
	free(j);
	model_unref(m);
	pthread_mutex_lock(&s->lock);
	s->n_replacing--;
	pthread_cond_broadcast(&s->idle);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void
weights_wait(Server *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->n_replacing)
		pthread_cond_wait(&s->idle, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

/* Start the thread of a call, which then owns j. */
static bool
start(WeightsJob *j, Problem *p)
{
	Server *s = j->r->srv;
	pthread_t thread;

	pthread_mutex_lock(&s->lock);
	if (s->closing)
		problem_closing(p);
	else if (j->m->replacing)
		problem(p, 409, "model", "The weights of '%.200s' are being replaced.", j->m->name);
	const bool ok = !p->status;
	if (ok) {
		j->m->replacing = true;
		model_ref(j->m);
		atomic_fetch_add(&j->r->refs, 1);
		s->n_replacing++;
	}
	pthread_mutex_unlock(&s->lock);
	if (!ok)
		return false;
	if (thread_create(&thread, NULL, replace, j) == 0) {
		pthread_detach(thread);
		return true;
	}
	pthread_mutex_lock(&s->lock);
	j->m->replacing = false;
	s->n_replacing--;
	pthread_mutex_unlock(&s->lock);
	model_unref(j->m);
	req_unref(j->r);
	return problem_memory(p);
}

/* Read a body. sglang: fields have SGLang's names. */
static bool
read_body(const Req *r, const json_t *o, bool sglang, WeightsJob *j, Problem *p)
{
	const char *path, *how, *name, *path_key = sglang ? "model_path" : "path",
	                               *name_key = sglang ? "weight_version" : "name";
	bool flush = true;

	if (!field_text(o, path_key, &path, p) || !field_text(o, name_key, &name, p) ||
	    !field_text(o, sglang ? "load_format" : "in_flight", &how, p))
		return false;
	if (sglang) {
		if (!field_bool(o, "abort_all_requests", &j->cancel, p) ||
		    !field_bool(o, "flush_cache", &flush, p))
			return false;
		if (!flush)
			return problem(p, 400, "flush_cache",
			               "'flush_cache' must be true: cached prefixes of the old "
			               "weights are never used with the new ones.");
		if (how && strcmp(how, "auto") != 0 && strcmp(how, "safetensors") != 0)
			return problem(p, 400, "load_format",
			               "Invalid 'load_format': expected \"auto\".");
	} else {
		j->cancel = how && !strcmp(how, "abort");
		if (how && !j->cancel && strcmp(how, "wait") != 0)
			return problem(p, 400, "in_flight",
			               "Invalid 'in_flight': expected \"wait\" or \"abort\".");
	}
	if (!path || !*path)
		return problem(p, 400, path_key,
		               "'%s' is missing: expected a file or folder below --weights-dir.",
		               path_key);
	if (name && strlen(name) >= sizeof j->name)
		return problem(p, 400, name_key, "Invalid '%s': at most %zu bytes.", name_key,
		               sizeof j->name - 1);
	snprintf(j->name, sizeof j->name, "%s", name ? name : "");
	j->path = path_below(r->srv->opt.weights_dir, path);
	return j->path || problem(p, 404, path_key,
	                          "There is no '%.300s' below the folder of --weights-dir.", path);
}

static void
call(Req *r, bool sglang)
{
	Problem p = { 0 };
	WeightsJob *j = NULL;
	json_t *o = NULL;

	if (!r->srv->opt.weights_dir)
		problem(&p, 403, NULL,
		        "Weights cannot be replaced here: start the server with --weights-dir, the "
		        "folder of new weights.");
	else if (sleep_allowed(r, &p) && !r->model->back.replace)
		problem(&p, 400, "model", "The weights of '%.200s' cannot be replaced in place.",
		        r->model->name);
	if (!p.status)
		o = body_object(&r->body, &p);
	if (o && openai_model(r, o, &p) && !(j = calloc(1, sizeof *j)))
		problem_memory(&p);
	if (j) {
		j->r = r;
		j->m = r->model;
	}
	const bool ok = j && read_body(r, o, sglang, j, &p) && start(j, &p);
	json_decref(o);
	if (ok)
		return;
	if (j)
		free(j->path);
	free(j);
	req_problem(r, &p);
}

void
weights_replace(Req *r)
{
	call(r, false);
}

void
weights_from_disk(Req *r)
{
	call(r, true);
}

void
sglang_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	json_printf(&b, "{\"success\":false,\"message\":%s,\"num_paused_requests\":0}", p->text);
	req_answer(r, p->status, type_json, &b);
}
