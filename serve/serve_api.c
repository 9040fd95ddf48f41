/* Public calls: a server over real engines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized_struct.h"
#include "serve/http/api_keys.h"
#include "serve/models/model.h"

static llmc_status
engine_submit(void *self, const llmc_request *r, int64_t *id, llmc_error *err)
{
	return llmc_submit(self, r, id, err);
}

static llmc_status
engine_next(void *self, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	return llmc_next(self, LLMC_ANY, timeout_ms, ev, err);
}

static void
engine_cancel(void *self, int64_t id)
{
	llmc_cancel(self, id);
}

static void
engine_stats(void *self, llmc_counts *out)
{
	llmc_engine_stats(self, out);
}

static llmc_status
engine_replace(void *self, const char *path, bool cancel, llmc_error *err)
{
	llmc_replace_options o = LLMC_INIT(llmc_replace_options);

	o.cancel_running = cancel;
	return llmc_engine_replace_weights(self, path, &o, err);
}

static void
describe(Backend *b, const llmc_model *m, const llmc_limits *lim, const llmc_engine_options *eo)
{
	char dtype[16] = "";
	size_t need;

	b->limits = *lim;
	b->info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &b->info);
	b->advice = LLMC_INIT(llmc_advice);
	llmc_sampling_advice(m, &b->advice);
	llmc_get(m, "dtype", dtype, sizeof dtype, &need, NULL);
	snprintf(b->dtype, sizeof b->dtype, "%s",
	         !strcmp(dtype, "f32")    ? "float32"
	         : !strcmp(dtype, "f16")  ? "float16"
	         : !strcmp(dtype, "bf16") ? "bfloat16"
	                                  : dtype);
	if (llmc_get(m, "quant.method", b->quant_format, sizeof b->quant_format, &need, NULL) !=
	        LLMC_OK ||
	    !b->quant_format[0] || !strcmp(b->quant_format, "null"))
		llmc_get(m, "storage.default", b->quant_format, sizeof b->quant_format, &need,
		         NULL);
	b->max_concurrent = eo && eo->max_concurrent_requests ? eo->max_concurrent_requests
	                                                      : LLMC_DEFAULT_CONCURRENT_REQUESTS;
	b->max_waiting_tokens =
	    eo && eo->max_waiting_tokens ? eo->max_waiting_tokens : LLMC_DEFAULT_WAITING_TOKENS;
	b->waiting_served_ratio = eo ? eo->waiting_served_ratio : 0;
	b->max_batch_total =
	    eo && eo->max_batch_total_tokens ? eo->max_batch_total_tokens : lim->kv_tokens;
	b->places = llmc_adapter_slots(m);
}

static Backend
backend(llmc_model *m, llmc_engine *e, llmc_tower *tower, const llmc_engine_options *eo)
{
	Backend b = { .self = e,
		      .submit = engine_submit,
		      .next = engine_next,
		      .release = llmc_event_release,
		      .cancel = engine_cancel,
		      .stats = engine_stats,
		      .replace = engine_replace };

	b.model = m;
	b.tower = tower;
	b.tok = llmc_model_tokenizer(m);
	b.prompts = llmc_input_prompts(m, &b.n_prompt);
	describe(&b, m, llmc_engine_limits(e), eo);
	return b;
}

llmc_status
llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt, llmc_server **out,
                llmc_error *err)
{
	Backend b = backend(m, e, NULL, opt ? opt->engine : NULL);

	return server_open(&b, opt, out, err);
}

/* ---- models that are loaded and unloaded ---- */

static void
model_close(Backend *b)
{
	llmc_engine_close(b->self, 0);
	llmc_tower_close(b->tower);
	llmc_close(b->model);
}

/* Return the limits of an engine that the options set; context and kv_tokens may still be 0. */
static llmc_limits
limits_for(const llmc_serve_model *o, const llmc_model *m)
{
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	const llmc_engine_options *eo = o->engine_options;

	if (eo && eo->limits)
		lim = *eo->limits;
	llmc_info(m, &info);
	/* lower the context: the setting is shared by all models of a server */
	if (info.hard_limit && lim.context > info.max_positions)
		lim.context = info.max_positions;
	if (!lim.seqs)
		lim.seqs = 16;
	/* needed here because the size of scratch memory depends on it */
	if (!lim.n_threads && o->options)
		lim.n_threads = o->options->n_threads;
	if (!lim.snapshots && !(eo && eo->no_prefix_cache))
		lim.snapshots = LLMC_DEFAULT_SNAPSHOTS;
	if (!lim.marks && !(eo && eo->speculate < 0))
		lim.marks = lim.seqs < LLMC_DEFAULT_MARKS ? lim.seqs : LLMC_DEFAULT_MARKS;
	if (!lim.kv_tokens && eo)
		lim.kv_tokens = eo->max_batch_total_tokens;
	return lim;
}

static llmc_status
bytes_for(const llmc_model *m, const llmc_limits *lim, int64_t *bytes, llmc_error *err)
{
	llmc_memory mem = LLMC_INIT(llmc_memory);

	TRY(llmc_memory_for(m, lim, &mem, err));
	*bytes = mem.weights + mem.kv + mem.scratch + mem.state;
	return LLMC_OK;
}

typedef struct KnownModel { /* self of a ModelSource */
	llmc_serve_model o;
	llmc_serve_model found; /* options of models of the catalogue */
	bool has_found;
	char *path; /* path of a model of the catalogue */
	pthread_mutex_t lock;
	char doing[120];  /* progress of a running open, under lock */
	llmc_options opt; /* for an adapter: options of the base model and one more setting */
	const char **set;
	char *lora;
	/* limits, chosen when the model is first described or opened; size 0: not chosen yet */
	llmc_limits lim;
} KnownModel;

static void
known_free(void *self)
{
	KnownModel *k = self;

	pthread_mutex_destroy(&k->lock);
	free(k->set);
	free(k->lora);
	free(k->path);
	free(k);
}

static KnownModel *
known_new(const llmc_serve_model *o)
{
	KnownModel *k = calloc(1, sizeof *k);

	if (k) {
		k->o = *o;
		pthread_mutex_init(&k->lock, NULL);
	}
	return k;
}

/* ---- progress ---- */

static void
set_doing(KnownModel *k, const char *text)
{
	pthread_mutex_lock(&k->lock);
	snprintf(k->doing, sizeof k->doing, "%s", text);
	pthread_mutex_unlock(&k->lock);
}

static void
model_progress(void *self, char *buf, size_t cap)
{
	KnownModel *k = self;

	pthread_mutex_lock(&k->lock);
	snprintf(buf, cap, "%s", k->doing);
	pthread_mutex_unlock(&k->lock);
}

/* Store log lines that report progress of an open; pass other lines to the server's log. */
static void
open_log(void *user, int level, const char *line)
{
	KnownModel *k = user;
	const llmc_options *o = k->o.options;

	if (level == LLMC_LOG_PROGRESS)
		set_doing(k, line);
	if (o && o->log)
		o->log(o->log_user, level, line);
}

/* Choose the model's limits by the free memory, once. Later engines of the model have the same
 * limits, so that clients see one context length. aside: bytes to leave free for a tower that is
 * not open yet. */
static llmc_status
choose_limits(KnownModel *k, const llmc_model *m, bool must_fit, int64_t aside, llmc_error *err)
{
	const llmc_limits given = k->lim.size ? k->lim : limits_for(&k->o, m);
	llmc_fitted f = LLMC_INIT(llmc_fitted);
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_status status = llmc_fit_limits(m, &given, 0, &f, err);

	if (status == LLMC_OK && aside > 0 && f.free != INT64_MAX)
		status = llmc_fit_limits(m, &given, f.free > aside ? f.free - aside : 1, &f, err);
	llmc_info(m, &info);
	/* too large for the free memory: other models will be closed to make space */
	if (status == LLMC_E_FULL && !must_fit) {
		f.limits = given;
		if (!given.context)
			f.limits.context = info.max_positions < LLMC_DEFAULT_CONTEXT
			                       ? info.max_positions
			                       : LLMC_DEFAULT_CONTEXT;
		status = LLMC_OK;
	}
	TRY(status);
	k->lim = f.limits;
	k->lim.size = sizeof k->lim;
	const int64_t most = (int64_t)LLMC_DEFAULT_KV_CONTEXTS * k->lim.context;
	if (!given.kv_tokens && (!k->lim.kv_tokens || k->lim.kv_tokens > most))
		k->lim.kv_tokens = k->lim.seqs < LLMC_DEFAULT_KV_CONTEXTS
		                       ? (int64_t)k->lim.context * k->lim.seqs
		                       : most;
	return LLMC_OK;
}

/* Refuse a model that does not fit, before its weights are read. If all of the model is on a GPU,
 * the GPU's own check does this. */
static llmc_status
refuse_unfit(void *self, const llmc_model *m, llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);

	set_doing(self, "reading weights and building kernels");
	llmc_info(m, &info);
	return info.two_devices || strncmp(info.target, "cuda", 4) != 0
	           ? choose_limits(self, m, true, 0, err)
	           : LLMC_OK;
}

/* Open the tower of a model that reads images. */
static llmc_status
open_tower(llmc_model *m, const llmc_options *opt, llmc_tower **out, llmc_error *err)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);

	llmc_info(m, &info);
	return info.reads_images ? llmc_tower_open(m, opt, out, err) : LLMC_OK;
}

static llmc_status
model_look(void *self, Backend *about, int64_t *bytes, llmc_error *err)
{
	KnownModel *k = self;
	const llmc_serve_model *o = &k->o;
	llmc_options opt = LLMC_INIT(llmc_options);
	llmc_tower *tower = NULL;
	llmc_model *m;

	if (o->options)
		opt = *o->options;
	opt.no_weights = true;
	opt.log = open_log;
	opt.log_user = k;
	set_doing(k, "reading the description");
	TRY(llmc_open(o->path, &opt, &m, err));
	llmc_status status = open_tower(m, &opt, &tower, err);
	const int64_t aside = tower ? llmc_tower_bytes(tower) : 0;
	if (status == LLMC_OK)
		status = choose_limits(k, m, false, aside, err);
	if (status == LLMC_OK)
		status = bytes_for(m, &k->lim, bytes, err);
	if (status == LLMC_OK) {
		*bytes += aside;
		describe(about, m, &k->lim, o->engine_options);
	}
	llmc_tower_close(tower);
	llmc_close(m);
	return status;
}

static llmc_status
model_open(void *self, Backend *out, llmc_error *err)
{
	KnownModel *k = self;
	const llmc_serve_model *o = &k->o;
	llmc_engine_options eo = LLMC_INIT(llmc_engine_options);
	llmc_options opt = LLMC_INIT(llmc_options);
	llmc_tower *tower = NULL;
	llmc_model *m;
	llmc_engine *e;

	if (o->options)
		opt = *o->options;
	opt.planned = refuse_unfit;
	opt.planned_user = k;
	opt.log = open_log;
	opt.log_user = k;
	set_doing(k, "compiling the plan");
	TRY(llmc_open(o->path, &opt, &m, err));
	if (o->engine_options)
		eo = *o->engine_options;
	/* open the tower first, so that the limits leave it its memory */
	llmc_status status = open_tower(m, &opt, &tower, err);
	if (status == LLMC_OK)
		status = choose_limits(k, m, true, 0, err);
	eo.limits = &k->lim;
	set_doing(k, "starting the engine");
	if (status == LLMC_OK)
		status = llmc_engine_open(m, &eo, &e, err);
	if (status == LLMC_OK) {
		*out = backend(m, e, tower, o->engine_options);
	} else {
		llmc_tower_close(tower);
		llmc_close(m);
	}
	return status;
}

/* ---- adapters in slots: names that borrow the engine of their base model ---- */

typedef struct SharedEngine { /* self of a Backend */
	void *engine;
	llmc_model *model;
	int32_t adapter;
} SharedEngine;

static llmc_status
view_submit(void *self, const llmc_request *r, int64_t *id, llmc_error *err)
{
	const SharedEngine *v = self;
	llmc_request own = *r;

	own.adapter = v->adapter;
	return llmc_submit(v->engine, &own, id, err);
}

static void
view_cancel(void *self, int64_t id)
{
	llmc_cancel(((const SharedEngine *)self)->engine, id);
}

/* Report no counters: the engine's counters appear under the name of the base model. */
static void
view_stats(void *self, llmc_counts *out)
{
	(void)self;
	(void)out;
}

static void
view_close(Backend *b)
{
	SharedEngine *v = b->self;

	llmc_adapter_unload(v->model, v->adapter, NULL);
	free(v);
}

static llmc_status
view_join(void *self, const Backend *of, Backend *out, llmc_error *err)
{
	SharedEngine *v = calloc(1, sizeof *v);

	if (!v)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	*v = (SharedEngine){ .engine = of->self, .model = of->model };
	llmc_status status =
	    llmc_adapter_load(v->model, ((const KnownModel *)self)->o.adapter, 1, &v->adapter, err);
	if (status != LLMC_OK) {
		free(v);
		return status;
	}
	*out = *of;
	out->self = v;
	out->submit = view_submit;
	out->cancel = view_cancel;
	out->stats = view_stats;
	out->replace = NULL;
	return LLMC_OK;
}

static llmc_status
view_open(void *self, Backend *out, llmc_error *err)
{
	(void)self;
	(void)out;
	return error_set(err, LLMC_E_INPUT, "the adapter's base model is not loaded");
}

static llmc_status
view_look(void *self, Backend *about, int64_t *bytes, llmc_error *err)
{
	TRY(model_look(self, about, bytes, err));
	*bytes = 0; /* an adapter needs no further memory: its slot belongs to the base model */
	return LLMC_OK;
}

static llmc_status model_adapt(void *self, const char *dir, ModelSource *out, llmc_error *err);
static llmc_status model_sibling(void *self, const char *path, ModelSource *out, llmc_error *err);

static ModelSource
known_model_source(KnownModel *k)
{
	if (k->o.adapter)
		return (ModelSource){ .self = k,
			              .look = view_look,
			              .open = view_open,
			              .join = view_join,
			              .close = view_close,
			              .free = known_free };
	return (ModelSource){ .self = k,
		              .look = model_look,
		              .open = model_open,
		              .close = model_close,
		              .free = known_free,
		              .progress = model_progress,
		              .sibling = k->has_found ? model_sibling : NULL,
		              .adapt = model_adapt };
}

static llmc_status
model_sibling(void *self, const char *path, ModelSource *out, llmc_error *err)
{
	const KnownModel *first = self;
	KnownModel *k = known_new(&first->found);

	if (!k || !(k->path = strdup(path))) {
		if (k)
			known_free(k);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	k->o.path = k->path;
	k->o.name = k->o.parent = k->o.adapter = NULL;
	k->o.model = NULL;
	k->o.engine = NULL;
	*out = known_model_source(k);
	return LLMC_OK;
}

/* Report whether the model's plan has adapter slots. */
static llmc_status
has_slots(const KnownModel *k, bool *slots, llmc_error *err)
{
	llmc_options opt = LLMC_INIT(llmc_options);
	llmc_model *m;

	if (k->o.options)
		opt = *k->o.options;
	opt.no_weights = true;
	TRY(llmc_open(k->o.path, &opt, &m, err));
	*slots = llmc_adapter_slots(m) > 0;
	llmc_close(m);
	return LLMC_OK;
}

static llmc_status
model_adapt(void *self, const char *dir, ModelSource *out, llmc_error *err)
{
	const KnownModel *base = self;
	bool slots;

	TRY(has_slots(base, &slots, err));
	if (slots) {
		KnownModel *k = known_new(&base->o);
		if (!k || !(k->o.adapter = k->lora = strdup(dir))) {
			if (k)
				known_free(k);
			return error_set(err, LLMC_E_MEMORY, "out of memory");
		}
		k->o.model = NULL;
		k->o.engine = NULL;
		*out = known_model_source(k);
		return LLMC_OK;
	}
	const char *const *set = base->o.options ? base->o.options->set : NULL;
	size_t n = 0;

	if (strpbrk(dir, "\"\\"))
		return error_set(err, LLMC_E_INPUT, "%s: a path must not contain quotes", dir);
	for (; set && set[n]; n++)
		if (!strncmp(set[n], "lora.path", 9))
			return error_set(err, LLMC_E_INPUT,
			                 "the model's weights already include an adapter");
	KnownModel *k = known_new(&base->o);
	if (k) {
		k->o.model = NULL;
		k->o.engine = NULL;
		k->opt = base->o.options ? *base->o.options : LLMC_INIT(llmc_options);
		k->o.options = &k->opt;
		k->set = calloc(n + 2, sizeof *k->set);
		if (asprintf(&k->lora, "lora.path=\"%s\"", dir) < 0)
			k->lora = NULL;
	}
	if (!k || !k->set || !k->lora) {
		if (k)
			known_free(k);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	for (size_t i = 0; i < n; i++)
		k->set[i] = set[i];
	k->set[n] = k->lora;
	k->opt.set = k->set;
	*out = known_model_source(k);
	return LLMC_OK;
}

/* Open a server for the models of a folder or of the download cache, without a model of its own. */
static llmc_status
open_catalogue(const llmc_serve_options *so, const llmc_serve_options *opt, llmc_server **out,
               llmc_error *err)
{
	llmc_serve_model found = LLMC_INIT(llmc_serve_model);

	SIZED_TAKE(found, so->found);
	KnownModel *k = known_new(&found);
	if (!k)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	k->found = found;
	k->has_found = true;
	return server_open_models(&(SlotInit){ .src = known_model_source(k), .nameless = true }, 1,
	                          opt, out, err);
}

llmc_status
llmc_serve_open_models(const llmc_serve_model *models, int32_t n, const llmc_serve_options *opt,
                       llmc_server **out, llmc_error *err)
{
	llmc_serve_options so = LLMC_INIT(llmc_serve_options);

	*out = NULL;
	SIZED_TAKE(so, opt);
	if (n == 0 && (so.models_dir || so.models_pulled))
		return open_catalogue(&so, opt, out, err);
	SlotInit *init = calloc((size_t)n + 1, sizeof *init);
	Backend *open = calloc((size_t)n + 1, sizeof *open);
	llmc_serve_model *own = calloc((size_t)n + 1, sizeof *own);
	llmc_status status = LLMC_OK;

	if (!init || !open || !own || n < 1)
		status = error_set(err, n < 1 ? LLMC_E_INPUT : LLMC_E_MEMORY,
		                   n < 1 ? "no model to serve" : "out of memory");
	for (int32_t i = 0; i < n && init && open && own; i++) {
		SIZED_TAKE(own[i], &models[i]);
		KnownModel *k = known_new(&own[i]);
		init[i] = (SlotInit){ .name = own[i].name, .parent = own[i].parent };
		if (own[i].adapter && (!own[i].parent || own[i].engine) && status == LLMC_OK)
			status = error_set(
			    err, LLMC_E_INPUT,
			    "an adapter in a slot needs a parent and has no engine of its own");
		if (k) {
			k->has_found = so.models_dir || so.models_pulled;
			k->found = own[0];
			SIZED_TAKE(k->found, so.found);
			init[i].src = known_model_source(k);
		} else {
			init[i].src.close = model_close;
			status = error_set(err, LLMC_E_MEMORY, "out of memory");
		}
		if (own[i].engine) {
			open[i] = backend(own[i].model, own[i].engine, own[i].tower,
			                  own[i].engine_options);
			init[i].back = &open[i];
			if (status == LLMC_OK)
				status =
				    bytes_for(own[i].model, &open[i].limits, &init[i].bytes, err);
			init[i].bytes += own[i].tower ? llmc_tower_bytes(own[i].tower) : 0;
		}
	}
	if (status == LLMC_OK)
		status = server_open_models(init, n, opt, out, err);
	else
		for (int32_t i = 0; i < n && init && open && own; i++)
			models_drop(&init[i]);
	free(init);
	free(open);
	free(own);
	return status;
}

int
llmc_serve_port(const llmc_server *s)
{
	return s->port;
}

const char *
llmc_serve_url(const llmc_server *s)
{
	return s->url;
}

void
llmc_serve_drain(llmc_server *s)
{
	server_drain(s);
}

void
llmc_serve_stop(llmc_server *s)
{
	server_stop(s);
}

bool
llmc_serve_wait(llmc_server *s, int timeout_ms)
{
	return server_wait(s, timeout_ms);
}

llmc_status
llmc_serve_reload_keys(llmc_server *s, llmc_error *err)
{
	return s->keys ? keys_reread(s->keys, &s->lock, err) : LLMC_OK;
}

bool
llmc_serve_failed(llmc_server *s)
{
	return models_failed(s);
}

void
llmc_serve_close(llmc_server *s)
{
	server_close(s);
}
