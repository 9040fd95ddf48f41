/* Reads a Hugging Face folder: config.json, generation_config.json, the headers of its safetensors,
 * and the modules of sentence-transformers. import_hf_convert.c converts its keys to the
 * conventions of descriptions. */
#include "compiler/import/import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/safetensors.h"

enum { MAX_JSON_BYTES = 8 << 20, MAX_JSON_DEPTH = 6, MAX_JSON_LIST = 65536 };

static SpecExprVal
json_val(ImportSource *s, const json_t *j, int depth)
{
	switch (json_typeof(j)) {
	case JSON_INTEGER:
	case JSON_REAL:
		return (SpecExprVal){ .kind = EXPR_NUM, .num = json_number_value(j) };
	case JSON_TRUE:
	case JSON_FALSE:
		return (SpecExprVal){ .kind = EXPR_BOOL, .num = json_is_true(j) };
	case JSON_STRING:
		return (SpecExprVal){ .kind = EXPR_STR,
			              .str = arena_strndup(s->a, json_string_value(j),
			                                   json_string_length(j)) };
	case JSON_ARRAY: {
		size_t n = json_array_size(j);
		if (depth > MAX_JSON_DEPTH || n > MAX_JSON_LIST)
			break;
		SpecExprVal *item = NEW(s->a, SpecExprVal, n + 1);
		for (size_t i = 0; i < n; i++)
			item[i] = json_val(s, json_array_get(j, i), depth + 1);
		return (SpecExprVal){ .kind = EXPR_LIST, .n = n, .item = item };
	}
	case JSON_OBJECT:
	case JSON_NULL:
		break;
	}
	return (SpecExprVal){ .kind = EXPR_NULL };
}

/* Flatten {"a": {"b": 1}} to a.b = 1. */
static void
flatten(ImportSource *s, const json_t *object, const char *prefix, bool used, int depth)
{
	const char *name;
	json_t *v;

	json_object_foreach ((json_t *)object, name, v) {
		const char *path = arena_printf(s->a, "%s%s", prefix, name);
		if (json_is_object(v) && depth < MAX_JSON_DEPTH) {
			source_add(s, path,
			           /* for the condition has(path) */
			           (SpecExprVal){ .kind = EXPR_BOOL, .num = 1 });
			flatten(s, v, arena_printf(s->a, "%s.", path), used, depth + 1);
			source_use(s, path);
		} else {
			source_add(s, path, json_val(s, v, depth));
			if (used)
				source_use(s, path);
		}
	}
}

/* Parse a file that contains one JSON object, into the arena. NULL: the reason is in *err */
static json_t *
load_json(ImportSource *s, const char *path, llmc_error *err)
{
	Strbuf *text = arena_strbuf(s->a);
	json_error_t je;

	if (file_read(path, MAX_JSON_BYTES, text, err) != LLMC_OK ||
	    file_check_content(path, strbuf_str(text), text->len, err) != LLMC_OK)
		return NULL;
	json_t *root =
	    json_read_python(s->a, strbuf_str(text), text->len, JSON_REJECT_DUPLICATES, &je);
	strbuf_release(text);
	if (!root) {
		error_set(err, LLMC_E_INPUT, "%s:%d:%d: error: not JSON: %s", path, je.line,
		          je.column, je.text);
		return NULL;
	}
	if (!json_is_object(root)) {
		error_set(err, LLMC_E_INPUT, "%s: a JSON object is expected", path);
		return NULL;
	}
	return root;
}

/* Return the member that is an object of this name; NULL if it is empty, absent or of another
 * type. */
static const json_t *
part_of(const json_t *object, const char *name)
{
	const json_t *v = json_object_get(object, name);

	return json_is_object(v) && json_object_size(v) ? v : NULL;
}

/* Return the part of a wrapper's config that describes the language model; NULL: the config is not
 * a wrapper's. */
static const json_t *
text_of(const json_t *root)
{
	static const char *const names[] = { "text_config", "llm_config", "language_config" };
	const json_t *in[] = { part_of(root, "thinker_config"),
		               root }; /* the first name is that of models with a speech part */
	const json_t *text = NULL;

	for (size_t k = 0; k < 2; k++)
		for (size_t i = 0; in[k] && !text && i < sizeof names / sizeof *names; i++)
			text = part_of(in[k], names[i]);
	return text;
}

/* Read a config. In a wrapper with other parts, text_config describes the language model. Keys
 * outside of text_config describe the other parts, with a few exceptions that describe the whole
 * model: for these, text_config may contain only the defaults of its class. */
/* Read the keys of a vision tower. Keys outside of vision_config have their full names
 * (text_config.hidden_size). The model_type of the wrapper is the key `wrapper_type`. */
static bool
take_tower(ImportSource *s, const json_t *root)
{
	const json_t *vision = part_of(root, "vision_config");

	if (!vision) {
		err_at(s->d, (Loc){ 0 },
		       "%s: there is no vision_config: this model reads text only", s->file);
		return false;
	}
	const char *type = json_string_value(json_object_get(root, "model_type"));
	source_add(s, "wrapper_type",
	           (SpecExprVal){ .kind = EXPR_STR, .str = arena_strdup(s->a, type ? type : "") });
	flatten(s, vision, "", false, 0);
	size_t own = s->n_key;
	flatten(s, root, "", false, 0);
	for (size_t i = own; i < s->n_key; i++)
		s->key[i].used = true;
	source_use(s, "wrapper_type");
	s->wrapper = true;
	return true;
}

void
source_take_config(ImportSource *s, const json_t *root)
{
	static const char *const whole[] = { "tie_word_embeddings", "eos_token_id",
		                             "bos_token_id" };
	const json_t *text = text_of(root), *layer = part_of(root, "transformer_layer_config");

	if (layer) { /* a draft checkpoint of speculators */
		flatten(s, layer, "", false, 0);
		flatten(s, root, "", false, 0);
		source_use(s, "transformer_layer_config.*");
		return;
	}
	if (s->tower) {
		take_tower(s, root);
		return;
	}
	if (!text) {
		flatten(s, root, "", false, 0);
		return;
	}
	for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
		const json_t *v = json_object_get(root, whole[i]);
		if (v && !json_is_null(v))
			source_add(s, whole[i], json_val(s, v, 0));
	}
	flatten(s, text, "", false, 0);
	size_t own = s->n_key;
	const char *type = json_string_value(json_object_get(root, "model_type"));
	source_add(s, "wrapper_type",
	           (SpecExprVal){ .kind = EXPR_STR, .str = arena_strdup(s->a, type ? type : "") });
	flatten(s, root, "", false, 0);
	for (size_t i = own; i < s->n_key; i++)
		s->key[i].used = true;
	s->wrapper = true;
	s->has_audio = part_of(root, "audio_config") || part_of(root, "thinker_config");
	s->has_vision = part_of(root, "vision_config") != NULL;
}

static void
read_generation_config(ImportSource *s, const json_t *root)
{
	static const char *const keys[] = { "eos_token_id", "bos_token_id" };

	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		const json_t *v = json_object_get(root, keys[i]);
		if (!v || json_is_null(v))
			continue;
		const char *path = arena_printf(s->a, "generation_config.%s", keys[i]);
		source_add(s, path, json_val(s, v, 0));
		source_use(s, path);
	}
}

static bool
zeros(const StTensor *t)
{
	const size_t n = strlen(t->name);

	if (n < 5 || strcmp(t->name + n - 5, ".bias") != 0 || !dtype_is_float(t->dtype))
		return false;
	for (int64_t i = 0; i < t->bytes; i++)
		if (((const unsigned char *)t->data)[i])
			return false;
	return true;
}

static const float *
copied(ImportSource *s, const float *x, int64_t n)
{
	return x ? memcpy(NEW(s->a, float, n), x, (size_t)n * sizeof *x) : NULL;
}

static void
read_tensor_list(ImportSource *s, const Safetensors *st)
{
	const char *method = safetensors_quant_format(st);
	bool made = false;

	for (size_t i = 0; i < safetensors_n(st); i++)
		made |= safetensors_at(st, i)->made != NULL;
	if (method && !made)
		err_at(s->d, (Loc){ 0 },
		       "%s: these weights are quantised by %.60s, which llmc does not support: use "
		       "the unquantised checkpoint, a GGUF file of it, or one of these: %s",
		       s->file,
		       *method ? method : "a method that quantization_config does not name",
		       safetensors_quant_formats_known(st));
	else if (!made && source_val(s, "quantization_config").kind != EXPR_NULL)
		warn_at(s->d, (Loc){ 0 },
		        "%s: quantization_config describes quantised weights, but these are not "
		        "quantised: they are read as stored",
		        s->file);
	if (made && safetensors_quant_activations(st) && !s->tower)
		source_set(s, K_activations_declared, safetensors_quant_activations(st));
	s->have_tensors = true;
	s->n_tensor = safetensors_n(st);
	s->tensor = NEW(s->a, SourceTensor, s->n_tensor + 1);
	for (size_t i = 0; i < s->n_tensor; i++) {
		const StTensor *t = safetensors_at(st, i);
		s->tensor[i] = (SourceTensor){ .name = arena_strdup(s->a, t->name),
			                       .dtype = t->dtype,
			                       .dtype_name = arena_strdup(
			                           s->a, t->dtype_name ? t->dtype_name : "?"),
			                       .n_dims = t->n_dims,
			                       .data = t->data,
			                       .bytes = t->bytes };
		memcpy(s->tensor[i].dim, t->dim, sizeof t->dim);
		s->tensor[i].zeros = made && zeros(t);
		if (t->made) {
			s->tensor[i].order = copied(s, t->made->order, t->made->cols);
			s->tensor[i].factor = copied(s, t->made->factor, t->made->cols);
		}
	}
	source_sort(s);
}

bool
source_take_weights(ImportSource *s, llmc_error *err)
{
	Safetensors *weights;

	if (safetensors_open(s->path, &weights, err) != LLMC_OK)
		return false;
	safetensors_hold(s->a, weights);
	read_tensor_list(s, weights);
	s->weights = weights;
	return true;
}

void
source_close_weights(ImportSource *s)
{
	for (size_t i = 0; i < s->n_tensor; i++)
		s->tensor[i].data = NULL;
	if (s->weights)
		arena_done(s->a, s->weights);
	s->weights = NULL;
}

/* ---- embeddings ---- */

/* Read the pooling of a sentence-transformers folder. It is a flag per kind, or a word. */
static bool
read_pooling(ImportSource *s, const char *path, llmc_error *err)
{
	static const struct {
		const char *flag, *word, *kind;
	} ways[] = {
		{ "pooling_mode_lasttoken", "lasttoken", "last" },
		{ "pooling_mode_mean_tokens", "mean", "mean" },
		{ "pooling_mode_cls_token", "cls", "cls" },
	};
	json_t *o = load_json(s, path, err), *v;
	const char *kind = NULL,
	           *word = o ? json_string_value(json_object_get(o, "pooling_mode")) : NULL, *flag;
	int n = 0;

	if (!o)
		return false;
	json_object_foreach (o, flag, v)
		n += !strncmp(flag, "pooling_mode_", 13) && json_is_true(v);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (word ? !strcmp(word, ways[i].word)
		         : n == 1 && json_is_true(json_object_get(o, ways[i].flag)))
			kind = ways[i].kind;
	if (!kind)
		err_at(s->d, (Loc){ 0 },
		       "%s: this pooling is not supported: llmc pools by the last token, the mean "
		       "or the first token (cls)",
		       path);
	else
		source_set(s, K_pool_kind, kind);
	arena_done(s->a, o);
	return kind != NULL;
}

/* Read a linear layer that follows the pooling. at: its index among these layers */
static bool
read_dense(ImportSource *s, const char *path, int at, llmc_error *err)
{
	static const struct {
		const char *end, *act;
	} acts[] = { { ".Identity", "none" },
		     { ".Tanh", "tanh" },
		     { ".GELU", "gelu" },
		     { ".ReLU", "relu" } };
	const char *file = arena_printf(s->a, "%s/%s/config.json", s->path, path ? path : "");
	json_t *o = load_json(s, file, err);
	const char *name = o ? json_string_value(json_object_get(o, "activation_function")) : NULL,
	           *act = name ? NULL : "tanh", /* the default of sentence-transformers */
	               *bias = o && json_is_false(json_object_get(o, "bias")) ? "false" : "true",
	           *before = at ? s->value[K_head_dense] : NULL;
	const json_t *width = o ? json_object_get(o, "out_features") : NULL;

	if (!o)
		return false;
	for (size_t i = 0; name && i < sizeof acts / sizeof *acts; i++)
		act = ends_with(name, acts[i].end) ? acts[i].act : act;
	if (!act || !json_is_integer(width) || !path ||
	    strcmp(path, arena_printf(s->a, "%d_Dense", at + 2)) != 0 ||
	    (at && (strcmp(act, s->value[K_dense_act]) != 0 ||
	            strcmp(bias, s->value[K_dense_bias]) != 0))) {
		err_at(
		    s->d, (Loc){ 0 },
		    "%s: this module is not supported: linear layers follow the pooling as "
		    "2_Dense, 3_Dense, 4_Dense, with one activation (Identity, Tanh, GELU, ReLU)",
		    file);
		arena_done(s->a, o);
		return false;
	}
	source_set(s, K_head_dense,
	           arena_printf(s->a, "%.*s%s%lld]", before ? (int)strlen(before) - 1 : 0,
	                        before ? before : "", before ? ", " : "[",
	                        (long long)json_integer_value(width)));
	source_set(s, K_dense_act, act);
	source_set(s, K_dense_bias, bias);
	arena_done(s->a, o);
	return true;
}

/* Read the modules of sentence-transformers: a model, a pooling, linear layers, and at the end an
 * optional normalisation. */
static bool
read_modules(ImportSource *s, llmc_error *err)
{
	const char *list = arena_printf(s->a, "%s/modules.json", s->path),
	           *pooling = arena_printf(s->a, "%s/1_Pooling/config.json", s->path);
	Strbuf *text = arena_strbuf(s->a);
	json_error_t je;
	json_t *module;
	int n_dense = 0;
	size_t i;

	if (!file_exists(list) && !file_exists(pooling))
		return true;
	source_set(s, K_head_kind, "hidden");
	if (!file_exists(list))
		return read_pooling(s, pooling, err);
	if (file_read(list, MAX_JSON_BYTES, text, err) != LLMC_OK)
		return false;
	json_t *root = json_read(s->a, strbuf_str(text), text->len, JSON_REJECT_DUPLICATES, &je);
	strbuf_release(text);
	if (!json_is_array(root)) {
		error_set(err, LLMC_E_INPUT, "%s: a JSON list of modules is expected", list);
		return false;
	}
	json_array_foreach (root, i, module) {
		const char *type = json_string_value(json_object_get(module, "type")),
		           *path = json_string_value(json_object_get(module, "path"));
		if (ends_with(type, ".Pooling")) {
			if (!read_pooling(
			        s,
			        path && !strstr(path, "..")
			            ? arena_printf(s->a, "%s/%s/config.json", s->path, path)
			            : pooling,
			        err))
				return false;
		} else if (ends_with(type, ".Normalize")) {
			source_set(s, K_pool_norm, "true");
		} else if (ends_with(type, ".Dense") && !s->value[K_pool_norm]) {
			if (!read_dense(s, path, n_dense++, err))
				return false;
		} else if (!ends_with(type, ".Transformer")) {
			err_at(s->d, (Loc){ 0 },
			       "%s: a module of type %.80s follows the model: llmc supports "
			       "Transformer, Pooling, Dense and, at the end, Normalize",
			       list, type ? type : "(none)");
			return false;
		}
	}
	arena_done(s->a, root);
	return true;
}

/* Read a classification head, which computes scores from the last token. */
static void
read_classification_head(ImportSource *s)
{
	SpecExprVal v = source_val(s, "architectures");
	const SourceTensor *head = source_tensor(s, "score.weight");

	if (s->value[K_head_kind] || v.kind != EXPR_LIST || v.n != 1 ||
	    v.item[0].kind != EXPR_STR || !ends_with(v.item[0].str, "ForSequenceClassification") ||
	    !head)
		return;
	source_set(s, K_head_kind, "labels");
	source_set_num(s, K_labels, (double)head->dim[0]);
	source_set(s, K_pool_kind, "last");
	source_set(s, K_head_bias, source_tensor(s, "score.bias") ? "true" : "false");
}

/* Return whether the folder has weights. A folder without weights is a valid description. */
static bool
has_weights(const char *dir, Arena *a)
{
	static const char *const names[] = { "model.safetensors", "model.safetensors.index.json",
		                             "pytorch_model.bin", "pytorch_model.bin.index.json" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (file_exists(arena_printf(a, "%s/%s", dir, names[i])))
			return true;
	return false;
}

bool
source_read_hf(ImportSource *s, llmc_error *err)
{
	json_t *generation = NULL;
	Safetensors *weights = NULL;

	s->format = "hf";
	s->file = arena_printf(s->a, "%s/config.json", s->path);
	const char *more = arena_printf(s->a, "%s/generation_config.json", s->path);
	bool look = has_weights(s->path, s->a);
	/* Meta's params.json, which has no model_type */
	const bool original = !file_exists(s->file);
	if (original)
		s->file = arena_printf(s->a, "%s/params.json", s->path);
	json_t *config = load_json(s, s->file, err);
	if (config && original &&
	    json_object_set_new(config, "model_type", json_string("original")) != 0)
		arena_out(s->a);
	if (!config || (file_exists(more) && !(generation = load_json(s, more, err))))
		return false;
	llmc_error none = { 0 };
	if (look && safetensors_open(s->path, &weights, err) != LLMC_OK)
		return false;
	/* the usual names are missing: either a single file has another name, or there is none */
	if (!look && json_object_get(config, "model_type") &&
	    safetensors_open(s->path, &weights, &none) != LLMC_OK &&
	    !strstr(none.text, "holds no weights")) {
		if (err)
			*err = none;
		return false;
	}
	safetensors_hold(s->a, weights);
	source_take_config(s, config);
	if (generation)
		read_generation_config(s, generation);
	if (weights)
		read_tensor_list(s, weights);
	s->weights = weights;
	if (!s->tower) {
		if (!read_modules(s, err))
			return false;
		read_classification_head(s);
	}
	arena_done(s->a, generation);
	arena_done(s->a, config);
	return true;
}
