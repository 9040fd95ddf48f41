/* Reads consecutive 4-bit codes, independent of rows; the first code of a byte is in the high
 * nibble. A table gives their values, and each `blocksize` codes share a largest magnitude
 * (absmax). A separate tensor describes the matrix in JSON. Nested: absmax values are bytes,
 * indices into a table of 256 values, times a factor per `nested_blocksize` of them, plus an
 * offset. bitsandbytes writes this; the tables are read from the file. */
#include <math.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/quant_format_fit.h"

struct QuantFormatFlat {
	const uint8_t *code, *peak; /* peak: absmax per block; bytes if nested, else F32 */
	int64_t block;              /* codes per peak */
	float map[16];
	const uint8_t *nested; /* F32: factor per nested_block peaks; NULL: not nested */
	int64_t nested_block;
	float nested_map[256], offset;
};

/* Finds the first tensor that the form lists under `state` */
static bool
state_part(const Fit *f, QuantFormatTensor *out)
{
	const Node *list = node_get(f->form, "state");

	for (size_t i = 0; list && i < list->n; i++)
		if (quant_format_part(f, list->item[i]->text, out))
			return true;
	return false;
}

/* Finds a tensor of n numbers of this type; *out NULL: not found or invalid, with the error set */
static llmc_status
numbers(const Fit *f, const char *key, const char *type, int64_t n, const uint8_t **out)
{
	const char *suffix = quant_format_text(f->form, key);
	QuantFormatTensor t;

	*out = NULL;
	if (!suffix || !quant_format_part(f, suffix, &t))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, suffix ? suffix : key, f->module);
	if (strcmp(t.type, type) || quant_format_elements(&t) != n)
		return error_set(f->err, LLMC_E_INPUT, "%s: expected %lld numbers of %s", t.name,
		                 (long long)n, type);
	*out = t.data;
	return LLMC_OK;
}

static int64_t
positive_int(const json_t *state, const char *key, int64_t most)
{
	const json_t *v = json_object_get(state, key);
	const int64_t n = json_is_integer(v) ? json_integer_value(v) : 0;

	return n > 0 && n <= most ? n : 0;
}

static bool
is_map(const float *map, DtypeValues v)
{
	for (int i = 0; i < 16; i++)
		if (!(map[i] == dtype_codes(v)[i]))
			return false;
	return true;
}

static Dtype
dtype_of(const QuantFormatMatrix *m, const QuantFormatFlat *w)
{
	const bool nf4 = is_map(w->map, VALUES_NF4);

	/* rows are multiples of 32 columns, so each starts at a multiple of 32 codes and no 32
	 * columns straddle two blocks */
	if (m->cols % 32 || w->block % 32 || !(nf4 || is_map(w->map, VALUES_FP4)))
		return DT_F32;
	if (m->cols % 64 || w->block % 64)
		return nf4 ? DT_NF4_32 : DT_FP4_32;
	return nf4 ? DT_NF4_64 : DT_FP4_64;
}

llmc_status
quant_format_flat(const Fit *f, QuantFormatMatrix *m)
{
	const int64_t most = INT64_C(1) << 31;
	QuantFormatFlat *w = NEW(f->s->a, QuantFormatFlat, 1);
	QuantFormatTensor code, state, peak;
	const uint8_t *map;
	json_error_t why;

	quant_format_part(f, quant_format_text(node_get(f->form, "code"), "tensor"), &code);
	quant_format_part(f, quant_format_text(node_get(f->form, "scale"), "tensor"), &peak);
	if (!state_part(f, &state))
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s has no quant_state tensor with its shape; it is stored as %s",
		                 code.name, code.type);
	const json_t *description =
	    strcmp(state.type, "U8")
	        ? NULL
	        : json_read(f->s->a, state.data, (size_t)quant_format_elements(&state),
	                    JSON_REJECT_DUPLICATES, &why);
	const json_t *shape = json_object_get(description, "shape");
	m->rows = json_array_size(shape) == 2 ? json_integer_value(json_array_get(shape, 0)) : 0;
	m->cols = json_array_size(shape) == 2 ? json_integer_value(json_array_get(shape, 1)) : 0;
	w->block = positive_int(description, "blocksize", most);
	if (m->rows < 1 || m->cols < 1 || m->rows > most || m->cols > most || !w->block)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s: expected JSON with a shape of two numbers and a blocksize",
		                 state.name);
	const int64_t n = m->rows * m->cols,
	              bytes =
	                  quant_format_elements(&code) * (quant_format_element_bits(code.type) / 8),
	              peaks = (n - 1) / w->block + 1;
	if (bytes < (n + 1) / 2 || bytes >= (n + 1) / 2 + quant_format_element_bits(code.type) / 8)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s holds %lld bytes; %s gives the shape [%lld, %lld], two "
		                 "codes per byte",
		                 code.name, (long long)bytes, state.name, (long long)m->rows,
		                 (long long)m->cols);
	TRY(numbers(f, "map", "F32", 16, &map));
	memcpy(w->map, map, sizeof w->map);
	w->code = code.data;
	if (!json_object_get(description, "nested_blocksize")) {
		TRY(numbers(f, "peak", "F32", peaks, &w->peak));
	} else {
		const double offset =
		    json_number_value(json_object_get(description, "nested_offset"));
		w->nested_block = positive_int(description, "nested_blocksize", most);
		w->offset = (float)offset;
		if (!w->nested_block || !isfinite(w->offset))
			return error_set(f->err, LLMC_E_INPUT,
			                 "%s: nested_blocksize and nested_offset must be numbers",
			                 state.name);
		TRY(numbers(f, "peak", "U8", peaks, &w->peak));
		TRY(numbers(f, "nested_map", "F32", 256, &map));
		memcpy(w->nested_map, map, sizeof w->nested_map);
		TRY(numbers(f, "nested", "F32", (peaks - 1) / w->nested_block + 1, &w->nested));
	}
	m->flat = w;
	m->dtype = dtype_of(m, w);
	return LLMC_OK;
}

static float
peak_at(const QuantFormatFlat *w, int64_t i)
{
	float f;

	if (!w->nested) {
		memcpy(&f, w->peak + 4 * i, 4);
		return f;
	}
	memcpy(&f, w->nested + 4 * (i / w->nested_block), 4);
	return w->nested_map[w->peak[i]] * f + w->offset;
}

static int
code_at(const QuantFormatFlat *w, int64_t i)
{
	return i % 2 ? w->code[i / 2] & 15 : w->code[i / 2] >> 4;
}

bool
quant_format_flat_row(const QuantFormatMatrix *m, int64_t row, void *dst)
{
	const QuantFormatFlat *w = m->flat;
	const int64_t first = row * m->cols;
	uint8_t *to = dst;

	if (m->dtype == DT_F32) {
		float *y = dst;
		for (int64_t k = 0; k < m->cols; k++) {
			const float peak = peak_at(w, (first + k) / w->block);
			if (!isfinite(peak))
				return false;
			y[k] = w->map[code_at(w, first + k)] * peak;
		}
		return true;
	}
	const DtypeGroup g = dtype_group(m->dtype);
	for (int64_t k0 = 0; k0 < m->cols; k0 += g.columns, to += g.columns / 2) {
		const float peak = peak_at(w, (first + k0) / w->block);
		if (!isfinite(peak))
			return false;
		memcpy(to, &peak, 4);
		to += 4;
		memset(to, 0, (size_t)g.columns / 2);
		for (int i = 0; i < g.columns; i++)
			to[i / 32 * 16 + i % 16] |=
			    (uint8_t)(code_at(w, first + k0 + i) << (i % 32 / 16 * 4));
	}
	return true;
}
