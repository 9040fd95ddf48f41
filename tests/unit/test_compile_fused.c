/* The fused and the unfused plan of a model give equal logits: both read the same random checkpoint
 * and run on the reference. The checkpoint is written from the sources that the unfused plan names,
 * so stacked weights must also combine their sources correctly. */
#include "compiler_util.h"

#include <math.h>

#include "base/file.h"
#include "compiler/select_kernels.h"
#include "runtime/runtime.h"
#include "tempdir.h"

static uint32_t
next_random(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	*s ^= *s << 5;
	return *s;
}

static void
put_tensor(Strbuf *head, Strbuf *data, const char *name, int64_t rows, int64_t cols, float middle,
           float spread, uint32_t *r)
{
	size_t start = data->len;

	for (int64_t i = 0; i < rows * (cols ? cols : 1); i++) {
		float v = middle + spread * ((float)(next_random(r) >> 8) / 8388608.0f - 1.0f);
		strbuf_add(data, &v, sizeof v);
	}
	strbuf_printf(head, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld", head->len > 1 ? "," : "",
	              name, (long long)rows);
	if (cols)
		strbuf_printf(head, ",%lld", (long long)cols);
	strbuf_printf(head, "],\"data_offsets\":[%zu,%zu]}", start, data->len);
}

/* Every tensor that the plan names, once. */
static void
write_checkpoint(const Plan *p, const char *path)
{
	Strbuf head = { 0 }, data = { 0 }, file = { 0 };
	uint32_t r = 88172645u;
	llmc_error err;

	strbuf_putc(&head, '{');
	for (int i = 0; i < p->n_tensor; i++)
		for (int k = 0; k < p->tensor[i].n_src; k++) {
			const PlanSource *s = &p->tensor[i].src[k];
			char quoted[300];
			snprintf(quoted, sizeof quoted, "\"%s\"", s->name);
			bool norm = s->cols == 0 && !strstr(s->name, "bias");
			if (!strstr(strbuf_str(&head), quoted))
				put_tensor(&head, &data, s->name, s->rows, s->cols,
				           norm ? 1.0f : 0.0f, s->cols ? 0.4f : 0.2f, &r);
		}
	for (int i = 0; i < p->n_rope; i++)
		for (int k = 0; k < 2; k++)
			if (p->rope[i].factors_tensor[k] &&
			    !strstr(strbuf_str(&head), p->rope[i].factors_tensor[k]))
				put_tensor(&head, &data, p->rope[i].factors_tensor[k],
				           p->rope[i].dims / 2, 0, 2.0f, 0.5f, &r);
	strbuf_putc(&head, '}');
	while (head.len % 8)
		strbuf_putc(&head, ' ');
	uint64_t n = head.len;
	strbuf_add(&file, &n, sizeof n);
	strbuf_add(&file, head.data, head.len);
	strbuf_add(&file, data.data, data.len);
	if (file_write(path, file.data, file.len, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	strbuf_release(&head);
	strbuf_release(&data);
	strbuf_release(&file);
}

static Plan *
plan_of(Bench *b, bool fuse)
{
	Graph *g = bench_graph(b);

	if (fuse)
		graph_fuse(g, NULL, NULL);
	Selection *sel = select_steps(g, NULL, &b->diag);
	mem_buffers(g, sel);
	mem_assign(&b->arena, sel->buf, sel->n_buf, &sel->slot, &sel->n_slot);
	return emit_plan(g, sel, "ref");
}

enum { N_TOK = 12, N_PROMPT = 7 };

/* Logits of all tokens: a prompt in one step, the others one by one. */
static void
run(const Plan *p, const char *weights, float *logits)
{
	RuntimeOptions opt = { .weights = weights, .n_threads = 1 };
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_error err;
	Runtime *rt;
	Session *s;
	llmc_seq q;
	int32_t tok[N_TOK];

	for (int i = 0; i < N_TOK; i++)
		tok[i] = (int32_t)((i * 37 + 5) % p->vocab_used);
	if (p->prompt_whole) {
		tok[N_PROMPT - 2] = p->prefix_mark;
		tok[N_PROMPT - 1] = p->prefix_end;
	}
	lim.context = N_TOK;
	lim.chunk = N_PROMPT;
	lim.n_out = N_PROMPT;
	if (plan_check(p, &err) != LLMC_OK || runtime_open(p, &opt, &rt, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	if (session_limits(p, &lim, &lim, &err) != LLMC_OK ||
	    session_open(rt, &lim, &s, &err) != LLMC_OK ||
	    session_seq_new(s, N_TOK, &q, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	for (int at = 0; at < N_TOK;) {
		int n = at ? 1 : N_PROMPT;
		llmc_chunk c = { .seq = q, .tok = tok + at, .n_tok = n, .n_out = n };
		if (session_forward(s, &c, 1, logits + (int64_t)at * p->vocab, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		at += n;
	}
	session_close(s);
	runtime_close(rt);
}

static void
check_model(Bench *b, int n)
{
	static const char *const set[] = { "storage.default=f32", "kv.dtype=f32", "dtype=f32",
		                           NULL };
	Tempdir t;

	b->spec =
	    spec_from_file(arena_printf(&b->arena, "tests/golden/graphs/%s.yaml", tiny_models[n]),
	                   set, &b->diag, &b->arena);
	if (!b->spec)
		fail_msg("%s", strbuf_str(&b->diag.text));
	/* this test always writes an f32 checkpoint, so the description must not mix types */
	b->spec->n_storage = 0;
	b->spec->checkpoint = "hf";
	assert_int_equal(tempdir_open(&t), 0);
	const Plan *plain = plan_of(b, false), *fused = plan_of(b, true);
	const char *file = tempdir_file(&t, "model.safetensors");
	assert_true(fused->phase[0].n_step < plain->phase[0].n_step);
	write_checkpoint(plain, file);
	float *x = NEW(&b->arena, float, N_TOK * plain->vocab),
	      *y = NEW(&b->arena, float, N_TOK * plain->vocab);
	run(plain, file, x);
	run(fused, file, y);
	double largest = 0, differ = 0;
	for (int64_t i = 0; i < N_TOK * plain->vocab; i++) {
		assert_true(isfinite(x[i]));
		largest = fmax(largest, fabs(x[i]));
		differ = fmax(differ, fabs((double)x[i] - y[i]));
	}
	tempdir_close(&t);
	if (!(largest > 0.01) || differ > 1e-4 * largest)
		fail_msg("%s: logits up to %g differ by %g", tiny_models[n], largest, differ);
}

static void
fused_equals_unfused(void **state)
{
	(void)state;
	for (int i = 0; i < N_TINY; i++)
		bench_run(check_model, i);
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(fused_equals_unfused) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
