/* PEFT's names: "base_model.model." + the module + ".lora_A.weight" [rank, in] and ".lora_B.weight"
 * [out, rank]. Embeddings have ".lora_embedding_A" [rank, rows] and ".lora_embedding_B" [cols,
 * rank]. */
#include "formats/peft.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "formats/dequant.h"
#include "formats/safetensors.h"

static const char PREFIX[] = "base_model.model.";

typedef struct Pair {
	char *module;
	const StTensor *a, *b;
	bool embedding, used;
	PeftDelta delta;
	float *memory;
} Pair;

struct Peft {
	char *folder;
	double scale, alpha, rank;
	bool root; /* scale is alpha / sqrt(r) (rsLoRA) */
	json_t *config;
	Safetensors *st;
	size_t n;
	Pair *pair; /* in file order */
	/* [n] sorted by reversed name, since checkpoints agree on the ends of names; MoE models
	 * have a pair per expert */
	Pair **by_end;
};

/* Rejects configurations that change the meaning of an adapter. */
static llmc_status
check_config(const Peft *p, llmc_error *err)
{
	static const char *const off[] = { "use_dora",
		                           "use_qalora",
		                           "lora_bias",
		                           "use_bdlora",
		                           "modules_to_save",
		                           "trainable_token_indices",
		                           "alora_invocation_tokens",
		                           "layer_replication",
		                           "arrow_config",
		                           "monteclora_config",
		                           "kasa_config" };
	/* these initialisations subtract the initial pair from the model's matrix, and the changed
	 * matrix is not saved */
	static const char *const moved[] = { "pissa", "corda", "olora", "lora_ga", "loftq" };
	const char *type = json_string_value(json_object_get(p->config, "peft_type")),
	           *bias = json_string_value(json_object_get(p->config, "bias"));
	const char *init = json_string_value(json_object_get(p->config, "init_lora_weights"));

	if (!type || strcmp(type, "LORA") != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: an adapter of peft_type %.40s: llmc reads LORA", p->folder,
		                 type ? type : "(none)");
	if (bias && strcmp(bias, "none") != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: bias = %.40s: llmc does not read adapters with biases",
		                 p->folder, bias);
	for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
		const json_t *v = json_object_get(p->config, off[i]);
		bool nothing = !v || json_is_null(v) || json_is_false(v) ||
		               (json_is_array(v) && !json_array_size(v)) ||
		               (json_is_object(v) && !json_object_size(v));
		if (!nothing)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: adapter_config.json has %s, which llmc does not read",
			                 p->folder, off[i]);
	}
	for (size_t i = 0; init && i < sizeof moved / sizeof *moved; i++)
		if (strncasecmp(init, moved[i], strlen(moved[i])) == 0)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: init_lora_weights = %.40s: its initialisation changed the "
			    "model's matrices, which are not in the adapter; save it with "
			    "path_initial_model_for_weight_conversion, or merge it into the "
			    "checkpoint",
			    p->folder, init);
	if (!json_is_number(json_object_get(p->config, "lora_alpha")))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: adapter_config.json has no number lora_alpha", p->folder);
	return LLMC_OK;
}

static bool
cut_tail(const char *name, const char *tail, size_t *n)
{
	size_t len = strlen(name), m = strlen(tail);

	*n = len - m;
	return len > m && !strcmp(name + len - m, tail);
}

/* Compares two names from their ends: negative, 0 or positive */
static int
end_order(const char *a, size_t n, const char *b, size_t m)
{
	for (; n && m; n--, m--)
		if (a[n - 1] != b[m - 1])
			return (unsigned char)a[n - 1] - (unsigned char)b[m - 1];
	return (n > 0) - (m > 0);
}

/* Returns the index in by_end of the first module not less than this one; *is: that module is
 * equal */
static size_t
place_of(const Peft *p, const char *module, size_t n, bool *is)
{
	size_t from = 0, to = p->n;

	while (from < to) {
		const size_t mid = from + (to - from) / 2;
		if (end_order(p->by_end[mid]->module, strlen(p->by_end[mid]->module), module, n) <
		    0)
			from = mid + 1;
		else
			to = mid;
	}
	*is = from < p->n && strlen(p->by_end[from]->module) == n &&
	      !memcmp(p->by_end[from]->module, module, n);
	return from;
}

static Pair *
pair_of(Peft *p, const char *module, size_t n)
{
	bool is;
	const size_t at = place_of(p, module, n, &is);
	Pair *pair = &p->pair[p->n];

	if (is)
		return p->by_end[at];
	*pair = (Pair){ .module = strndup(module, n) };
	if (!pair->module)
		return NULL;
	memmove(p->by_end + at + 1, p->by_end + at, (p->n++ - at) * sizeof *p->by_end);
	return p->by_end[at] = pair;
}

static llmc_status
take_tensor(Peft *p, const StTensor *t, llmc_error *err)
{
	static const struct {
		const char *tail;
		bool b, embedding;
	} parts[] = {
		{ ".lora_A.weight", false, false },
		{ ".lora_B.weight", true, false },
		{ ".lora_embedding_A", false, true },
		{ ".lora_embedding_B", true, true },
	};
	const char *name = t->name;
	size_t n;

	name += !strncmp(name, PREFIX, sizeof PREFIX - 1) ? sizeof PREFIX - 1 : 0;
	/* skip the model's own weight, which was saved with the adapter */
	if (cut_tail(name, ".base_layer.weight", &n))
		return LLMC_OK;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (!cut_tail(name, parts[i].tail, &n))
			continue;
		if (t->n_dims != 2 || t->dim[0] < 1 || t->dim[1] < 1 || !dtype_is_float(t->dtype))
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: \"%s\": expected a matrix of f32, f16 or bf16 that is not empty",
			    p->folder, t->name);
		Pair *pair = pair_of(p, name, n);
		if (!pair)
			return error_set(err, LLMC_E_MEMORY, "out of memory for an adapter");
		const StTensor **side = parts[i].b ? &pair->b : &pair->a;
		if (*side)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: \"%s\" and \"%s\" are the same factor", p->folder,
			                 (*side)->name, t->name);
		pair->embedding = parts[i].embedding;
		*side = t;
		return LLMC_OK;
	}
	return error_set(err, LLMC_E_INPUT,
	                 "%s: the adapter holds \"%s\", which is not a low-rank pair; llmc does "
	                 "not read whole modules, biases and magnitudes",
	                 p->folder, t->name);
}

/* Looks up alpha_pattern or rank_pattern. A pattern is matched as the end of a module's name, from
 * a dot on; regular expressions of PEFT beyond that are not supported. */
static llmc_status
pattern_of(const Peft *p, const char *which, const char *module, double preset, double *out,
           llmc_error *err)
{
	const char *pattern;
	json_t *v;

	*out = preset;
	json_object_foreach (json_object_get(p->config, which), pattern, v) {
		char plain[512];
		size_t n = 0;
		for (const char *c = !strncmp(pattern, ".*\\.", 4) ? pattern + 4
		                     : *pattern == '^'             ? pattern + 1
		                                                   : pattern;
		     *c && n + 1 < sizeof plain; c++) {
			if (*c == '\\' && c[1] == '.')
				continue;
			if (strchr("*+?()[]{}|\\^$", *c))
				return error_set(err, LLMC_E_INPUT,
				                 "%s: %s \"%.80s\": llmc matches the end of a "
				                 "module's name, not a regular expression",
				                 p->folder, which, pattern);
			plain[n++] = *c;
		}
		plain[n] = 0;
		size_t len = strlen(module);
		if (len >= n && !strcmp(module + len - n, plain) &&
		    (len == n || module[len - n - 1] == '.')) {
			*out = json_number_value(v);
			return json_is_number(v) ? LLMC_OK
			                         : error_set(err, LLMC_E_INPUT,
			                                     "%s: %s \"%.80s\": expected a number",
			                                     p->folder, which, pattern);
		}
	}
	return LLMC_OK;
}

llmc_status
peft_open(const char *folder, double scale, Peft **out, llmc_error *err)
{
	Strbuf text = { 0 }, path = { 0 };
	llmc_status status;
	json_error_t je;
	Peft *p = calloc(1, sizeof *p);

	*out = NULL;
	if (!p || !(p->folder = strdup(folder)))
		TRY_GOTO(error_set(err, LLMC_E_MEMORY, "out of memory for an adapter"));
	file_join(&path, folder, "adapter_config.json");
	if (!file_exists(strbuf_str(&path)))
		TRY_GOTO(error_set(
		    err, LLMC_E_INPUT,
		    "%s: no adapter_config.json in it; expected a folder saved by PEFT", folder));
	TRY_GOTO(file_read(strbuf_str(&path), 1 << 20, &text, err));
	TRY_GOTO(file_check_content(strbuf_str(&path), strbuf_str(&text), text.len, err));
	bool no_memory;
	p->config =
	    json_parse(strbuf_str(&text), text.len, JSON_REJECT_DUPLICATES, &je, &no_memory);
	if (no_memory)
		TRY_GOTO(error_set(err, LLMC_E_MEMORY, "out of memory for an adapter"));
	if (!json_is_object(p->config))
		TRY_GOTO(error_set(err, LLMC_E_INPUT, "%s: not a JSON object: %s",
		                   strbuf_str(&path), je.text));
	TRY_GOTO(check_config(p, err));
	p->scale = scale;
	p->alpha = json_number_value(json_object_get(p->config, "lora_alpha"));
	p->root = json_is_true(json_object_get(p->config, "use_rslora"));
	strbuf_clear(&path);
	file_join(&path, folder, "adapter_model.safetensors");
	TRY_GOTO(safetensors_open(strbuf_str(&path), &p->st, err));
	p->pair = calloc(safetensors_n(p->st) + 1, sizeof *p->pair);
	p->by_end = calloc(safetensors_n(p->st) + 1, sizeof *p->by_end);
	if (!p->pair || !p->by_end)
		TRY_GOTO(error_set(err, LLMC_E_MEMORY, "out of memory for an adapter"));
	for (size_t i = 0; i < safetensors_n(p->st); i++)
		TRY_GOTO(take_tensor(p, safetensors_at(p->st, i), err));
	for (size_t i = 0; i < p->n; i++)
		if (!p->pair[i].a || !p->pair[i].b ||
		    p->pair[i].a->dim[0] != p->pair[i].b->dim[1] || p->pair[i].a->dim[0] < 1)
			TRY_GOTO(error_set(err, LLMC_E_INPUT,
			                   "%s: %s: expected two factors of the same rank", folder,
			                   p->pair[i].module));
	if (!p->n)
		TRY_GOTO(error_set(err, LLMC_E_INPUT,
		                   "%s: adapter_model.safetensors holds no matrices, so the "
		                   "adapter changes nothing; save it again after training",
		                   folder));
	*out = p;
	p = NULL;
fail:
	peft_close(p);
	strbuf_release(&text);
	strbuf_release(&path);
	return status;
}

void
peft_close(Peft *p)
{
	if (!p)
		return;
	for (size_t i = 0; i < p->n; i++) {
		free(p->pair[i].module);
		free(p->pair[i].memory);
	}
	free(p->pair);
	free(p->by_end);
	safetensors_close(p->st);
	json_decref(p->config);
	free(p->folder);
	free(p);
}

/* Finds a module by its full name, or else by its end, because checkpoints omit leading parts of
 * names. NULL if the end is ambiguous. */
static Pair *
find(const Peft *p, const char *module)
{
	const size_t n = strlen(module);
	Pair *near = NULL;
	bool is;
	size_t at = place_of(p, module, n, &is);

	if (is)
		return p->by_end[at];
	for (; at < p->n; at++) { /* longer names follow it */
		const char *whole = p->by_end[at]->module;
		const size_t m = strlen(whole);
		if (m <= n || memcmp(whole + m - n, module, n) != 0)
			break;
		if (whole[m - n - 1] != '.')
			continue;
		if (near)
			return NULL;
		near = p->by_end[at];
	}
	for (const char *end = strchr(module, '.'); end; end = strchr(end + 1, '.')) {
		at = place_of(p, end + 1, strlen(end + 1), &is);
		if (!is)
			continue;
		if (near)
			return NULL;
		near = p->by_end[at];
	}
	return near;
}

bool
peft_has(const Peft *p, const char *module)
{
	return find(p, module) != NULL;
}

/* [n, m] -> [m, n] */
static void
transpose(float *x, float *tmp, int64_t n, int64_t m)
{
	memcpy(tmp, x, (size_t)(n * m) * sizeof *x);
	for (int64_t i = 0; i < n; i++)
		for (int64_t k = 0; k < m; k++)
			x[k * n + i] = tmp[i * m + k];
}

/* Length of "x.experts" in "x.experts.base_layer"; 0: not experts */
static size_t
experts_length(const char *module)
{
	size_t n = strlen(module);

	if (n > 11 && !strcmp(module + n - 11, ".base_layer"))
		n -= 11;
	return n > 8 && !strncmp(module + n - 8, ".experts", 8) ? n : 0;
}

/* Computes alpha / r. It must be finite in fp32: otherwise rows would become NaN with no trace of
 * the cause. */
static llmc_status
scale_of(const Peft *p, const char *module, double alpha, int64_t rank, float *out, llmc_error *err)
{
	*out = (float)(p->scale * alpha / (p->root ? sqrt((double)rank) : (double)rank));
	return isfinite(*out)
	           ? LLMC_OK
	           : error_set(err, LLMC_E_INPUT, "%s: %s: the scale %g / %lld is not finite",
	                       p->folder, module, alpha, (long long)rank);
}

/* One factor holds the ranks of all experts: A [experts x rank, in], expert by expert; B [out, rank
 * x experts], experts innermost. */
static llmc_status
expand_experts(const Peft *p, Pair *pair, const char *param, llmc_error *err)
{
	const int64_t total = pair->a->dim[0], in = pair->a->dim[1], out = pair->b->dim[0];
	double alpha, rank;
	char name[1024];

	snprintf(name, sizeof name, "%.*s.%s", (int)experts_length(pair->module), pair->module,
	         param);
	TRY(pattern_of(p, "alpha_pattern", name, p->alpha, &alpha, err));
	TRY(pattern_of(p, "rank_pattern", name, json_number_value(json_object_get(p->config, "r")),
	               &rank, err));
	const int64_t r = rank >= 1 && rank <= (double)total ? (int64_t)rank : 0;
	if (r < 1 || total % r)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %s: expected factors of rank %g per expert, found a total "
		                 "rank of %lld",
		                 p->folder, name, rank, (long long)total);
	float scale;
	TRY(scale_of(p, name, alpha, r, &scale, err));
	const int64_t n = total / r;
	float *a = malloc((size_t)(total * (in + 2 * out) + 16) * sizeof *a),
	      *left = a ? a + total * in : NULL, *b = a ? left + total * out : NULL;
	if (!a)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an adapter");
	pair->memory = a;
	dequant_row(pair->a->dtype, pair->a->data, a, total * in);
	dequant_row(pair->b->dtype, pair->b->data, b, total * out);
	for (int64_t e = 0; e < n; e++)
		for (int64_t o = 0; o < out; o++)
			for (int64_t k = 0; k < r; k++)
				left[(e * out + o) * r + k] = scale * b[o * total + k * n + e];
	pair->delta = (PeftDelta){
		.rows = n * out, .cols = in, .rank = r, .each = out, .left = left, .right = a
	};
	return LLMC_OK;
}

bool
peft_experts(const Peft *p, const char *stem, const char *param, int64_t out, int64_t cols,
             char *buf, size_t cap)
{
	size_t m = strlen(stem);

	for (size_t i = 0; i < p->n; i++) {
		const Pair *pair = &p->pair[i];
		if (experts_length(pair->module) && !strncmp(pair->module, stem, m) &&
		    pair->module[m] == '.' && pair->b->dim[0] == out && pair->a->dim[1] == cols)
			return snprintf(buf, cap, "%s#%s", pair->module, param) < (int)cap;
	}
	return false;
}

static llmc_status
expand(const Peft *p, Pair *pair, llmc_error *err)
{
	const int64_t rank = pair->a->dim[0], in = pair->a->dim[1], out = pair->b->dim[0],
	              most = in > out ? in : out;
	float *a = malloc((size_t)(rank * (in + out + most) + 16) * sizeof *a),
	      *b = a ? a + rank * in : NULL, *tmp = a ? b + rank * out : NULL;
	double alpha;
	float scale;

	if (!a)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an adapter");
	pair->memory = a;
	TRY(pattern_of(p, "alpha_pattern", pair->module, p->alpha, &alpha, err));
	TRY(scale_of(p, pair->module, alpha, rank, &scale, err));
	dequant_row(pair->a->dtype, pair->a->data, a, rank * in);
	dequant_row(pair->b->dtype, pair->b->data, b, rank * out);
	float *left = b, *right = a;
	if (pair->embedding) { /* in an embedding, A holds the factors of the table's rows */
		transpose(a, tmp, rank, in);
		transpose(b, tmp, out, rank);
		left = a;
		right = b;
	}
	pair->delta = (PeftDelta){ .rows = pair->embedding ? in : out,
		                   .cols = pair->embedding ? out : in,
		                   .rank = rank,
		                   .left = left,
		                   .right = right };
	for (int64_t i = 0; i < pair->delta.rows * rank; i++)
		left[i] *= scale;
	return LLMC_OK;
}

llmc_status
peft_delta(Peft *p, const char *module, int64_t rows, int64_t cols, const PeftDelta **out,
           llmc_error *err)
{
	char plain[1024];
	const char *param = strchr(module, '#');

	*out = NULL;
	snprintf(plain, sizeof plain, "%.*s", param ? (int)(param - module) : (int)strlen(module),
	         module);
	Pair *pair = find(p, plain);
	if (!pair)
		return LLMC_OK;
	pair->used = true;
	if (!pair->memory)
		TRY(param ? expand_experts(p, pair, param + 1, err) : expand(p, pair, err));
	if ((rows >= 0 && pair->delta.rows != rows) || pair->delta.cols != cols)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %s: the adapter needs a matrix [%lld, %lld], the model has "
		                 "[%lld, %lld]: it was trained on another model",
		                 p->folder, module, (long long)pair->delta.rows,
		                 (long long)pair->delta.cols, (long long)rows, (long long)cols);
	*out = &pair->delta;
	return LLMC_OK;
}

const char *
peft_unused(const Peft *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (!p->pair[i].used)
			return p->pair[i].module;
	return NULL;
}

void
peft_add(const PeftDelta *d, int64_t row, int64_t first, int64_t n, float *x)
{
	const float *left = d->left + row * d->rank,
	            *matrix = d->right + (d->each ? row / d->each : 0) * d->rank * d->cols;

	for (int64_t k = 0; k < d->rank; k++) {
		const float *right = matrix + k * d->cols + first;
		for (int64_t c = 0; c < n; c++)
			x[c] += left[k] * right[c];
	}
}
