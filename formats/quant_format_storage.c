/* Reads `storage` of configs/quant_formats/. These files are built in, so they are trusted. */
#include "formats/quant_format_storage.h"

#include <stdlib.h>
#include <string.h>

#include "formats/quant_format_fit.h"

static const Node *
read_yaml(Arena *a, const char *name)
{
	Diag *d = NEW(a, Diag, 1);

	diag_init(d, a);
	return quant_format_yaml(a, d, name);
}

static const Node *
storage_of(Arena *a, const char *name)
{
	const Node *root = strcmp(name, "_index") ? read_yaml(a, name) : NULL;

	return root ? node_get(root, "storage") : NULL;
}

static int64_t
number_of(const Node *map, const char *key)
{
	const Node *n = node_get(map, key);

	return !n ? 0 : strcmp(n->text, "row") == 0 ? -1 : atoll(n->text);
}

/* "gptq, awq, eetq": formats that a description may name */
static const char *
known(Arena *a)
{
	const Node *list = node_get(read_yaml(a, "_index"), "quant_formats");
	const char *out = "";

	for (size_t i = 0; i < list->n; i++)
		if (storage_of(a, list->item[i]->text))
			out = arena_printf(a, "%s%s%s", out, *out ? ", " : "", list->item[i]->text);
	return out;
}

static const char *
keys_of(Arena *a, const Node *map)
{
	const char *out = "";

	for (size_t i = 0; i < map->n; i++)
		out = arena_printf(a, "%s%s%s", out, i ? ", " : "", map->key[i]->text);
	return out;
}

llmc_status
quant_format_storage(Arena *a, const char *quant_format, int bits, int64_t group,
                     QuantFormatStorage *out, llmc_error *err)
{
	static const char *const keep_of_types[] = { "pos_embed", "router", "s_mix" };
	const Node *s = storage_of(a, quant_format);
	Dtype type = dtype_from_text(quant_format);

	if (type != DT_NONE && type != DT_I32 && type != DT_I64) {
		if (bits || group)
			return error_set(err, LLMC_E_INPUT,
			                 "quant.method = %s: the type determines bits and group "
			                 "size; remove quant.%s",
			                 quant_format, bits ? "bits" : "group");
		*out =
		    (QuantFormatStorage){ .dtype = type,
			                  .n_keep = sizeof keep_of_types / sizeof *keep_of_types };
		out->keep =
		    memcpy(NEW(a, const char *, out->n_keep), keep_of_types, sizeof keep_of_types);
		return LLMC_OK;
	}
	if (!s)
		return error_set(err, LLMC_E_INPUT,
		                 "quant.method = %.60s: expected one of %s; or a weight type "
		                 "such as q4_k",
		                 quant_format, known(a));
	const Node *types = node_get(s, "types"), *keep = node_get(s, "keep"),
	           *symmetric = node_get(s, "symmetric");
	const Node *list =
	    node_get(types, arena_printf(a, "%d", bits ? bits : (int)number_of(s, "bits")));
	if (!list)
		return error_set(err, LLMC_E_INPUT, "quant.bits = %d: %s has %s", bits,
		                 quant_format, keys_of(a, types));
	*out =
	    (QuantFormatStorage){ .dtype = DT_NONE,
		                  .group = group ? group : number_of(s, "group"),
		                  .symmetric = symmetric && strcmp(symmetric->text, "true") == 0 };
	for (size_t i = 0; i < list->n && out->dtype == DT_NONE;
	     i++) { /* largest groups of columns first */
		Dtype d = dtype_from_text(list->item[i]->text);
		if (out->group <= 0 || out->group % dtype_info(d)->block_elems == 0)
			out->dtype = d;
	}
	if (out->dtype == DT_NONE)
		return error_set(
		    err, LLMC_E_INPUT,
		    "quant.group = %lld: columns of %s share a scale in multiples of %d",
		    (long long)out->group, quant_format,
		    dtype_info(dtype_from_text(list->item[list->n - 1]->text))->block_elems);
	if (out->group > 0 && out->group == dtype_info(out->dtype)->block_elems)
		out->group = 0;
	out->keep = NEW(a, const char *, keep->n + 1);
	for (size_t i = 0; i < keep->n; i++)
		out->keep[out->n_keep++] = keep->item[i]->text;
	return LLMC_OK;
}
