/* Reads rules of preprocessing from configurations. configs/images/processors.yaml has the defaults
 * of each processor class, and a table from keys of its files to the fields of ImageRules that they
 * set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/embed.h"
#include "base/json.h"
#include "formats/yaml.h"
#include "image/prepare.h"

#define FILE_NAME "configs/images/processors.yaml"

typedef enum RuleKind {
	RULE_BOOL,
	RULE_INT,
	RULE_WIDE, /* int64_t */
	RULE_NUM,
	RULE_NUM3,
	RULE_TEXT,
	RULE_ENUM,
	RULE_PAIRS, /* pinpoint and n_pinpoint */
} RuleKind;

typedef struct RuleField {
	const char *name;
	RuleKind kind;
	size_t at;
	const char *values; /* RULE_ENUM and words of RULE_BOOL: names in order, each with a blank
	                       after it */
} RuleField;

#define FIELD(kind, name) { #name, RULE_##kind, offsetof(ImageRules, name), NULL }
#define WORDS(kind, name, words) { #name, RULE_##kind, offsetof(ImageRules, name), words }
static const RuleField fields[] = {
	FIELD(BOOL, do_resize),
	WORDS(ENUM, resize, "size smart budget longest even "),
	WORDS(ENUM, filter, "nearest lanczos bilinear bicubic "),
	FIELD(INT, height),
	FIELD(INT, width),
	FIELD(INT, shortest),
	FIELD(INT, longest),
	FIELD(WIDE, min_pixels),
	FIELD(WIDE, max_pixels),
	FIELD(INT, soft_tokens),
	FIELD(BOOL, center_crop),
	FIELD(INT, crop_height),
	FIELD(INT, crop_width),
	FIELD(BOOL, pad_square),
	FIELD(BOOL, sections),
	WORDS(ENUM, tiling, "none split aspect anyres crops "),
	FIELD(BOOL, cut),
	FIELD(INT, tile),
	FIELD(INT, min_tiles),
	FIELD(INT, max_tiles),
	FIELD(INT, min_crop),
	FIELD(NUM, min_ratio),
	{ "pinpoints", RULE_PAIRS, offsetof(ImageRules, pinpoint), NULL },
	FIELD(BOOL, do_rescale),
	FIELD(BOOL, do_normalize),
	FIELD(NUM, rescale),
	FIELD(NUM3, mean),
	FIELD(NUM3, std),
	FIELD(INT, patch),
	FIELD(INT, temporal),
	FIELD(INT, merge),
	FIELD(INT, model_patch),
	FIELD(BOOL, channel_last),
	FIELD(INT, token_square),
	FIELD(INT, tokens_per_tile),
	FIELD(INT, extra_tokens),
	WORDS(BOOL, drop_token, "full default "),
	WORDS(ENUM, text, "run rows grid crops "),
	FIELD(TEXT, placeholder),
	FIELD(TEXT, token),
	FIELD(TEXT, before),
	FIELD(TEXT, after),
	FIELD(TEXT, row_end),
	FIELD(TEXT, fake),
	FIELD(TEXT, global),
};

static const RuleField *
field_of(const char *name)
{
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (strcmp(fields[i].name, name) == 0)
			return &fields[i];
	return NULL;
}

/* Return the index of a word in a list of words with a blank after each; -1: the list lacks the
 * word */
static int
word_at(const char *words, const char *word)
{
	size_t n = strlen(word);
	int i = 0;

	for (const char *p = words; p && *p; p = strchr(p, ' ') + 1, i++)
		if (strncmp(p, word, n) == 0 && p[n] == ' ')
			return i;
	return -1;
}

/* ---- values as JSON ---- */

static bool
whole_number(const json_t *v, int64_t most, int64_t *out)
{
	double d = json_number_of(v);

	/* a size may be {"height": n, "width": n}, or a list of two equal numbers */
	if (json_is_object(v)) {
		const json_t *h = json_object_get(v, "height"), *w = json_object_get(v, "width");
		return h && w && json_equal(h, w) && whole_number(h, most, out);
	}
	if (json_is_array(v))
		return json_array_size(v) == 2 &&
		       json_equal(json_array_get(v, 0), json_array_get(v, 1)) &&
		       whole_number(json_array_get(v, 0), most, out);
	if (!json_is_any_number(v) || d != floor(d) || d < 0 || d > (double)most)
		return false;
	*out = (int64_t)d;
	return true;
}

static bool
set_pairs(ImageRules *r, const json_t *v)
{
	size_t n = json_array_size(v);
	int64_t side;

	if (!json_is_array(v) || n < 1 || n > IMAGE_PINPOINTS)
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *pair = json_array_get(v, i);
		if (json_array_size(pair) != 2)
			return false;
		for (size_t k = 0; k < 2; k++) {
			if (!whole_number(json_array_get(pair, k), 1 << 16, &side) || side < 1)
				return false;
			r->pinpoint[i][k] = (int32_t)side;
		}
	}
	r->n_pinpoint = (int32_t)n;
	return true;
}

static bool
set_numbers(double *out, const json_t *v)
{
	for (size_t i = 0; i < 3; i++) {
		const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
		if (!one || !json_is_any_number(one))
			return false;
		out[i] = json_number_of(one);
	}
	return !json_is_array(v) || json_array_size(v) == 3;
}

/* Set one field. False: the value is not possible. */
static bool
set_field(ImageRules *r, const RuleField *f, const json_t *v)
{
	char *at = (char *)r + f->at;
	const char *text = json_string_value(v);
	int64_t n;
	int word;

	switch (f->kind) {
	case RULE_BOOL:
		word = text && f->values ? word_at(f->values, text) : -1;
		if (word < 0 && !json_is_boolean(v))
			return false;
		*(bool *)at = word < 0 ? json_is_true(v) : word > 0;
		return true;
	case RULE_INT:
		if (!whole_number(v, 1 << 24, &n))
			return false;
		*(int32_t *)at = (int32_t)n;
		return true;
	case RULE_WIDE:
		return whole_number(v, (int64_t)1 << 40, (int64_t *)at);
	case RULE_NUM:
		return json_is_any_number(v) && (*(double *)at = json_number_of(v), true);
	case RULE_NUM3:
		return set_numbers((double *)at, v);
	case RULE_TEXT:
		if (!text || strlen(text) >= IMAGE_STRING)
			return false;
		memcpy(at, text, strlen(text) + 1);
		return true;
	case RULE_ENUM:
		word = text ? word_at(f->values, text) : whole_number(v, 3, &n) ? (int)n : -1;
		if (word < 0)
			return false;
		memcpy(at, &word, sizeof word);
		return true;
	case RULE_PAIRS:
		return set_pairs(r, v);
	}
	return false;
}

/* ---- the table ---- */

/* Convert a scalar or list of the table to JSON, which the arena owns */
static json_t *
as_json(Arena *a, const Node *n)
{
	Strbuf *b = arena_strbuf(a);

	if (n->kind == NODE_LIST) {
		json_t *list = json_read(a, "[]", 2, 0, NULL);
		for (size_t i = 0; i < n->n; i++)
			if (json_array_append(list, as_json(a, n->item[i])) != 0)
				arena_out(a);
		return list;
	}
	if (n->quoted || !(strchr("-.0123456789", n->text[0]) || strcmp(n->text, "true") == 0 ||
	                   strcmp(n->text, "false") == 0))
		json_str(b, n->text, strlen(n->text));
	else
		strbuf_puts(b, n->text);
	if (b->failed)
		arena_out(a);
	return json_read(a, strbuf_str(b), b->len, JSON_DECODE_ANY, NULL);
}

static bool
in_list(const Node *list, const char *name)
{
	for (size_t i = 0; list && i < list->n; i++)
		if (strcmp(list->item[i]->text, name) == 0)
			return true;
	return false;
}

static llmc_status
set_defaults(Arena *a, ImageRules *r, const Node *row, llmc_error *err)
{
	for (size_t i = 0; i < row->n; i++) {
		const char *name = row->key[i]->text;
		if (strcmp(name, "keys") == 0 || strcmp(name, "ignored") == 0 ||
		    strcmp(name, "names") == 0 || strcmp(name, "processor") == 0 ||
		    strcmp(name, "fixed") == 0)
			continue;
		const RuleField *f = field_of(name);
		json_t *v = row->item[i]->kind == NODE_MAP ? NULL : as_json(a, row->item[i]);
		if (!f || !v || !set_field(r, f, v))
			return error_set(err, LLMC_E_BUG, FILE_NAME ": %s cannot be set.", name);
	}
	return LLMC_OK;
}

/* ---- files ---- */

/* Return the file that a key's prefix in the table names, and remove the prefix; keys of the
 * processor have no prefix. */
static const json_t *
file_of(const ImageFiles *files, const char **key)
{
	static const char *prefix[] = { "processor.", "config.", "tokenizer.", "mmproj." };
	const json_t *file[] = { files->processor, files->config, files->tokenizer, files->mmproj };

	for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
		size_t n = strlen(prefix[i]);
		if (strncmp(*key, prefix[i], n) == 0) {
			*key += n;
			return file[i];
		}
	}
	return files->preprocessor;
}

/* Return the value at a path with dots; NULL: absent or null. Of an added token's object it returns
 * the string. */
static const json_t *
value_at(const json_t *at, const char *path)
{
	while (at && *path) {
		size_t n = strcspn(path, ".");
		at = json_object_getn(at, path, n);
		path += n + (path[n] == '.');
	}
	if (json_is_object(at) && json_object_get(at, "content"))
		at = json_object_get(at, "content");
	return json_is_null(at) ? NULL : at;
}

/* Set the field of this name to the value of a key; v NULL: the file lacks the key. */
static llmc_status
set_key(ImageRules *r, const char *key, const char *field, const json_t *v, llmc_error *err)
{
	const RuleField *f = field_of(field);

	if (!f)
		return error_set(err, LLMC_E_BUG, FILE_NAME ": %s sets no field.", key);
	if (v && !set_field(r, f, v)) {
		char *text = json_dumps(v, JSON_ENCODE_ANY);
		error_set(err, LLMC_E_INPUT,
		          "The image processor's %s = %.200s is not possible in llmc.", key,
		          text ? text : "?");
		free(text);
		return LLMC_E_INPUT;
	}
	return LLMC_OK;
}

static llmc_status
set_keys(ImageRules *r, const Node *row, const ImageFiles *files, llmc_error *err)
{
	const Node *keys = node_get(row, "keys");

	for (size_t i = 0; keys && i < keys->n; i++) {
		const Node *to = keys->item[i];
		const char *name = keys->key[i]->text, *path = name;
		const json_t *file = file_of(files, &path), *v = value_at(file, path);
		if (to->kind == NODE_SCALAR)
			TRY(set_key(r, name, to->text, v, err));
		for (size_t k = 0; to->kind == NODE_LIST && k < to->n; k++)
			TRY(set_key(r, name, to->item[k]->text, v, err));
	}
	return LLMC_OK;
}

/* Does the row have the key `key`, alone or followed by `.` and more? */
static bool
has_key(const Node *row, const char *key)
{
	const Node *keys = node_get(row, "keys");
	size_t n = strlen(key);

	for (size_t i = 0; keys && i < keys->n; i++) {
		const char *k = keys->key[i]->text;
		if (strncmp(k, key, n) == 0 && (k[n] == 0 || k[n] == '.'))
			return true;
	}
	return in_list(node_get(row, "ignored"), key);
}

/* Replace the default size by that of the file. A single number has the same meaning as in the
 * default: a square, or the shorter side. */
static llmc_status
set_size(ImageRules *r, const json_t *file, const Node *row, llmc_error *err)
{
	const json_t *size = value_at(file, "size"), *crop = value_at(file, "crop_size"), *v;
	bool shorter = r->shortest > 0;
	const char *key;
	int64_t n;

	if (json_is_object(size)) {
		json_object_foreach ((json_t *)size, key, v) {
			char path[64] = "size.";
			strncat(path, key, sizeof path - 6);
			if (!json_is_null(v) && !has_key(row, path))
				return error_set(
				    err, LLMC_E_INPUT,
				    "The image processor's size has the key %s, which llmc does "
				    "not support for %s.",
				    key, r->name);
		}
		r->height = r->width = r->shortest = 0;
		if (value_at(size, "height") || value_at(size, "longest_edge"))
			r->longest = 0;
	} else if (size) {
		if (!whole_number(size, 1 << 16, &n))
			return error_set(err, LLMC_E_INPUT,
			                 "The image processor's size is no number.");
		r->height = r->width = shorter ? 0 : (int32_t)n;
		r->shortest = shorter ? (int32_t)n : 0;
		r->longest = r->longest ? (int32_t)n : 0;
	}
	if (crop && !json_is_object(crop) && whole_number(crop, 1 << 16, &n))
		r->crop_height = r->crop_width = (int32_t)n;
	return LLMC_OK;
}

/* Return E_INPUT if the configuration has a step for which ImageRules has no field. */
static llmc_status
check_steps(const Node *common, const Node *row, const json_t *file, llmc_error *err)
{
	const char *key;
	const json_t *v;

	json_object_foreach ((json_t *)file, key, v)
		if (strncmp(key, "do_", 3) == 0 && json_is_true(v) && !has_key(row, key) &&
		    !has_key(common, key))
			return error_set(
			    err, LLMC_E_INPUT,
			    "The image processor has the step %s, which llmc does not support.",
			    key);
	return LLMC_OK;
}

/* Set the class name without the suffix of its backend, and the backend from that suffix. */
static void
set_class(ImageRules *r, const char *class)
{
	static const char *suffix[] = { "Fast", "Pil" };

	for (size_t i = 0; i < 2; i++) {
		size_t n = strlen(class), s = strlen(suffix[i]);
		size_t keep = n > s && strcmp(class + n - s, suffix[i]) == 0 ? n - s : n;
		if (keep < n || i == 1) {
			keep = keep < IMAGE_STRING ? keep : IMAGE_STRING - 1;
			memcpy(r->name, class, keep);
			r->name[keep] = 0;
			r->backend = keep < n && i == 1 ? IMAGE_PILLOW : IMAGE_TORCHVISION;
			return;
		}
	}
}

/* Are all sides within their limit, so that the number of tiles times a side fits its type? */
static bool
sides_fit(const ImageRules *r)
{
	const int32_t side[] = { r->height,      r->width,      r->shortest, r->longest,
		                 r->crop_height, r->crop_width, r->tile,     r->min_crop };

	for (size_t i = 0; i < sizeof side / sizeof side[0]; i++)
		if (side[i] > 1 << 16)
			return false;
	return true;
}

static llmc_status
check_rules(const ImageRules *r, llmc_error *err)
{
	bool size = r->resize != IMAGE_RESIZE_SIZE || r->shortest || (r->height && r->width);
	bool longest = (r->resize != IMAGE_RESIZE_LONGEST && r->resize != IMAGE_RESIZE_EVEN) ||
	               r->longest || (r->resize == IMAGE_RESIZE_LONGEST && r->height && r->width);
	bool crop = !r->center_crop || (r->crop_height && r->crop_width);
	bool pixels = r->resize != IMAGE_RESIZE_SMART || (r->max_pixels && r->min_pixels);
	bool tile =
	    (r->tiling != IMAGE_TILE_SPLIT || r->tile >= 16) &&
	    (r->tiling != IMAGE_TILE_ASPECT || (r->min_tiles > 0 && r->max_tiles < 1000 &&
	                                        r->min_tiles <= r->max_tiles && r->height)) &&
	    (r->tiling != IMAGE_TILE_CROPS ||
	     (r->min_crop > 0 && r->max_tiles > 0 && r->max_tiles < 1000 && r->min_ratio > 0));
	bool patch = r->patch > 0 && r->patch <= 256 && r->merge > 0 && r->merge <= 16 &&
	             r->temporal > 0 && r->temporal <= 16 && r->token_square > 0 &&
	             r->token_square <= 64 && r->model_patch > 0 && r->model_patch <= 16;
	bool budget =
	    r->resize != IMAGE_RESIZE_BUDGET || (r->soft_tokens > 0 && r->soft_tokens <= 1 << 16);
	const char *missing = !patch          ? "patch size"
	                      : !size         ? "size"
	                      : !longest      ? "longest edge"
	                      : !crop         ? "crop size"
	                      : !pixels       ? "number of pixels"
	                      : !tile         ? "tiles"
	                      : !budget       ? "number of tokens"
	                      : !sides_fit(r) ? "sides of at most 65536 pixels"
	                                      : NULL;

	if (missing)
		return error_set(err, LLMC_E_INPUT,
		                 "The image processor %s has no usable %s. Check "
		                 "preprocessor_config.json and config.json.",
		                 r->name, missing);
	if (r->do_normalize && (r->std[0] == 0 || r->std[1] == 0 || r->std[2] == 0))
		return error_set(err, LLMC_E_INPUT, "The image processor's image_std has a 0.");
	if (r->do_rescale && r->rescale <= 0)
		return error_set(err, LLMC_E_INPUT,
		                 "The image processor's rescale_factor is not above 0.");
	return LLMC_OK;
}

static const Node *
model_row(const Node *models, const char *type)
{
	for (size_t i = 0; models && i < models->n; i++)
		if (in_list(node_get(models->item[i], "names"), type))
			return models->item[i];
	return NULL;
}

static llmc_status
read_rules(Arena *a, ImageFiles files, ImageRules *r, llmc_error *err)
{
	size_t n;
	const char *text = embed_find(FILE_NAME, &n);
	Diag *d = NEW(a, Diag, 1);

	diag_init(d, a);
	const Node *root = text ? yaml_parse(yaml_source(a, FILE_NAME, text, n), d, a) : NULL;
	const Node *common = node_get(root, "common");
	if (!common)
		return error_set(err, LLMC_E_BUG, FILE_NAME " cannot be read.");
	/* a processor_config.json may contain the processor of images */
	const json_t *inner = value_at(files.processor, "image_processor");
	files.preprocessor = inner ? inner : files.preprocessor;
	const char *type = json_text_of(files.config, "model_type");
	const char *tower = json_text_of(value_at(files.config, "vision_config"), "model_type");
	if (files.mmproj) {
		const char *own = json_text_of(value_at(files.mmproj, "vision"), "projector_type");
		type = "mmproj";
		tower = *own ? own : json_text_of(files.mmproj, "projector_type");
	}
	const Node *model =
	    model_row(node_get(root, "models"), arena_printf(a, "%s/%s", type, tower));
	model = model || files.mmproj ? model : model_row(node_get(root, "models"), type);
	if (!model && files.mmproj)
		return error_set(
		    err, LLMC_E_INPUT,
		    "llmc has no rules for the images of a vision tower of the type \"%s\" "
		    "(clip.projector_type).",
		    tower);
	if (!model)
		return error_set(err, LLMC_E_INPUT,
		                 "llmc has no rules for the images of a model of type \"%s\".",
		                 type);
	const char *class = json_text_of(files.preprocessor, "image_processor_type");
	set_class(r, *class ? class : node_get(model, "processor")->text);
	const Node *other = node_get(node_get(root, "aliases"), r->name);
	const Node *row = node_get(node_get(root, "processors"), other ? other->text : r->name);
	if (!row)
		return error_set(
		    err, LLMC_E_INPUT,
		    "The image processor \"%s\" of preprocessor_config.json is unknown.", r->name);
	TRY(set_defaults(a, r, common, err));
	TRY(set_defaults(a, r, row, err));
	TRY(set_defaults(a, r, model, err));
	TRY(check_steps(common, row, files.preprocessor, err));
	TRY(set_size(r, files.preprocessor, row, err));
	TRY(set_keys(r, common, &files, err));
	TRY(set_keys(r, row, &files, err));
	TRY(set_keys(r, model, &files, err));
	if (node_get(model, "fixed"))
		TRY(set_defaults(a, r, node_get(model, "fixed"), err));
	if (r->merge > 1)
		r->token_square = r->merge;
	return check_rules(r, err);
}

llmc_status
image_rules_json(const ImageFiles *files, ImageRules *out, llmc_error *err)
{
	Arena a;
	llmc_status status;

	*out = (ImageRules){ 0 };
	arena_init(&a);
	if (setjmp(a.oom))
		status = error_set(err, LLMC_E_MEMORY, "No memory to read the rules of images.");
	else
		status = read_rules(&a, *files, out, err);
	arena_release(&a);
	return status;
}
