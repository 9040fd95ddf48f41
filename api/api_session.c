/* Sessions of the public interface. An llmc_session consists of a runtime session and of the model
 * that it keeps open. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/sized_struct.h"
#include "runtime/engine/engine.h"
#include "runtime/sample/sampler.h"

_Static_assert((int)LLMC_KV_PAGE == (int)PLAN_KV_PAGE, "the public size of a page is the plan's");

static llmc_status
without_weights(llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "the model was opened without weights");
}

llmc_status
llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out, llmc_error *err)
{
	llmc_limits l = limits_take(m, lim);

	*out = NULL;
	if (!m->rt)
		return without_weights(err);
	if (l.n_threads == 0)
		l.n_threads = m->n_threads;
	TRY(fit_session(m, &l, err));
	llmc_session *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a session");
	llmc_status status = session_open(m->rt, &l, &s->s, err);
	if (status != LLMC_OK) {
		free(s);
		return status;
	}
	s->model = m;
	llmc_retain(m);
	*out = s;
	return LLMC_OK;
}

bool
model_rows_independent(const llmc_model *m)
{
	const Target *t = target_find(m->plan->target);

	return !t || t->kind != TARGET_CUDA || m->spec->deterministic;
}

llmc_status
llmc_follow(llmc_model *m, llmc_error *err)
{
	if (!m->world || m->first == 0)
		return error_set(err, LLMC_E_RANGE,
		                 "llmc_follow on rank 0, which leads; call it on the other ranks");
	return runtime_follow(m->rt, err);
}

void
llmc_session_close(llmc_session *s)
{
	if (!s)
		return;
	engine_close(s->generate, 0);
	session_close(s->s);
	llmc_close(s->model);
	free(s);
}

llmc_status
llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out, llmc_error *err)
{
	return session_seq_new(s->s, length_bound, out, err);
}

llmc_status
llmc_seq_adapt(llmc_session *s, llmc_seq q, int32_t adapter, llmc_error *err)
{
	/* fails for an adapter that was unloaded */
	TRY(runtime_adapter_ref(s->model->rt, adapter, false, err));
	llmc_status status = session_seq_adapt(s->s, q, adapter, err);
	runtime_adapter_unref(s->model->rt, adapter);
	return status;
}

llmc_status
llmc_adapter_load(llmc_model *m, const char *folder, double scale, int32_t *adapter,
                  llmc_error *err)
{
	/* lora.scale of the description, unless it belongs to an adapter that is merged into the
	 * weights */
	const double all =
	    m->spec->lora.path || m->spec->adapters.slots < 1 ? 1 : m->spec->lora.scale;

	const unsigned faults = file_faults();

	*adapter = 0;
	if (!m->rt)
		return without_weights(err);
	TRY(runtime_adapter_load(m->rt, folder, scale * all, adapter, err));
	if (file_faults() == faults)
		return LLMC_OK;
	runtime_adapter_drop(m->rt, *adapter, NULL);
	*adapter = 0;
	return error_set(
	    err, LLMC_E_IO,
	    "%s: a file was truncated or replaced while it was read; load it again when "
	    "it is complete",
	    folder);
}

llmc_status
llmc_adapter_unload(llmc_model *m, int32_t adapter, llmc_error *err)
{
	return m->rt ? runtime_adapter_drop(m->rt, adapter, err) : without_weights(err);
}

int
llmc_adapter_slots(const llmc_model *m)
{
	return m->spec->adapters.slots;
}

llmc_status
llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out, llmc_error *err)
{
	return session_seq_fork(s->s, from, out, err);
}

llmc_status
llmc_seq_mark(llmc_session *s, llmc_seq q, llmc_error *err)
{
	return session_seq_mark(s->s, q, err);
}

void
llmc_seq_unmark(llmc_session *s, llmc_seq q)
{
	session_seq_unmark(s->s, q);
}

llmc_status
llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err)
{
	return session_seq_trim(s->s, q, len, err);
}

int32_t
llmc_seq_len(const llmc_session *s, llmc_seq q)
{
	return session_seq_len(s->s, q);
}

void
llmc_seq_free(llmc_session *s, llmc_seq q)
{
	session_seq_free(s->s, q);
}

llmc_status
llmc_seq_save(llmc_session *s, llmc_seq q, void *buf, size_t cap, size_t *need, llmc_error *err)
{
	return session_seq_save(s->s, q, buf, cap, need, err);
}

llmc_status
llmc_seq_load(llmc_session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err)
{
	return session_seq_load(s->s, buf, n, out, err);
}

llmc_status
llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err)
{
	return session_forward(s->s, chunk, n, logits, err);
}

/* Are the windows numbered from 0 on, without gaps, and none longer than `most`? */
static bool
windows_fit(const int32_t *window, int32_t n, int64_t most)
{
	int64_t len = 0;

	for (int32_t i = 0; window && i < n; i++) {
		const int32_t before = i ? window[i - 1] : -1;
		if (window[i] != before && window[i] != before + 1)
			return false;
		len = window[i] == before ? len + 1 : 1;
		if (len > most)
			return false;
	}
	return !window || n <= 0 || window[0] == 0;
}

llmc_status
llmc_forward_images(llmc_session *s, const llmc_chunk *chunk, size_t n, const llmc_image_rows *rows,
                    float *logits, llmc_error *err)
{
	const bool tower = s->model->plan->vision == VISION_TOWER;
	const int64_t most = plan_segment(s->model->plan);
	StepRows *own = rows ? calloc(n ? n : 1, sizeof *own) : NULL;
	llmc_status status = LLMC_OK;

	if (rows && !own)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (size_t i = 0; rows && i < n && status == LLMC_OK; i++) {
		llmc_image_rows r = LLMC_INIT(llmc_image_rows);
		SIZED_TAKE_AT(r, rows, i);
		own[i] = (StepRows){ .row = r.row,
			             .at = r.at,
			             .pos = { r.pos[0], r.pos[1], r.pos[2] },
			             .number = r.number,
			             .window = r.window };
		if (!r.window != !most || !windows_fit(r.window, chunk[i].n_tok, most))
			status =
			    error_set(err, LLMC_E_RANGE,
			              most ? "chunk %zu: a tower with windows needs their "
			                     "numbers: from 0 on, each of %lld adjacent patches at "
			                     "most"
			                   : "chunk %zu: this model has no windows",
			              i, (long long)most);
		else if (tower ? !r.row || r.at : r.row && !r.at)
			status =
			    error_set(err, LLMC_E_RANGE, "chunk %zu: %s", i,
			              tower ? "a tower needs a row for each token, without `at`"
			                    : "a language model needs `at` with its rows");
	}
	if (status == LLMC_OK)
		status = session_forward_images(s->s, chunk, n, own, logits, err);
	free(own);
	return status;
}

llmc_status
llmc_forward_rows(llmc_session *s, const llmc_chunk *chunk, size_t n, const float *came,
                  float *logits, float *rows, llmc_error *err)
{
	const Plan *p = s->model->plan;
	const float **each = came ? calloc(n ? n : 1, sizeof *each) : NULL;

	if (!p->outputs_rows)
		return free(each), error_set(err, LLMC_E_RANGE,
		                             "this model returns no rows because mtp.part is none; "
		                             "open it with mtp.part=rows");
	if (came && !each)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	for (size_t i = 0; came && i < n; i++) {
		each[i] = came;
		came += (chunk[i].n_tok > 0 ? chunk[i].n_tok : 0) * plan_row_width(p);
	}
	llmc_status status = session_forward_rows(s->s, chunk, n, each, logits, err);
	for (size_t i = 0; rows && i < n && status == LLMC_OK; i++) {
		size_t floats = (size_t)(chunk[i].n_tok * plan_rows_width(p));
		memcpy(rows, session_rows(s->s, i), floats * sizeof *rows);
		rows += floats;
	}
	free(each);
	return status;
}

llmc_status
llmc_op_times(llmc_session *s, llmc_op_time_fn fn, void *user, llmc_error *err)
{
	return session_op_times(s->s, fn, user, err);
}

void
llmc_session_stats(const llmc_session *s, llmc_stats *out)
{
	llmc_stats all = LLMC_INIT(llmc_stats);

	session_stats(s->s, &all);
	SIZED_GIVE(out, all);
}

bool
llmc_can_sample(const llmc_session *s, const llmc_params *p)
{
	llmc_params all = sampler_params(p);

	return session_can_sample(s->s, &all);
}

llmc_status
llmc_sample_params(llmc_session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt,
                   size_t n_prompt, llmc_error *err)
{
	llmc_params all = sampler_params(p);

	if (!session_can_sample(s->s, &all))
		return error_set(err, LLMC_E_RANGE,
		                 "this session cannot sample with these parameters on its device: "
		                 "use llmc_forward and a sampler");
	return session_sample_params(s->s, q, &all, prompt, n_prompt, NULL, 0, err);
}

llmc_status
llmc_queue_step(llmc_session *s, const llmc_chunk *chunk, size_t n, llmc_error *err)
{
	return session_queue_step(s->s, chunk, n, err);
}

llmc_status
llmc_take_sampled(llmc_session *s, int32_t *ids, float *logprobs, llmc_error *err)
{
	return session_take_sampled(s->s, ids, logprobs, err);
}

/* Add rows [at, at + n) of a sequence of n_tok tokens to its vector. rows: the output rows, which
 * are the last rows of the chunk. */
static void
pool_rows(double *sum, int64_t width, llmc_pool pool, int32_t at, int32_t n, int32_t n_tok,
          const float *row)
{
	for (int32_t i = at; i < at + n; i++, row += width)
		for (int64_t k = 0; k < width && (pool == LLMC_POOL_MEAN ||
		                                  i == (pool == LLMC_POOL_CLS ? 0 : n_tok - 1));
		     k++)
			sum[k] += row[k];
}

static llmc_status
embed_rows(llmc_session *s, llmc_seq q, const int32_t *tok, int32_t n_tok, llmc_pool pool,
           double *sum, llmc_error *err)
{
	const llmc_limits *lim = session_limits_of(s->s);
	const int64_t width = plan_out_width(s->model->plan);
	int32_t most =
	    pool == LLMC_POOL_LAST || s->model->plan->prompt_whole ? lim->chunk : lim->n_out;
	float *rows = malloc((size_t)lim->n_out * (size_t)width * sizeof *rows);
	llmc_status status =
	    rows ? LLMC_OK
	         : error_set(err, LLMC_E_MEMORY, "out of memory for the rows of a sequence");

	for (int32_t at = 0, n; status == LLMC_OK && at < n_tok; at += n) {
		n = n_tok - at < most ? n_tok - at : most;
		int32_t n_out = pool == LLMC_POOL_MEAN  ? n
		                : pool == LLMC_POOL_CLS ? (at == 0 ? n : 0)
		                                        : at + n == n_tok;
		status = session_forward(
		    s->s, &(llmc_chunk){ .seq = q, .tok = tok + at, .n_tok = n, .n_out = n_out }, 1,
		    rows, err);
		if (status == LLMC_OK)
			pool_rows(sum, width, pool, at + n - n_out, n_out, n_tok, rows);
	}
	free(rows);
	return status;
}

llmc_status
llmc_embed(llmc_session *s, const int32_t *tok, size_t n_tok, llmc_pool pool, bool normalize,
           float *out, llmc_error *err)
{
	const Plan *p = s->model->plan;
	const int64_t width = plan_out_width(p);
	llmc_seq q = -1;

	if (p->output == LLMC_OUTPUT_LOGITS)
		return error_set(err, LLMC_E_INPUT,
		                 "this model generates text, not vectors: open it with "
		                 "head.kind=hidden for its last hidden states");
	if (pool <= LLMC_POOL_NONE || pool > LLMC_POOL_CLS)
		return error_set(err, LLMC_E_INPUT,
		                 "no pooling selected: choose last, mean or cls (the first row)");
	if (n_tok == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "the input is empty: a model needs at least one token");
	if (n_tok > (size_t)session_limits_of(s->s)->context)
		return error_set(err, LLMC_E_RANGE,
		                 "the input has %zu tokens, the context holds %d of the model's "
		                 "%lld positions; open the session with a larger context",
		                 n_tok, session_limits_of(s->s)->context,
		                 (long long)s->model->plan->max_positions);
	double *sum = calloc((size_t)width, sizeof *sum);
	if (!sum)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a vector");
	llmc_status status = session_seq_new(s->s, (int32_t)n_tok, &q, err);
	if (status == LLMC_OK)
		status = embed_rows(s, q, tok, (int32_t)n_tok, pool, sum, err);
	if (q >= 0)
		session_seq_free(s->s, q);
	if (status == LLMC_OK)
		pool_vector(sum, width, pool == LLMC_POOL_MEAN ? (int32_t)n_tok : 1, normalize,
		            out);
	free(sum);
	return status;
}
