/* Matches a file's tensors to the form of a quantisation format (formats/quant_format_form.c).
 * fit() checks shapes once, so every index in quant_format_row stays within its tensor. Planes are
 * [a, b] with one axis of fields; the numbers of fields and groups are checked against both
 * dimensions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/name_table.h"
#include "formats/quant_format_fit.h"

/* Loads one plane of the form. An absent plane has no data. */
static llmc_status
plane(const Fit *f, const char *which, QuantFormatPlane *out)
{
	const Node *rule = node_get(f->form, which);
	const char *suffix = quant_format_text(rule, "tensor"),
	           *type = quant_format_text(rule, "type");
	QuantFormatTensor t;

	*out = (QuantFormatPlane){ 0 };
	if (!suffix)
		return LLMC_OK;
	if (!quant_format_part(f, suffix, &t)) {
		if (quant_format_flag(rule, "optional"))
			return LLMC_OK;
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, suffix, f->module);
	}
	if (type ? !quant_format_type_fits(type, t.type)
	         : strcmp(t.type, "F16") && strcmp(t.type, "BF16") && strcmp(t.type, "F32"))
		return error_set(f->err, LLMC_E_INPUT, "%s is stored as %s; expected %s", t.name,
		                 t.type, type ? type : "F16, BF16 or F32");
	int64_t add = 0, place, lead = 1;
	if (node_get(f->form, "lead"))
		(void)node_int(node_get(f->form, "lead"), &lead);
	/* stacked matrices of experts, or a single matrix */
	if (quant_format_flag(f->form, "stacked") && t.n_dims == 3)
		lead = 2;
	if (t.n_dims > 2 && (lead == 1 || t.n_dims <= lead))
		return error_set(f->err, LLMC_E_INPUT, "%s has %d dimensions; expected 2", t.name,
		                 t.n_dims);
	const Node *places = node_get(rule, "places");
	*out = (QuantFormatPlane){ .data = t.data,
		                   .name = t.name,
		                   .type = t.type,
		                   .element = quant_format_element_bits(t.type),
		                   .bits = quant_format_element_bits(t.type) };
	out->dim[0] = out->dim[1] = 1;
	for (int i = 0; i < t.n_dims; i++)
		if (__builtin_mul_overflow(out->dim[i >= lead], t.dim[i], &out->dim[i >= lead]))
			return quant_format_shape_bad(f, out, "that is too large");
	out->stack = lead > 1 ? t.dim[0] : 0;
	if (quant_format_text(rule, "as"))
		out->type = quant_format_text(rule, "as");
	if (node_get(rule, "add") && node_int(node_get(rule, "add"), &add))
		out->add = (int)add;
	for (int i = 0; i < 8; i++)
		out->place[i] = (int8_t)(places && node_int(places->item[i], &place) ? place : i);
	return LLMC_OK;
}

static bool
axis_is(const Node *rule, int axis, const char *what)
{
	const Node *axes = node_get(rule, "axes");

	return axes && axes->n == 2 && strcmp(axes->item[axis]->text, what) == 0;
}

static int64_t
ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

/* Checks that the plane holds `n` fields of `bits` along `axis`, for each of `others` indices of
 * the other axis */
static llmc_status
fields(const Fit *f, QuantFormatPlane *p, int axis, int bits, int64_t n, int64_t others)
{
	int64_t among = 1; /* fields are permuted within groups of this many */

	for (int i = 0; i < 8; i++)
		among = p->place[i] == i           ? among
		        : p->place[i] / 2 != i / 2 ? 8
		        : among > 2                ? among
		                                   : 2;
	if (n > INT64_MAX / 64)
		return quant_format_shape_bad(f, p, "that is too large");
	int64_t words = ceil_div((n + among - 1) / among * among * bits, p->element);
	if (p->dim[axis] < words || p->dim[!axis] < others)
		return quant_format_shape_bad(
		    f, p,
		    arena_printf(f->s->a,
		                 "expected %lld fields of %d bits along axis %d, %lld times",
		                 (long long)n, bits, axis, (long long)others));
	p->bits = bits;
	p->step = axis == 0 ? p->dim[1] : 1;
	p->other_step = axis == 0 ? 1 : p->dim[1];
	return LLMC_OK;
}

/* Configuration value of this module, else the global one */
static const json_t *
configured_int(const Fit *f, const char *path)
{
	const size_t n = strlen(f->module);
	const json_t *own =
	    n ? json_object_get(f->s->quant,
	                        arena_strndup(f->s->a, f->module, n - (f->module[n - 1] == '.')))
	      : NULL;
	const json_t *v = json_object_get(own, path);

	return json_is_integer(v) ? v : quant_format_config_value(f->s, path);
}

/* Derives rows, columns and bits from the shapes of codes and scales and from the tensors and keys
 * that the form names. */
static llmc_status
sizes(const Fit *f, QuantFormatMatrix *m, int *bits, bool *packed)
{
	const Node *rule = node_get(f->form, "code");
	const char *along = quant_format_text(rule, "packed"),
	           *shape = quant_format_text(f->form, "shape"),
	           *index = quant_format_text(f->form, "column_group");
	const int in = axis_is(rule, 0, "in") ? 0 : 1; /* axis of the inputs */
	QuantFormatTensor t;
	int64_t listed = 0;

	*packed = along != NULL;
	m->code_along_out = along && strcmp(along, "out") == 0;
	m->cols = m->code.dim[in];
	m->rows = m->code.dim[!in];
	*bits = m->code.element;
	if (m->quarters) {
		if (__builtin_mul_overflow(m->code.dim[0], (int64_t)4, &m->rows))
			return quant_format_shape_bad(f, &m->code, "that is too large");
		*bits = 2;
		return LLMC_OK;
	}
	if (!along)
		return LLMC_OK;
	if (shape && !quant_format_part(f, shape, &t))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, shape, f->module);
	if (shape) {
		if (strcmp(t.type, "I64") || t.n_dims != 1 || t.dim[0] != 2)
			return error_set(f->err, LLMC_E_INPUT, "%s: expected two integers (I64)",
			                 t.name);
		int64_t is[2];
		memcpy(is, t.data, sizeof is);
		if (is[0] != m->rows || is[1] < 1 || is[1] > m->cols * 32)
			return error_set(f->err, LLMC_E_INPUT,
			                 "%s is [%lld, %lld], which does not match its codes",
			                 t.name, (long long)is[0], (long long)is[1]);
		listed = is[1];
	} else if (!m->code_along_out && index &&
	           f->find(f->user, arena_printf(f->s->a, "%s%s", f->module, index), &t) &&
	           t.n_dims == 1) {
		listed = t.dim[0];
	}
	const int64_t words = m->code_along_out ? m->rows : m->cols;
	int64_t configured_bits = 0;
	if (node_get(f->form, "bits") && !node_int(node_get(f->form, "bits"), &configured_bits))
		configured_bits =
		    json_integer_value(configured_int(f, quant_format_text(f->form, "bits")));
	if (words > INT64_MAX / 64)
		return quant_format_shape_bad(f, &m->code, "that is too large");
	if (m->code_along_out)
		listed = m->scale.dim[axis_is(node_get(f->form, "scale"), 0, "out") ? 0 : 1];
	if (!listed && configured_bits > 0 && configured_bits <= 8)
		listed = words * m->code.element / configured_bits;
	*bits = listed > 0 && words * m->code.element / listed <= 8
	            ? (int)(words * m->code.element / listed)
	            : 0;
	if (*bits < 2 || ceil_div(listed * *bits, m->code.element) != words)
		return quant_format_shape_bad(
		    f, &m->code,
		    arena_printf(f->s->a, "its codes are not 2 to 8 bits for %lld columns or rows",
		                 (long long)listed));
	*(m->code_along_out ? &m->rows : &m->cols) = listed;
	return LLMC_OK;
}

/* Derives rows and columns per scale from its shape or from the configuration */
static llmc_status
scales(const Fit *f, QuantFormatMatrix *m)
{
	const Node *rule = node_get(f->form, "scale");
	const char *block = quant_format_text(f->form, "block"),
	           *group = quant_format_text(f->form, "group");
	const json_t *b = block ? quant_format_config_value(f->s, block) : NULL,
	             *g = group ? configured_int(f, group) : NULL;
	int64_t over = 0;

	m->scale_by_out = axis_is(rule, 0, "out");
	const int64_t by_row = m->scale.dim[!m->scale_by_out],
	              by_col = m->scale.dim[m->scale_by_out];
	if (by_row < 1 || by_col < 1 || by_row > m->rows || by_col > m->cols + 8)
		return quant_format_shape_bad(f, &m->scale,
		                              arena_printf(f->s->a, "the matrix is [%lld, %lld]",
		                                           (long long)m->rows, (long long)m->cols));
	m->block_rows = m->rows / by_row;
	m->block_cols = m->cols / by_col;
	if (json_array_size(b) == 2) {
		m->block_rows = json_integer_value(json_array_get(b, 0));
		m->block_cols = json_integer_value(json_array_get(b, 1));
	}
	if (json_is_integer(g) && json_integer_value(g) > 0 && by_col > 1)
		m->block_cols = json_integer_value(g);
	/* the last group may be shorter if the group size is configured; some forms store more
	 * groups than needed */
	const int64_t need = m->block_cols > 0 ? ceil_div(m->cols, m->block_cols) : 0;
	if (m->block_rows < 1 || m->block_cols < 1 || ceil_div(m->rows, m->block_rows) != by_row ||
	    need > by_col || (need < by_col && !quant_format_flag(rule, "padded")))
		return quant_format_shape_bad(
		    f, &m->scale,
		    arena_printf(f->s->a, "expected a scale for each %lld x %lld of [%lld, %lld]",
		                 (long long)m->block_rows, (long long)m->block_cols,
		                 (long long)m->rows, (long long)m->cols));
	if (node_get(rule, "over") && node_int(node_get(rule, "over"), &over))
		m->over = (float)over;
	m->divides = quant_format_flag(rule, "divides");
	return LLMC_OK;
}

/* Reads the group of each column; ignores it if groups consist of consecutive columns, in order */
static llmc_status
order(const Fit *f, QuantFormatMatrix *m)
{
	const char *index = quant_format_text(f->form, "column_group");
	QuantFormatTensor t;
	bool neighbours = true;
	int32_t g;

	if (!index || !quant_format_part(f, index, &t))
		return LLMC_OK;
	if (strcmp(t.type, "I32") || t.n_dims != 1 || t.dim[0] != m->cols)
		return error_set(f->err, LLMC_E_INPUT,
		                 "%s: expected %lld integers (I32), the group of each column",
		                 t.name, (long long)m->cols);
	for (int64_t k = 0; k < m->cols; k++) {
		memcpy(&g, (const char *)t.data + 4 * k, 4);
		if (g < 0 || g > (m->cols - 1) / m->block_cols)
			return error_set(
			    f->err, LLMC_E_INPUT, "%s[%lld] = %d: there are %lld groups", t.name,
			    (long long)k, g, (long long)ceil_div(m->cols, m->block_cols));
		neighbours &= g == k / m->block_cols;
	}
	m->indexed = true;
	m->column_group = neighbours ? NULL : t.data;
	return LLMC_OK;
}

/* Sorts columns by group, stable within a group. *most: the largest power of two, up to 128, such
 * that every chunk of so many sorted columns lies in one group */
static const float *
sorted(const Fit *f, const QuantFormatMatrix *m, int64_t *most)
{
	const int64_t groups = ceil_div(m->cols, m->block_cols);
	int64_t *at = NEW(f->s->a, int64_t, groups + 1);
	float *order = NEW(f->s->a, float, m->cols);
	int32_t g;

	for (int64_t k = 0; k < m->cols; k++) {
		memcpy(&g, m->column_group + 4 * k, 4);
		at[g + 1]++;
	}
	*most = 128;
	for (int64_t i = 1; i <= groups; i++) {
		while (at[i] % *most)
			*most /= 2;
		at[i] += at[i - 1];
	}
	for (int64_t k = 0; k < m->cols; k++) {
		memcpy(&g, m->column_group + 4 * k, 4);
		order[at[g]++] = (float)k;
	}
	return order;
}

/* Sets the order and factors that x needs, if groups are not consecutive columns or if columns have
 * factors. *most: number of consecutive columns that share a group */
static void
set_column_order(const Fit *f, QuantFormatMatrix *m, int64_t *most)
{
	*most = m->block_cols >= m->cols ? m->cols : m->block_cols;
	if (m->cols > 1 << 24) /* beyond 2^24 a float cannot hold every column index */
		return;
	m->order = m->column_group ? sorted(f, m, most) : NULL;
	if (!m->column_scale)
		return;
	float *factor = NEW(f->s->a, float, m->cols);
	for (int64_t j = 0; j < m->cols; j++)
		factor[j] = m->column_scale[m->order ? (int64_t)m->order[j] : j];
	m->factor = factor;
}

/* Returns the module of the rule's tensor: this module, or its parent if the rule lists this
 * submodule; NULL: the rule does not apply */
static const char *
rule_module(const Fit *f, const Node *rule)
{
	const Node *of = node_get(rule, "of");
	const size_t n = strlen(f->module), end = n ? n - 1 : 0;
	size_t at = end;

	if (!of)
		return f->module;
	while (at > 0 && f->module[at - 1] != '.')
		at--;
	for (size_t i = 0; i < of->n; i++)
		if (strlen(of->item[i]->text) == end - at &&
		    strncmp(of->item[i]->text, f->module + at, end - at) == 0)
			return arena_strndup(f->s->a, f->module, at);
	return NULL;
}

/* Loads the factor per column, if the form names one and the file has it */
static llmc_status
column_scale(const Fit *f, QuantFormatMatrix *m)
{
	const Node *rules = node_get(f->form, "column_scale");

	for (size_t i = 0; rules && i < rules->n && !m->column_scale; i++) {
		const Node *rule = rules->item[i];
		Fit of = *f;
		QuantFormatTensor t;
		of.module = rule_module(f, rule);
		if (!of.module || !quant_format_part(&of, quant_format_text(rule, "tensor"), &t))
			continue;
		if ((strcmp(t.type, "F16") && strcmp(t.type, "BF16") && strcmp(t.type, "F32")) ||
		    quant_format_elements(&t) != m->cols)
			return error_set(f->err, LLMC_E_INPUT,
			                 "%s: expected %lld numbers of F16, BF16 or F32", t.name,
			                 (long long)m->cols);
		float *scale = NEW(f->s->a, float, m->cols);
		for (int64_t k = 0; k < m->cols; k++) {
			const float v = quant_format_number(t.type, t.data, k);
			scale[k] = quant_format_flag(rule, "divides") ? 1 / v : v;
			if (!isfinite(scale[k]))
				return error_set(f->err, LLMC_E_INPUT,
				                 "%s[%lld] = %g is not a finite column factor",
				                 t.name, (long long)k, v);
		}
		m->column_scale = scale;
	}
	return LLMC_OK;
}

/* Loads the factor of the whole tensor */
static llmc_status
whole(const Fit *f, QuantFormatMatrix *m)
{
	const Node *rule = node_get(f->form, "whole");
	const char *suffix = quant_format_text(rule, "tensor");
	QuantFormatTensor t;

	m->whole = 1;
	if (!suffix)
		return LLMC_OK;
	if (!quant_format_part(f, suffix, &t))
		return error_set(f->err, LLMC_E_INPUT, "%s%s is missing: the weights of %s need it",
		                 f->module, suffix, f->module);
	if (strcmp(t.type, "F32") || quant_format_elements(&t) != 1)
		return error_set(f->err, LLMC_E_INPUT, "%s: expected one F32 number", t.name);
	memcpy(&m->whole, t.data, 4);
	if (quant_format_flag(rule, "divides"))
		m->whole = 1 / m->whole;
	if (!isfinite(m->whole))
		return error_set(f->err, LLMC_E_INPUT, "%s is not a finite weight factor", t.name);
	return LLMC_OK;
}

static llmc_status
fit(const Fit *f, QuantFormatMatrix *m)
{
	const Node *code = node_get(f->form, "code"), *zero = node_get(f->form, "zero");
	int bits;
	bool packed;

	const char *values = quant_format_text(code, "values");
	TRY(plane(f, "code", &m->code));
	m->codes = values && strcmp(values, "e2m1") == 0 ? QUANT_FORMAT_E2M1
	           : (values && strcmp(values, "e4m3") == 0) || strcmp(m->code.type, "F8_E4M3") == 0
	               ? QUANT_FORMAT_E4M3
	               : QUANT_FORMAT_INT;
	m->stack = m->code.stack;
	TRY(plane(f, "scale", &m->scale));
	TRY(whole(f, m));
	TRY(plane(f, "zero", &m->zero));
	TRY(plane(f, "least", &m->least));
	if (m->least.data &&
	    (m->least.dim[0] != m->scale.dim[0] || m->least.dim[1] != m->scale.dim[1]))
		return quant_format_shape_bad(
		    f, &m->least,
		    arena_printf(f->s->a,
		                 "expected [%lld, %lld], the shape of the "
		                 "scales",
		                 (long long)m->scale.dim[0], (long long)m->scale.dim[1]));
	const char *how = quant_format_text(code, "order");
	m->eetq = how && strcmp(how, "eetq") == 0;
	m->quarters = how && strcmp(how, "quarters") == 0;
	TRY(sizes(f, m, &bits, &packed));
	TRY(scales(f, m));
	if (m->codes == QUANT_FORMAT_E2M1 &&
	    m->block_cols != (strcmp(m->scale.type, "F8_E4M3") ? 32 : 16))
		return quant_format_shape_bad(f, &m->scale,
		                              strcmp(m->scale.type, "F8_E4M3")
		                                  ? "MXFP4 has a scale for each 32 columns"
		                                  : "NVFP4 has a scale for each 16 columns");
	TRY(order(f, m));
	const int in = axis_is(code, 0, "in") ? 0 : 1;
	if (!m->quarters)
		TRY(fields(f, &m->code, m->code_along_out ? !in : in, bits,
		           m->code_along_out ? m->rows : m->cols,
		           m->code_along_out ? m->cols : m->rows));
	const int64_t groups = ceil_div(m->cols, m->block_cols);
	if (m->zero.data) {
		const char *along = quant_format_text(zero, "packed");
		const int out = axis_is(zero, 0, "out") ? 0 : 1;
		m->zero_along_out = !along || strcmp(along, "out") == 0;
		TRY(fields(f, &m->zero, m->zero_along_out ? out : !out, along ? bits : 8,
		           m->zero_along_out ? m->rows : groups,
		           m->zero_along_out ? groups : m->rows));
	}
	TRY(column_scale(f, m));
	/* I8 codes and their zero points are signed; packed codes without zero points are offset by
	 * half of their range */
	m->offset = packed || strcmp(m->code.type, "I8") ? 0 : 128;
	m->flip = m->offset ? 0x80 : quant_format_flag(code, "signed") ? 1 << (bits - 1) : 0;
	m->middle = m->offset ? 128 : 1 << (bits - 1);
	int64_t middle;
	if (node_get(code, "middle") && node_int(node_get(code, "middle"), &middle))
		m->middle = (int)middle;
	if (m->eetq && (m->cols % 64 || m->rows % 2))
		return quant_format_shape_bad(f, &m->code,
		                              "expected multiples of 64 inputs and 2 outputs");
	int64_t most;
	set_column_order(f, m, &most);
	m->dtype = quant_format_dtype_of(m, bits, most);
	/* F32 rows are in the original column order and include the factors, so x needs neither */
	if (m->dtype == DT_F32)
		m->order = m->factor = NULL;
	return LLMC_OK;
}

/* Marks tensors that the form lists under `drop` as used */
static void
drop(const Fit *f)
{
	const Node *list = node_get(f->form, "drop");
	QuantFormatTensor t;

	for (size_t i = 0; list && i < list->n; i++)
		quant_format_part(f, list->item[i]->text, &t);
}

llmc_status
quant_format_matrix(const QuantFormats *s, const char *name, quant_format_find_fn *find,
                    const void *user, QuantFormatMatrix **out, const char **made,
                    const char *parts[QUANT_FORMAT_MAX_PARTS], int *n_part, llmc_error *err)
{
	*out = NULL;
	*n_part = 0;
	for (size_t i = 0; i < s->n_form; i++) {
		const char *found = quant_format_module(s, s->form[i], name, find, user),
		           *refuse = quant_format_text(s->form[i], "refuse");
		if (!found)
			continue;
		if (refuse)
			return error_set(err, LLMC_E_INPUT, "%s: %s",
			                 name_text(name, strlen(name)).s, refuse);
		Fit f = { s, s->form[i], found, find, user, parts, n_part, err };
		QuantFormatMatrix *m = NEW(s->a, QuantFormatMatrix, 1);
		TRY(node_get(s->form[i], "map")      ? quant_format_flat(&f, m)
		    : node_get(s->form[i], "groups") ? quant_format_hqq(&f, m)
		                                     : fit(&f, m));
		drop(&f);
		const char *makes = quant_format_text(s->form[i], "makes");
		*made = arena_printf(s->a, "%s%s", found, makes ? makes : "weight");
		*out = m;
		return LLMC_OK;
	}
	return LLMC_OK;
}
