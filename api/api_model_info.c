/* Queries of a model: properties, keys, memory, plan. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/sized_struct.h"

static void
put_text(char *dst, size_t cap, const char *src)
{
	size_t n = src ? strlen(src) : 0;

	if (n >= cap)
		n = cap - 1;
	memcpy(dst, src ? src : "", n);
	dst[n] = 0;
}

void
llmc_info(const llmc_model *m, llmc_model_info *info)
{
	llmc_model_info all = LLMC_INIT(llmc_model_info);
	const Plan *p = m->plan;
	const PlanPhase *decode = &p->phase[0];

	put_text(all.name, sizeof all.name, p->name);
	put_text(all.family, sizeof all.family, p->family);
	put_text(all.target, sizeof all.target, p->target);
	all.vocab = (int32_t)p->vocab;
	all.n_layers = p->n_layers;
	all.hidden = (int32_t)p->hidden;
	all.max_positions = (int32_t)p->max_positions;
	all.hard_limit = p->hard_limit;
	all.n_eos = p->n_eos;
	memcpy(all.eos, p->eos, sizeof all.eos);
	all.bos = p->bos;
	all.has_tokenizer = m->tokenizer != NULL;
	all.has_chat_template = llmc_has_chat_template(m->tokenizer);
	all.n_params = p->n_params;
	all.rank = m->first;
	all.ranks = m->cpu_target[0] ? 1 : m->n_rank; /* a model on two devices is one rank */
	all.two_devices = m->cpu_target[0] != 0;
	all.reads_images = p->vision == VISION_ROWS;
	all.row_in = p->takes_rows ? plan_row_width(p) : 0;
	all.row_out = p->outputs_rows ? plan_rows_width(p) : 0;
	all.own_at = p->draft.own_at;
	all.output = p->output;
	all.out_width = (int32_t)plan_out_width(p);
	all.pool = m->spec->pool.kind;
	all.normalize = m->spec->pool.normalize;
	for (int i = 0; i < p->n_tensor; i++)
		all.weight_bytes += plan_tensor_bytes(&p->tensor[i]);
	for (int i = 0; i < decode->n_step; i++)
		all.token_bytes += plan_step_weights(p, &decode->step[i], 1);
	RuntimeTimes t = m->rt ? runtime_times(m->rt) : (RuntimeTimes){ 0 };
	all.load_s = m->load_s;
	all.compile_s = m->compile_s + t.compile_s;
	all.pack_s = t.pack_s;
	SIZED_GIVE(info, all);
}

llmc_status
llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap, size_t *need, llmc_error *err)
{
	Arena a;

	arena_init(&a);
	if (setjmp(a.oom)) {
		arena_release(&a);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	const char *text = spec_get(m->spec, &a, key);
	llmc_status s = text ? copy_out(text, strlen(text), buf, cap, need, err)
	                     : error_set(err, LLMC_E_INPUT, "the description has no key %s", key);
	arena_release(&a);
	return s;
}

llmc_status
llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out, llmc_error *err)
{
	const llmc_limits l = limits_take(m, lim);

	return session_memory(m->plan, &l, out, err);
}

/* True if the tensor has this role, in a layer or outside of layers. */
static bool
is_role(const PlanTensor *t, const char *role)
{
	const char *dot = strchr(t->id, '.');

	return strcmp(t->id, role) == 0 || (dot && strcmp(dot + 1, role) == 0);
}

llmc_status
llmc_rank_for(const llmc_model *m, int32_t rank, const llmc_limits *lim, llmc_rank_info *out,
              llmc_error *err)
{
	llmc_rank_info r = LLMC_INIT(llmc_rank_info);
	const Plan *p = rank >= 0 && rank < m->n_rank ? m->rank[rank] : NULL;

	if (!p)
		return error_set(err, LLMC_E_RANGE, "rank %d of %d does not run in this process",
		                 rank, m->n_rank);
	r.memory.size = sizeof r.memory;
	TRY(session_memory(p, lim, &r.memory, err));
	r.kv_heads =
	    p->n_pool && !p->pool[0].mla && !p->pool[0].state ? (int32_t)p->pool[0].kv_heads : 0;
	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		r.ffn = is_role(t, "down") && t->cols ? t->cols : r.ffn;
		r.expert = is_role(t, "e_down") ? t->cols : r.expert;
		r.shared = is_role(t, "s_down") && t->cols ? t->cols : r.shared;
		r.vocab = is_role(t, "head") && t->cols ? t->rows : r.vocab;
	}
	for (int i = 0; i < p->phase[0].n_step; i++) {
		const PlanStep *s = &p->phase[0].step[i];
		int64_t first, count;
		if (op_info[s->op].flags & OPF_READS_KV)
			r.heads = (int32_t)step_int(s, "heads");
		if (s->op == OP_all_reduce) {
			r.sums++;
			r.sum_bytes += 4 * step_int(s, "width");
		} else if (s->op == OP_all_gather) {
			r.joins++;
			op_share(step_int(s, "width"), step_int(s, "unit"), p->ranks, p->rank,
			         &first, &count);
			r.join_bytes += 4 * count;
		}
	}
	r.vocab = r.vocab ? r.vocab : p->vocab; /* without one the head is tied to the embedding */
	SIZED_GIVE(out, r);
	return LLMC_OK;
}

llmc_status
llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim, int32_t *seqs, llmc_error *err)
{
	llmc_limits l = limits_take(m, lim);
	const int32_t marks = l.marks;
	int32_t fits = 0, too_many = 1 << 20;

	l.kv_tokens = 0; /* 0: default, context * seqs */
	while (too_many - fits > 1) {
		llmc_memory mem = LLMC_INIT(llmc_memory);
		int32_t mid = fits + (too_many - fits) / 2;
		l.seqs = mid;
		l.marks = marks < mid ? marks : mid;
		llmc_status s = session_memory(m->plan, &l, &mem, err);
		if (s != LLMC_OK && s != LLMC_E_RANGE)
			return s;
		if (s == LLMC_E_RANGE && mid == 1)
			return s; /* limits that are invalid at any size */
		if (s == LLMC_OK && mem.weights + mem.kv + mem.scratch + mem.state <= bytes)
			fits = mid;
		else
			too_many = mid;
	}
	*seqs = fits;
	return LLMC_OK;
}

const char *
llmc_plan_text(const llmc_model *m)
{
	return m->plan_text;
}

const char *
llmc_plan_json(const llmc_model *m)
{
	return m->plan_json;
}

const char *
llmc_model_yaml(const llmc_model *m)
{
	return m->spec->yaml;
}

const llmc_tokenizer *
llmc_model_tokenizer(const llmc_model *m)
{
	return m->tokenizer;
}

void
llmc_free(void *p)
{
	free(p);
}
