/* Images, and preprocessing as a model's folder defines it, for programs that run a vision tower
 * themselves. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sized_struct.h"
#include "formats/gguf.h"
#include "formats/name_table.h"
#include "image/prepare.h"

struct llmc_image {
	ImagePixels pixels;
};

struct llmc_image_processor {
	ImageRules rules;
};

/* Wrap a decoded image in a handle, which then owns the pixels; on failure they are released. */
static llmc_status
wrap_pixels(llmc_status status, ImagePixels *pixels, llmc_image **out, llmc_error *err)
{
	llmc_image *im = status == LLMC_OK ? malloc(sizeof *im) : NULL;

	if (!im) {
		image_release(pixels);
		return status != LLMC_OK ? status
		                         : error_set(err, LLMC_E_MEMORY, "No memory for an image.");
	}
	*im = (llmc_image){ *pixels };
	*out = im;
	return LLMC_OK;
}

llmc_status
llmc_image_decode(const void *data, size_t n, int64_t max_pixels, llmc_image **out, llmc_error *err)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	ImagePixels pixels;

	*out = NULL;
	if (max_pixels < 0)
		return error_set(err, LLMC_E_RANGE, "max_pixels is %lld; it must not be negative.",
		                 (long long)max_pixels);
	limits.max_pixels = max_pixels ? max_pixels : limits.max_pixels;
	limits.max_bytes = 0; /* the caller has read the file already */
	return wrap_pixels(image_decode(data, n, &limits, &pixels, err), &pixels, out, err);
}

llmc_status
llmc_image_from_pixels(const uint8_t *pixel, int32_t width, int32_t height, int32_t channels,
                       size_t stride, llmc_image **out, llmc_error *err)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	ImagePixels pixels;

	*out = NULL;
	return wrap_pixels(
	    image_from_pixels(pixel, width, height, channels, stride, &limits, &pixels, err),
	    &pixels, out, err);
}

const uint8_t *
llmc_image_pixels(const llmc_image *im, int32_t *width, int32_t *height, int32_t *channels)
{
	*width = im->pixels.width;
	*height = im->pixels.height;
	*channels = im->pixels.channels;
	return im->pixels.pixel;
}

void
llmc_image_close(llmc_image *im)
{
	if (im)
		image_release(&im->pixels);
	free(im);
}

/* Parse a file of the folder. *out stays NULL if the file is absent and not needed. */
static llmc_status
read_json(const char *folder, const char *name, bool needed, json_t **out, llmc_error *err)
{
	enum { MAX_BYTES = 64 << 20 };
	Strbuf path = { 0 }, text = { 0 };
	json_error_t why;
	bool no_memory = false;
	llmc_status status = LLMC_OK;

	file_join(&path, folder, name);
	if (!path.failed && !needed && !file_exists(strbuf_str(&path)))
		goto fail;
	TRY_GOTO(path.failed ? error_set(err, LLMC_E_MEMORY, "No memory to read %s.", name)
	                     : file_read(strbuf_str(&path), MAX_BYTES, &text, err));
	*out = json_parse(strbuf_str(&text), text.len, 0, &why, &no_memory);
	if (!*out)
		status = no_memory ? error_set(err, LLMC_E_MEMORY, "No memory to read %s.", name)
		                   : error_set(err, LLMC_E_INPUT, "%s:%d: %s", strbuf_str(&path),
		                               why.line, why.text);
fail:
	strbuf_release(&path);
	strbuf_release(&text);
	return status;
}

/* Set the value of a path with dots in nested objects. Levels are limited, because jansson frees
 * objects recursively. False: out of memory, too many levels, or a value where an object is
 * needed. */
static bool
put_path(json_t *at, const char *path, json_t *v)
{
	enum { MAX_LEVELS = 8 };
	int level = 0;

	for (size_t n; (n = strcspn(path, ".")), path[n]; path += n + 1) {
		if (++level > MAX_LEVELS)
			return json_decref(v), false;
		json_t *inner = json_object_getn(at, path, n);
		if (!inner && json_object_setn_new(at, path, n, inner = json_object()) != 0)
			return json_decref(v), false;
		if (!json_is_object(inner))
			return json_decref(v), false;
		at = inner;
	}
	return json_object_set_new(at, path, v) == 0;
}

/* Return the value of a key as JSON: a number, bool, string or list of numbers; null for other
 * types. */
static json_t *
gguf_json(const Gguf *g, const char *key)
{
	enum { MAX_LIST = 256 };
	GgufType type, elem;
	size_t count;
	GgufStr s;
	double v;

	if (!gguf_type(g, key, &type, &elem, &count))
		return json_null();
	if (type == GGUF_STR)
		return gguf_str(g, key, &s) && s.n < 4096 ? json_stringn(s.s, s.n) : json_null();
	if (type != GGUF_ARR)
		return !gguf_num(g, key, &v) ? json_null()
		       : type == GGUF_BOOL   ? json_boolean(v != 0)
		                             : json_real(v);
	json_t *list = json_array();
	for (size_t i = 0; i < count && i < MAX_LIST && elem != GGUF_STR; i++)
		if (!gguf_arr_num(g, key, i, &v) || json_array_append_new(list, json_real(v)) != 0)
			break;
	return list;
}

/* Read the keys of a GGUF tower into nested objects. */
static llmc_status
read_mmproj(const char *path, json_t **out, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	Gguf *g;

	TRY(gguf_open(path, &g, err));
	*out = json_object();
	for (size_t i = 0; i < gguf_n_keys(g) && status == LLMC_OK; i++) {
		const char *key = gguf_key_at(g, i);
		json_t *v = strncmp(key, "clip.", 5) == 0 ? gguf_json(g, key) : NULL;
		if (strncmp(key, "clip.", 5) == 0 && (!v || !put_path(*out, key + 5, v)))
			status = error_set(err, LLMC_E_INPUT, "%s: the key %s cannot be read.",
			                   path, name_text(key, strlen(key)).s);
	}
	gguf_close(g);
	return status;
}

llmc_status
llmc_image_processor_open(const char *path, llmc_image_processor **out, llmc_error *err)
{
	static const char *const name[] = { "config.json", "preprocessor_config.json",
		                            "processor_config.json", "tokenizer_config.json" };
	json_t *file[4] = { NULL }, *mmproj = NULL;
	llmc_status status = LLMC_OK;

	*out = NULL;
	llmc_image_processor *p = malloc(sizeof *p);
	if (!p)
		return error_set(err, LLMC_E_MEMORY, "No memory for an image processor.");
	const bool tower = file_exists(path) && !file_is_dir(path);
	if (tower)
		status = read_mmproj(path, &mmproj, err);
	for (size_t i = 0; i < 4 && status == LLMC_OK && !tower; i++)
		status = read_json(path, name[i], i == 0, &file[i], err);
	ImageFiles files = { .config = file[0],
		             .preprocessor = file[1],
		             .processor = file[2],
		             .tokenizer = file[3],
		             .mmproj = mmproj };
	if (status == LLMC_OK)
		status = image_rules_json(&files, &p->rules, err);
	for (size_t i = 0; i < 4; i++)
		json_decref(file[i]);
	json_decref(mmproj);
	if (status == LLMC_OK)
		*out = p;
	else
		free(p);
	return status;
}

const ImageRules *
image_processor_rules(const llmc_image_processor *p)
{
	return &p->rules;
}

void
llmc_image_processor_close(llmc_image_processor *p)
{
	free(p);
}

/* Memory of a llmc_image_patches */
typedef struct PatchesOwner {
	ImageRows rows;
	char placeholder[IMAGE_STRING], token[IMAGE_STRING];
	int32_t number[]; /* pos[0], pos[1], tile_height, tile_width */
} PatchesOwner;

static llmc_status
describe(const ImageRules *rules, ImageRows *rows, llmc_image_patches *out, llmc_error *err)
{
	size_t n = (size_t)rows->n_row, tiles = (size_t)rows->n_tile;
	PatchesOwner *o = malloc(sizeof *o + 2 * (n + tiles) * sizeof o->number[0]);

	if (!o) {
		image_rows_release(rows);
		return error_set(err, LLMC_E_MEMORY, "No memory for the patches of an image.");
	}
	o->rows = *rows;
	memcpy(o->placeholder, rules->placeholder, sizeof o->placeholder);
	memcpy(o->token, rules->token, sizeof o->token);
	int32_t *y = o->number, *x = y + n, *high = x + n, *wide = high + tiles;
	for (size_t i = 0; i < n; i++) {
		y[i] = rows->position[2 * i];
		x[i] = rows->position[2 * i + 1];
	}
	for (size_t i = 0; i < tiles; i++) {
		high[i] = rows->tile[i].grid_h;
		wide[i] = rows->tile[i].grid_w;
	}
	llmc_image_patches made = { .row = rows->value,
		                    .n_row = rows->n_row,
		                    .width = rows->row_elems,
		                    .pos = { y, x },
		                    .n_tile = rows->n_tile,
		                    .tile_height = high,
		                    .tile_width = wide,
		                    .tiles_high = rows->tiles_h,
		                    .tiles_wide = rows->tiles_w,
		                    .n_token = rows->n_token,
		                    .text = strbuf_str(&o->rows.text),
		                    .placeholder = o->placeholder,
		                    .token = o->token,
		                    .owner = o };
	SIZED_GIVE(out, made);
	return LLMC_OK;
}

llmc_status
llmc_image_prepare(const llmc_image_processor *p, const llmc_image *im, llmc_image_patches *out,
                   llmc_error *err)
{
	ImageRows rows;
	llmc_image_patches none = { 0 };

	SIZED_GIVE(out, none);
	TRY(image_prepare(&p->rules, &im->pixels, &rows, err));
	return describe(&p->rules, &rows, out, err);
}

void
llmc_image_patches_release(llmc_image_patches *patches)
{
	PatchesOwner *o = patches->owner;
	llmc_image_patches none = { 0 };

	if (o)
		image_rows_release(&o->rows);
	free(o);
	SIZED_GIVE(patches, none);
}
