/* Pages in host memory together with window pages, with copies that complete late: a sequence reads
 * what was written, whatever used its pages and window pages before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/late_copies.h"

enum { KEEP = 40, PROMPTS = 7, LONGEST = 5 * PLAN_KV_PAGE };
static PlanPool pools[] = {
	{ .id = "kv",
	  .k = KVT_F32,
	  .v = KVT_F32,
	  .n_layers = 1,
	  .kv_heads = 1,
	  .k_dim = 1,
	  .v_dim = 1 },
	{ .id = "kv_window",
	  .k = KVT_F32,
	  .v = KVT_F32,
	  .n_layers = 1,
	  .kv_heads = 1,
	  .k_dim = 1,
	  .v_dim = 1,
	  .keep = KEEP },
};
static const Plan plan = { .n_pool = 2, .pool = pools };

static void
open_late(Kv *kv, Late *l, int32_t pages, int32_t windows, int32_t host, int32_t seqs)
{
	const KvMem mem = late_mem(l);

	*l = (Late){ .random = 5 };
	assert_int_equal(
	    kv_open_on(kv, &mem, &plan, pages, windows, 0, LONGEST + 2 * PLAN_KV_PAGE, seqs, NULL),
	    LLMC_OK);
	assert_int_equal(kv_host_open(kv, host, 3, NULL), LLMC_OK);
	assert_int_equal(kv_prefix_open(kv, NULL), LLMC_OK);
}

static float *
cell(Kv *kv, int pool, int32_t q, int32_t pos)
{
	const int32_t page = kv->seq[q].page[pos / PLAN_KV_PAGE],
	              place = pool ? kv->window[page] : page;

	assert_true(place >= 0);
	return (float *)((char *)kv_layer(kv, pool, 0) +
	                 place * plan_layer_page_bytes(&pools[pool])) +
	       pos % PLAN_KV_PAGE;
}

/* A step: writes n more positions of prompt p, and reads everything that its last position sees */
static void
step(Kv *kv, int32_t q, int p, int32_t n)
{
	assert_true(kv_pages_needed(kv, &q, &n, 1) <= kv->n_free);
	kv_extend(kv, q, n);
	for (int32_t i = kv->seq[q].len; i < kv->seq[q].len + n; i++)
		for (int pool = 0; pool < 2; pool++)
			*cell(kv, pool, q, i) = (float)(1000 * p + i + 7000 * pool + 1);
	kv_advance(kv, q, n);
	const int32_t len = kv->seq[q].len;
	for (int32_t i = 0; i < len; i++)
		for (int pool = 0; pool < (i > len - 1 - KEEP ? 2 : 1); pool++)
			if (*cell(kv, pool, q, i) != (float)(1000 * p + i + 7000 * pool + 1))
				fail_msg("prompt %d of %d positions: position %d of pool %d", p,
				         len, i, pool);
	assert_null(kv_check(kv));
}

static void
tokens(int p, int32_t *tok)
{
	for (int32_t i = 0; i < LONGEST + PLAN_KV_PAGE; i++)
		tok[i] = 1000 * p + i;
}

/* Prompts come and go. Each reads the pages that it finds, and appends to them, while copies for
 * others are in flight. */
static void
late_copies_change_no_sequence(void **state)
{
	static Late l;
	int32_t tok[LONGEST + PLAN_KV_PAGE];
	int64_t found = 0, waited = 0;
	Kv kv;

	(void)state;
	open_late(&kv, &l, 14, 9, 20, 2);
	for (int round = 0; round < 3000; round++) {
		const int p = (int)late_roll(&l, PROMPTS);
		const int32_t len = PLAN_KV_PAGE + (int32_t)late_roll(&l, LONGEST - PLAN_KV_PAGE),
		              q = kv_seq_new(&kv);
		tokens(p, tok);
		found += kv_prefix_find(&kv, q, -1, tok, len);
		waited += !kv_seq_ready(&kv, q);
		if (late_roll(&l, 8)) /* otherwise it is freed with its copies in flight */
			while (kv.seq[q].len < len) {
				const int32_t left = len - kv.seq[q].len,
				              n = 1 + (int32_t)late_roll(&l, 2 * PLAN_KV_PAGE);
				step(&kv, q, p, left < n ? left : n);
				kv_prefix_keep(&kv, q, -1, tok);
			}
		kv_seq_free(&kv, q);
		assert_null(kv_check(&kv));
	}
	assert_true(found > 1000 && waited > 100 && kv.host.n_in > 300 && kv.host.n_out > 300);
	kv_release(&kv);
}

/* A prompt whose window pages are gone cannot be resumed: its pages stay where they are. */
static void
useless_pages_are_not_swapped_in(void **state)
{
	static Late l;
	int32_t tok[LONGEST + PLAN_KV_PAGE];
	Kv kv;

	(void)state;
	open_late(&kv, &l, 12, 4, 20, 1);
	for (int p = 0; p < 4; p++) { /* each prompt takes the window pages of the previous one */
		int32_t q = kv_seq_new(&kv);
		tokens(p, tok);
		for (int32_t i = 0; i < 4; i++) {
			step(&kv, q, p, PLAN_KV_PAGE);
			kv_prefix_keep(&kv, q, -1, tok);
		}
		kv_seq_free(&kv, q);
	}
	assert_true(kv_host_used(&kv) >= 4);
	const int32_t used = kv_host_used(&kv);
	int32_t q = kv_seq_new(&kv);
	tokens(0, tok);
	assert_int_equal(kv_prefix_find(&kv, q, -1, tok, LONGEST), 0);
	assert_int_equal(kv.host.n_in, 0);
	assert_int_equal(kv_host_used(&kv), used);
	assert_null(kv_check(&kv));
	/* the last one still has them */
	tokens(3, tok);
	assert_int_equal(kv_prefix_find(&kv, q, -1, tok, LONGEST), 4 * PLAN_KV_PAGE);
	assert_null(kv_check(&kv));
	kv_release(&kv);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_copies_change_no_sequence),
		cmocka_unit_test(useless_pages_are_not_swapped_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
