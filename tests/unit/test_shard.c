/* Models sharded over ranks: every element of the checkpoint is read by the right number of ranks;
 * ranks agree on their collectives; the number of all-reduces is minimal; what cannot be divided is
 * rejected with the arithmetic; and inconsistent plans of ranks are rejected. */
#include "tests/unit/compiler_util.h"

#include <sys/mman.h>
#include <unistd.h>

#include "compiler/shard/shard.h"
#include "formats/dequant.h"
#include "runtime/weights/weights.h"

static Spec *
spec_of(Bench *b, const char *name, int ranks, bool whole)
{
	const char *const set[] = { arena_printf(&b->arena, "parallel.tp=%d", ranks),
		                    whole ? "parallel.experts=whole" : NULL, NULL };

	return spec_from_file(arena_printf(&b->arena, "tests/golden/graphs/%s.yaml", name), set,
	                      &b->diag, &b->arena);
}

static const Plan *
plan_of(Bench *b, const Spec *s, const char *target, int rank, bool fuse)
{
	const Compiled *c = s ? compile_rank(s, target, rank, fuse, &b->diag, &b->arena) : NULL;

	return c ? c->plan : NULL;
}

/* ---- readers of each element ---- */

static const PlanTensor *
tensor_of(const Plan *p, const char *id)
{
	for (int i = 0; i < p->n_tensor; i++)
		if (strcmp(p->tensor[i].id, id) == 0)
			return &p->tensor[i];
	return NULL;
}

/* Count the elements of the file that a tensor is made of; names: one per tensor, or one per
 * expert. */
static void
count(const PlanTensor *t, const PlanTensor *all, unsigned short *seen, int64_t each)
{
	for (int k = 0; k < t->n_src; k++) {
		const PlanSource *s = &t->src[k];
		int64_t wide = s->col_total ? s->col_total : t->cols, at = 0;
		while (at < all->n_src && strcmp(all->src[at].name, s->name) != 0)
			at++;
		assert_true(at < all->n_src);
		for (int64_t i = 0; i < s->n_block * s->block; i++) {
			int64_t r = i;
			if (s->rope_pairs)
				r = i / s->rope_pairs * s->rope_pairs +
				    (i % s->rope_pairs < s->rope_pairs / 2
				         ? i % s->rope_pairs * 2
				         : (i % s->rope_pairs - s->rope_pairs / 2) * 2 + 1);
			r = s->first + r / s->block * s->stride + r % s->block;
			for (int64_t c = 0; c < (t->cols ? t->cols : 1); c++) {
				int64_t e = s->transpose
				                ? (r / s->transpose * wide + s->col_first + c) *
				                          s->transpose +
				                      r % s->transpose
				                : r * (s->cols ? s->cols : 1) + s->col_first + c;
				assert_true(e >= 0 && e < s->rows * (s->cols ? s->cols : 1) &&
				            e < each);
				seen[at * each + e]++;
			}
		}
	}
}

static bool
role_in(const char *id, const char *roles)
{
	char role[40];
	const char *dot = id[0] == 'L' && id[1] >= '0' && id[1] <= '9' ? strchr(id, '.') + 1 : id;

	snprintf(role, sizeof role, " %.*s ", (int)strcspn(dot, "."), dot);
	return strstr(roles, role);
}

/* Number of ranks, out of n, that must read an element of a tensor */
static int
readers(const PlanTensor *t, int n, int copies)
{
	if (role_in(t->id, " k v "))
		return copies;
	if (role_in(t->id, " q q_b k_b v_b gate up e_gate e_up s_gate s_up ") ||
	    (t->cols && role_in(t->id, " o down e_down s_down ")))
		return 1;
	return strcmp(t->id, "head") == 0 ? 1 : n;
}

static void
check_coverage(const Plan *whole, const Plan *const *rank, int n, int copies)
{
	for (int i = 0; i < whole->n_tensor; i++) {
		const PlanTensor *t = &whole->tensor[i];
		int64_t each = 0;
		for (int k = 0; k < t->n_src; k++)
			if (t->src[k].rows * (t->src[k].cols ? t->src[k].cols : 1) > each)
				each = t->src[k].rows * (t->src[k].cols ? t->src[k].cols : 1);
		unsigned short *want = calloc((size_t)(each * t->n_src), sizeof *want),
		               *have = calloc((size_t)(each * t->n_src), sizeof *have);
		count(t, t, want, each);
		for (int r = 0; r < n; r++) {
			const PlanTensor *own = tensor_of(rank[r], t->id);
			if (!own)
				fail_msg("the plan of rank %d lacks tensor %s", r, t->id);
			count(own, t, have, each);
		}
		for (int64_t e = 0; e < each * t->n_src; e++)
			if (have[e] != want[e] * readers(t, n, copies))
				fail_msg("%s, %d ranks: element %d is read %d times, expected %d",
				         t->id, n, (int)e, have[e],
				         want[e] * readers(t, n, copies));
		free(want);
		free(have);
	}
}

static int
collectives(const Plan *p, OpKind op)
{
	int n = 0;

	for (int i = 0; i < p->phase[0].n_step; i++)
		n += p->phase[0].step[i].op == op;
	return n;
}

/* Collectives must be the same in all plans, in the same order. */
static void
check_together(const Plan *a, const Plan *b)
{
	for (int ph = 0; ph < 2; ph++) {
		assert_int_equal(a->phase[ph].n_step, b->phase[ph].n_step);
		for (int i = 0; i < a->phase[ph].n_step; i++) {
			const PlanStep *x = &a->phase[ph].step[i], *y = &b->phase[ph].step[i];
			assert_int_equal(x->op, y->op);
			if (op_info[x->op].flags & OPF_COMM)
				for (int k = 0; k < x->n_attr; k++)
					assert_true(x->attr[k].i == y->attr[k].i &&
					            x->attr[k].f == y->attr[k].f);
		}
	}
	assert_int_equal(a->n_pool, b->n_pool);
	assert_true(a->n_params == b->n_params);
}

BENCH_TEST(every_element_is_read_by_the_right_number_of_ranks)
{
	static const int sizes[] = { 2, 3, 4, 8 };
	int split = 0;

	for (int m = 0; m < N_TINY; m++)
		for (size_t at = 0; at < 2 * sizeof sizes / sizeof *sizes;
		     at++) { /* experts in parts, and whole */
			const size_t k = at / 2, way = at % 2;
			const int n = sizes[k];
			const Plan *rank[8] = { NULL }, *whole;
			const Spec *one = spec_of(b, tiny_models[m], 1, false),
			           *spec = spec_of(b, tiny_models[m], n, way > 0);
			int errors = b->diag.n_error;
			if (way && !spec->moe.n_experts)
				continue;
			for (int r = 0; r < n; r++)
				if (!(rank[r] = plan_of(b, spec, "ref", r, false)))
					break;
				else
					assert_int_equal(rank[r]->rank, r);
			if (b->diag.n_error >
			    errors) { /* fewer heads or blocks than ranks: an error, not a plan */
				strbuf_release(&b->diag.text);
				diag_init(&b->diag, &b->arena);
				continue;
			}
			split++;
			assert_non_null(whole = plan_of(b, one, "ref", 0, false));
			int kv = spec->attention.kind == ATT_MLA ? spec->attention.n_heads
			                                         : spec->attention.n_kv_heads;
			check_coverage(whole, rank, n, n > kv ? n / kv : 1);
			for (int r = 1; r < n; r++)
				check_together(rank[0], rank[r]);
			/* two all-reduces per layer; one if both blocks add to the same stream
			 * without a norm between */
			bool apart =
			    !spec->residual.parallel || spec->norm.attn_out || spec->norm.ffn_out;
			assert_int_equal(collectives(rank[0], OP_all_reduce),
			                 spec->n_layers * (apart ? 2 : 1));
			assert_int_equal(collectives(rank[0], OP_all_gather), 1);
			assert_int_equal(collectives(whole, OP_all_reduce) +
			                     collectives(whole, OP_all_gather),
			                 0);
			assert_true(rank[0]->n_params == whole->n_params);
			/* fused plans, for a target with kernels */
			for (int r = 0; r < n; r++) {
				const Plan *fused = plan_of(b, spec, "cpu-v3", r, true);
				assert_non_null(fused);
				assert_int_equal(collectives(fused, OP_all_reduce),
				                 collectives(rank[0], OP_all_reduce));
				llmc_error err;
				if (plan_check(fused, &err) != LLMC_OK)
					fail_msg("%s, rank %d of %d: %s", tiny_models[m], r, n,
					         err.text);
			}
		}
	assert_true(split > 30);
}

/* Whole layers are distributed to stages: each element has one reader, except for an embedding that
 * is also the head. */
BENCH_TEST(stages_read_each_element_once)
{
	for (int m = 0; m < N_TINY; m++) {
		const char *const set[] = { "parallel.pp=2", NULL };
		const Spec *one = spec_of(b, tiny_models[m], 1, false),
		           *spec =
		               spec_from_file(arena_printf(&b->arena, "tests/golden/graphs/%s.yaml",
		                                           tiny_models[m]),
		                              set, &b->diag, &b->arena);
		const Plan *whole = plan_of(b, one, "ref", 0, false), *stage[2];
		int64_t layers[2] = { 0 };
		for (int k = 0; k < 2; k++) {
			llmc_error err;
			assert_non_null(stage[k] = plan_of(b, spec, "ref", k, false));
			const Plan *fused = plan_of(b, spec, "cpu-v3", k, true);
			assert_non_null(fused);
			if (plan_check(stage[k], &err) != LLMC_OK ||
			    plan_check(fused, &err) != LLMC_OK)
				fail_msg("%s, stage %d: %s", tiny_models[m], k, err.text);
			assert_true(stage[k]->stage == k && stage[k]->stages == 2 &&
			            stage[k]->n_params == whole->n_params);
			assert_int_equal(collectives(stage[k], OP_stage_in), k);
			for (int i = 0; i < stage[k]->n_pool; i++)
				layers[k] += stage[k]->pool[i].n_layers;
		}
		assert_true(layers[0] == (spec->n_layers + 1) / 2 &&
		            layers[0] + layers[1] == spec->n_layers);
		for (int i = 0; i < whole->n_tensor; i++) {
			const char *id = whole->tensor[i].id;
			int n = 0,
			    want = strcmp(id, "embed") == 0 && !tensor_of(whole, "head") ? 2 : 1;
			for (int k = 0; k < 2; k++) {
				const PlanTensor *t = tensor_of(stage[k], id);
				n += t != NULL;
				if (t)
					assert_true(t->rows == whole->tensor[i].rows &&
					            t->cols == whole->tensor[i].cols &&
					            t->n_src == whole->tensor[i].n_src);
			}
			if (n != want)
				fail_msg("%s: %s is read by %d stages, expected %d", tiny_models[m],
				         id, n, want);
		}
		for (int k = 0; k < 2; k++)
			for (int i = 0; i < stage[k]->n_tensor; i++)
				assert_non_null(tensor_of(whole, stage[k]->tensor[i].id));
	}
}

/* ---- distribution ---- */

static void
shares_are_even_and_whole(void **state)
{
	(void)state;
	for (int64_t total = 1; total < 70; total++)
		for (int64_t unit = 1; unit < 9; unit++)
			for (int n = 1; n < 10; n++) {
				int64_t at = 0, most = 0, least = INT64_MAX, first, own;
				for (int r = 0; r < n; r++) {
					op_share(total, unit, n, r, &first, &own);
					assert_true(own == 0 || first == at);
					assert_true(r == n - 1 || own % unit == 0 ||
					            first + own == total);
					at += own;
					most = own > most ? own : most;
					least = own < least ? own : least;
				}
				assert_int_equal(at, total);
				assert_true(most - least < 2 * unit);
			}
}

BENCH_TEST(indivisible_models_are_rejected)
{
	static const struct {
		const char *yaml, *text;
	} bad[] = {
		{ "attention: {n_heads: 8, n_kv_heads: 2, head_dim: 8}\n" TINY_FFN
		  "parallel: {tp: 3}\n",
		  "parallel.tp = 3: more ranks than the 2 kv heads must be a multiple of them: 4, "
		  "6 or 8" },
		{ "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8}\n" TINY_FFN
		  "parallel: {tp: 8}\n",
		  "parallel.tp = 8: 4 ranks would share a kv head, which 2 query heads read in 2 "
		  "units: at most 4 ranks" },
		{ "attention: {n_heads: 8, n_kv_heads: 8, head_dim: 8}\nffn: {width: 64}\nstorage: "
		  "{rules: [{tensor: down, type: q8_0}]}\nparallel: {tp: 3}\n",
		  "parallel.tp = 3: down has 2 blocks of 32 columns (q8_0), fewer than 3 ranks" },
		{ "attention: {n_heads: 8, n_kv_heads: 8, head_dim: 32}\n" TINY_FFN
		  "storage: {rules: [{tensor: o, type: q4_k}]}\nparallel: {tp: 2}\n",
		  "parallel.tp = 2: blocks of 256 columns of o (q4_k) contain 8 kv heads of 32 "
		  "columns each, which gives shares for only 1 of 2 ranks" },
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		strbuf_release(&b->diag.text);
		diag_init(&b->diag, &b->arena);
		bench_spec(b, "llama", bad[i].yaml);
		assert_null(compile_rank(b->spec, "ref", 0, true, &b->diag, &b->arena));
		if (!strstr(strbuf_str(&b->diag.text), bad[i].text))
			fail_msg("%s", strbuf_str(&b->diag.text));
	}
}

/* Heads of a rank keep their ALiBi slopes. */
BENCH_TEST(slopes_follow_their_heads)
{
	for (int r = 0; r < 3; r++) {
		bench_spec(b, "bloom",
		           "attention: {n_heads: 8}\nffn: {width: 128}\nparallel: {tp: 3}\n");
		const Plan *p = plan_of(b, b->spec, "ref", r, false);
		int n = 0;
		assert_non_null(p);
		for (int i = 0; i < p->phase[0].n_step; i++) {
			const PlanStep *st = &p->phase[0].step[i];
			if (st->op != OP_attention)
				continue;
			n++;
			assert_int_equal(step_int(st, "heads"), r < 2 ? 3 : 2);
			assert_int_equal(step_int(st, "alibi_first"), 3 * r);
			assert_int_equal(step_int(st, "alibi_heads"), 8);
		}
		assert_true(n > 0);
	}
}

/* ---- inconsistent plans ---- */

typedef struct BadEdit {
	const char *from, *to, *text;
} BadEdit;
static const BadEdit rank_edits[] = {
	{ "\"rank\":1,", "\"rank\":3,", "rank: is 3" },
	{ "\"rank\":1,\"ranks\":3,", "", "all_reduce: the plan is for one rank" },
	{ "\"ranks\":3", "\"ranks\":1", "ranks: is 1" },
	{ "\"ranks\":3", "\"ranks\":200",
	  "attributes violate the rule at least one unit per rank" },
	{ "\"ranks\":3", "\"ranks\":2", "does not hold 48 elements" },
	{ "\"col_total\":48", "\"col_total\":40",
	  "have rows of 48 elements, expected 40|has rows of 48 elements, expected 40" },
	{ "\"col_first\":16,\"col_total\":48", "\"col_first\":33,\"col_total\":48",
	  "columns 33 .. 48 of 48 do not exist" },
	{ "\"col_first\":16,\"col_total\":48,\"stored\":null", "\"stored\":null",
	  "has rows of 48 elements, expected 16" },
	{ "\"op\":\"all_gather\",\"layer\":-1,\"kernel\":null,\"arg\":[\"logits.part\",\"logits\"],"
	  "\"attr\":{\"width\":96",
	  "\"op\":\"all_gather\",\"layer\":-1,\"kernel\":null,\"arg\":[\"logits.part\",\"logits\"],"
	  "\"attr\":{\"width\":192",
	  "does not hold" },
};

/* For the second of two stages */
static const BadEdit stage_edits[] = {
	{ "\"stage\":1", "\"stage\":2", "stage: is 2" },
	{ "\"stages\":2", "\"stages\":1", "stages: is 1" },
	{ "\"stage\":1,\"stages\":2,\"window\":16,", "", "stage_in: it needs a previous stage" },
	{ "\"window\":16", "\"window\":15", "keeps 16 positions, but window is 15" },
	{ "\"window\":16", "\"window\":-1", "window: is -1" },
	{ "\"window\":16,", "", "window" },
	{ "\"stage\":1", "\"stage\":0",
	  "stage_in: it needs a previous stage|the residual stream of the stage" },
	{ "\"stages\":2", "\"stages\":3", "cannot hold the residual stream of the stage" },
	{ "\"attr\":{\"hidden\":32}", "\"attr\":{\"hidden\":16}",
	  "stage_in: rows of 16, the previous stage passes on rows of 32" },
};

/* For layers with recurrent states: edits that make a step read or write beyond a buffer */
static const BadEdit state_edits[] = {
	{ "\"id\":\"conv\",\"mla\":false,\"state\":true,\"k\":\"f32\"",
	  "\"id\":\"conv\",\"mla\":false,\"state\":true,\"k\":\"f16\"",
	  "a pool of recurrent states must be f32" },
	{ "\"id\":\"conv\",\"mla\":false,\"state\":true,", "\"id\":\"conv\",\"mla\":false,",
	  "conv1d: pool conv differs from the op in head counts or dimensions" },
	{ "\"k_dim\":3,\"v_dim\":64", "\"k_dim\":2,\"v_dim\":64",
	  "conv1d: pool conv differs from the op in head counts or dimensions" },
	{ "\"k_dim\":3,\"v_dim\":64", "\"k_dim\":2147483647,\"v_dim\":64", "k_dim: is 2147483647" },
	{ "\"kv_heads\":1,\"k_dim\":3,\"v_dim\":64",
	  "\"kv_heads\":65536,\"k_dim\":1048576,\"v_dim\":1048576", "pool conv is too large" },
	{ "\"kv:conv:0\"", "\"kv:state:0\"",
	  "conv1d: pool state differs from the op in head counts or dimensions" },
	{ "\"kv:conv:0\"", "\"kv:conv:1\"", "\"kv:conv:1\" is not a pool and layer of this plan" },
	{ "\"kv:conv:0\"", "\"lin_z\"", "conv1d: argument state is not a pool" },
	{ "\"width\":64,\"taps\":4", "\"width\":64,\"taps\":5",
	  "conv1d: tensor L0.lin_conv is 256 x 0, expected 320 x 0" },
	{ "\"width\":64,\"taps\":4", "\"width\":128,\"taps\":2",
	  "conv1d: buffer lin_qkv does not hold 128 elements for each row" },
	{ "\"width\":64,\"taps\":4", "\"width\":2147483647,\"taps\":2147483647", "conv1d" },
	{ "[\"lin_qkv\",\"L0.lin_conv\",null,\"kv:conv:0\",\"lin_conv\"]",
	  "[\"lin_qkv\",\"L0.lin_conv\",null,\"kv:conv:0\",\"lin_qkv\"]",
	  "buffers lin_qkv and lin_qkv share memory" },
	{ "[\"lin_qkv\",\"L0.lin_conv\",null,\"kv:conv:0\",\"lin_conv\"]",
	  "[\"lin_qkv\",\"L0.lin_conv\",null,\"kv:conv:0\",\"logits\"]",
	  "conv1d: buffer logits does not hold 64 elements for each row" },
	{ "\"k_heads\":2,\"v_heads\":4", "\"k_heads\":4,\"v_heads\":4",
	  "delta_rule: buffer lin_conv does not hold 96 elements for each row" },
	{ "\"k_heads\":2,\"v_heads\":4,\"k_dim\":8", "\"k_heads\":2,\"v_heads\":4,\"k_dim\":4",
	  "delta_rule: pool state differs from the op in head counts or dimensions" },
	{ "\"k_heads\":2,\"v_heads\":4,\"k_dim\":8,\"v_dim\":8,\"g_dim\":1",
	  "\"k_heads\":2,\"v_heads\":4,\"k_dim\":8,\"v_dim\":8,\"g_dim\":8",
	  "delta_rule: buffer lin_a does not hold 32 elements for each row" },
	{ "\"k_heads\":2,\"v_heads\":4,\"k_dim\":8,\"v_dim\":8",
	  "\"k_heads\":2147483646,\"v_heads\":2147483646,\"k_dim\":2147483647,\"v_dim\":2147483647",
	  "delta_rule: buffer lin_conv does not hold" },
	{ "\"dim\":8,\"groups\":4,\"eps\":1e-05,\"order\"",
	  "\"dim\":8,\"groups\":8,\"eps\":1e-05,\"order\"",
	  "norm_gate: buffer lin_y does not hold 64 elements for each row" },
	{ "\"dim\":8,\"groups\":4,\"eps\":1e-05,\"order\":\"norm_first\"",
	  "\"dim\":8,\"groups\":4,\"eps\":1e-05,\"order\":\"gate_first\"",
	  "norm_gate: tensor L0.lin_norm is 8 x 0, expected 32 x 0" },
};

/* For the second of two ranks with whole experts and a gain per expert. An expert that the rank
 * marks as -1 has no index in the vector of 32 gains. */
static const BadEdit gain_edits[] = {
	{ "{\"op\":\"moe_ffn\"",
	  "{\"op\":\"expert_gain\",\"layer\":0,\"kernel\":null,\"arg\":[\"expert_id\",\"expert_"
	  "weight\",\"L0.attn_norm\",\"expert_weight\"],"
	  "\"attr\":{\"n_experts\":32,\"top_k\":2},\"make\":[],\"yaml_line\":0,\"weight_bytes\":0,"
	  "\"flops_per_row\":0},{\"op\":\"moe_ffn\"",
	  "holds -1 for 32 experts of other ranks" },
	{ "\"n_remote_experts\":32", "\"n_remote_experts\":0",
	  "holds -1 for 32 experts of other ranks" },
	{ "\"attr\":{\"n_experts\":64,\"top_k\":2},", "\"attr\":{\"n_experts\":63,\"top_k\":2},",
	  "expert_gain: tensor L0.expert_gain is 64 x 0, expected 63 x 0" },
	{ "\"attr\":{\"n_experts\":64,\"top_k\":2},", "\"attr\":{\"n_experts\":64,\"top_k\":3},",
	  "expert_gain: buffer expert_id does not hold 3 elements for each row" },
	{ "\"first\":32,\"count\":32", "\"first\":33,\"count\":32",
	  "local_experts: attributes violate the rule first + count <= n_experts" },
	{ "\"first\":32,\"count\":32", "\"first\":30,\"count\":33", "holds indices of step" },
};

static void
refuse(Bench *b, const char *family, const char *description, int rank, const BadEdit *edits,
       size_t n)
{
	bench_spec(b, family, description);
	const Plan *p = plan_of(b, b->spec, "ref", rank, true), *q;
	Strbuf json = { 0 };

	assert_non_null(p);
	plan_write(p, &json);
	for (size_t i = 0; i < n; i++) {
		const char *at = strstr(json.data, edits[i].from);
		llmc_error err = { 0 };
		if (!at)
			fail_msg("the plan does not hold %s", edits[i].from);
		const char *text = arena_printf(&b->arena, "%.*s%s%s", (int)(at - json.data),
		                                json.data, edits[i].to, at + strlen(edits[i].from));
		if (plan_read(text, strlen(text), "p.json", &b->arena, (Plan **)&q, &err) !=
		    LLMC_E_INPUT)
			fail_msg("%s is taken", edits[i].to);
		const char *first = edits[i].text, *bar = strchr(first, '|');
		char one[200];
		snprintf(one, sizeof one, "%.*s", bar ? (int)(bar - first) : (int)strlen(first),
		         first);
		if (!strstr(err.text, one) && !(bar && strstr(err.text, bar + 1)))
			fail_msg("%s\n  expected: %s", err.text, first);
	}
	Plan *same;
	llmc_error err;
	Strbuf again = { 0 };
	assert_int_equal(plan_read(json.data, json.len, "p.json", &b->arena, &same, &err), LLMC_OK);
	plan_write(same, &again);
	assert_string_equal(json.data, again.data);
	strbuf_release(&json);
	strbuf_release(&again);
}

BENCH_TEST(inconsistent_plans_of_ranks_are_rejected)
{
	refuse(b, "llama",
	       "attention: {n_heads: 6, n_kv_heads: 3, head_dim: 8}\nffn: {width: 48}\nparallel: "
	       "{tp: 3}\n",
	       1, rank_edits, sizeof rank_edits / sizeof *rank_edits);
}

BENCH_TEST(inconsistent_plans_of_stages_are_rejected)
{
	refuse(b, "llama",
	       "attention: {n_heads: 6, n_kv_heads: 3, head_dim: 8, window: 16}\nffn: {width: "
	       "48}\nparallel: {pp: 2}\n",
	       1, stage_edits, sizeof stage_edits / sizeof *stage_edits);
}

BENCH_TEST(inconsistent_plans_of_recurrent_states_are_rejected)
{
	refuse(b, "qwen3_next",
	       "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8}\nlinear: {layers: [0], "
	       "k_heads: 2, v_heads: 4, k_dim: 8, v_dim: 8}\nffn: {width: 48}\n",
	       0, state_edits, sizeof state_edits / sizeof *state_edits);
}

BENCH_TEST(inconsistent_plans_of_expert_gains_are_rejected)
{
	refuse(b, "gemma4",
	       "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8, window: 8}\nffn: {width: "
	       "16}\nmoe: {n_experts: 64, top_k: 2, width: 16}\n"
	       "parallel: {tp: 2, experts: whole}\n",
	       1, gain_edits, sizeof gain_edits / sizeof *gain_edits);
}

/* ---- columns of every type ---- */

static void
packed_columns_equal_those_of_the_whole_row(void **state)
{
	enum { ROWS = 5, WIDE = 1024, FIRST = 256, COLS = 512 };
	float *x = malloc(WIDE * sizeof *x), *want = malloc(WIDE * sizeof *want),
	      *have = malloc(COLS * sizeof *have);

	(void)state;
	for (int made = 0; made < 2; made++) /* blocks from the file; blocks made from f32 */
		for (int d = 0; d < DT_COUNT; d++) {
			Dtype type = (Dtype)d;
			int64_t row = dtype_row_bytes(type, WIDE);
			if (type == DT_I32 || type == DT_I64)
				continue;
			for (int whole = 0; whole < (made && dtype_group(type).columns ? 2 : 1);
			     whole++) {
				char *file = calloc(ROWS, (size_t)WIDE * 4),
				     *blocks = calloc(ROWS, (size_t)row),
				     *dst = calloc(ROWS, (size_t)row);
				bool can = true;
				for (int r = 0; r < ROWS; r++) {
					for (int c = 0; c < WIDE; c++)
						x[c] =
						    (float)((r * 7919 + c * 104729) % 2003 - 1001) /
						    500 * (float)(c / 100 + 1);
					memcpy(file + r * WIDE * 4, x, WIDE * 4);
					can = quant_row_shared(type, whole ? WIDE : 0, false, x,
					                       blocks + r * row, WIDE);
					if (!can)
						noise_row(type, 0.1f, blocks + r * row, WIDE);
				}
				PlanSource s = { .name = "a",
					         .rows = ROWS,
					         .cols = WIDE,
					         .block = ROWS,
					         .stride = ROWS,
					         .n_block = 1,
					         .col_first = FIRST,
					         .col_total = WIDE };
				PlanTensor t = { .id = "t",
					         .dtype = type,
					         .rows = ROWS,
					         .cols = COLS,
					         .layout = "row",
					         .scale_cols = whole ? WIDE : 0,
					         .n_src = 1,
					         .src = &s };
				CheckpointTensor c = { .name = "a",
					               .dtype = made ? DT_F32 : type,
					               .data = made ? file : blocks };
				size_t room = pack_scratch_bytes(&t);
				char *scratch = aligned_alloc(64, (room + 63) & ~(size_t)63);
				Threads *threads;
				llmc_error err;
				assert_int_equal(threads_open(1, &threads, &err), LLMC_OK);
				if (can || !made) {
					assert_int_equal(
					    pack_tensor(&t, &c, dst, threads, scratch, room, &err),
					    LLMC_OK);
					for (int r = 0; r < ROWS; r++) {
						dequant_row(type, blocks + r * row, want, WIDE);
						plan_tensor_row(&t, dst, r, have);
						if (memcmp(have, want + FIRST, COLS * sizeof *have))
							fail_msg("%s%s: row %d", dtype_text(type),
							         made ? " of f32" : "", r);
					}
				}
				threads_close(threads);
				free(scratch);
				free(file);
				free(blocks);
				free(dst);
			}
		}
	free(x);
	free(want);
	free(have);
}

/* ---- accessed pages ---- */

/* A file of which a rank may access only the pages that hold its data: pack_tensor gets SIGSEGV if
 * it reads others. */
static void
a_rank_reads_only_its_rows_and_columns(void **state)
{
	static const Dtype types[] = { DT_F32, DT_BF16, DT_Q8_0, DT_Q4_K };
	enum { ROWS = 24, COLS = 1 << 17, RANKS = 3 };
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	Threads *threads;
	llmc_error err;

	(void)state;
	assert_int_equal(threads_open(1, &threads, &err), LLMC_OK);
	for (size_t k = 0; k < sizeof types / sizeof *types; k++)
		for (int by_cols = 0; by_cols < 2; by_cols++)
			for (int r = 0; r < RANKS; r++) {
				const int64_t row = dtype_row_bytes(types[k], COLS);
				const size_t bytes = (size_t)(ROWS * row),
				             pages = (bytes + page - 1) / page;
				int64_t first, n;
				size_t open = 0;
				op_share(by_cols ? COLS : ROWS, by_cols ? 256 : 1, RANKS, r, &first,
				         &n);
				char *file = mmap(NULL, pages * page, PROT_READ | PROT_WRITE,
				                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
				bool *needed = calloc(pages, 1);
				assert_true(file != MAP_FAILED);
				for (int64_t i = by_cols ? 0 : first;
				     i < (by_cols ? ROWS : first + n); i++) {
					size_t at = (size_t)(i * row +
					                     (by_cols
					                          ? dtype_row_bytes(types[k], first)
					                          : 0)),
					       end = at +
					             (size_t)(by_cols ? dtype_row_bytes(types[k], n)
					                              : row);
					for (size_t p = at / page; p * page < end; p++)
						needed[p] = true;
				}
				for (size_t p = 0; p < pages; p++) {
					open += needed[p];
					if (!needed[p])
						assert_int_equal(
						    mprotect(file + p * page, page, PROT_NONE), 0);
				}
				assert_true(open <
				            pages / 2); /* a third, and the pages at its edges */
				PlanSource s = { .name = "a",
					         .rows = ROWS,
					         .cols = COLS,
					         .first = by_cols ? 0 : first,
					         .block = by_cols ? ROWS : n,
					         .n_block = 1 };
				s.stride = s.block;
				s.col_first = by_cols ? first : 0;
				s.col_total = by_cols ? COLS : 0;
				PlanTensor t = { .id = "t",
					         .dtype = types[k],
					         .rows = s.block,
					         .cols = by_cols ? n : COLS,
					         .layout = "row",
					         .n_src = 1,
					         .src = &s };
				CheckpointTensor c = { .name = "a",
					               .dtype = types[k],
					               .data = file };
				size_t room = pack_scratch_bytes(&t);
				char *scratch = aligned_alloc(64, (room + 63) & ~(size_t)63),
				     *dst = malloc((size_t)plan_tensor_bytes(&t));
				assert_int_equal(
				    pack_tensor(&t, &c, dst, threads, scratch, room, &err),
				    LLMC_OK);
				free(dst);
				free(scratch);
				free(needed);
				munmap(file, pages * page);
			}
	threads_close(threads);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_element_is_read_by_the_right_number_of_ranks),
		cmocka_unit_test(stages_read_each_element_once),
		cmocka_unit_test(shares_are_even_and_whole),
		cmocka_unit_test(slopes_follow_their_heads),
		cmocka_unit_test(indivisible_models_are_rejected),
		cmocka_unit_test(inconsistent_plans_of_ranks_are_rejected),
		cmocka_unit_test(inconsistent_plans_of_stages_are_rejected),
		cmocka_unit_test(inconsistent_plans_of_recurrent_states_are_rejected),
		cmocka_unit_test(inconsistent_plans_of_expert_gains_are_rejected),
		cmocka_unit_test(packed_columns_equal_those_of_the_whole_row),
		cmocka_unit_test(a_rank_reads_only_its_rows_and_columns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
