/* HQQ: a matrix as groups of `group_size` neighbours of a row, one group below the other; codes of `nbits` bits, 8 / nbits of them in a byte (of three bits
 * ten in 32): the first part of the groups in the highest bits, the next ones below. value = (code - zero) * scale, where zero is no whole number: groups have
 * a minimum, or are F32 where they are no whole pieces of rows. */
#include <math.h>
#include <string.h>

#include "formats/scheme_fit.h"
#include "templates/common/llmc_groups.h"

struct SchemeHqq {
	const uint8_t *code;   /* [each, size] of bytes, of three bits of I32 */
	int64_t        groups, size;
	int64_t        each;   /* groups of a part */
	int            bits;
	const char    *scale_type, *zero_type;
	const uint8_t *scale, *zero; /* [groups] */
};

/* A whole number that a tensor of one element is; -1: none */
static int64_t
number_of(const Fit *f, const Node *names, const char *key)
{
	const char *suffix = scheme_text(names, key);
	SchemeTensor t;
	int64_t v = -1;
	int32_t v32 = -1;

	if (!suffix || !scheme_part(f, suffix, &t) || scheme_elements(&t) != 1)
		return -1;
	if (strcmp(t.type, "I64") == 0)
		memcpy(&v, t.data, 8);
	else if (strcmp(t.type, "I32") == 0)
		memcpy(&v32, t.data, 4), v = v32;
	return v;
}

/* A number a group */
static llmc_status
of_groups(const Fit *f, const Node *names, const char *key, int64_t n, const char **type, const uint8_t **data)
{
	const char *suffix = scheme_text(names, key);
	SchemeTensor t;

	if (!suffix || !scheme_part(f, suffix, &t))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it", f->module, suffix ? suffix : key, f->module);
	if ((strcmp(t.type, "F16") && strcmp(t.type, "BF16") && strcmp(t.type, "F32")) || scheme_elements(&t) != n)
		return error_set(f->err, LLMC_E_INPUT, "%s: %lld numbers of F16, BF16 or F32 are expected", t.name, (long long)n);
	*type = t.type;
	*data = t.data;
	return LLMC_OK;
}

llmc_status
scheme_hqq(const Fit *f, SchemeMatrix *m)
{
	const Node *names = node_get(f->form, "groups");
	const char *shape = scheme_text(names, "shape");
	const int64_t most = INT64_C(1) << 31;
	SchemeHqq *w = NEW(f->s->a, SchemeHqq, 1);
	SchemeTensor code, t;
	int64_t is[2] = { 0 };

	scheme_part(f, scheme_text(node_get(f->form, "code"), "tensor"), &code);
	if (shape && scheme_part(f, shape, &t) && strcmp(t.type, "I64") == 0 && scheme_elements(&t) == 2)
		memcpy(is, t.data, sizeof is);
	const int64_t bits = number_of(f, names, "bits"), axis = number_of(f, names, "axis");
	w->size = number_of(f, names, "size");
	if (is[0] < 1 || is[0] > most || is[1] < 1 || is[1] > most || (bits != 8 && bits != 4 && bits != 3 && bits != 2 && bits != 1) || axis != 1 || w->size < 1 || w->size > most)
		return error_set(f->err, LLMC_E_INPUT, "%s: a shape of two, 1, 2, 3, 4 or 8 nbits, axis 1 and a group_size are expected beside it, as tensors of numbers", code.name);
	const int64_t n = is[0] * is[1], parts = bits == 3 ? 10 : 8 / bits;
	w->groups = n / w->size;
	w->each = (w->groups + parts - 1) / parts;
	if (n % w->size || (bits != 3 && w->groups % parts) || scheme_elements(&code) != w->each * w->size || strcmp(code.type, bits == 3 ? "I32" : "U8"))
		return error_set(f->err, LLMC_E_INPUT, "%s: [%lld, %lld] in groups of %lld, %lld to %s, are expected", code.name, (long long)is[0], (long long)is[1],
		                 (long long)w->size, (long long)parts, bits == 3 ? "an I32" : "a byte");
	w->bits = (int)bits;
	w->code = code.data;
	TRY(of_groups(f, names, "scale", w->groups, &w->scale_type, &w->scale));
	TRY(of_groups(f, names, "zero", w->groups, &w->zero_type, &w->zero));
	m->rows = is[0];
	m->cols = is[1];
	m->hqq = w;
	m->dtype = DT_F32;
	if (m->cols % w->size == 0)
		m->dtype = scheme_dtype((DtypeGroup){ .bits = bits == 1 ? 2 : (int)bits, .scale_bytes = 4, .zero_bytes = 4, .values = VALUES_INT }, w->size, m->cols);
	return LLMC_OK;
}

/* Element i of the matrix, in group g */
static int
code_at(const SchemeHqq *w, int64_t g, int64_t i)
{
	const int64_t at = g % w->each * w->size + i % w->size;
	const int part = (int)(g / w->each);
	uint32_t v;

	if (w->bits != 3)
		return w->code[at] >> (8 - w->bits - part * w->bits) & ((1 << w->bits) - 1);
	memcpy(&v, w->code + 4 * at, 4);
	return v >> (27 - 3 * part) & 7;
}

bool
scheme_hqq_row(const SchemeMatrix *m, int64_t row, void *dst)
{
	const SchemeHqq *w = m->hqq;
	const DtypeGroup t = dtype_group(m->dtype);
	uint8_t *to = dst;
	float *y = dst;

	for (int64_t k = 0; k < m->cols; k++) {
		const int64_t i = row * m->cols + k, g = i / w->size;
		const float scale = scheme_number(w->scale_type, w->scale, g), zero = scheme_number(w->zero_type, w->zero, g), least = -zero * scale;
		const int code = code_at(w, g, i);
		if (!isfinite(scale) || !isfinite(least))
			return false;
		if (!t.columns) {
			y[k] = ((float)code - zero) * scale;
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
