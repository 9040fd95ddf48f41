/* Weight files beyond 4 GiB, as sparse files: sizes, offsets and counts that 32 bits do not hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "tests/unit/tempdir.h"

static const int64_t COLS = 65536, ROWS = 65537 + 32; /* more than 2^32 elements */

typedef struct Piece { int64_t at; const char *text; } Piece;

/* false: this file system cannot hold such a file */
static bool
make_sparse(const char *path, const Strbuf *head, int64_t size, const Piece *piece, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool ok = fd >= 0 && ftruncate(fd, size) == 0 &&
	          pwrite(fd, head->data, head->len, 0) == (ssize_t)head->len;

	for (size_t i = 0; ok && i < n; i++)
		ok = pwrite(fd, piece[i].text, 4, piece[i].at) == 4;
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
put_tensor(Strbuf *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset)
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
	const Piece piece[] = { { start, "head" }, { start + big - 4, "last" }, { start + small_at, "tail" } };
	if (!make_sparse(path, &b, start + small_at + 4, piece, 3)) {
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
	/* one byte less, and the tensor behind 8 GiB is cut off */
	assert_int_equal(truncate(path, start + small_at + 3), 0);
	assert_int_equal(gguf_open(path, &g, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "tensor small needs 4 bytes"));
	/* an offset that agrees with a sound one in its lower 32 bits */
	strbuf_clear(&b);
	strbuf_puts(&b, "GGUF");
	u32(&b, 3), u64(&b, 2), u64(&b, 0);
	put_tensor(&b, "big", (uint64_t)COLS, (uint64_t)ROWS, 1, 0);
	put_tensor(&b, "small", 1, 1, 0, (uint64_t)small_at - (1ull << 32));
	assert_true(make_sparse(path, &b, start + small_at + 4, piece, 3));
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

	strbuf_printf(&header,
	              "{\"small\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%lld,%lld]},"
	              "\"big\":{\"dtype\":\"BF16\",\"shape\":[%lld,%lld],\"data_offsets\":[0,%lld]}}",
	              big, end, (long long)ROWS, (long long)COLS, big);
	u64(&b, header.len);
	strbuf_add(&b, header.data, header.len);
	strbuf_release(&header);
	const int64_t start = (int64_t)b.len;
	const Piece piece[] = { { start, "head" }, { start + big - 4, "last" }, { start + big, "tail" } };
	if (!make_sparse(path, &b, start + end, piece, 3)) {
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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(gguf_beyond_4_gib, tempdir_setup, tempdir_teardown),
		cmocka_unit_test_setup_teardown(safetensors_beyond_4_gib, tempdir_setup, tempdir_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
