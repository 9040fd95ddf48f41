/* Out of memory, at every allocation in turn: a compile, an import, an open and a request return
 * E_MEMORY, or succeed, and free everything. The linker redirects the allocations of the library,
 * and of the libraries linked into it, to the functions below (--wrap). LLMC_CHECK_ALL=1: every
 * allocation, on the CPU too; else a sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "image/prepare.h"
#include "llmc.h"
#include "serve/http/json_body.h"
#include "text/tool_calls.h"
#include "tempdir.h"

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
int __real_VP8LHuffmanTablesAllocate(int size, void *tables) __attribute__((weak));
int __wrap_VP8LHuffmanTablesAllocate(int size, void *tables);

/* ---- the allocations of one attempt ---- */

enum { MAX_LIVE = 1 << 17 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool watching;
static bool on_from; /* fail all allocations from there on, not only one */
static long count, fail_at, n_live;
static _Thread_local bool spared;   /* allocations of this thread do not fail */
static const char *volatile trying; /* for debuggers */
static void *live[MAX_LIVE];        /* open addressing; DEAD marks a removed entry */
#define DEAD ((void *)1)

static size_t
place(const void *p)
{
	size_t i = (size_t)((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 40;

	for (i %= MAX_LIVE; live[i] && live[i] != p; i = (i + 1) % MAX_LIVE)
		;
	return i;
}

/* Return whether this allocation must fail. */
static bool
fails(void)
{
	pthread_mutex_lock(&lock);
	bool no =
	    watching && !spared && ++count >= fail_at && fail_at && (on_from || count == fail_at);
	pthread_mutex_unlock(&lock);
	return no;
}

static void *
born(void *p)
{
	pthread_mutex_lock(&lock);
	if (p && watching) {
		live[place(p)] = p;
		n_live++;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

static void
dies(const void *p)
{
	pthread_mutex_lock(&lock);
	size_t i = place(p);
	if (p && live[i] == p) {
		live[i] = DEAD;
		n_live--;
	}
	pthread_mutex_unlock(&lock);
}

void *
__wrap_malloc(size_t n)
{
	return fails() ? NULL : born(__real_malloc(n));
}

void *
__wrap_calloc(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		return NULL;
	void *p = __wrap_malloc(bytes ? bytes : 1);
	return p ? memset(p, 0, bytes) : NULL;
}

void *
__wrap_realloc(void *p, size_t n)
{
	if (fails())
		return NULL;
	dies(p); /* before free: another thread may get the same address */
	void *q = __real_realloc(p, n);
	return born(q ? q : p) == q ? q : NULL;
}

void
__wrap_free(void *p)
{
	dies(p);
	__real_free(p);
}

char *
__wrap_strndup(const char *s, size_t n)
{
	size_t len = strnlen(s, n);
	char *p = __wrap_malloc(len + 1);

	if (p) {
		memcpy(p, s, len);
		p[len] = 0;
	}
	return p;
}

char *
__wrap_strdup(const char *s)
{
	return __wrap_strndup(s, strlen(s));
}

void *
__wrap_aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : born(__real_aligned_alloc(align, (n + align - 1) / align * align));
}

int
__wrap_posix_memalign(void **out, size_t align, size_t n)
{
	void *p = __wrap_aligned_alloc(align, n);

	*out = p ? p : *out;
	return p ? 0 : ENOMEM;
}

/* libwebp 1.2.4 follows a pointer that is not set after this function had no memory. */
int
__wrap_VP8LHuffmanTablesAllocate(int size, void *tables)
{
	spared = true;
	int ok = __real_VP8LHuffmanTablesAllocate(size, tables);
	spared = false;
	return ok;
}

/* ---- attempts ---- */

static char folder[512], artifact[512];
static const char *device;

static llmc_status
compile(llmc_error *err)
{
	llmc_compile_options o = LLMC_INIT(llmc_compile_options);

	o.target = "cpu";
	o.arch = "v3";
	return llmc_compile("tests/golden/graphs/llama.yaml", artifact, &o, err);
}

static llmc_status
import(llmc_error *err)
{
	char *yaml = NULL;
	llmc_status s = llmc_import(folder, NULL, &yaml, err);

	llmc_free(yaml);
	return s;
}

static llmc_status
open_model(llmc_model **m, llmc_error *err)
{
	llmc_options o = LLMC_INIT(llmc_options);

	o.device = device;
	o.arch = strcmp(device, "cpu") ? NULL : "generic";
	o.n_threads = 2;
	return llmc_open(folder, &o, m, err);
}

static llmc_status
open_and_close(llmc_error *err)
{
	llmc_model *m = NULL;
	llmc_status s = open_model(&m, err);

	if (s == LLMC_OK && !llmc_model_tokenizer(m))
		fail_msg("allocation %ld fails: opened without its tokenizer", fail_at);
	llmc_close(m);
	return s;
}

static llmc_model *shared;

static llmc_status
generate(llmc_error *err)
{
	llmc_session *s = NULL;
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);
	const char *const stop[] = { "zz", NULL };
	int32_t tok[] = { 1, 3, 4 };
	llmc_result res = LLMC_INIT(llmc_result);

	lim.context = 32;
	p.max_tokens = 4;
	p.temperature = 1;
	p.top_k = 5;
	p.repetition_penalty = 1.1f;
	p.stop = stop;
	llmc_status status = llmc_session_open(shared, &lim, &s, err);
	if (status == LLMC_OK)
		status = llmc_generate(s, tok, 3, &p, NULL, NULL, &res, err);
	llmc_session_close(s);
	return status;
}

/* Two choices with logprobs through an engine; a failed request returns its error as an event. */
static llmc_status
request(llmc_error *err)
{
	llmc_engine *e = NULL;
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits lim = LLMC_INIT(llmc_limits);
	llmc_request r = LLMC_INIT(llmc_request);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_event ev = LLMC_INIT(llmc_event);
	int32_t tok[] = { 1, 3, 4 };
	int64_t id = 0;

	lim.context = 32;
	o.limits = &lim;
	p.max_tokens = 4;
	p.temperature = 1;
	r.tok = tok;
	r.n_tok = 3;
	r.params = &p;
	r.n = 2;
	r.logprobs = r.prompt_logprobs = true;
	r.n_top = 2;
	llmc_status status = llmc_engine_open(shared, &o, &e, err);
	if (status == LLMC_OK)
		status = llmc_submit(e, &r, &id, err);
	for (bool last = false; status == LLMC_OK && !last; last = ev.last) {
		status = llmc_next(e, id, 20000, &ev, err);
		if (status == LLMC_OK && ev.kind == LLMC_EVENT_NONE)
			fail_msg("the request has no events");
		if (status == LLMC_OK && ev.kind == LLMC_EVENT_ERROR) {
			status = ev.status;
			snprintf(err->text, sizeof err->text, "%s", ev.text);
		}
	}
	llmc_event_release(&ev);
	llmc_engine_close(e, 0);
	return status;
}

static llmc_status
chat(llmc_error *err)
{
	const llmc_tokenizer *t = llmc_model_tokenizer(shared);
	char text[512];
	int32_t id[64];
	size_t need = 0, n = 0;
	llmc_status s =
	    llmc_chat(t, "[{\"role\":\"user\",\"content\":\"a b \\u00e9\"}]",
	              "{\"add_generation_prompt\":true}", text, sizeof text, &need, err);

	if (s == LLMC_OK)
		s = llmc_tokenize(t, text, need, LLMC_PARSE_SPECIAL, id, 64, &n, err);
	return s;
}

static const char document[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a text of more than sixteen bytes, "
    "\\u00e9 and \\\"quotes\\\"\"}], \"temperature\": 123456789012345e-15, \"seed\": "
    "1234567890123456789012345, \"deep\": [[[{\"k\": [true, null, -0.5]}]]]}";

static llmc_status
parse(llmc_error *err)
{
	bool no_memory;
	json_t *v = json_parse(document, sizeof document - 1, 0, NULL, &no_memory);

	json_decref(v);
	/* the seed exceeds 64 bits, so the end of the document is never parsed */
	if (v || !no_memory)
		return v ? LLMC_E_BUG : LLMC_OK;
	return error_set(err, LLMC_E_MEMORY, "out of memory");
}

static llmc_status
request_body(llmc_error *err)
{
	Problem p = { 0 };
	json_t *v = body_parse(document, sizeof document - 1, &p);

	json_decref(v);
	return v ? LLMC_OK
	         : error_set(err, p.status == 503 ? LLMC_E_MEMORY : LLMC_E_BUG, "%s", p.text);
}

static void
ignore_piece(void *user, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	(void)user, (void)kind, (void)call, (void)text, (void)n;
}

static llmc_status
calls(llmc_error *err)
{
	static const char tools[] =
	    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
	    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}}]",
	                  output[] = "text <tool_call>\n{\"name\": \"f\", \"arguments\": "
	                             "{\"a\": 12345678901234567}}\n</tool_call>";
	llmc_calls *c = NULL;
	const llmc_tokenizer *t = llmc_model_tokenizer(shared);
	llmc_status s = llmc_calls_open(t, "", 0, tools, &c, err);

	if (s == LLMC_OK)
		s = llmc_calls_feed(c, output, sizeof output - 1, true, ignore_piece, NULL, err);
	llmc_calls_close(c);
	/* the tokenizer keeps it otherwise */
	call_format_free(atomic_exchange(&((llmc_tokenizer *)t)->call_format, NULL));
	return s;
}

static llmc_status
grammar(llmc_error *err)
{
	static const char schema[] =
	    "{\"type\":\"object\",\"properties\":{\"name\":{\"enum\":[\"a\",\"b\"]},\"n\":{"
	    "\"type\":\"integer\",\"minimum\":1234567890123456}},\"required\":[\"name\"]}";
	llmc_grammar *g = NULL;
	llmc_status s = llmc_grammar_open(llmc_model_tokenizer(shared), LLMC_GRAMMAR_JSON_SCHEMA,
	                                  schema, sizeof schema - 1, NULL, &g, err);

	llmc_grammar_close(g);
	return s;
}

/* An image of each format is decoded, and tiles are made of it. */
static llmc_status
image(const char *name, const ImageRules *rules, llmc_error *err)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	ImagePixels im = { 0 };
	ImageRows rows = { 0 };
	FileMap file;
	char path[128];

	snprintf(path, sizeof path, "tests/golden/images/%s", name);
	TRY(file_map(path, &file, err));
	llmc_status s = image_decode(file.data, file.size, &limits, &im, err);
	file_unmap(&file);
	if (s == LLMC_OK)
		s = image_prepare(rules, &im, &rows, err);
	image_rows_release(&rows);
	image_release(&im);
	return s;
}

static llmc_status
images(llmc_error *err)
{
	static const char rules_text[] =
	    "{\"config\":{\"model_type\":\"smolvlm\",\"vision_config\":{\"patch_size\":14}},"
	    "\"preprocessor\":{\"size\":{\"longest_edge\":112},\"max_image_size\":{\"longest_"
	    "edge\":56}}}";
	static const char *const names[] = {
#ifdef LLMC_HAVE_JPEG
		"jpeg-progressive.jpg",
		"jpeg-orientation6.jpg",
		"jpeg-cmyk.jpg",
#endif
#ifdef LLMC_HAVE_PNG
		"png-palette-alpha-interlaced.png",
		"png-exif-after-pixels.png",
#endif
#ifdef LLMC_HAVE_WEBP
		"webp-animated-alpha.webp",
		"webp-lossy-alpha.webp",
		"webp-exif.webp",
#endif
		"gif-interlaced.gif",
		"bmp-rle8.bmp"
	};
	bool no_memory;
	json_t *j = json_parse(rules_text, sizeof rules_text - 1, 0, NULL, &no_memory);
	if (!j)
		return error_set(err, no_memory ? LLMC_E_MEMORY : LLMC_E_BUG, "no rules");
	ImageFiles files = { .preprocessor = json_object_get(j, "preprocessor"),
		             .config = json_object_get(j, "config") };
	ImageRules rules;
	llmc_status s = image_rules_json(&files, &rules, err);
	json_decref(j);
	for (size_t i = 0; s == LLMC_OK && i < sizeof names / sizeof *names; i++)
		s = image(names[i], &rules, err);
	return s;
}

static llmc_tower *tower;
static size_t tower_width; /* elements of a row */
static FileMap picture;
static float *first_rows; /* rows of the first attempt; NULL: none yet */

static llmc_status
tower_rows(llmc_error *err)
{
	llmc_tower_image *im = NULL;
	llmc_status s = llmc_tower_read(tower, picture.data, picture.size, NULL, &im, err);

	if (s != LLMC_OK)
		return s;
	llmc_image_part part = LLMC_INIT(llmc_image_part);
	llmc_tower_image_part(im, &part);
	const size_t bytes = (size_t)part.n_row * tower_width * sizeof *part.row;
	if (!first_rows) {
		first_rows = __real_malloc(bytes);
		assert_non_null(first_rows);
		memcpy(first_rows, part.row, bytes);
	}
	if (memcmp(first_rows, part.row, bytes) != 0)
		s = error_set(err, LLMC_E_BUG, "the rows of the image are others");
	llmc_tower_image_close(im);
	return s;
}

/* ---- every allocation in turn ---- */

/* The n-th allocation fails; returns false if there are fewer. */
static bool
attempt(const char *what, llmc_status (*fn)(llmc_error *), long n, bool all_after)
{
	llmc_error err = { 0 };

	memset(live, 0, sizeof live);
	trying = what;
	count = n_live = 0;
	fail_at = n;
	on_from = all_after;
	watching = true;
	llmc_status s = fn(&err);
	watching = false;
	if (s != LLMC_OK && s != LLMC_E_MEMORY)
		fail_msg("%s, allocation %ld fails: status %d, \"%s\"", what, n, s, err.text);
	if (s != LLMC_OK && !err.text[0])
		fail_msg("%s, allocation %ld fails: no sentence", what, n);
	if (n_live)
		fail_msg("%s, allocation %ld fails: %ld pieces are never given back", what, n,
		         n_live);
	if (n == 0 && s != LLMC_OK)
		fail_msg("%s: %s", what, err.text);
	return n == 0 || count >= n;
}

static void
sweep(const char *what, llmc_status (*fn)(llmc_error *))
{
	bool every = getenv("LLMC_CHECK_ALL") != NULL;
	long n = 1;

	attempt(what, fn, 0, false); /* the first attempt initialises one-time data */
	attempt(what, fn, 0, false);
	long total = count, step = every || total < 150 ? 1 : total / 75;
	for (; n <= total; n += n < 75 ? 1 : step) {
		attempt(what, fn, n, false);
		if (every || n % 4 == 1)
			attempt(what, fn, n, true);
	}
	if (getenv("LLMC_CHECK_ALL"))
		printf("%s: %ld allocations\n", what, total);
}

static void
compiling(void **state)
{
	(void)state;
	sweep("compile", compile);
	sweep("import", import);
}

static void
parsing(void **state)
{
	(void)state;
	sweep("parse", parse);
	sweep("body", request_body);
}

static void
decoding_images(void **state)
{
	(void)state;
	sweep("images", images);
}

/* tests/serve/test_images.py makes the model. */
static void
reading_by_a_tower(void **state)
{
	const char *model = getenv("LLMC_TEST_TOWER"), *const set[] = { "vision.part=rows", NULL };
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_error err = { 0 };

	(void)state;
	if (!model)
		skip();
	o.device = "ref";
	o.n_threads = 1;
	o.set = set;
	if (llmc_open(model, &o, &shared, &err) != LLMC_OK ||
	    llmc_tower_open(shared, &o, &tower, &err) != LLMC_OK ||
	    file_map("tests/golden/vision/image.png", &picture, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	llmc_info(shared, &info);
	tower_width = (size_t)info.hidden;
	sweep("tower", tower_rows);
	file_unmap(&picture);
	__real_free(first_rows);
	llmc_tower_close(tower);
	llmc_close(shared);
}

static void
opening_and_generating(void **state)
{
	static const char *const devices[] = { "ref", "cpu" };
	llmc_error err;

	(void)state;
	for (int i = 0; i < (getenv("LLMC_CHECK_ALL") ? 2 : 1); i++) {
		device = devices[i];
		sweep("open", open_and_close);
		if (open_model(&shared, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		sweep("generate", generate);
		sweep("request", request);
		sweep("chat", chat);
		sweep("calls", calls);
		assert_int_equal(grammar(&err),
		                 LLMC_OK); /* the tokenizer keeps tables for grammars */
		sweep("grammar", grammar);
		llmc_close(shared);
	}
}

/* ---- a small model with a tokenizer ---- */

static void
put(const Tempdir *t, const char *name, const char *text, size_t n)
{
	char path[600];

	snprintf(path, sizeof path, "%s/%s", t->path, name);
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, n, f), n);
	fclose(f);
}

static const char config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":8,\"hidden_"
    "size\":32,\"intermediate_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
    "\"rope_theta\":10000.0,\"max_position_embeddings\":64,\"tie_word_embeddings\":true,\"torch_"
    "dtype\":\"float32\","
    "\"bos_token_id\":1,\"eos_token_id\":2}";
static const char tokenizer[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<"
    "s>\",\"special\":true},"
    "{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"\\\\s+|\\\\S+\"},\"behavior\":\"Isolated\",\"invert\":false},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</"
    "s>\":2,\"a\":3,\"b\":4,\"ab\":5,\" \":6,\"\u00e9\":7},"
    "\"merges\":[\"a b\"],\"unk_token\":\"<unk>\"},\"decoder\":{\"type\":\"Fuse\"}}";
static const char tokenizer_config[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":"
    "\"{% for m in messages %}{{ bos_token }}{{ m.role | upper }} {{ m.content | tojson }}{{ "
    "eos_token }}{% endfor %}\"}";

static void
put_weights(const Tempdir *t)
{
	static const struct {
		const char *name;
		int rows, cols;
	} tensor[] = {
		{ "model.embed_tokens.weight", 8, 32 },
		{ "model.norm.weight", 32, 0 },
		{ "model.layers.0.input_layernorm.weight", 32, 0 },
		{ "model.layers.0.post_attention_layernorm.weight", 32, 0 },
		{ "model.layers.0.self_attn.q_proj.weight", 32, 32 },
		{ "model.layers.0.self_attn.k_proj.weight", 16, 32 },
		{ "model.layers.0.self_attn.v_proj.weight", 16, 32 },
		{ "model.layers.0.self_attn.o_proj.weight", 32, 32 },
		{ "model.layers.0.mlp.gate_proj.weight", 64, 32 },
		{ "model.layers.0.mlp.up_proj.weight", 64, 32 },
		{ "model.layers.0.mlp.down_proj.weight", 32, 64 },
	};
	static char file[1 << 16];
	size_t at = 8, end = 0;

	at += (size_t)sprintf(file + at, "{");
	for (size_t i = 0; i < sizeof tensor / sizeof *tensor; i++) {
		size_t bytes =
		    4 * (size_t)tensor[i].rows * (size_t)(tensor[i].cols ? tensor[i].cols : 1);
		char shape[32];
		snprintf(shape, sizeof shape, tensor[i].cols ? "%d,%d" : "%d", tensor[i].rows,
		         tensor[i].cols);
		at += (size_t)sprintf(
		    file + at,
		    "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
		    i ? "," : "", tensor[i].name, shape, end, end + bytes);
		end += bytes;
	}
	at += (size_t)sprintf(file + at, "}");
	while (at % 8)
		file[at++] = ' ';
	uint64_t head = at - 8;
	memcpy(file, &head, 8);
	assert_true(at + end <= sizeof file);
	for (size_t i = 0; i < end; i += 4) {
		float x = (float)(i / 4 * 2654435761u % 1000) / 1000 - 0.5f;
		memcpy(file + at + i, &x, 4);
	}
	put(t, "model.safetensors", file, at + end);
}

static int
setup(void **state)
{
	if (tempdir_setup(state))
		return -1;
	const Tempdir *t = *state;
	char cache[512];
	snprintf(cache, sizeof cache, "%s/cache", t->path);
	setenv("LLMC_CACHE", cache, 1);
	snprintf(artifact, sizeof artifact, "%s/artifact", t->path);
	snprintf(folder, sizeof folder, "%s", t->path);
	put(t, "config.json", config, sizeof config - 1);
	put(t, "tokenizer.json", tokenizer, sizeof tokenizer - 1);
	put(t, "tokenizer_config.json", tokenizer_config, sizeof tokenizer_config - 1);
	put_weights(t);
	return 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(compiling),
		cmocka_unit_test(parsing),
		cmocka_unit_test(decoding_images),
		cmocka_unit_test(reading_by_a_tower),
		cmocka_unit_test(opening_and_generating),
	};
	if (getenv("LLMC_TEST_TOWER"))
		cmocka_set_test_filter("reading_by_a_tower");
	return cmocka_run_group_tests(tests, setup, tempdir_teardown);
}
