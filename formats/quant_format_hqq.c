/* HQQ: a matrix is divided into groups of `group_size` consecutive elements of a row. Codes of
 * `nbits` bits are packed 8 / nbits per byte (3 bits: ten per 32). The first 1 / (codes per byte)
 * of all groups is in the highest bits of the bytes, the next part below it. value = (code - zero)
 * * scale, where zero is not an integer. So groups become types with a minimum, or F32 if rows are
 * not a multiple of the group size.
 *
 * quanto: as HQQ, but the first part is in the lowest bits, and value = code * scale - shift.
 * Shape, bits and group size are not stored; they follow from the sizes of codes and scales and
 * from the hidden size. */
#include <math.h>
#include <string.h>

#include "formats/quant_format_fit.h"
#include "templates/common/llmc_groups.h"

struct QuantFormatHqq {
	const uint8_t *code; /* [each, size] bytes; 3 bits: I32 */
	int64_t groups, size;
	int64_t each; /* number of groups per part */
	int bits;
	const char *scale_type, *zero_type;
	const uint8_t *scale, *zero; /* [groups] */
	bool shift; /* quanto: value = code * scale - zero, first part in the lowest bits */
};

/* Reads an integer from a tensor of one element; -1: none */
static int64_t
number_of(const Fit *f, const Node *names, const char *key)
{
	const char *suffix = quant_format_text(names, key);
	QuantFormatTensor t;
	int64_t v = -1;
	int32_t v32 = -1;

	if (!suffix || !quant_format_part(f, suffix, &t) || quant_format_elements(&t) != 1)
		return -1;
	if (strcmp(t.type, "I64") == 0)
		memcpy(&v, t.data, 8);
	else if (strcmp(t.type, "I32") == 0)
		memcpy(&v32, t.data, 4), v = v32;
	return v;
}

/* Finds a tensor with one number per group */
static llmc_status
of_groups(const Fit *f, const Node *names, const char *key, int64_t n, const char **type,
          const uint8_t **data)
{
	const char *suffix = quant_format_text(names, key);
	QuantFormatTensor t;

	if (!suffix || !quant_format_part(f, suffix, &t))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, suffix ? suffix : key, f->module);
	if ((strcmp(t.type, "F16") && strcmp(t.type, "BF16") && strcmp(t.type, "F32")) ||
	    quant_format_elements(&t) != n)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s: expected %lld numbers of F16, BF16 or F32", t.name,
		                 (long long)n);
	*type = t.type;
	*data = t.data;
	return LLMC_OK;
}

/* Returns whether "model.layers.0.mlp.up_proj." ends in a name of the list */
static bool
module_is(const Fit *f, const Node *list)
{
	size_t n = strlen(f->module), end = n && f->module[n - 1] == '.' ? n - 1 : n, at = end;

	while (at > 0 && f->module[at - 1] != '.')
		at--;
	for (size_t i = 0; list && list->kind == NODE_LIST && i < list->n; i++)
		if (strlen(list->item[i]->text) == end - at &&
		    memcmp(list->item[i]->text, f->module + at, end - at) == 0)
			return true;
	return false;
}

static void
take(QuantFormatMatrix *m, QuantFormatHqq *w, int64_t rows, int64_t cols)
{
	m->rows = rows;
	m->cols = cols;
	m->hqq = w;
	m->dtype = DT_F32;
	if (m->cols % w->size == 0)
		m->dtype = quant_format_dtype((DtypeGroup){ .bits = w->bits == 1 ? 2 : w->bits,
		                                            .scale_bytes = 4,
		                                            .zero_bytes = 4,
		                                            .values = VALUES_INT },
		                              w->size, m->cols);
}

static llmc_status
quanto(const Fit *f, QuantFormatMatrix *m)
{
	const Node *names = node_get(f->form, "groups");
	const char *suffix = quant_format_text(names, "scale");
	const int64_t width = f->s->hidden;
	QuantFormatHqq *w = NEW(f->s->a, QuantFormatHqq, 1);
	QuantFormatTensor code, scale;

	quant_format_part(f, quant_format_text(node_get(f->form, "code"), "tensor"), &code);
	if (strcmp(code.type, "U8") || code.n_dims != 2 || code.dim[0] < 1 || code.dim[1] < 1)
		return error_set(f->err, LLMC_E_INPUT, "%s: expected U8 with two dimensions",
		                 code.name);
	if (!suffix || !quant_format_part(f, suffix, &scale))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, suffix ? suffix : "scale", f->module);
	w->each = code.dim[0];
	w->size = code.dim[1];
	w->groups = quant_format_elements(&scale);
	w->bits = (w->groups + 1) / 2 == w->each                    ? 4
	          : w->groups / 4 + (w->groups % 4 != 0) == w->each ? 2
	                                                            : 0;
	if (!w->bits || w->groups < 1)
		return error_set(
		    f->err, LLMC_E_INPUT,
		    "%s: expected groups of %lld codes, two or four per byte, for %lld scales",
		    code.name, (long long)w->size, (long long)w->groups);
	if (width < 1 || w->groups > INT64_MAX / 64 / w->size || w->groups * w->size % width)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s holds %lld groups of %lld, which form neither rows nor "
		                 "columns of the hidden size %lld in config.json",
		                 code.name, (long long)w->groups, (long long)w->size,
		                 (long long)width);
	w->code = code.data;
	w->shift = true;
	TRY(of_groups(f, names, "scale", w->groups, &w->scale_type, &w->scale));
	TRY(of_groups(f, names, "shift", w->groups, &w->zero_type, &w->zero));
	const int64_t other = w->groups * w->size / width;
	const bool rows = module_is(f, node_get(names, "hidden"));
	take(m, w, rows ? width : other, rows ? other : width);
	return LLMC_OK;
}

llmc_status
quant_format_hqq(const Fit *f, QuantFormatMatrix *m)
{
	const Node *names = node_get(f->form, "groups");
	const char *shape = quant_format_text(names, "shape");
	const int64_t most = INT64_C(1) << 31;
	QuantFormatHqq *w = NEW(f->s->a, QuantFormatHqq, 1);
	QuantFormatTensor code, t;
	int64_t is[2] = { 0 };

	if (node_get(names, "shift"))
		return quanto(f, m);
	quant_format_part(f, quant_format_text(node_get(f->form, "code"), "tensor"), &code);
	if (shape && quant_format_part(f, shape, &t) && strcmp(t.type, "I64") == 0 &&
	    quant_format_elements(&t) == 2)
		memcpy(is, t.data, sizeof is);
	const int64_t bits = number_of(f, names, "bits"), axis = number_of(f, names, "axis");
	w->size = number_of(f, names, "size");
	if (is[0] < 1 || is[0] > most || is[1] < 1 || is[1] > most ||
	    (bits != 8 && bits != 4 && bits != 3 && bits != 2 && bits != 1) || axis != 1 ||
	    w->size < 1 || w->size > most)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s: expected tensors with its shape (two numbers), nbits (1, "
		                 "2, 3, 4 or 8), axis (1) and group_size",
		                 code.name);
	const int64_t n = is[0] * is[1], parts = bits == 3 ? 10 : 8 / bits;
	w->groups = n / w->size;
	w->each = (w->groups + parts - 1) / parts;
	if (n % w->size || (bits != 3 && w->groups % parts) ||
	    quant_format_elements(&code) != w->each * w->size ||
	    strcmp(code.type, bits == 3 ? "I32" : "U8"))
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s: expected [%lld, %lld] in groups of %lld, %lld per %s",
		                 code.name, (long long)is[0], (long long)is[1], (long long)w->size,
		                 (long long)parts, bits == 3 ? "I32" : "byte");
	w->bits = (int)bits;
	w->code = code.data;
	TRY(of_groups(f, names, "scale", w->groups, &w->scale_type, &w->scale));
	TRY(of_groups(f, names, "zero", w->groups, &w->zero_type, &w->zero));
	take(m, w, is[0], is[1]);
	return LLMC_OK;
}

/* Code of element i, which lies in group g */
static int
code_at(const QuantFormatHqq *w, int64_t g, int64_t i)
{
	const int64_t at = g % w->each * w->size + i % w->size;
	const int part = (int)(g / w->each);
	uint32_t v;

	if (w->bits != 3)
		return w->code[at] >> (w->shift ? part * w->bits : 8 - w->bits - part * w->bits) &
		       ((1 << w->bits) - 1);
	memcpy(&v, w->code + 4 * at, 4);
	return v >> (27 - 3 * part) & 7;
}

bool
quant_format_hqq_row(const QuantFormatMatrix *m, int64_t row, void *dst)
{
	const QuantFormatHqq *w = m->hqq;
	const DtypeGroup t = dtype_group(m->dtype);
	uint8_t *to = dst;
	float *y = dst;

	for (int64_t k = 0; k < m->cols; k++) {
		const int64_t i = row * m->cols + k, g = i / w->size;
		const float scale = quant_format_number(w->scale_type, w->scale, g),
		            zero = quant_format_number(w->zero_type, w->zero, g);
		const float least = w->shift ? -zero : -zero * scale;
		const int code = code_at(w, g, i);
		if (!isfinite(scale) || !isfinite(least))
			return false;
		if (!t.columns) {
			y[k] = w->shift ? (float)code * scale - zero : ((float)code - zero) * scale;
			continue;
		}
		uint8_t *block = to + k / t.columns * dtype_info(m->dtype)->block_bytes;
		if (k % t.columns == 0) {
			memcpy(block, &scale, 4);
			memcpy(block + 4, &least, 4);
			memset(block + 8, 0, (size_t)(t.columns * t.bits / 8));
		}
		llmc_group_put(block + 8, t.columns, t.bits, (int)(k % t.columns), code);
	}
	return true;
}
