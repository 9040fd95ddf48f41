/* Weights from a checkpoint: slices cut, stacked, transposed and packed as the plan specifies;
 * malformed files; the cache of packed weights; and random weights. Element (r, c) of tensor "a" of
 * the test file is 100 r + c + 1, of "b" its negative. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <utime.h>

#include <cmocka.h>

#include "base/file.h"
#include "formats/dequant.h"
#include "formats/layout.h"
#include "runtime/weights/weights.h"
#include "tests/unit/tempdir.h"

enum { ROWS = 24, COLS = 8 };

static Tempdir dir;
static char warned[4096];

static void
on_log(void *user, int level, const char *line)
{
	(void)user;
	if (level == LLMC_LOG_WARNING)
		snprintf(warned, sizeof warned, "%s", line);
}

static float
value(int64_t r, int64_t c)
{
	return (float)(100 * r + c + 1);
}

static void
put_file(const char *path, const void *data, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(data, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

/* a [24, 8] f32, b [24, 8] f32, v [24] f32, w [24] bf16, h [24, 8] f16; a q8_0-like q [4, 32] is
 * not possible in safetensors */
static void
put_checkpoint(const char *path)
{
	static const char head[] =
	    "{\"a\":{\"dtype\":\"F32\",\"shape\":[24,8],\"data_offsets\":[0,768]},"
	    "\"b\":{\"dtype\":\"F32\",\"shape\":[3,8,8],\"data_offsets\":[768,1536]},"
	    "\"v\":{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[1536,1632]},"
	    "\"w\":{\"dtype\":\"BF16\",\"shape\":[24],\"data_offsets\":[1632,1680]},"
	    "\"h\":{\"dtype\":\"F16\",\"shape\":[24,8],\"data_offsets\":[1680,2064]},"
	    "\"layers.0.attn.weight\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[2064,2072]"
	    "}}    ";
	unsigned char file[8 + sizeof head - 1 + 2072];
	uint64_t n = sizeof head - 1;
	unsigned char *at = file + 8 + n;

	memcpy(file, &n, 8);
	memcpy(file + 8, head, n);
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLS; c++) {
			float a = value(r, c), b = -a;
			uint16_t h = f32_to_f16((float)(r + c));
			memcpy(at + (r * COLS + c) * 4, &a, 4);
			memcpy(at + 768 + (r * COLS + c) * 4, &b, 4);
			memcpy(at + 1680 + (r * COLS + c) * 2, &h, 2);
		}
	for (int r = 0; r < ROWS; r++) {
		float v = (float)r;
		uint16_t w = f32_to_bf16((float)(r * 2));
		memcpy(at + 1536 + r * 4, &v, 4);
		memcpy(at + 1632 + r * 2, &w, 2);
	}
	memset(at + 2064, 0, 8);
	put_file(path, file, sizeof file);
}

/* rows and columns of the file's tensor; first row, rows per block, blocks */
#define SLICE(n, r, c, f, b, k, ...)                                                               \
	(const PlanSource)                                                                         \
	{                                                                                          \
		.name = n, .rows = r, .cols = c, .first = f, .block = b, .n_block = k, __VA_ARGS__ \
	}
#define SRC(n, ...) &SLICE(n, ROWS, COLS, 0, ROWS, 1, __VA_ARGS__)

static llmc_status
load(PlanTensor *t, int n, const char *path, int n_threads, bool cache, Weights **out,
     llmc_error *err)
{
	static Plan plan[2]; /* outlives the weights; no test has more of them open */
	static int at;
	Plan *p = &plan[at++ % 2];

	*p = (Plan){ .n_tensor = n, .tensor = t };
	WeightsOptions o = {
		.path = path, .random_weights = !path, .cache_packed = cache, .log = on_log
	};

	warned[0] = 0;
	assert_int_equal(threads_open(n_threads, &o.threads, NULL), LLMC_OK);
	llmc_status s = weights_load(p, &o, out, err);
	threads_close(o.threads);
	return s;
}

/* Load one tensor on several threads in several layouts; row r must equal want(r, c). */
static void
expect(PlanTensor t, float (*want)(int64_t, int64_t))
{
	static const char *const layouts[] = { "row", "r8", "r16" };
	const char *path = tempdir_file(&dir, "model.safetensors");
	float row[64];

	t.id = "t";
	for (int i = 0; i < 6; i++) {
		Weights *w;
		llmc_error err;
		t.layout = t.cols ? layouts[i % 3] : "f32";
		if (load(&t, 1, path, 1 + i % 3, false, &w, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		for (int64_t r = 0; r < (t.cols ? t.rows : 1); r++) {
			plan_tensor_row(&t, weights_data(w, 0), r, row);
			for (int64_t c = 0; c < (t.cols ? t.cols : t.rows); c++)
				if (!(fabsf(row[c] - want(r, c)) <= 1e-6f * fabsf(row[c])))
					fail_msg("layout %s, row %d, column %d: %g, expected %g",
					         t.layout, (int)r, (int)c, (double)row[c],
					         (double)want(r, c));
		}
		weights_close(w);
	}
}

static float
whole(int64_t r, int64_t c)
{
	return value(r, c);
}
static float
stacked(int64_t r, int64_t c)
{
	return r < 24 ? value(r, c) : -value(r - 24 + 4, c);
}
/* interleaved heads of q, k, v, 2 rows each: k is the second pair of every six rows */
static float
strided(int64_t r, int64_t c)
{
	return value(2 + r / 2 * 6 + r % 2, c);
}
static float
paired(int64_t r, int64_t c)
{
	return value(r / 8 * 8 + (r % 8 < 4 ? r % 8 * 2 : (r % 8 - 4) * 2 + 1), c);
}
static float
transposed(int64_t r, int64_t c)
{
	return value(c, r);
}
/* a stack of three transposed [8, 8] matrices; the second and third of them */
static float
transposed_stack(int64_t r, int64_t c)
{
	return -value((r + 8) / 8 * 8 + c, r % 8);
}
static float
plain_h(int64_t r, int64_t c)
{
	return (float)(r + c);
}

static float
unit(int64_t r, int64_t c)
{
	double sum = 0;

	for (int i = 0; i < COLS; i++)
		sum += (double)value(r, i) * value(r, i);
	return (float)(value(r, c) / sqrt(sum));
}

static float
vector(int64_t r, int64_t c)
{
	(void)r;
	return c < 24 ? (float)c : (float)(2 * (c - 24 + 3));
}

static void
segments_become_tensors(void **state)
{
	(void)state;
	expect(
	    (PlanTensor){
	        .dtype = DT_F32, .rows = 24, .cols = 8, .n_src = 1, .src = SRC("a", .stride = 0) },
	    whole);
	expect(
	    (PlanTensor){
	        .dtype = DT_F16, .rows = 24, .cols = 8, .n_src = 1, .src = SRC("h", .stride = 0) },
	    plain_h);
	const PlanSource two[] = { SLICE("a", 24, 8, 0, 24, 1, .stride = 0),
		                   SLICE("b", 24, 8, 4, 7, 1, .stride = 0) };
	expect((PlanTensor){ .dtype = DT_F32, .rows = 31, .cols = 8, .n_src = 2, .src = two },
	       stacked);
	const PlanSource heads[] = { SLICE("a", 24, 8, 2, 2, 4, .stride = 6) };
	expect((PlanTensor){ .dtype = DT_F32, .rows = 8, .cols = 8, .n_src = 1, .src = heads },
	       strided);
	expect((PlanTensor){ .dtype = DT_F32,
	                     .rows = 24,
	                     .cols = 8,
	                     .n_src = 1,
	                     .src = SRC("a", .rope_pairs = 8) },
	       paired);
	const PlanSource t[] = { SLICE("a", 24, 8, 0, 8, 1, .transpose = 8) };
	expect((PlanTensor){ .dtype = DT_F32, .rows = 8, .cols = 24, .n_src = 1, .src = t },
	       transposed);
	const PlanSource s[] = { SLICE("b", 24, 8, 8, 16, 1, .transpose = 8) };
	expect((PlanTensor){ .dtype = DT_F32, .rows = 16, .cols = 8, .n_src = 1, .src = s },
	       transposed_stack);
	expect((PlanTensor){ .dtype = DT_F32,
	                     .rows = 24,
	                     .cols = 8,
	                     .n_src = 1,
	                     .src = SRC("a", .unit_rows = true) },
	       unit);
	/* another type than in the file */
	expect((PlanTensor){ .dtype = DT_F32,
	                     .rows = 24,
	                     .cols = 8,
	                     .n_src = 1,
	                     .src = SRC("h", .stored = "f16") },
	       plain_h);
	const PlanSource th[] = { SLICE("h", 24, 8, 0, 8, 1, .transpose = 8, .stored = "f16") };
	expect((PlanTensor){ .dtype = DT_BF16, .rows = 8, .cols = 24, .n_src = 1, .src = th },
	       plain_h);
	const PlanSource vec[] = { SLICE("v", 24, 0, 0, 24, 1, .stride = 0),
		                   SLICE("w", 24, 0, 3, 5, 1, .stride = 0) };
	expect((PlanTensor){ .dtype = DT_F32, .rows = 29, .n_src = 2, .src = vec }, vector);
}

/* A tensor that needs no packing is not copied. */
static void
unpacked_rows_stay_in_the_file(void **state)
{
	const PlanSource part[] = { SLICE("a", 24, 8, 3, 10, 1, .stride = 0) };
	PlanTensor t[] = {
		{ .id = "a",
		  .dtype = DT_F32,
		  .rows = 24,
		  .cols = 8,
		  .layout = "row",
		  .n_src = 1,
		  .src = SRC("a", .stride = 0) },
		{ .id = "part",
		  .dtype = DT_F32,
		  .rows = 10,
		  .cols = 8,
		  .layout = "row",
		  .n_src = 1,
		  .src = part },
	};
	Weights *w;
	CheckpointTensor c;

	(void)state;
	assert_int_equal(load(t, 2, tempdir_file(&dir, "model.safetensors"), 1, false, &w, NULL),
	                 LLMC_OK);
	assert_true(checkpoint_find(weights_checkpoint(w), "a", &c));
	if ((uintptr_t)c.data % 4 == 0) {
		assert_ptr_equal(weights_data(w, 0), c.data);
		assert_ptr_equal(weights_data(w, 1), (const char *)c.data + 3 * 32);
	}
	weights_close(w);
}

static void
expect_error(PlanTensor t, const char *path, llmc_status want, const char *text)
{
	Weights *w;
	llmc_error err = { 0 };

	t.id = "L0.q";
	t.layout = t.layout ? t.layout : "row";
	assert_int_equal(load(&t, 1, path, 1, false, &w, &err), want);
	assert_null(w);
	if (!strstr(err.text, text))
		fail_msg("\"%s\", expected \"%s\"", err.text, text);
}

static void
inconsistent_files_are_named(void **state)
{
	const char *path = tempdir_file(&dir, "model.safetensors");
	const PlanTensor plain = {
		.dtype = DT_F32, .rows = 24, .cols = 8, .n_src = 1, .src = SRC("a", .stride = 0)
	};
	PlanTensor t = plain;

	(void)state;
	t.src = SRC("layers.0.atn.weight", .stride = 0);
	expect_error(
	    t, path, LLMC_E_INPUT,
	    "has no tensor \"layers.0.atn.weight\", which the model needs (L0.q); the nearest "
	    "name is \"layers.0.attn.weight\"");
	t.src = SRC("quite.another", .stride = 0);
	expect_error(t, path, LLMC_E_INPUT,
	             "has no tensor \"quite.another\", which the model needs (L0.q)");
	t.src = &SLICE("a", 12, 16, 0, 24, 1, .stride = 0);
	expect_error(t, path, LLMC_E_INPUT,
	             "tensor \"a\": plan wants shape [12, 16], file holds [24, 8]");
	t.src = &SLICE("b", 25, 8, 0, 24, 1, .stride = 0);
	expect_error(t, path, LLMC_E_INPUT,
	             "tensor \"b\": plan wants shape [25, 8], file holds [3, 8, 8]");
	t.src = &SLICE("v", 25, 0, 0, 24, 1, .stride = 0);
	expect_error(t, path, LLMC_E_INPUT, "tensor \"v\": plan wants shape [25], file holds [24]");
	t.dtype = DT_F16;
	t.cols = 0; /* a vector is expanded to f32, never rounded */
	t.rows = 192;
	t.src = &SLICE("a", 24, 8, 0, 24, 1, .stride = 0);
	expect_error(t, path, LLMC_E_INPUT,
	             "tensor \"a\": plan wants f16, file holds f32: import the file again");
	t = plain;
	t.src = SRC("layers.0.attn.weight", .stride = 0);
	expect_error(t, path, LLMC_E_INPUT, "holds integers (i64), weights are expected");
	expect_error(plain, tempdir_file(&dir, "nowhere"), LLMC_E_INPUT,
	             "no such file or folder; the weights are expected there (use --weights "
	             "PATH for another location)");

	Weights *w;
	llmc_error err;
	const Plan p = { .n_tensor = 1, .tensor = &t };
	WeightsOptions o = { 0 };
	assert_int_equal(threads_open(1, &o.threads, NULL), LLMC_OK);
	assert_int_equal(weights_load(&p, &o, &w, &err), LLMC_E_INPUT);
	assert_string_equal(err.text, "the model has no path to its weights: pass their "
	                              "file or folder (--weights PATH), or use --random-weights");
	threads_close(o.threads);
}

static void
truncated_files_and_missing_shards_are_named(void **state)
{
	const PlanTensor t = {
		.dtype = DT_F32, .rows = 24, .cols = 8, .n_src = 1, .src = SRC("a", .stride = 0)
	};
	static const char index[] =
	    "{\"metadata\":{},\"weight_map\":{\"a\":\"model-00002-of-00002.safetensors\"}}";
	Strbuf file = { 0 };
	char sub[600], path[700];

	(void)state;
	assert_int_equal(file_read(tempdir_file(&dir, "model.safetensors"), 1 << 20, &file, NULL),
	                 LLMC_OK);
	for (size_t n = 0; n < file.len; n += file.len / 9 + 1) {
		put_file(tempdir_file(&dir, "cut.safetensors"), file.data, n);
		expect_error(t, tempdir_file(&dir, "cut.safetensors"), LLMC_E_INPUT,
		             "cut.safetensors");
	}
	strbuf_release(&file);
	snprintf(sub, sizeof sub, "%s/sharded", dir.path);
	mkdir(sub, 0700);
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", sub);
	put_file(path, index, sizeof index - 1);
	Weights *w;
	llmc_error err = { 0 };
	PlanTensor one = t;
	one.id = "a";
	one.layout = "row";
	assert_true(load(&one, 1, sub, 1, false, &w, &err) != LLMC_OK);
	assert_non_null(strstr(err.text, "model-00002-of-00002.safetensors"));
	/* an empty folder, and one whose weights are not a pickle */
	snprintf(sub, sizeof sub, "%s/pickled", dir.path);
	mkdir(sub, 0700);
	assert_true(load(&one, 1, sub, 1, false, &w, &err) != LLMC_OK);
	snprintf(path, sizeof path, "%s/pytorch_model.bin", sub);
	put_file(path, "x", 1);
	assert_int_equal(load(&one, 1, sub, 1, false, &w, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "not a file of torch.save"));
}

/* ---- cache ---- */

static char cached[600]; /* path of the only file in the cache */

static void
find_packed(const char *path, int depth)
{
	DIR *d = opendir(path);
	char child[600];

	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(child, sizeof child, "%s/%.100s", path, e->d_name);
		if (!strcmp(e->d_name, "packed"))
			snprintf(cached, sizeof cached, "%s", child);
		else if (depth)
			find_packed(child, depth - 1);
	}
	if (d)
		closedir(d);
}

static bool
load_cached(PlanTensor *t, bool *from_cache)
{
	Weights *w;
	float row[COLS];

	if (load(t, 1, tempdir_file(&dir, "model.safetensors"), 1, true, &w, NULL) != LLMC_OK)
		return false;
	*from_cache = weights_from_cache(w);
	bool right = true;
	for (int r = 0; r < ROWS; r++) {
		plan_tensor_row(t, weights_data(w, 0), r, row);
		for (int c = 0; c < COLS; c++)
			right &= row[c] == value(r, c);
	}
	weights_close(w);
	return right;
}

static void
packed_weights_are_kept(void **state)
{
	PlanTensor t = { .id = "a",
		         .dtype = DT_F32,
		         .rows = 24,
		         .cols = 8,
		         .layout = "r8",
		         .n_src = 1,
		         .src = SRC("a", .stride = 0) };
	const char *model = tempdir_file(&dir, "model.safetensors");
	Strbuf file = { 0 };
	bool hit;

	(void)state;
	setenv("LLMC_CACHE", tempdir_file(&dir, "cache"), 1);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_true(load_cached(&t, &hit) && hit);
	assert_string_equal(warned, "");
	find_packed(tempdir_file(&dir, "cache"), 3);
	assert_true(cached[0]);
	assert_int_equal(file_read(cached, 1 << 20, &file, NULL), LLMC_OK);
	/* truncated, with a wrong key, or writable by others: reported, and replaced if possible */
	put_file(cached, file.data, file.len / 2);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_non_null(strstr(warned, "damaged or cut off; it is written again"));
	assert_true(load_cached(&t, &hit) && hit);
	/* a flipped bit in the weights on disk */
	file.data[file.len - 100] ^= 4;
	put_file(cached, file.data, file.len);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_non_null(strstr(warned, "damaged or cut off; it is written again"));
	assert_true(load_cached(&t, &hit) && hit);
	file.data[file.len - 100] ^= 4;
	file.data[20] ^= 1;
	put_file(cached, file.data, file.len);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_true(load_cached(&t, &hit) && hit);
	chmod(cached, 0666);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_non_null(strstr(warned, "others may write to it"));
	/* another layout, another modification time: other keys */
	t.layout = "r16";
	assert_true(load_cached(&t, &hit) && !hit);
	assert_true(load_cached(&t, &hit) && hit);
	utime(model, &(struct utimbuf){ 1000, 1000 });
	assert_true(load_cached(&t, &hit) && !hit);
	assert_true(load_cached(&t, &hit) && hit);
	strbuf_release(&file);
}

/* The mapped file is truncated while a model uses it: the process lives on, and the weights are
 * reported as lost. Each in a process of its own, for the handler of SIGBUS. */
static void
a_cache_file_is_truncated_while_in_use(void **state)
{
	PlanTensor t = { .id = "a",
		         .dtype = DT_F32,
		         .rows = 24,
		         .cols = 8,
		         .layout = "r8",
		         .n_src = 1,
		         .src = SRC("a", .stride = 0) };
	bool hit;
	int code = 1;

	(void)state;
	setenv("LLMC_CACHE", tempdir_file(&dir, "cut"), 1);
	assert_true(load_cached(&t, &hit) && !hit);
	cached[0] = 0;
	find_packed(tempdir_file(&dir, "cut"), 3);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		Weights *w;
		float row[COLS];
		bool right = file_guard_install(NULL) == LLMC_OK &&
		             load(&t, 1, tempdir_file(&dir, "model.safetensors"), 1, true, &w,
		                  NULL) == LLMC_OK &&
		             weights_from_cache(w) && !weights_lost(w) && truncate(cached, 0) == 0;
		for (int r = 0; right && r < ROWS; r++) {
			plan_tensor_row(&t, weights_data(w, 0), r, row);
			right = row[1] == 0;
		}
		_exit(!(right && weights_lost(w)));
	}
	assert_int_equal(waitpid(pid, &code, 0), pid);
	assert_int_equal(code, 0);
}

/* Checksums are compared once per machine and file. */
static void
a_mapped_file_is_verified_once(void **state)
{
	PlanTensor t = { .id = "a",
		         .dtype = DT_F32,
		         .rows = 24,
		         .cols = 8,
		         .layout = "r8",
		         .n_src = 1,
		         .src = SRC("a", .stride = 0) };
	Strbuf file = { 0 };
	struct stat st;
	bool hit;

	(void)state;
	setenv("LLMC_CACHE", tempdir_file(&dir, "once"), 1);
	assert_true(load_cached(&t, &hit) && !hit);
	find_packed(tempdir_file(&dir, "once"), 3);
	assert_int_equal(stat(cached, &st), 0);
	/* a copy has another inode: it is verified, and another copy with a flipped bit refused */
	assert_int_equal(file_read(cached, 1 << 20, &file, NULL), LLMC_OK);
	assert_int_equal(unlink(cached), 0);
	put_file(cached, file.data, file.len);
	assert_true(load_cached(&t, &hit) && hit);
	file.data[file.len - 100] ^= 4;
	assert_int_equal(unlink(cached), 0);
	put_file(cached, file.data, file.len);
	assert_true(load_cached(&t, &hit) && !hit);
	assert_non_null(strstr(warned, "damaged or cut off; it is written again"));
	assert_true(load_cached(&t, &hit) && hit);
	strbuf_release(&file);
}

/* Adapter slots are written while other processes map the same file. */
static void
slots_do_not_change_the_file(void **state)
{
	PlanTensor t[] = { { .id = "a",
		             .dtype = DT_F32,
		             .rows = 24,
		             .cols = 8,
		             .layout = "r8",
		             .n_src = 1,
		             .src = SRC("a", .stride = 0) },
		           { .id = "a.lora",
		             .dtype = DT_F32,
		             .rows = 8,
		             .layout = "f32",
		             .factor = FACTOR_A,
		             .slots = 1,
		             .rank = 1 } };
	const char *model = tempdir_file(&dir, "model.safetensors");
	const float one = 1;
	Weights *w[2];

	(void)state;
	setenv("LLMC_CACHE", tempdir_file(&dir, "slots"), 1);
	assert_int_equal(load(t, 2, model, 1, true, &w[0], NULL), LLMC_OK);
	weights_put(w[0], 1, 4, &one, sizeof one);
	assert_int_equal(load(t, 2, model, 1, true, &w[1], NULL), LLMC_OK);
	assert_true(weights_from_cache(w[1]));
	weights_put(w[1], 1, 8, &one, sizeof one);
	const float *a = weights_data(w[0], 1), *b = weights_data(w[1], 1);
	assert_true(a[1] == 1 && a[2] == 0 && b[1] == 0 && b[2] == 1);
	weights_close(w[0]);
	weights_close(w[1]);
}

/* Files may not grow: the load continues in memory, with a warning, and leaves no partial file. */
static void
a_full_disk_is_a_warning(void **state)
{
	PlanTensor t = { .id = "a",
		         .dtype = DT_F32,
		         .rows = 24,
		         .cols = 8,
		         .layout = "r8",
		         .n_src = 1,
		         .src = SRC("a", .stride = 0) };
	int code = 0;

	(void)state;
	setenv("LLMC_CACHE", tempdir_file(&dir, "full"), 1);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct rlimit none = { 2000, 2000 };
		bool hit, ok;
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &none);
		ok = load_cached(&t, &hit) && !hit &&
		     strstr(warned, "packed weights are not kept for the next time");
		cached[0] = 0;
		find_packed(tempdir_file(&dir, "full"), 3);
		_exit(ok && !cached[0] ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &code, 0), pid);
	assert_int_equal(code, 0);
	/* and a cache path that is a file */
	put_file(tempdir_file(&dir, "blocked"), "x", 1);
	setenv("LLMC_CACHE", tempdir_file(&dir, "blocked"), 1);
	bool hit;
	assert_true(load_cached(&t, &hit) && !hit);
	assert_non_null(strstr(warned, "packed weights are not kept for the next time"));
	assert_non_null(strstr(warned, "LLMC_CACHE"));
}

/* Random weights are reproducible, of reasonable magnitude, and differ from row to row. */
static void
noise_is_seeded(void **state)
{
	static const Dtype types[] = { DT_F32,  DT_BF16, DT_Q4_0, DT_Q4_1,
		                       DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q6_K };
	float a[512], b[512];

	(void)state;
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		PlanTensor t[] = {
			{ .id = "w",
			  .dtype = types[i],
			  .rows = 20,
			  .cols = 512,
			  .layout = "r8",
			  .n_src = 1,
			  .src = &SLICE("m", 20, 512, 0, 20, 1, .stride = 0) },
			{ .id = "norm",
			  .dtype = DT_F32,
			  .rows = 24,
			  .layout = "f32",
			  .n_src = 1,
			  .src = &SLICE("v", 24, 0, 0, 24, 1, .stride = 0) },
		};
		Weights *w, *again;
		assert_int_equal(load(t, 2, NULL, 1, false, &w, NULL), LLMC_OK);
		assert_int_equal(load(t, 2, NULL, 3, false, &again, NULL), LLMC_OK);
		assert_null(weights_checkpoint(w));
		assert_memory_equal(weights_data(w, 0), weights_data(again, 0),
		                    (size_t)plan_tensor_bytes(&t[0]));
		plan_tensor_row(&t[0], weights_data(w, 0), 0, a);
		plan_tensor_row(&t[0], weights_data(w, 0), 19, b);
		double sum = 0, cross = 0;
		for (int c = 0; c < 512; c++) {
			sum += a[c] * a[c];
			cross += a[c] * b[c];
		}
		assert_true(sum > 0.01 && sum < 1 && fabs(cross) < sum / 2);
		const float *norm = weights_data(w, 1);
		for (int c = 0; c < 24; c++)
			assert_true(fabsf(norm[c] - 1) < 0.1f);
		weights_close(w);
		weights_close(again);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segments_become_tensors),
		cmocka_unit_test(unpacked_rows_stay_in_the_file),
		cmocka_unit_test(inconsistent_files_are_named),
		cmocka_unit_test(truncated_files_and_missing_shards_are_named),
		cmocka_unit_test(packed_weights_are_kept),
		cmocka_unit_test(a_cache_file_is_truncated_while_in_use),
		cmocka_unit_test(a_mapped_file_is_verified_once),
		cmocka_unit_test(slots_do_not_change_the_file),
		cmocka_unit_test(a_full_disk_is_a_warning),
		cmocka_unit_test(noise_is_seeded),
	};

	if (tempdir_open(&dir))
		return 1;
	put_checkpoint(tempdir_file(&dir, "model.safetensors"));
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}
