/* KV pages: allocated on demand, shared by forks, copied before a write, released; nothing is lost
 * over many random steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/kv/kv.h"

static PlanPool pools[] = {
	{ .id = "kv",
	  .k = KVT_F32,
	  .v = KVT_F32,
	  .n_layers = 2,
	  .kv_heads = 1,
	  .k_dim = 2,
	  .v_dim = 1 },
	{ .id = "latent",
	  .mla = true,
	  .k = KVT_F16,
	  .v = KVT_F16,
	  .n_layers = 1,
	  .kv_heads = 1,
	  .k_dim = 3 },
};
static const Plan plan = { .n_pool = 2, .pool = pools };

static void
append(Kv *kv, int32_t q, int32_t n)
{
	assert_true(kv_pages_needed(kv, &q, &n, 1) <= kv->n_free);
	kv_extend(kv, q, n);
	kv_advance(kv, q, n);
}

static float *
cell(Kv *kv, int32_t q, int32_t pos, int layer)
{
	float *page =
	    (float *)((char *)kv_layer(kv, 0, layer) +
	              kv->seq[q].page[pos / PLAN_KV_PAGE] * plan_layer_page_bytes(&pools[0]));
	return &page[pos % PLAN_KV_PAGE];
}

static void
sizes(void **state)
{
	(void)state;
	assert_int_equal(plan_layer_page_bytes(&pools[0]), 32 * 3 * 4);
	assert_int_equal(plan_layer_page_bytes(&pools[1]), 32 * 3 * 2);
	assert_int_equal(kv_bytes(&plan, 5), 5 * (2 * 384 + 192));
	assert_int_equal(kv_pages(0, 33, 3, false), 6);
	assert_int_equal(kv_pages(65, 33, 3, true), 3);
	assert_int_equal(kv_bytes(&plan, INT64_MAX / 100), -1);
}

static void
pages_are_allocated_and_freed(void **state)
{
	Kv kv;

	(void)state;
	assert_int_equal(kv_open(&kv, &plan, 4, 100, 2, NULL), LLMC_OK);
	int32_t a = kv_seq_new(&kv), b = kv_seq_new(&kv);
	assert_int_equal(a, 0);
	assert_int_equal(b, 1);
	assert_int_equal(kv_seq_new(&kv), -1);
	append(&kv, a, 32);
	assert_int_equal(kv.n_free, 3);
	append(&kv, a, 1);
	assert_int_equal(kv.n_free, 2);
	append(&kv, a, 31);
	assert_int_equal(kv.n_free, 2);
	append(&kv, b, 64);
	int32_t both[] = { a, b }, one[] = { 1, 1 };
	assert_int_equal(kv.n_free, 0);
	assert_int_equal(kv_pages_needed(&kv, both, one, 2), 2);
	kv_seq_trim(&kv, a, 33);
	assert_int_equal(kv.n_free, 0);
	kv_seq_trim(&kv, a, 32);
	assert_int_equal(kv.n_free, 1);
	kv_seq_free(&kv, b);
	assert_int_equal(kv.n_free, 3);
	assert_int_equal(kv_seq_new(&kv), b);
	assert_int_equal(kv.seq[b].len, 0);
	kv_release(&kv);
}

static void
a_fork_copies_before_it_writes(void **state)
{
	Kv kv;

	(void)state;
	assert_int_equal(kv_open(&kv, &plan, 6, 100, 3, NULL), LLMC_OK);
	int32_t a = kv_seq_new(&kv);
	append(&kv, a, 40);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 40; i++)
			*cell(&kv, a, i, l) = (float)(100 * l + i);
	int32_t b = kv_seq_fork(&kv, a), c = kv_seq_fork(&kv, a);
	assert_int_equal(kv.n_free, 4);
	/* three sequences share the half-filled page: two must copy it, the last one may write to
	 * it */
	int32_t all[] = { a, b, c }, one[] = { 1, 1, 1 };
	assert_int_equal(kv_pages_needed(&kv, all, one, 3), 2);
	assert_int_equal(kv_pages_needed(&kv, all, one, 3), 2); /* the query changes nothing */
	assert_int_equal(kv_pages_needed(&kv, all, one, 1), 1);
	append(&kv, b, 1);
	*cell(&kv, b, 40, 0) = -1;
	assert_int_equal(kv.seq[b].page[0], kv.seq[a].page[0]);
	assert_int_not_equal(kv.seq[b].page[1], kv.seq[a].page[1]);
	for (int l = 0; l < 2; l++)
		for (int i = 0; i < 40; i++)
			assert_true(*cell(&kv, b, i, l) == (float)(100 * l + i));
	append(&kv, c, 1);
	assert_int_equal(kv.n_free, 2);
	int32_t mine = kv.seq[a].page[1];
	append(&kv, a, 1); /* no longer shared */
	assert_int_equal(kv.seq[a].page[1], mine);
	assert_int_equal(kv.n_free, 2);
	/* trim to the middle of the shared first page, then append */
	kv_seq_trim(&kv, b, 10);
	assert_int_equal(kv.n_free, 3);
	append(&kv, b, 1);
	assert_int_not_equal(kv.seq[b].page[0], kv.seq[a].page[0]);
	for (int32_t q = 0; q < 3; q++)
		kv_seq_free(&kv, q);
	assert_int_equal(kv.n_free, 6);
	kv_release(&kv);
}

/* A reallocated page has no old content: a masked NaN would still spoil a sum. */
static void
a_reallocated_page_is_cleared(void **state)
{
	Kv kv;

	(void)state;
	assert_int_equal(kv_open(&kv, &plan, 1, 32, 1, NULL), LLMC_OK);
	int32_t a = kv_seq_new(&kv);
	append(&kv, a, 5);
	for (int l = 0; l < 2; l++)
		memset(kv_layer(&kv, 0, l), 0xff, 384);
	memset(kv_layer(&kv, 1, 0), 0xff, 192);
	kv_seq_free(&kv, a);
	a = kv_seq_new(&kv);
	append(&kv, a, 5);
	static const char zero[384];
	for (int l = 0; l < 2; l++)
		assert_memory_equal(kv_layer(&kv, 0, l), zero, 384);
	assert_memory_equal(kv_layer(&kv, 1, 0), zero, 192);
	kv_release(&kv);
}

/* Random forks, appends, trims and frees: reference counts are always right, and no sequence sees
 * another's writes. */
static void
random_steps_keep_reference_counts(void **state)
{
	enum { SEQS = 5, PAGES = 12, CONTEXT = 128 };
	static float want[SEQS][CONTEXT];
	uint64_t r = 88172645463325252u;
	Kv kv;
	float stamp = 1;

	(void)state;
	assert_int_equal(kv_open(&kv, &plan, PAGES, CONTEXT, SEQS, NULL), LLMC_OK);
	for (int step = 0; step < 20000; step++) {
		r ^= r << 13;
		r ^= r >> 7;
		r ^= r << 17;
		int32_t q = (int32_t)(r >> 8 & 0xff) % SEQS, n = 1 + (int32_t)(r >> 16 & 0xff) % 40;
		if (!kv.seq[q].used) {
			assert_true(kv_seq_new(&kv) >= 0);
			continue;
		}
		switch (r >> 32 & 7) {
		case 0: {
			int32_t f = kv_seq_fork(&kv, q);
			if (f >= 0)
				memcpy(want[f], want[q], sizeof want[f]);
			break;
		}
		case 1:
			kv_seq_trim(&kv, q, kv.seq[q].len * (int32_t)(r >> 40 & 7) / 8);
			break;
		case 2:
			if ((r >> 40 & 3) == 0)
				kv_seq_free(&kv, q);
			break;
		default:
			if (kv.seq[q].len + n > CONTEXT ||
			    kv_pages_needed(&kv, &q, &n, 1) > kv.n_free)
				break;
			int32_t was = kv.seq[q].len;
			append(&kv, q, n);
			for (int32_t i = was; i < was + n; i++)
				*cell(&kv, q, i, 1) = want[q][i] = stamp++;
		}
		int32_t holders[PAGES] = { 0 }, held = 0;
		for (q = 0; q < SEQS; q++)
			for (int32_t i = 0; kv.seq[q].used && i < kv.seq[q].n_page; i++)
				held += holders[kv.seq[q].page[i]]++ == 0;
		assert_int_equal(held + kv.n_free, PAGES);
		assert_memory_equal(holders, kv.refs, sizeof holders);
		for (q = 0; q < SEQS && step % 16 == 0; q++)
			for (int32_t i = 0; kv.seq[q].used && i < kv.seq[q].len; i++)
				assert_true(*cell(&kv, q, i, 1) == want[q][i]);
	}
	kv_release(&kv);
}

static void
write_tokens(Kv *kv, int32_t q, const int32_t *tok, int32_t n)
{
	int32_t at = kv->seq[q].len;

	append(kv, q, n - at);
	for (int32_t i = at; i < n; i++)
		*cell(kv, q, i, 1) = (float)tok[i];
	kv_prefix_keep(kv, q, -1, tok);
	assert_null(kv_check(kv));
}

static void
a_prefix_is_found_again(void **state)
{
	int32_t a[128], b[128];
	Kv kv;

	(void)state;
	for (int32_t i = 0; i < 128; i++)
		b[i] = (a[i] = 1000 + i) + (i >= 70);
	assert_int_equal(kv_open(&kv, &plan, 8, 128, 3, NULL), LLMC_OK);
	assert_int_equal(kv_prefix_open(&kv, NULL), LLMC_OK);
	int32_t q = kv_seq_new(&kv);
	assert_int_equal(kv_prefix_find(&kv, q, -1, a, 128), 0);
	write_tokens(&kv, q, a, 100);
	/* a page in use is shared; at least one token of the prompt is always left to compute */
	int32_t r = kv_seq_new(&kv);
	assert_int_equal(kv_prefix_find(&kv, r, -1, b, 128), 64);
	assert_int_equal(kv.seq[r].page[1], kv.seq[q].page[1]);
	kv_seq_trim(&kv, r, 0);
	assert_int_equal(kv_prefix_find(&kv, r, -1, a, 64), 32);
	kv_seq_trim(&kv, r, 0);
	for (int64_t root = -2; root > -100; root--) /* the same tokens under other roots */
		assert_int_equal(kv_prefix_find(&kv, r, root, a, 100), 0);
	write_tokens(&kv, r, b, 100);
	assert_int_not_equal(kv.seq[r].page[0], kv.seq[q].page[0]);
	/* unreferenced pages are still found, and are available for allocation */
	kv_seq_free(&kv, q);
	kv_seq_free(&kv, r);
	assert_int_equal(kv.n_free, 8);
	/* three pages of a; only the third page of b differs */
	assert_int_equal(kv_prefix_idle(&kv), 4);
	assert_null(kv_check(&kv));
	q = kv_seq_new(&kv);
	assert_int_equal(kv_prefix_find(&kv, q, -1, b, 128), 96);
	for (int32_t i = 0; i < 96; i++)
		assert_true(*cell(&kv, q, i, 1) == (float)b[i]);
	assert_int_equal(kv.n_free, 5);
	/* the sequence is trimmed into a cached page that no other sequence uses; the page leaves
	 * the cache, because its content will change */
	kv_seq_trim(&kv, q, 80);
	append(&kv, q, 1);
	*cell(&kv, q, 80, 1) = -1;
	assert_null(kv_check(&kv));
	kv_seq_free(&kv, q);
	q = kv_seq_new(&kv);
	assert_int_equal(kv_prefix_find(&kv, q, -1, b, 128), 64);
	kv_seq_trim(&kv, q, 0);
	/* under memory pressure the oldest page is evicted first, the end of a chain before its
	 * start */
	r = kv_seq_new(&kv);
	append(&kv, r, 6 * 32);
	assert_int_equal(kv.n_free, 2);
	assert_int_equal(kv_prefix_find(&kv, q, -1, a, 128), 64);
	kv_seq_trim(&kv, q, 0);
	append(&kv, r, 1);
	assert_int_equal(kv_prefix_find(&kv, q, -1, a, 128), 32);
	assert_null(kv_check(&kv));
	kv_release(&kv);
}

static void
a_sequence_is_saved_and_restored(void **state)
{
	int32_t tok[70];
	static char bytes[3 * (2 * 384 + 192)];
	Kv kv;

	(void)state;
	for (int32_t i = 0; i < 70; i++)
		tok[i] = i * i;
	assert_int_equal(kv_open(&kv, &plan, 6, 128, 2, NULL), LLMC_OK);
	assert_int_equal(kv_bytes(&plan, kv_seq_pages(70)), sizeof bytes);
	assert_int_equal(kv_seq_pages(0), 0);
	int32_t q = kv_seq_new(&kv);
	append(&kv, q, 70);
	for (int32_t i = 0; i < 70; i++)
		*cell(&kv, q, i, 1) = (float)tok[i];
	kv_pages_read(&kv, kv.seq[q].page, kv.seq[q].n_page, 0, bytes);
	int32_t r = kv_seq_new(&kv);
	kv_seq_reserve(&kv, r, 70, 0);
	kv_pages_write(&kv, kv.seq[r].page, kv.seq[r].n_page, 0, bytes);
	assert_int_equal(kv.seq[r].len, 70);
	assert_int_equal(kv.n_free, 0);
	for (int32_t i = 0; i < 70; i++)
		assert_true(*cell(&kv, r, i, 1) == (float)tok[i]);
	assert_null(kv_check(&kv));
	kv_release(&kv);
}

/* A sequence can be trimmed by KV_MAX_ROLLBACK positions, whatever pages other sequences have
 * allocated since. This also holds for its saved copy. */
static void
window_pages_allow_a_short_rollback(void **state)
{
	static const int64_t keeps[] = { 1, 2, 31, 32, 33, 70 };

	(void)state;
	for (size_t k = 0; k < sizeof keeps / sizeof *keeps; k++) {
		PlanPool seen[] = { pools[0],
			            { .id = "kv_window",
			              .k = KVT_F32,
			              .v = KVT_F32,
			              .n_layers = 1,
			              .kv_heads = 1,
			              .k_dim = 1,
			              .v_dim = 1,
			              .keep = keeps[k] } };
		const Plan windowed = { .n_pool = 2, .pool = seen };
		const int32_t pages = 64, seqs = 3, chunk = 8, context = 640;
		Kv kv;
		assert_int_equal(kv_open_on(&kv, NULL, &windowed, pages,
		                            (int32_t)kv_window_pages(&windowed, pages, seqs, chunk),
		                            0, context, seqs, NULL),
		                 LLMC_OK);
		for (int32_t len = 1; len < 170; len += 1 + len % 3) {
			int32_t a = kv_seq_new(&kv), b = kv_seq_new(&kv);
			for (int32_t at = 0; at < len; at += chunk)
				append(&kv, a, len - at < chunk ? len - at : chunk);
			for (int32_t at = 0; at < context;
			     at += chunk) /* all unneeded pages are allocated */
				append(&kv, b, chunk);
			assert_null(kv_check(&kv));
			for (int32_t back = 0; back <= KV_MAX_ROLLBACK && back <= len; back++)
				assert_true(kv_can_trim(&kv, a, len - back));
			int32_t to = len > KV_MAX_ROLLBACK ? len - len % (KV_MAX_ROLLBACK + 1) : 0,
			        fork = kv_seq_fork(&kv, a);
			kv_seq_trim(&kv, a, to);
			assert_null(kv_check(&kv));
			append(&kv, a, 1);
			append(&kv, fork, 3);
			assert_null(kv_check(&kv));
			/* save and restore */
			int32_t n = kv.seq[fork].n_page, windowless = kv.seq[fork].n_windowless;
			len = kv.seq[fork].len;
			kv_seq_free(&kv, fork);
			kv_seq_free(&kv, a);
			a = kv_seq_new(&kv);
			kv_seq_reserve(&kv, a, len, windowless);
			assert_int_equal(kv.seq[a].n_page, n);
			for (int32_t back = 0; back <= KV_MAX_ROLLBACK && back <= len; back++)
				assert_true(kv_can_trim(&kv, a, len - back));
			assert_null(kv_check(&kv));
			len -= 3;
			kv_seq_free(&kv, a);
			kv_seq_free(&kv, b);
			assert_int_equal(kv.n_free, pages);
		}
		kv_release(&kv);
	}
}

/* Four of eight prompt pages fit on the device. When the first ones are found again, they read as
 * written; each page that is not on the device has a host page. */
static void
evicted_pages_are_swapped_in_from_the_host(void **state)
{
	enum { LONG = 2 * PLAN_KV_PAGE };
	int32_t tok[4][LONG + 1];
	Kv kv;

	(void)state;
	assert_int_equal(kv_open(&kv, &plan, 4, 100, 2, NULL), LLMC_OK);
	assert_int_equal(kv_host_open(&kv, 6, 1, NULL), LLMC_OK);
	assert_int_equal(kv_prefix_open(&kv, NULL), LLMC_OK);
	for (int p = 0; p < 4; p++) {
		int32_t q = kv_seq_new(&kv);
		for (int i = 0; i <= LONG; i++)
			tok[p][i] = 100 * p + i;
		append(&kv, q, LONG);
		for (int i = 0; i < LONG; i++)
			for (int l = 0; l < 2; l++)
				*cell(&kv, q, i, l) = (float)(1000 * p + 2 * i + l);
		kv_prefix_keep(&kv, q, -1, tok[p]);
		kv_seq_free(&kv, q);
		assert_null(kv_check(&kv));
	}
	assert_int_equal(kv.host.n_in, 0);
	for (int round = 0; round < 3; round++)
		for (int p = 0; p < 4; p++) {
			int32_t q = kv_seq_new(&kv);
			assert_int_equal(kv_prefix_find(&kv, q, -1, tok[p], LONG + 1), LONG);
			assert_true(kv_seq_ready(&kv, q));
			for (int i = 0; i < LONG; i++)
				for (int l = 0; l < 2; l++)
					assert_true(*cell(&kv, q, i, l) ==
					            (float)(1000 * p + 2 * i + l));
			assert_null(kv_check(&kv));
			kv_seq_free(&kv, q);
		}
	/* the page that was looked up was always the oldest */
	assert_true(kv.host.n_in == 2 * 12 && kv.host.n_out >= kv.host.n_in);
	assert_true(kv_host_used(&kv) >= 4 && kv_host_used(&kv) <= 6);
	/* pages of two sequences leave no free page for swap-in: they are found only as far as
	 * pages are free */
	int32_t a = kv_seq_new(&kv), b = kv_seq_new(&kv);
	append(&kv, a, LONG + 1);
	assert_int_equal(kv_prefix_find(&kv, b, -1, tok[1], LONG + 1), PLAN_KV_PAGE);
	assert_int_equal(kv.n_free, 0);
	assert_null(kv_check(&kv));
	kv_seq_free(&kv, b);
	kv_seq_free(&kv, a);
	assert_null(kv_check(&kv));
	kv_release(&kv);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(pages_are_allocated_and_freed),
		cmocka_unit_test(a_fork_copies_before_it_writes),
		cmocka_unit_test(a_reallocated_page_is_cleared),
		cmocka_unit_test(random_steps_keep_reference_counts),
		cmocka_unit_test(a_prefix_is_found_again),
		cmocka_unit_test(a_sequence_is_saved_and_restored),
		cmocka_unit_test(window_pages_allow_a_short_rollback),
		cmocka_unit_test(evicted_pages_are_swapped_in_from_the_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
