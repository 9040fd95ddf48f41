/* Conventions of config.json that all families share: rope_scaling or rope_parameters, shapes per
 * layer type, dtype, eos and bos, quantization_config */
#include "compiler/import/import.h"

#include <stdlib.h>
#include <string.h>

static const char *
dtype_word(const char *name)
{
	const char *tail = name && strncmp(name, "torch.", 6) == 0 ? name + 6 : name;

	return !tail                           ? NULL
	       : strcmp(tail, "bfloat16") == 0 ? "bf16"
	       : strcmp(tail, "float16") == 0  ? "f16"
	       : strcmp(tail, "float32") == 0  ? "f32"
	                                       : NULL;
}

static void
list_numbers(ImportSource *s, SpecKey k, SpecExprVal v)
{
	const char *out = "";
	char num[NUMBER_SIZE];

	if (v.kind != EXPR_LIST)
		return;
	for (size_t i = 0; i < v.n; i++) {
		if (v.item[i].kind != EXPR_NUM) {
			err_at(s->d, (Loc){ 0 },
			       "%s: the list for %s contains a value that is not a number", s->file,
			       spec_key[k].path);
			return;
		}
		yaml_number(num, v.item[i].num);
		out = arena_printf(s->a, "%s%s%s", out, i ? ", " : "", num);
	}
	source_set(s, k, arena_printf(s->a, "[%s]", out));
}

static SpecKey
at(SpecKey base, SpecKey main)
{
	/* The keys of the local table have the same order, except `dims`. It follows theta in one
	 * table, and precedes theta in the other. */
	return (SpecKey)(base + (main - K_rope_scaling));
}

static void
num_key(ImportSource *s, SpecKey k, const char *object, const char *key)
{
	double v;

	if (source_num(s, arena_printf(s->a, "%s.%s", object, key), &v))
		source_set_num(s, k, v);
}

static const char *
rope_type(ImportSource *s, const char *object)
{
	const char *type = source_str(s, arena_printf(s->a, "%s.rope_type", object));
	const char *old = source_str(s, arena_printf(s->a, "%s.type", object));

	return type ? type : old;
}

/* Return whether partial_rotary_factor is the share of pairs that rotate (rope.turning). If so, the
 * table spans all dimensions of a head. */
static bool
is_proportional(ImportSource *s, const char *object)
{
	const char *type = rope_type(s, object);

	return type && strcmp(type, "proportional") == 0;
}

/* Convert one object of rope parameters. base: K_rope_scaling or K_local_scaling */
static void
convert_rope(ImportSource *s, const char *object, SpecKey base)
{
	const char *type = rope_type(s, object);
	SpecExprVal shorts = source_val(s, arena_printf(s->a, "%s.short_factor", object));
	SpecExprVal longs = source_val(s, arena_printf(s->a, "%s.long_factor", object));
	double max = 0, original = 0, v;

	if (!type || strcmp(type, "default") == 0 || (s->tower && strcmp(type, "axial") == 0))
		return;
	if (strcmp(type, "su") == 0 || (strcmp(type, "yarn") == 0 && shorts.kind == EXPR_LIST))
		type = "longrope"; /* earlier names of the type */
	if (strcmp(type, "deepseek_yarn") == 0)
		/* yarn with mscale and mscale_all_dim, which are read for every yarn */
		type = "yarn";
	static const char *const known[] = { "linear", "dynamic",  "yarn",
		                             "llama3", "longrope", "proportional" };
	bool found = false;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		found |= strcmp(known[i], type) == 0;
	if (!found) {
		err_at(s->d, (Loc){ 0 },
		       "%s: %s.rope_type = %.60s: llmc supports default, linear, dynamic, yarn, "
		       "llama3, longrope and proportional",
		       s->file, object, type);
		return;
	}
	source_set(s, base, arena_strdup(s->a, type));
	num_key(s, at(base, K_rope_factor), object, "factor");
	if (strcmp(type, "proportional") == 0) {
		if (source_num(s, "partial_rotary_factor", &v))
			source_set_num(s, at(base, K_rope_turning), v);
		num_key(s, at(base, K_rope_turning), object, "partial_rotary_factor");
	}
	num_key(s, at(base, K_rope_low_freq), object, "low_freq_factor");
	num_key(s, at(base, K_rope_high_freq), object, "high_freq_factor");
	num_key(s, at(base, K_rope_beta_fast), object, "beta_fast");
	num_key(s, at(base, K_rope_beta_slow), object, "beta_slow");
	num_key(s, at(base, K_rope_attention_factor), object, "attention_factor");
	num_key(s, at(base, K_rope_mscale), object, "mscale");
	num_key(s, at(base, K_rope_mscale_all_dim), object, "mscale_all_dim");
	SpecExprVal truncate = source_val(s, arena_printf(s->a, "%s.truncate", object));
	if (truncate.kind == EXPR_BOOL)
		source_set_num(s, at(base, K_rope_truncate), truncate.num);
	list_numbers(s, at(base, K_rope_short_factor), shorts);
	list_numbers(s, at(base, K_rope_long_factor), longs);
	/* a value outside of the object takes precedence, as in transformers */
	if (source_num(s, arena_printf(s->a, "%s.original_max_position_embeddings", object), &v))
		original = v;
	if (source_num(s, "original_max_position_embeddings", &v))
		original = v;
	if (original > 0)
		source_set_num(s, at(base, K_rope_original), original);
	/* longrope may give its factor as the ratio of the two lengths */
	if (strcmp(type, "longrope") == 0 && original > 0 &&
	    source_num(s, "max_position_embeddings", &max))
		source_set_num(s, at(base, K_rope_factor), max > original ? max / original : 1);
	source_use(s, arena_printf(s->a, "%s.finetuned", object));
}

static bool
copy_num(ImportSource *s, const char *from, const char *to)
{
	SpecExprVal v = source_val(s, from);

	if (v.kind != EXPR_NUM)
		return false;
	source_add(s, to, v);
	return true;
}

/* Make the keys of theta and of the rotated share from one object of rope parameters. */
static bool
copy_rope(ImportSource *s, const char *object, const char *theta, const char *part)
{
	const bool proportional = is_proportional(s, object);

	copy_num(s, arena_printf(s->a, "%s.rope_theta", object), theta);
	if (!proportional)
		copy_num(s, arena_printf(s->a, "%s.partial_rotary_factor", object), part);
	return proportional;
}

/* Make the keys rope.theta and rope.partial_rotary_factor. Family files use these names, whatever
 * the source calls them. */
static void
rope_keys(ImportSource *s)
{
	/* transformers ignores the second object if the first exists */
	static const char *const objects[] = { "rope_scaling", "rope_parameters" };
	bool proportional = false;
	const bool layered = source_val(s, "rope_parameters.full_attention").kind != EXPR_NULL ||
	                     source_val(s, "rope_parameters.sliding_attention").kind != EXPR_NULL;
	const bool first = !layered && rope_type(s, objects[0]);

	if (layered) {
		proportional = copy_rope(s, "rope_parameters.full_attention", "rope.theta",
		                         "rope.partial_rotary_factor");
		copy_rope(s, "rope_parameters.sliding_attention", "rope.local.theta",
		          "rope.local.partial_rotary_factor");
		convert_rope(s, "rope_parameters.full_attention", K_rope_scaling);
		convert_rope(s, "rope_parameters.sliding_attention", K_local_scaling);
	}
	if (first)
		source_use(s, "rope_parameters*");
	for (size_t i = 0; i < (first ? 1 : 2); i++) {
		proportional |=
		    copy_rope(s, objects[i], "rope.theta", "rope.partial_rotary_factor");
		if (!layered && !s->value[K_rope_scaling])
			convert_rope(s, objects[i], K_rope_scaling);
	}
	copy_num(s, "rope_theta", "rope.theta");
	copy_num(s, "rotary_emb_base", "rope.theta");
	if (!proportional)
		copy_num(s, "partial_rotary_factor", "rope.partial_rotary_factor");
	copy_num(s, "rotary_pct", "rope.partial_rotary_factor");
	copy_num(s, "rope_local_base_freq", "rope.local.theta");
	source_use(s, "rope.*");
	source_use(s, "original_max_position_embeddings");
}

/* Rename per_layer_config.7.head_dim to per_layer_config.full_attention.head_dim, after the type of
 * layer 7. Layers of one type have the same shape. */
static void
layer_config(ImportSource *s)
{
	static const char stem[] = "per_layer_config.";
	const SpecExprVal types = source_val(s, "layer_types");

	for (size_t i = 0, n = s->n_key; i < n; i++) {
		const char *name = s->key[i].name, *at = name + sizeof stem - 1;
		char *end;
		if (strncmp(name, stem, sizeof stem - 1) != 0 || *at < '0' || *at > '9')
			continue;
		long l = strtol(at, &end, 10);
		if (*end != '.' || types.kind != EXPR_LIST || l < 0 || (size_t)l >= types.n ||
		    types.item[l].kind != EXPR_STR)
			continue;
		const char *kind = arena_printf(s->a, "%s%s%s", stem, types.item[l].str, end);
		SpecExprVal before = source_val(s, kind), v = s->key[i].val;
		if (before.kind == EXPR_NULL)
			source_add(s, kind, v);
		else if (before.kind != v.kind || (v.kind == EXPR_NUM && before.num != v.num))
			err_at(s->d, (Loc){ 0 },
			       "%s: %s differs from other layers of the type %s: llmc supports one "
			       "shape per type",
			       s->file, name, types.item[l].str);
	}
	source_use(s, "per_layer_config*");
}

static void
ids(ImportSource *s, SpecKey k, SpecExprVal v)
{
	const char *out = "";
	char num[NUMBER_SIZE];
	const SpecExprVal one = v;

	if (v.kind == EXPR_NUM)
		v = (SpecExprVal){ .kind = EXPR_LIST, .n = 1, .item = &one };
	for (size_t i = 0; v.kind == EXPR_LIST && i < v.n; i++) {
		if (v.item[i].kind != EXPR_NUM || v.item[i].num < 0)
			continue; /* -1 may mean that there is none */
		yaml_number(num, v.item[i].num);
		out = arena_printf(s->a, "%s%s%s", out, *out ? ", " : "", num);
		if (spec_key[k].type == TYPE_INT)
			break;
	}
	if (*out)
		source_set(s, k,
		           spec_key[k].type == TYPE_INT ? out : arena_printf(s->a, "[%s]", out));
}

void
source_convert_hf(ImportSource *s)
{
	const char *method = source_str(s, "quantization_config.quant_method");
	if (!s->have_tensors && source_val(s, "quantization_config").kind != EXPR_NULL)
		err_at(s->d, (Loc){ 0 },
		       "%s: these weights are quantised by %.60s, and the tensors that define the "
		       "format are missing",
		       s->file,
		       method ? method : "a method that quantization_config does not name");
	source_use(s, "quantization_config*");
	source_use(s, "quantization.*"); /* MLX writes the object under two names */
	rope_keys(s);
	layer_config(s);
	const char *torch = source_str(s, "torch_dtype"), *plain = source_str(s, "dtype");
	const char *dtype = dtype_word(plain ? plain : torch);
	if (dtype)
		source_set(s, K_dtype, dtype);
	if (s->tower) /* a tower has no tokens */
		return;
	SpecExprVal eos = source_val(s, "generation_config.eos_token_id"),
	            own = source_val(s, "eos_token_id");
	ids(s, K_eos, eos.kind != EXPR_NULL ? eos : own);
	SpecExprVal bos = source_val(s, "generation_config.bos_token_id"),
	            own_bos = source_val(s, "bos_token_id");
	ids(s, K_bos, own_bos.kind != EXPR_NULL ? own_bos : bos);
}
