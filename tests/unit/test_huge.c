/* Files, tensors and KV pools beyond 4 GiB, as sparse files and address space without memory:
 * sizes, offsets and counts that do not fit in 32 bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "formats/gguf.h"
#include "formats/dequant.h"
#include "formats/layout.h"
#include "formats/safetensors.h"
#include "runtime/kv/kv.h"
#include "runtime/weights/weights_internal.h"
#include "tests/unit/tempdir.h"

static const int64_t COLS = 65536, ROWS = 65537 + 32; /* more than 2^32 elements */

typedef struct Segment {
	int64_t at;
	const char *text;
} Segment;

/* Returns false if this file system cannot hold such a file */
static bool
make_sparse(const char *path, const Strbuf *head, int64_t size, const Segment *segment, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && ftruncate(fd, size) == 0 &&
	          pwrite(fd, head->data, head->len, 0) == (ssize_t)head->len;

	for (size_t i = 0; ok && i < n; i++)
		ok = pwrite(fd, segment[i].text, 4, segment[i].at) == 4;
	if (fd >= 0)
		close(fd);
	return ok;
}

static void
u32(Strbuf *b, uint32_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
u64(Strbuf *b, uint64_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
put_tensor(Strbuf *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type,
           uint64_t offset)
{
	u64(b, strlen(name));
	strbuf_puts(b, name);
	u32(b, 2);
	u64(b, cols);
	u64(b, rows);
	u32(b, type);
	u64(b, offset);
}

static void
gguf_beyond_4_gib(void **state)
{
	const char *path = tempdir_file(*state, "huge.gguf");
	const int64_t big = COLS * ROWS * 2, small_at = big + 32;
	Strbuf b = { 0 };
	llmc_error err;
	Gguf *g;

	strbuf_puts(&b, "GGUF");
	u32(&b, 3), u64(&b, 2), u64(&b, 0);
	put_tensor(&b, "big", (uint64_t)COLS, (uint64_t)ROWS, 1, 0);
	put_tensor(&b, "small", 1, 1, 0, (uint64_t)small_at);
	const int64_t start = ((int64_t)b.len + 31) / 32 * 32;
	const Segment segment[] = { { start, "head" },
		                    { start + big - 4, "last" },
		                    { start + small_at, "tail" } };
	if (!make_sparse(path, &b, start + small_at + 4, segment, 3)) {
		strbuf_release(&b);
		skip();
	}
	if (gguf_open(path, &g, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	const GgufTensor *t = gguf_tensor(g, "big");
	assert_true(t->bytes == big && t->bytes > 1ll << 33);
	assert_memory_equal(t->data, "head", 4);
	assert_memory_equal((const char *)t->data + t->bytes - 4, "last", 4);
	assert_memory_equal(gguf_tensor(g, "small")->data, "tail", 4);
	gguf_close(g);
	/* one byte less truncates the tensor after 8 GiB */
	assert_int_equal(truncate(path, start + small_at + 3), 0);
	assert_int_equal(gguf_open(path, &g, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "tensor small needs 4 bytes"));
	/* an offset that equals a valid one in its lower 32 bits */
	strbuf_clear(&b);
	strbuf_puts(&b, "GGUF");
	u32(&b, 3), u64(&b, 2), u64(&b, 0);
	put_tensor(&b, "big", (uint64_t)COLS, (uint64_t)ROWS, 1, 0);
	put_tensor(&b, "small", 1, 1, 0, (uint64_t)small_at - (1ull << 32));
	assert_true(make_sparse(path, &b, start + small_at + 4, segment, 3));
	assert_int_equal(gguf_open(path, &g, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "overlap"));
	strbuf_release(&b);
}

static void
safetensors_beyond_4_gib(void **state)
{
	const char *path = tempdir_file(*state, "huge.safetensors");
	const long long big = (long long)(COLS * ROWS * 2), end = big + 4;
	Strbuf b = { 0 }, header = { 0 };
	llmc_error err;
	Safetensors *s;

	strbuf_printf(
	    &header,
	    "{\"small\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%lld,%lld]},"
	    "\"big\":{\"dtype\":\"BF16\",\"shape\":[%lld,%lld],\"data_offsets\":[0,%lld]}}",
	    big, end, (long long)ROWS, (long long)COLS, big);
	u64(&b, header.len);
	strbuf_add(&b, header.data, header.len);
	strbuf_release(&header);
	const int64_t start = (int64_t)b.len;
	const Segment segment[] = { { start, "head" },
		                    { start + big - 4, "last" },
		                    { start + big, "tail" } };
	if (!make_sparse(path, &b, start + end, segment, 3)) {
		strbuf_release(&b);
		skip();
	}
	if (safetensors_open(path, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	const StTensor *t = safetensors_find(s, "big");
	assert_true(t->bytes == big);
	assert_memory_equal(t->data, "head", 4);
	assert_memory_equal((const char *)t->data + t->bytes - 4, "last", 4);
	assert_memory_equal(safetensors_find(s, "small")->data, "tail", 4);
	safetensors_close(s);
	assert_int_equal(truncate(path, start + end - 1), 0);
	assert_int_equal(safetensors_open(path, &s, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "tensor small ends at byte"));
	strbuf_release(&b);
}

/* ---- weights ---- */

static void
tensors_follow_those_beyond_2_31_elements(void **state)
{
	static PlanTensor tensor[] = {
		{ .id = "a", .dtype = DT_BF16, .rows = 70000, .cols = 65536, .layout = "row" },
		{ .id = "b", .dtype = DT_F32, .rows = 5, .layout = "f32" },
		{ .id = "c", .dtype = DT_Q4_0, .rows = 140000, .cols = 65536, .layout = "row" },
		{ .id = "d", .dtype = DT_F32, .rows = 5, .layout = "f32" },
	};
	const Plan plan = { .n_tensor = 4, .tensor = tensor };
	const Weights w = { .plan = &plan };
	const int64_t a = 70000ll * 65536 * 2, c = 140000ll * 65536 / 32 * 18;
	int64_t offset[4], bytes;

	(void)state;
	assert_int_equal(weights_layout(&w, offset, &bytes, NULL), LLMC_OK);
	assert_true(offset[0] == 0 && offset[1] == a && offset[2] == a + 256 &&
	            offset[3] == a + 256 + c && bytes == a + 512 + c);
	assert_true(layout_bytes("r16", DT_BF16, 70001, 65536) == 70016ll * 65536 * 2);
}

/* Three rows of a matrix, far apart, like a rank's shard */
static void
rows_beyond_2_31_elements_are_packed(void **state)
{
	static const struct {
		const char *layout;
		Dtype dtype;
	} as[] = { { "row", DT_BF16 }, { "r8", DT_BF16 }, { "row", DT_F32 } };
	const int64_t first = 1, stride = 32783;
	const char *path = tempdir_file(*state, "rows.safetensors");
	Strbuf b = { 0 }, header = { 0 };

	strbuf_printf(
	    &header,
	    "{\"big\":{\"dtype\":\"BF16\",\"shape\":[%lld,%lld],\"data_offsets\":[0,%lld]}}",
	    (long long)ROWS, (long long)COLS, (long long)(COLS * ROWS * 2));
	u64(&b, header.len);
	strbuf_add(&b, header.data, header.len);
	strbuf_release(&header);
	const int64_t start = (int64_t)b.len;
	Segment segment[3];
	for (int i = 0; i < 3; i++)
		segment[i] = (Segment){ start + ((first + i * stride) * COLS + 2 * i) * 2,
			                i == 0   ? "one."
			                : i == 1 ? "two."
			                         : "last" };
	if (!make_sparse(path, &b, start + COLS * ROWS * 2, segment, 3)) {
		strbuf_release(&b);
		skip();
	}
	strbuf_release(&b);
	for (int l = 0; l < 3; l++) {
		const PlanSource src = { .name = "big",
			                 .rows = ROWS,
			                 .cols = COLS,
			                 .first = first,
			                 .block = 1,
			                 .stride = stride,
			                 .n_block = 3 };
		PlanTensor t = { .id = "t",
			         .dtype = as[l].dtype,
			         .rows = 3,
			         .cols = COLS,
			         .layout = as[l].layout,
			         .n_src = 1,
			         .src = &src };
		const Plan plan = { .n_tensor = 1, .tensor = &t };
		WeightsOptions o = { .path = path };
		float *row = malloc((size_t)COLS * sizeof *row);
		Weights *w;
		llmc_error err;
		assert_int_equal(threads_open(1, &o.threads, NULL), LLMC_OK);
		if (weights_load(&plan, &o, &w, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		for (int i = 0; i < 3; i++) {
			uint16_t pair[2];
			memcpy(pair, segment[i].text, 4);
			plan_tensor_row(&t, weights_data(w, 0), i, row);
			for (int64_t c = 0; c < COLS; c++)
				assert_true(row[c] == (c == 2 * i       ? bf16_to_f32(pair[0])
				                       : c == 2 * i + 1 ? bf16_to_f32(pair[1])
				                                        : 0));
		}
		weights_close(w);
		threads_close(o.threads);
		free(row);
	}
}

/* ---- pages ---- */

/* Address space without memory, which records the copies requested in it */
typedef struct Far {
	char *pages, *host;
	struct {
		const char *to, *from;
	} copy[8];
	int n_copy;
	int64_t n_out, most_page, most_host;
} Far;

static llmc_status
reserve(size_t bytes, char **out)
{
	*out = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return *out == MAP_FAILED ? LLMC_E_MEMORY : LLMC_OK;
}

static llmc_status
far_alloc(void *user, size_t bytes, void **out, llmc_error *err)
{
	Far *f = user;

	(void)err;
	llmc_status status = reserve(bytes, &f->pages);
	*out = f->pages;
	return status;
}

static llmc_status
far_pin(void *user, size_t bytes, void **out, llmc_error *err)
{
	Far *f = user;

	(void)err;
	llmc_status status = reserve(bytes, &f->host);
	*out = f->host;
	return status;
}

static void
far_free(void *user, void *mem, size_t bytes)
{
	(void)user;
	munmap(mem, bytes);
}

static void
far_copy(void *user, void *to, const void *from, size_t bytes)
{
	Far *f = user;

	(void)bytes;
	assert_true(f->n_copy < 8);
	f->copy[f->n_copy].to = to;
	f->copy[f->n_copy++].from = from;
}

static void
far_clear(void *user, void *at, size_t bytes, size_t apart, int n)
{
	(void)user, (void)at, (void)bytes, (void)apart, (void)n;
}

enum { FAR_LAYERS = 2, FAR_PAGES = 4300, FAR_HOST = 2100 };
static const int64_t FAR_BYTES = 2ll << 20; /* per page of a layer */

/* Copy a layer's page to its position in the host page: on the device the pages of a layer are
 * adjacent, in host memory the layers of a page. */
static void
far_out(void *user, void *host, const void *at, size_t bytes)
{
	Far *f = user;
	const int64_t to = (char *)host - f->host, from = (const char *)at - f->pages;

	assert_true((int64_t)bytes == FAR_BYTES && to % FAR_BYTES == 0 && from % FAR_BYTES == 0);
	assert_true(to >= 0 && to < FAR_HOST * FAR_LAYERS * FAR_BYTES && from >= 0 &&
	            from < FAR_PAGES * FAR_LAYERS * FAR_BYTES);
	assert_true(to / FAR_BYTES % FAR_LAYERS == from / FAR_BYTES / FAR_PAGES);
	f->n_out++;
	f->most_host = to > f->most_host ? to : f->most_host;
	f->most_page = from > f->most_page ? from : f->most_page;
}

static void
far_in(void *user, void *at, const void *host, size_t bytes)
{
	(void)user, (void)at, (void)host, (void)bytes;
}

static void
far_begin(void *user)
{
	(void)user;
}

static void
far_number(void *user, uint32_t number)
{
	(void)user, (void)number;
}

static bool
far_over(void *user, uint32_t number)
{
	(void)user, (void)number;
	return true;
}

/* Copy-on-write of pages at both ends of a 17 GiB pool, and an 8 GiB prefix cache that is swapped
 * to host memory */
static void
pages_beyond_4_gib(void **state)
{
	static PlanPool pool = { .id = "kv",
		                 .k = KVT_F32,
		                 .v = KVT_F32,
		                 .n_layers = FAR_LAYERS,
		                 .kv_heads = 64,
		                 .k_dim = 128,
		                 .v_dim = 128 };
	static const Plan plan = { .n_pool = 1, .pool = &pool };
	static Far f;
	const KvMem mem = { .user = &f,
		            .alloc = far_alloc,
		            .free = far_free,
		            .copy = far_copy,
		            .clear = far_clear,
		            .pin = far_pin,
		            .unpin = far_free,
		            .begin = far_begin,
		            .out = far_out,
		            .in = far_in,
		            .end = far_number,
		            .wait = far_number,
		            .over = far_over };
	const int32_t half = FAR_PAGES / 2 * PLAN_KV_PAGE - 40;
	int32_t *tok = calloc(2 * (size_t)half, sizeof *tok), q[2], fork;
	int64_t most = 0;
	Kv kv;

	(void)state;
	assert_true(plan_layer_page_bytes(&pool) == FAR_BYTES);
	if (kv_open_on(&kv, &mem, &plan, FAR_PAGES, 0, 0, 2 * half, 3, NULL) != LLMC_OK) {
		free(tok);
		skip(); /* no address space */
	}
	if (kv_host_open(&kv, FAR_HOST, 2, NULL) != LLMC_OK) {
		kv_release(&kv);
		free(tok);
		skip();
	}
	assert_int_equal(kv_prefix_open(&kv, NULL), LLMC_OK);
	for (int i = 0; i < 2; i++) {
		q[i] = kv_seq_new(&kv);
		kv_extend(&kv, q[i], half);
		kv_advance(&kv, q[i], half);
		fork = kv_seq_fork(&kv, q[i]);
		f.n_copy = 0;
		kv_extend(&kv, fork, 1); /* its last page is shared */
		kv_advance(&kv, fork, 1);
		assert_int_equal(f.n_copy, FAR_LAYERS);
		const int32_t at = half / PLAN_KV_PAGE, from = kv.seq[q[i]].page[at],
		              to = kv.seq[fork].page[at];
		assert_true(from != to);
		for (int l = 0; l < FAR_LAYERS; l++) {
			const int64_t layer = (int64_t)l * FAR_PAGES * FAR_BYTES;
			assert_true(f.copy[l].from - f.pages == layer + from * FAR_BYTES &&
			            f.copy[l].to - f.pages == layer + to * FAR_BYTES);
			most = f.copy[l].to - f.pages > most ? f.copy[l].to - f.pages : most;
		}
		kv_seq_free(&kv, fork);
	}
	assert_true(most > 1ll << 33); /* 2^31 elements and more */
	for (int i = 0; i < 2 * half; i++)
		tok[i] = i;
	kv_prefix_keep(&kv, q[0], -1, tok);
	kv_seq_free(&kv, q[0]);
	q[0] = kv_seq_new(&kv);
	/* takes the pages of the previous sequence, which are swapped out */
	kv_extend(&kv, q[0], half);
	assert_null(kv_check(&kv));
	assert_true(f.n_out > 4000 && f.most_host > 1ll << 32 && f.most_page > 1ll << 33);
	kv_release(&kv);
	free(tok);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(gguf_beyond_4_gib, tempdir_setup, tempdir_teardown),
		cmocka_unit_test_setup_teardown(safetensors_beyond_4_gib, tempdir_setup,
		                                tempdir_teardown),
		cmocka_unit_test(tensors_follow_those_beyond_2_31_elements),
		cmocka_unit_test_setup_teardown(rows_beyond_2_31_elements_are_packed, tempdir_setup,
		                                tempdir_teardown),
		cmocka_unit_test(pages_beyond_4_gib),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
