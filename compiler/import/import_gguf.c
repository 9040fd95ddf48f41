/* Reads a GGUF header: scalar keys, short lists of numbers, and tensors. */
#include "compiler/import/import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"

enum { MAX_LIST = 4096 };

/* Return the shortest decimal that reads back as the same 32-bit float: 1e-5, not
 * 9.999999747378752e-06. */
static double
tidy_f32(double v)
{
	char text[NUMBER_SIZE];
	double back;

	for (int digits = 1; digits <= 9; digits++) {
		number_text(text, v, digits);
		if (number_parse(text, &back) && (float)back == (float)v)
			return back;
	}
	return v;
}

static void
take_key(ImportSource *s, const Gguf *g, const char *key)
{
	GgufType type, elem;
	size_t count;
	GgufStr str;
	double v;

	if (!gguf_type(g, key, &type, &elem, &count))
		return;
	if (type == GGUF_STR && gguf_str(g, key, &str)) {
		/* templates and licences are long, and do not describe the model */
		const char *text = str.n > 4096 || memchr(str.s, 0, str.n)
		                       ? "(long text)"
		                       : arena_strndup(s->a, str.s, str.n);
		source_add(s, key, (SpecExprVal){ .kind = EXPR_STR, .str = text });
	} else if (type == GGUF_ARR) {
		SpecExprVal *item = NEW(s->a, SpecExprVal, MAX_LIST);
		size_t n = 0;
		for (; n < count && n < MAX_LIST && elem != GGUF_STR && gguf_arr_num(g, key, n, &v);
		     n++)
			item[n] = (SpecExprVal){ .kind = elem == GGUF_BOOL ? EXPR_BOOL : EXPR_NUM,
				                 .num = elem == GGUF_F32 ? tidy_f32(v) : v };
		bool same = n == count && n > 0;
		for (size_t i = 1; same && i < n; i++)
			same = item[i].num == item[0].num;
		/* a list with the same value for all layers becomes that value */
		source_add(s, key,
		           same ? (SpecExprVal){ .kind = item[0].kind, .num = item[0].num, .n = n }
		                : (SpecExprVal){ .kind = EXPR_LIST, .n = n, .item = item });
	} else if (gguf_num(g, key, &v)) {
		source_add(s, key,
		           (SpecExprVal){ .kind = type == GGUF_BOOL ? EXPR_BOOL : EXPR_NUM,
		                          .num = type == GGUF_F32 ? tidy_f32(v) : v });
	}
}

static void
take_tensor(ImportSource *s, const GgufTensor *t, SourceTensor *to)
{
	const char *type = ggml_type_name(t->ggml_type);

	*to = (SourceTensor){ .name = arena_strdup(s->a, t->name),
		              .dtype = t->dtype,
		              .n_dims = t->n_dims,
		              .dtype_name =
		                  type ? type : arena_printf(s->a, "number %u", t->ggml_type) };
	for (int i = 0; i < t->n_dims; i++)
		to->dim[i] = t->dim[t->n_dims - 1 - i];
}

/* Name the kind of the tower with the word that families match. Files with several encoders have a
 * separate key for each. */
static void
take_projector(ImportSource *s, const Gguf *g)
{
	static const char *const keys[] = { "clip.vision.projector_type", "clip.projector_type" };
	GgufStr str;

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (gguf_str(g, keys[i], &str) && str.n < 256 && !memchr(str.s, 0, str.n)) {
			source_add(s, "wrapper_type",
			           (SpecExprVal){ .kind = EXPR_STR,
			                          .str = arena_strndup(s->a, str.s, str.n) });
			source_use(s, "wrapper_type");
		}
}

/* The language model and the tower are separate files. Check that this is the wanted one, and read
 * from the other file the keys on which both depend. */
static bool
read_parts(ImportSource *s, const Gguf *g, llmc_error *err)
{
	const bool tower = strcmp(s->arch, "clip") == 0;
	Gguf *other = NULL;

	if (tower != s->tower) {
		err_at(s->d, (Loc){ 0 },
		       tower ? "%s: this is the vision tower of a model: open the model's own GGUF "
		               "file, and name this one with --mmproj (llmc_options.mmproj)"
		             : "%s: a vision tower is expected, which is a file of its own "
		               "(mmproj-*.gguf)",
		       s->path);
		return false;
	}
	if (tower) {
		s->format = "mmproj";
		take_projector(s, g);
	} else if (s->mmproj) {
		if (gguf_open(s->mmproj, &other, err) != LLMC_OK)
			return false;
		gguf_hold(s->a, other);
		take_projector(s, other);
		arena_done(s->a, other);
	}
	return true;
}

bool
source_read_gguf(ImportSource *s, llmc_error *err)
{
	Gguf *g = NULL;

	s->format = "gguf";
	s->file = s->path;
	if (gguf_open(s->path, &g, err) != LLMC_OK)
		return false;
	gguf_hold(s->a, g);
	for (size_t i = 0; i < gguf_n_keys(g); i++)
		take_key(s, g, gguf_key_at(g, i));
	s->have_tensors = true;
	s->n_tensor = gguf_n_tensors(g);
	s->tensor = NEW(s->a, SourceTensor, s->n_tensor + 1);
	for (size_t i = 0; i < s->n_tensor; i++)
		take_tensor(s, gguf_tensor_at(g, i), &s->tensor[i]);
	source_sort(s);

	s->arch = source_str(s, "general.architecture");
	const bool read = !s->arch || read_parts(s, g, err);
	arena_done(s->a, g);
	if (!read)
		return false;
	if (!s->arch) {
		err_at(s->d, (Loc){ 0 }, "%s: has no general.architecture: not a language model",
		       s->path);
		return false;
	}
	if (s->n_tensor == 0) {
		err_at(s->d, (Loc){ 0 }, "%s: holds no tensors, only a vocabulary", s->path);
		return false;
	}
	return true;
}

static void
scaling(ImportSource *s)
{
	const char *type = source_str(s, "rope.scaling.type");
	bool lists = source_tensor(s, "rope_factors_long.weight") &&
	             source_tensor(s, "rope_factors_short.weight");
	double v, max;

	if (source_tensor(s, "rope_freqs.weight") || lists)
		source_set(s, K_rope_factors, "true");
	if (lists)
		type = "longrope";
	if (!type || strcmp(type, "none") == 0) {
		if (source_num(s, "rope.scale_linear", &v) && v != 1) {
			source_set(s, K_rope_scaling, "linear");
			source_set_num(s, K_rope_factor, v);
		}
		return;
	}
	if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0 &&
	    strcmp(type, "longrope") != 0) {
		err_at(s->d, (Loc){ 0 },
		       "%s: rope.scaling.type = %.60s: llmc supports none, linear, yarn and "
		       "longrope in GGUF files",
		       s->path, type);
		return;
	}
	source_set(s, K_rope_scaling, type);
	static const struct {
		SpecKey k;
		const char *key;
	} copy[] = {
		{ K_rope_factor, "rope.scaling.factor" },
		{ K_rope_original, "rope.scaling.original_context_length" },
		{ K_rope_attention_factor, "rope.scaling.attn_factor" },
		{ K_rope_attention_factor, "rope.scaling.yarn_attn_factor" },
		{ K_rope_beta_fast, "rope.scaling.yarn_beta_fast" },
		{ K_rope_beta_slow, "rope.scaling.yarn_beta_slow" },
	};
	for (size_t i = 0; i < sizeof copy / sizeof *copy; i++)
		if (source_num(s, copy[i].key, &v))
			source_set_num(s, copy[i].k, v);
	/* For yarn, the file's factor multiplies yarn's own, and latent attention keeps the latter
	 * for its scores. For longrope, the file's factor replaces it. */
	if (strcmp(type, "yarn") == 0 && source_num(s, "rope.scaling.attn_factor", &v)) {
		bool own = source_num(s, "rope.scaling.yarn_log_multiplier", &max) && max != 0;
		double factor = source_num(s, "rope.scaling.factor", &max) && max > 1 ? max : 1;
		source_set(s, K_rope_attention_factor, NULL);
		if (own && v != 1)
			err_at(s->d, (Loc){ 0 },
			       "%s: rope.scaling.attn_factor = %g and yarn_log_multiplier: llmc "
			       "supports only one of the two",
			       s->path, v);
		else if (!own && v != 1)
			source_set_num(s, K_rope_attention_factor, v * (1 + 0.1 * log(factor)));
	}
	if (strcmp(type, "longrope") == 0 && !s->value[K_rope_factor] &&
	    source_num(s, "context_length", &max) &&
	    source_num(s, "rope.scaling.original_context_length", &v) && v > 0)
		source_set_num(s, K_rope_factor, max > v ? max / v : 1);
}

/* Read the linear layers that follow the pooling. They have no biases and activations. */
static void
dense(ImportSource *s)
{
	const SourceTensor *first = source_tensor(s, "dense_2.weight"),
	                   *second = source_tensor(s, "dense_3.weight");

	if (!first)
		return;
	source_set(s, K_head_dense,
	           second ? arena_printf(s->a, "[%lld, %lld]", (long long)first->dim[0],
	                                 (long long)second->dim[0])
	                  : arena_printf(s->a, "[%lld]", (long long)first->dim[0]));
	source_set(s, K_dense_bias, "false");
}

void
source_convert_gguf(ImportSource *s)
{
	const char *out = "";
	double v, seen[GGUF_END_KEYS];
	int n = 0;

	scaling(s);
	dense(s);
	for (int i = 0; i < GGUF_END_KEYS; i++) {
		if (!source_num(s, gguf_end_keys[i], &v) || v < 0)
			continue;
		bool again = false;
		for (int j = 0; j < n; j++)
			again |= seen[j] == v;
		if (again)
			continue;
		seen[n++] = v;
		out = arena_printf(s->a, "%s%s%.0f", out, *out ? ", " : "", v);
	}
	if (*out)
		source_set(s, K_eos, arena_printf(s->a, "[%s]", out));
	if (source_num(s, "pooling_type", &v) && v >= GGUF_POOL_MEAN && v <= GGUF_POOL_RANK) {
		static const char *const kind[] = { [GGUF_POOL_MEAN] = "mean",
			                            [GGUF_POOL_CLS] = "cls",
			                            [GGUF_POOL_LAST] = "last",
			                            [GGUF_POOL_RANK] = "last" };
		const SourceTensor *scores = source_tensor(s, "cls.output.weight");
		double of = v;
		if (v == GGUF_POOL_RANK && source_num(s, "classifier.pooling_type", &of) &&
		    !(of >= GGUF_POOL_MEAN && of <= GGUF_POOL_LAST))
			of = GGUF_POOL_RANK;
		source_set(s, K_pool_kind, kind[(int)of]);
		source_set(s, K_head_kind, v == GGUF_POOL_RANK && scores ? "labels" : "hidden");
		if (v == GGUF_POOL_RANK &&
		    scores) /* a matrix of one row may be stored as a vector */
			source_set_num(s, K_labels,
			               scores->n_dims == 1 ? 1 : (double)scores->dim[0]);
		source_set(s, K_pool_norm,
		           v == GGUF_POOL_RANK ? "false"
		                               : "true"); /* the default of llama.cpp's server */
	}
	if (source_num(s, GGUF_VOCAB "bos_token_id", &v))
		source_set_num(s, K_bos, v);
}
