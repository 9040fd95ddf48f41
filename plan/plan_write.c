/* Writes a plan as JSON. The same plan gives the same bytes in any folder and locale.
 * docs/plan-format.md describes the keys. */
#include "plan/plan.h"

#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"

static void
put_str(Strbuf *out, const char *s)
{
	if (s)
		json_str(out, s, strlen(s));
	else
		strbuf_puts(out, "null");
}

static void
key_str(Strbuf *out, const char *key, const char *s)
{
	strbuf_printf(out, "\"%s\":", key);
	put_str(out, s);
	strbuf_putc(out, ',');
}

static void
key_int(Strbuf *out, const char *key, int64_t v)
{
	strbuf_printf(out, "\"%s\":%" PRId64 ",", key, v);
}

static void
key_bool(Strbuf *out, const char *key, bool v)
{
	strbuf_printf(out, "\"%s\":%s,", key, v ? "true" : "false");
}

static void
key_num(Strbuf *out, const char *key, double v)
{
	strbuf_printf(out, "\"%s\":", key);
	json_num(out, v, NUMBER_EXACT);
	strbuf_putc(out, ',');
}

static void
key_nums(Strbuf *out, const char *key, const double *v, int n)
{
	strbuf_printf(out, "\"%s\":[", key);
	for (int i = 0; i < n; i++) {
		if (i)
			strbuf_putc(out, ',');
		json_num(out, v[i], NUMBER_EXACT);
	}
	strbuf_puts(out, "],");
}

/* Replaces the comma after the last element by the closing bracket. */
static void
end(Strbuf *out, char bracket)
{
	if (out->len && out->data[out->len - 1] == ',')
		out->data[--out->len] = 0;
	strbuf_putc(out, bracket);
}

static void
put_extent(Strbuf *out, const PlanExtent *e)
{
	if (e->sym == SYM_one)
		strbuf_printf(out, "%" PRId64, e->mul);
	else if (e->div <= 1)
		strbuf_printf(out, "{\"%s\":%" PRId64 "}", plan_sym_text[e->sym], e->mul);
	else
		strbuf_printf(out, "{\"%s\":[%" PRId64 ",%" PRId64 "]}", plan_sym_text[e->sym],
		              e->mul, e->div);
}

static void
put_tensor(Strbuf *out, const PlanTensor *t)
{
	strbuf_putc(out, '{');
	key_str(out, "id", t->id);
	key_str(out, "dtype", dtype_text(t->dtype));
	key_int(out, "rows", t->rows);
	key_int(out, "cols", t->cols);
	key_str(out, "layout", t->layout);
	key_int(out, "scale_cols", t->scale_cols);
	key_bool(out, "symmetric", t->symmetric);
	if (t->factor) {
		key_str(out, "factor", t->factor == FACTOR_A ? "a" : "b");
		key_int(out, "slots", t->slots);
		key_int(out, "rank", t->rank);
		if (t->experts) {
			key_int(out, "experts", t->experts);
			key_int(out, "first_expert", t->first_expert);
			key_int(out, "all_experts", t->all_experts);
		}
	}
	strbuf_puts(out, "\"src\":[");
	for (int i = 0; i < t->n_src; i++) {
		const PlanSource *s = &t->src[i];
		strbuf_putc(out, '{');
		key_str(out, "name", s->name);
		key_int(out, "rows", s->rows);
		key_int(out, "cols", s->cols);
		key_int(out, "first", s->first);
		key_int(out, "block", s->block);
		key_int(out, "stride", s->stride);
		key_int(out, "n_block", s->n_block);
		key_int(out, "rope_pairs", s->rope_pairs);
		key_int(out, "transpose", s->transpose);
		key_bool(out, "unit_rows", s->unit_rows);
		key_bool(out, "permuted", s->permuted);
		if (s->col_total) {
			key_int(out, "col_first", s->col_first);
			key_int(out, "col_total", s->col_total);
		}
		key_str(out, "stored", s->stored);
		if (s->rows_in)
			key_str(out, "rows_in", s->rows_in);
		if (s->col_groups)
			key_int(out, "col_groups", s->col_groups);
		if (s->lora) {
			key_str(out, "lora", s->lora);
			key_int(out, "lora_first", s->lora_first);
			key_int(out, "lora_block", s->lora_block);
			key_int(out, "lora_stride", s->lora_stride);
		}
		end(out, '}');
		strbuf_putc(out, ',');
	}
	end(out, ']');
	strbuf_putc(out, '}');
}

static void
put_pool(Strbuf *out, const PlanPool *p)
{
	strbuf_putc(out, '{');
	key_str(out, "id", p->id);
	key_bool(out, "mla", p->mla);
	if (p->state)
		key_bool(out, "state", true);
	key_str(out, "k", kv_type_info(p->k)->text);
	key_str(out, "v", kv_type_info(p->v)->text);
	key_bool(out, "rotate", p->rotate);
	key_int(out, "n_layers", p->n_layers);
	key_int(out, "kv_heads", p->kv_heads);
	key_int(out, "k_dim", p->k_dim);
	key_int(out, "v_dim", p->v_dim);
	key_int(out, "keep", p->keep);
	if (p->recent || p->sinks) {
		key_int(out, "recent", p->recent);
		key_int(out, "sinks", p->sinks);
	}
	if (p->segment)
		key_int(out, "segment", p->segment);
	end(out, '}');
}

static void
put_rope(Strbuf *out, const PlanRope *r)
{
	strbuf_putc(out, '{');
	key_num(out, "theta", r->theta);
	key_int(out, "dims", r->dims);
	key_str(out, "scaling", r->scaling);
	key_num(out, "factor", r->factor);
	key_num(out, "turning", r->turning);
	key_num(out, "original_positions", r->original_positions);
	key_num(out, "low_freq_factor", r->low_freq_factor);
	key_num(out, "high_freq_factor", r->high_freq_factor);
	key_num(out, "beta_fast", r->beta_fast);
	key_num(out, "beta_slow", r->beta_slow);
	key_num(out, "attention_factor", r->attention_factor);
	key_num(out, "mscale", r->mscale);
	key_num(out, "mscale_all_dim", r->mscale_all_dim);
	key_bool(out, "truncate", r->truncate);
	key_nums(out, "short_factor", r->short_factor, r->n_short);
	key_nums(out, "long_factor", r->long_factor, r->n_long);
	strbuf_puts(out, "\"factors_tensor\":[");
	put_str(out, r->factors_tensor[0]);
	strbuf_putc(out, ',');
	put_str(out, r->factors_tensor[1]);
	strbuf_puts(out, "],");
	key_int(out, "axis", r->axis);
	if (plan_rope_sections(r)) {
		strbuf_printf(out, "\"sections\":[%d,%d,%d],", r->section[0], r->section[1],
		              r->section[2]);
		key_bool(out, "interleaved", r->interleaved);
		key_str(out, "frequencies", r->frequencies);
	}
	end(out, '}');
}

static void
put_buffer(Strbuf *out, const PlanBuffer *b)
{
	strbuf_putc(out, '{');
	key_str(out, "id", b->id);
	key_str(out, "dtype", dtype_text(b->dtype));
	strbuf_puts(out, "\"extent\":");
	put_extent(out, &b->extent);
	strbuf_putc(out, ',');
	key_int(out, "slot", b->slot);
	end(out, '}');
}

static void
put_kernel(Strbuf *out, const PlanKernel *k)
{
	strbuf_putc(out, '{');
	key_str(out, "id", k->id);
	key_str(out, "file", k->file);
	key_str(out, "symbol", k->symbol);
	if (k->n_launch) {
		strbuf_puts(out, "\"launch\":[");
		for (int i = 0; i < k->n_launch; i++) {
			const PlanLaunch *u = &k->launch[i];
			strbuf_putc(out, '{');
			if (!u->fn) {
				strbuf_printf(
				    out, "\"product\":{\"act\":%d,\"w\":%d,\"y\":%d,\"add\":%d,",
				    u->product.act, u->product.w, u->product.y, u->product.add);
				key_num(out, "beta", u->product.beta);
				end(out, '}');
				strbuf_puts(out, "},");
				continue;
			}
			key_str(out, "fn", u->fn);
			key_int(out, "block", u->block);
			strbuf_puts(out, "\"grid\":[");
			for (int d = 0; d < 3; d++) {
				put_extent(out, &u->grid[d]);
				strbuf_putc(out, ',');
			}
			end(out, ']');
			strbuf_putc(out, ',');
			key_int(out, "shared", u->shared);
			key_int(out, "cluster", u->cluster);
			key_bool(out, "pdl", u->pdl);
			if (u->rounds)
				key_int(out, "rounds", u->rounds);
			key_str(out, "path", plan_path_text[u->path]);
			key_str(out, "rows", plan_sym_text[u->rows]);
			key_int(out, "least", u->least);
			key_int(out, "most", u->most);
			end(out, '}');
			strbuf_putc(out, ',');
		}
		end(out, ']');
		strbuf_puts(out, ",\"map\":[");
		for (int i = 0; i < k->n_map; i++) {
			const PlanMap *m = &k->map[i];
			strbuf_printf(out,
			              "{\"arg\":%d,\"cols\":%lld,\"box\":[%d,%d],\"swizzle\":%d},",
			              m->arg, (long long)m->cols, m->box[0], m->box[1], m->swizzle);
		}
		end(out, ']');
		strbuf_putc(out, ',');
	}
	strbuf_puts(out, "\"arg\":[");
	for (int i = 0; i < k->n_arg; i++) {
		strbuf_putc(out, '{');
		key_str(out, "name", k->arg[i].name);
		key_str(out, "dir", plan_dir_text[k->arg[i].dir]);
		key_str(out, "type", k->arg[i].type);
		strbuf_puts(out, "\"extent\":");
		put_extent(out, &k->arg[i].extent);
		strbuf_puts(out, "},");
	}
	end(out, ']');
	strbuf_putc(out, '}');
}

static void
put_ref(Strbuf *out, const Plan *p, const PlanRef *r)
{
	switch (r->kind) {
	case REF_NONE:
		strbuf_puts(out, "null");
		return;
	case REF_TENSOR:
		put_str(out, p->tensor[r->index].id);
		return;
	case REF_BUFFER:
		put_str(out, p->buffer[r->index].id);
		return;
	case REF_POOL:
		strbuf_printf(out, "\"kv:%s:%d\"", p->pool[r->index].id, r->layer_slot);
		return;
	case REF_ROPE:
		strbuf_printf(out, "\"rope:%d\"", r->index);
		return;
	}
}

static void
put_attr(Strbuf *out, const Attr *a)
{
	put_str(out, a->key);
	strbuf_putc(out, ':');
	switch (a->kind) {
	case ATTR_INT:
		strbuf_printf(out, "%" PRId64, a->i);
		break;
	case ATTR_NUM:
		json_num(out, a->f, NUMBER_EXACT);
		break;
	case ATTR_WORD:
		put_str(out, a->s);
		break;
	}
	strbuf_putc(out, ',');
}

static void
put_prefetch(Strbuf *out, const Plan *p, const PlanStep *s)
{
	strbuf_puts(out, "\"prefetch\":[");
	for (int i = 0; i < s->n_prefetch; i++) {
		const PlanPrefetch *f = &s->prefetch[i];
		strbuf_putc(out, '{');
		key_str(out, "tensor", p->tensor[f->tensor].id);
		key_int(out, "runs", f->runs);
		key_int(out, "experts", f->experts);
		key_int(out, "first", f->first);
		key_int(out, "bytes", f->bytes);
		end(out, '}');
		strbuf_putc(out, ',');
	}
	end(out, ']');
	strbuf_putc(out, ',');
}

static void
put_step(Strbuf *out, const Plan *p, const PlanStep *s)
{
	strbuf_putc(out, '{');
	key_str(out, "op", op_info[s->op].name);
	key_int(out, "layer", s->layer);
	key_str(out, "kernel", s->kernel >= 0 ? p->kernel[s->kernel].id : NULL);
	strbuf_puts(out, "\"arg\":[");
	for (int i = 0; i < s->n_arg; i++) {
		put_ref(out, p, &s->arg[i]);
		strbuf_putc(out, ',');
	}
	end(out, ']');
	strbuf_puts(out, ",\"attr\":{");
	for (int i = 0; i < s->n_attr; i++)
		put_attr(out, &s->attr[i]);
	end(out, '}');
	strbuf_puts(out, ",\"make\":[");
	for (int i = 0; i < s->n_make; i++) {
		strbuf_putc(out, '{');
		key_str(out, "value", s->make[i].value);
		key_int(out, "arg", s->make[i].arg);
		end(out, '}');
		strbuf_putc(out, ',');
	}
	end(out, ']');
	strbuf_putc(out, ',');
	key_int(out, "yaml_line", s->yaml_line);
	key_int(out, "weight_bytes", s->weight_bytes);
	key_int(out, "flops_per_row", s->flops_per_row);
	if (s->n_prefetch)
		put_prefetch(out, p, s);
	end(out, '}');
}

static void
put_persistent(Strbuf *out, const Plan *p)
{
	const PlanPersistent *x = &p->persistent;

	if (!x->n_body && !x->why)
		return;
	strbuf_puts(out, "\"persistent\":{");
	if (x->n_body) {
		key_str(out, "kernel", p->kernel[x->kernel].id);
		strbuf_puts(out, "\"body\":[");
		for (int i = 0; i < x->n_body; i++) {
			put_str(out, p->kernel[x->body[i]].id);
			strbuf_putc(out, ',');
		}
		end(out, ']');
	} else {
		key_str(out, "why", x->why);
		out->len -= out->failed ? 0 : 1;
	}
	strbuf_puts(out, "},\n");
}

/* "name":[ one line per element ], */
#define PUT_ALL(out, name, n, each)                                                                \
	do {                                                                                       \
		strbuf_puts((out), "\"" name "\":[");                                              \
		for (int i_ = 0; i_ < (n); i_++) {                                                 \
			strbuf_puts((out), i_ ? ",\n " : "\n ");                                   \
			each;                                                                      \
		}                                                                                  \
		strbuf_puts((out), "],\n");                                                        \
	} while (0)

void
plan_write(const Plan *p, Strbuf *out)
{
	strbuf_putc(out, '{');
	key_int(out, "format", p->format);
	key_int(out, "step_abi", p->step_abi);
	strbuf_putc(out, '\n');
	key_str(out, "name", p->name);
	key_str(out, "family", p->family);
	key_str(out, "spec_sha256", p->spec_sha256);
	key_str(out, "target", p->target);
	if (p->lora) {
		key_str(out, "lora", p->lora);
		key_num(out, "lora_scale", p->lora_scale);
	}
	if (p->output != LLMC_OUTPUT_LOGITS)
		key_str(out, "output", plan_output_name[p->output]);
	if (p->ranks > 1) {
		key_int(out, "rank", p->rank);
		key_int(out, "ranks", p->ranks);
	}
	if (p->stages > 1) {
		key_int(out, "stage", p->stage);
		key_int(out, "stages", p->stages);
		key_int(out, "window", p->window);
	}
	if (p->partitions > 1) {
		key_int(out, "partition", p->partition);
		key_int(out, "partitions", p->partitions);
		key_int(out, "window", p->window);
	}
	if (p->kv_host)
		key_int(out, "kv_host", p->kv_host);
	if (p->encoder)
		key_int(out, "token_types", p->token_types);
	if (p->l2_budget)
		key_int(out, "l2_budget", p->l2_budget);
	strbuf_putc(out, '\n');
	key_int(out, "vocab", p->vocab);
	key_int(out, "vocab_used", p->vocab_used);
	key_int(out, "hidden", p->hidden);
	key_int(out, "max_positions", p->max_positions);
	key_int(out, "n_layers", p->n_layers);
	key_bool(out, "hard_limit", p->hard_limit);
	key_bool(out, "prompt_whole", p->prompt_whole);
	key_int(out, "prefix_mark", p->prefix_mark);
	key_int(out, "prefix_end", p->prefix_end);
	key_str(out, "prompt_prefix", p->prompt_prefix);
	key_str(out, "checkpoint", p->checkpoint);
	key_str(out, "weights", p->weights);
	key_int(out, "bos", p->bos);
	strbuf_puts(out, "\"eos\":[");
	for (int i = 0; i < p->n_eos; i++)
		strbuf_printf(out, "%s%d", i ? "," : "", p->eos[i]);
	strbuf_puts(out, "],");
	key_int(out, "n_params", p->n_params);
	key_str(out, "logits", p->buffer[p->logits].id);
	if (p->outputs_rows) {
		key_str(out, "rows", p->buffer[p->rows].id);
		key_bool(out, "takes_rows", p->takes_rows);
	}
	if (p->draft.row_width) {
		strbuf_puts(out, "\"draft\":{");
		key_int(out, "row_width", p->draft.row_width);
		key_int(out, "own_at", p->draft.own_at);
		key_int(out, "vocab", p->draft.vocab);
		key_str(out, "tokens", p->draft.tokens);
		key_bool(out, "offsets", p->draft.offsets);
		key_str(out, "model", p->draft.model);
		out->len -= out->failed ? 0 : 1; /* "," */
		strbuf_puts(out, "},");
	}
	if (p->vision != VISION_NONE) {
		key_str(out, "vision", plan_vision_name[p->vision]);
		key_int(out, "row_width", p->row_width);
		key_bool(out, "image_whole", p->image_whole);
		key_int(out, "merge", p->merge);
		key_int(out, "class_rows", p->class_rows);
		key_int(out, "image_token", p->image_token);
	}
	strbuf_putc(out, '\n');
	PUT_ALL(out, "tensor", p->n_tensor, put_tensor(out, &p->tensor[i_]));
	PUT_ALL(out, "pool", p->n_pool, put_pool(out, &p->pool[i_]));
	PUT_ALL(out, "rope", p->n_rope, put_rope(out, &p->rope[i_]));
	PUT_ALL(out, "slot", p->n_slot, put_extent(out, &p->slot[i_]));
	PUT_ALL(out, "buffer", p->n_buffer, put_buffer(out, &p->buffer[i_]));
	PUT_ALL(out, "kernel", p->n_kernel, put_kernel(out, &p->kernel[i_]));
	put_persistent(out, p);
	strbuf_puts(out, "\"phase\":[");
	for (int i = 0; i < p->n_phase; i++) {
		const PlanPhase *ph = &p->phase[i];
		strbuf_puts(out, i ? ",\n{" : "\n{");
		key_str(out, "id", ph->id);
		PUT_ALL(out, "step", ph->n_step, put_step(out, p, &ph->step[i_]));
		out->len -= out->failed ? 0 : 2; /* ",\n" */
		strbuf_putc(out, '}');
	}
	strbuf_puts(out, "]}\n");
}
