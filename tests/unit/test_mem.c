/* Buffer assignment: no two live buffers overlap. The checker replays the steps and looks at every
 * byte. */
#include "compiler_util.h"

#include "compiler/select_kernels.h"

static uint32_t
next_random(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	*s ^= *s << 5;
	return *s;
}

/* ---- random lifetimes ---- */

enum { N_BUF = 60, N_STEP = 40 };

static const PlanSym kinds[] = { SYM_n_tok, SYM_n_out, SYM_n_part };

/* Owner of each slot at each step, by brute force. Buffers that share memory on purpose count as
 * one. */
static void
check_no_overlap(const MemBuf *buf, int n, int n_slot)
{
	for (int ph = 0; ph < PHASES; ph++)
		for (int t = 0; t < N_STEP; t++) {
			int owner[N_BUF];
			for (int s = 0; s < n_slot; s++)
				owner[s] = -1;
			for (int i = 0; i < n; i++) {
				int root = i;
				while (buf[root].same >= 0)
					root = buf[root].same;
				bool live =
				    buf[i].alone || (buf[i].first[ph] >= 0 &&
				                     buf[i].first[ph] <= t && t <= buf[i].last[ph]);
				if (!live)
					continue;
				assert_in_range(buf[i].slot, 0, n_slot - 1);
				if (owner[buf[i].slot] >= 0 && owner[buf[i].slot] != root)
					fail_msg("step %d: buffers %d and %d share slot %d", t,
					         owner[buf[i].slot], i, buf[i].slot);
				owner[buf[i].slot] = root;
			}
		}
}

static void
random_lives(Bench *b, int seed)
{
	uint32_t r = 2463534242u + (uint32_t)seed * 7919u;
	MemBuf *buf = NEW(&b->arena, MemBuf, N_BUF);
	PlanExtent *slot;
	int n_slot, n = 0;

	while (n < N_BUF) {
		MemBuf *m = &buf[n];
		*m = (MemBuf){ .id = "b",
			       .dtype = DT_F32,
			       .kernel = -1,
			       .same = -1,
			       .alone = next_random(&r) % 16 == 0 };
		m->extent = (PlanExtent){ kinds[next_random(&r) % 3], 1 + next_random(&r) % 500,
			                  next_random(&r) % 8 ? 1 : 32 };
		for (int ph = 0; ph < PHASES; ph++) {
			m->first[ph] = (int)(next_random(&r) % N_STEP);
			m->last[ph] = m->first[ph] +
			              (int)(next_random(&r) % (unsigned)(N_STEP - m->first[ph]));
			if (next_random(&r) % 5 == 0)
				m->first[ph] = m->last[ph] = -1;
		}
		/* sometimes reuse the memory of the previous buffer, which ends where this one
		 * begins */
		if (n > 0 && next_random(&r) % 3 == 0 && !buf[n - 1].alone && !m->alone) {
			m->extent = buf[n - 1].extent;
			m->same = n - 1;
			for (int ph = 0; ph < PHASES; ph++) {
				int from = buf[n - 1].last[ph];
				m->first[ph] = from;
				m->last[ph] =
				    from < 0
				        ? -1
				        : from + (int)(next_random(&r) % (unsigned)(N_STEP - from));
			}
		}
		n++;
	}
	mem_assign(&b->arena, buf, n, &slot, &n_slot);
	check_no_overlap(buf, n, n_slot);
	for (int i = 0; i < n; i++) {
		const PlanExtent *e = &slot[buf[i].slot];
		assert_int_equal(e->sym, buf[i].extent.sym);
		assert_int_equal(e->div, buf[i].extent.div);
		assert_true(e->mul >= buf[i].extent.mul * 4);
	}
}

static void
random_buffers_do_not_overlap(void **state)
{
	(void)state;
	for (int seed = 0; seed < 300; seed++)
		bench_run(random_lives, seed);
}

/* ---- whole plans ---- */

/* Replay each phase: a step's inputs must still be in memory, whatever buffers overlap them. */
static void
play(const Graph *g, const Selection *sel)
{
	for (int ph = 0; ph < PHASES; ph++) {
		int *holds =
		    calloc((size_t)sel->n_slot, sizeof *holds); /* value in each slot, + 1 */
		for (int i = 0; i < sel->n_step; i++) {
			const Op *op = &g->op[i];
			for (int k = 0; k < op_info[op->kind].n_in; k++) {
				int v = op->arg[k];
				if (v >= 0 && sel->buf_of[ph][v] >= 0 &&
				    holds[sel->buf[sel->buf_of[ph][v]].slot] != v + 1)
					fail_msg("step %d (%s): %s is not in memory any more", i,
					         op_info[op->kind].name, g->val[v].name);
			}
			for (int k = 0; k < sel->step[ph][i].n_scratch; k++) {
				const MemBuf *s = &sel->buf[sel->step[ph][i].scratch[k]];
				for (int a = 0; a < op_info[op->kind].n_arg; a++) {
					int v = op->arg[a];
					if (v >= 0 && sel->buf_of[ph][v] >= 0)
						assert_int_not_equal(
						    sel->buf[sel->buf_of[ph][v]].slot, s->slot);
				}
				holds[s->slot] = 0;
			}
			for (int k = op_info[op->kind].n_in; k < op_info[op->kind].n_arg; k++) {
				int v = op->arg[k];
				if (v < 0 || sel->buf_of[ph][v] < 0)
					continue;
				int slot = sel->buf[sel->buf_of[ph][v]].slot;
				/* an input is overwritten only if the op allows it */
				for (int a = 0; a < op_info[op->kind].n_in; a++) {
					int x = op->arg[a];
					if (x < 0 || sel->buf_of[ph][x] < 0 ||
					    sel->buf[sel->buf_of[ph][x]].slot != slot)
						continue;
					assert_true(role_in_place(op_info[op->kind].arg[a].role));
				}
				holds[slot] = v + 1;
			}
		}
		const Op *end = &g->op[g->n_op - 1];
		int last = end->arg[op_info[end->kind].n_in];
		assert_int_equal(holds[sel->buf[sel->buf_of[ph][last]].slot], last + 1);
		free(holds);
	}
}

static void
plan_of(Bench *b, int n)
{
	static const char *const targets[] = { "ref", "cpu-v3" };

	for (size_t t = 0; t < 2; t++) {
		bench_file(b, tiny_models[n]);
		Graph *g = bench_graph(b);
		Templates *ts = t ? templates_load(targets[t], b->spec, &b->diag, &b->arena) : NULL;
		if (ts) {
			select_layouts(g, ts);
			graph_fuse(g, ts, NULL);
		}
		Selection *sel = select_steps(g, ts, &b->diag);
		if (!sel)
			fail_msg("%s", strbuf_str(&b->diag.text));
		mem_buffers(g, sel);
		mem_assign(&b->arena, sel->buf, sel->n_buf, &sel->slot, &sel->n_slot);
		play(g, sel);
		int64_t used, bound;
		mem_peak(sel, SYM_n_tok, 1, &used, &bound);
		assert_true(bound > 0 && bound <= used);
	}
}

static void
every_input_is_in_memory_when_read(void **state)
{
	(void)state;
	for (int i = 0; i < N_TINY; i++)
		bench_run(plan_of, i);
}

/* Memory does not grow with the number of layers. */
static int64_t
slot_bytes(Bench *b, const char *layers)
{
	const char *set[] = { layers, NULL };
	b->spec = spec_from_file("tests/golden/graphs/llama.yaml", set, &b->diag, &b->arena);
	assert_non_null(b->spec);
	Graph *g = bench_graph(b);
	Selection *sel = select_steps(g, NULL, &b->diag);
	int64_t total = 0;
	mem_buffers(g, sel);
	mem_assign(&b->arena, sel->buf, sel->n_buf, &sel->slot, &sel->n_slot);
	for (int i = 0; i < sel->n_slot; i++)
		total += sel->slot[i].mul;
	return total;
}

BENCH_TEST(layers_share_memory)
{
	assert_int_equal(slot_bytes(b, "n_layers=2"), slot_bytes(b, "n_layers=40"));
}

BENCH_TEST(the_residual_stream_stays_in_place)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	graph_fuse(g, NULL, NULL);
	Selection *sel = select_steps(g, NULL, &b->diag);
	mem_buffers(g, sel);
	mem_assign(&b->arena, sel->buf, sel->n_buf, &sel->slot, &sel->n_slot);
	int slot = -1;
	for (size_t v = 0; v < g->n_val; v++) {
		const char *name = g->val[v].name;
		if (g->val[v].kind != VAL_ACT || (name[0] != 'x' && !strstr(name, ".mid")))
			continue;
		if (slot < 0)
			slot = sel->buf[sel->buf_of[0][v]].slot;
		assert_int_equal(sel->buf[sel->buf_of[0][v]].slot, slot);
	}
	assert_true(slot >= 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_buffers_do_not_overlap),
		cmocka_unit_test(every_input_is_in_memory_when_read),
		cmocka_unit_test(layers_share_memory),
		cmocka_unit_test(the_residual_stream_stays_in_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
