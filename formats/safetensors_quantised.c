/* Replaces the tensors of quantised matrices by the matrices that formats/quant_format.h makes of
 * them.
 */
#include <jansson.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "formats/safetensors_internal.h"

/* ---- quantisation formats ---- */
static bool
find_part(const void *user, const char *name, QuantFormatTensor *out)
{
	const StTensor *t = safetensors_find(user, name);

	if (t)
		*out = (QuantFormatTensor){ .name = t->name,
			                    .type = t->dtype_name,
			                    .n_dims = t->n_dims,
			                    .dim = t->dim,
			                    .data = t->data };
	return t != NULL;
}

typedef struct StMatrix {
	StTensor *t;
	size_t n, cap;
} StMatrix;

static void
made_add(Safetensors *s, StMatrix *made, StTensor t)
{
	made->t = arena_grow(&s->arena, made->t, &made->cap, made->n + 1, sizeof *made->t);
	made->t[made->n++] = t;
}

/* Adds the column order or factor that x needs, as a tensor next to matrix `name` */
static void
made_companion(Safetensors *s, StMatrix *made, const char *name, const char *suffix,
               const float *data, int64_t n, const char *file)
{
	if (data)
		made_add(s, made,
		         (StTensor){ .name = arena_printf(&s->arena, "%.*s%s",
		                                          (int)(strlen(name) - strlen("weight")),
		                                          name, suffix),
		                     .dtype = DT_F32,
		                     .dtype_name = "F32",
		                     .n_dims = 1,
		                     .dim = { n },
		                     .data = data,
		                     .bytes = 4 * n,
		                     .file = file,
		                     .copied = true });
}

/* Adds an identity order to indexed matrices without an order, if any other matrix has one */
static void
made_plain_orders(Safetensors *s, StMatrix *made)
{
	const size_t n = made->n;
	float *plain = NULL;
	int64_t most = 0;
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		const QuantFormatMatrix *m = made->t[i].made;
		any |= m && m->order;
		if (m && m->indexed && m->cols <= 1 << 24 && m->cols > most)
			most = m->cols;
	}
	if (!any)
		return;
	plain = NEW(&s->arena, float, most);
	for (int64_t j = 0; j < most; j++)
		plain[j] = (float)j;
	for (size_t i = 0; i < n; i++) {
		const StTensor t = made->t[i];
		if (t.made && t.made->indexed && !t.made->order && t.made->cols <= most)
			made_companion(s, made, t.name, QUANT_FORMAT_ORDER, plain, t.made->cols,
			               t.file);
	}
}

llmc_status
st_make_matrices(Safetensors *s, const char *folder, llmc_error *err)
{
	const char *parts[QUANT_FORMAT_MAX_PARTS], *name;
	StMatrix made = { 0 };
	size_t kept = 0;
	int n_part;

	/* if all tensors are floats, there are no quantised matrices */
	bool plain = true;
	for (size_t i = 0; i < s->n && plain; i++)
		plain = s->tensor[i].dtype_name[0] == 'F' ? s->tensor[i].dtype_name[1] != '8'
		                                          : s->tensor[i].dtype_name[0] == 'B';
	if (plain)
		return LLMC_OK;
	const char *path = arena_printf(&s->arena, "%sconfig.json", folder);
	Strbuf *config = arena_strbuf(&s->arena);
	if (file_exists(path))
		TRY(file_read(path, MAX_CONFIG_BYTES, config, err));
	TRY(quant_formats_open(&s->arena, config->len ? strbuf_str(config) : NULL, config->len,
	                       &s->quant_formats, err));
	bool *gone = NEW(&s->arena, bool, s->n + 1);
	for (size_t i = 0; i < s->n; i++) {
		QuantFormatMatrix *m;
		TRY(quant_format_matrix(s->quant_formats, s->tensor[i].name, find_part, s, &m,
		                        &name, parts, &n_part, err));
		if (!m)
			continue;
		made_add(s, &made,
		         (StTensor){ .name = name,
		                     .dtype = m->dtype,
		                     .dtype_name = s->tensor[i].dtype_name,
		                     .n_dims = m->stack ? 3 : 2,
		                     .dim = { m->stack ? m->stack : m->rows,
		                              m->stack ? m->rows / m->stack : m->cols, m->cols },
		                     .bytes = m->rows * dtype_row_bytes(m->dtype, m->cols),
		                     .file = s->tensor[i].file,
		                     .made = m });
		made_companion(s, &made, name, QUANT_FORMAT_ORDER, m->order, m->cols,
		               s->tensor[i].file);
		made_companion(s, &made, name, QUANT_FORMAT_FACTOR, m->factor, m->cols,
		               s->tensor[i].file);
		for (int k = 0; k < n_part; k++)
			gone[safetensors_find(s, parts[k]) - s->tensor] = true;
	}
	if (made.n == 0)
		return LLMC_OK;
	made_plain_orders(s, &made);
	for (size_t i = 0; i < s->n; i++)
		if (!gone[i])
			s->tensor[kept++] = s->tensor[i];
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, kept + made.n, sizeof *s->tensor);
	memcpy(s->tensor + kept, made.t, made.n * sizeof *made.t);
	s->n = kept + made.n;
	return st_index_names(s, err);
}
