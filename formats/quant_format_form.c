/* Reads descriptions of quantisation formats (configs/quant_formats/), selects the form of a
 * matrix, and finds its tensors. */
#include <stdio.h>
#include <string.h>

#include "base/embed.h"
#include "formats/dequant.h"
#include "formats/quant_format_fit.h"

const json_t *
quant_format_config_value(const QuantFormats *s, const char *path)
{
	const json_t *v = s->quant;

	while (v && *path) {
		size_t n = strcspn(path, ".");
		v = json_object_get(v, arena_strndup(s->a, path, n));
		path += n + (path[n] == '.');
	}
	return v;
}

static void
read_config(QuantFormats *s, const char *text, size_t n)
{
	json_error_t why;
	const json_t *root = text ? json_read_python(s->a, text, n, JSON_REJECT_DUPLICATES, &why)
	                          : NULL; /* the reader of model descriptions reports the error */

	static const char *const width[] = { "hidden_size", "n_embd", "d_model" };
	for (size_t i = 0; i < sizeof width / sizeof *width && s->hidden < 1; i++) {
		s->hidden = json_integer_value(json_object_get(root, width[i]));
		if (s->hidden < 1)
			s->hidden = json_integer_value(
			    json_object_get(json_object_get(root, "text_config"), width[i]));
	}
	s->quant = json_object_get(root, "quantization_config");
	if (!s->quant) /* older MLX configs have only "quantization" */
		s->quant = json_object_get(root, "quantization");
	if (!s->quant)
		s->quant =
		    json_object_get(json_object_get(root, "text_config"), "quantization_config");
	if (!json_is_object(s->quant))
		s->quant = NULL;
	/* ChatGLM predates quantization_config and has only a bit count */
	const json_int_t bits =
	    s->quant ? 0 : json_integer_value(json_object_get(root, "quantization_bit"));
	if (bits == 4 || bits == 8) {
		json_t *own =
		    json_pack("{s:s}", "quant_method", bits == 4 ? "chatglm-int4" : "chatglm-int8");
		if (!own)
			arena_out(s->a);
		json_hold(s->a, own);
		s->quant = own;
	}
}

const Node *
quant_format_yaml(Arena *a, Diag *d, const char *name)
{
	size_t size;
	const char *path = arena_printf(a, "configs/quant_formats/%s.yaml", name);
	const char *text = embed_find(path, &size);

	return text ? yaml_parse(yaml_source(a, path, text, size), d, a) : NULL;
}

const char *
quant_format_text(const Node *map, const char *key)
{
	const Node *n = map ? node_get(map, key) : NULL;

	return n && n->kind == NODE_SCALAR ? n->text : NULL;
}

/* Returns whether each listed value of quantization_config matches; null in a list means that the
 * key is absent */
static bool
quant_format_when_holds(const QuantFormats *s, const Node *when)
{
	for (size_t i = 0; when && i < when->n; i++) {
		const json_t *v = quant_format_config_value(s, when->key[i]->text);
		const char *have =
		    json_is_integer(v)
		        ? arena_printf(s->a, "%lld", (long long)json_integer_value(v))
		        : json_string_value(v);
		const Node *list = when->item[i];
		bool found = false;
		for (size_t k = 0; k < list->n && !found; k++)
			found = node_is_null(list->item[k])
			            ? !v
			            : have && strcmp(have, list->item[k]->text) == 0;
		if (!found)
			return false;
	}
	return true;
}

static void
quant_format_forms(QuantFormats *s, Diag *d, const char *name)
{
	const Node *root = quant_format_yaml(s->a, d, name),
	           *forms = root ? node_get(root, "forms") : NULL,
	           *declared = root ? node_get(root, "activations") : NULL;

	for (size_t i = 0; forms && i < forms->n; i++) {
		s->form = arena_grow(s->a, s->form, &s->cap, s->n_form + 1, sizeof *s->form);
		s->form[s->n_form++] = forms->item[i];
	}
	for (size_t i = 0; declared && i < declared->n && !s->activations; i++)
		if (quant_format_when_holds(s, node_get(declared->item[i], "when")))
			s->activations = quant_format_text(declared->item[i], "type");
}

llmc_status
quant_formats_open(Arena *a, const char *config, size_t n, QuantFormats **out, llmc_error *err)
{
	QuantFormats *s = *out = NEW(a, QuantFormats, 1);
	Diag *d = NEW(a, Diag, 1); /* the text of the diagnostics is freed with the arena */

	s->a = a;
	read_config(s, config, n);
	diag_init(d, a);
	const Node *index = quant_format_yaml(s->a, d, "_index"),
	           *list = index ? node_get(index, "quant_formats") : NULL;
	const char *method = quant_formats_method(s),
	           *why = method
	                      ? quant_format_text(index ? node_get(index, "refused") : NULL, method)
	                      : NULL;
	s->known = "";
	for (size_t i = 0; list && i < list->n; i++) {
		quant_format_forms(s, d, list->item[i]->text);
		s->known = arena_printf(a, "%s%s%s", s->known, i ? ", " : "", list->item[i]->text);
	}
	if (d->n_error || !s->n_form)
		return diag_error(d, err);
	if (why)
		return error_set(
		    err, LLMC_E_INPUT,
		    "these weights are quantised by %s, which llmc does not read: %s. Use the "
		    "unquantised checkpoint, a GGUF file of it, or one of these: %s",
		    method, why, s->known);
	return LLMC_OK;
}

const char *
quant_formats_activations(const QuantFormats *s)
{
	return s->activations;
}

const char *
quant_formats_known(const QuantFormats *s)
{
	return s->known;
}

const char *
quant_formats_method(const QuantFormats *s)
{
	const char *m =
	    s->quant ? json_string_value(quant_format_config_value(s, "quant_method")) : NULL;

	return m ? m : s->quant ? "" : NULL;
}

/* ---- selecting the form ---- */
bool
quant_format_flag(const Node *map, const char *key)
{
	const char *t = quant_format_text(map, key);

	return t && strcmp(t, "true") == 0;
}

bool
quant_format_part(const Fit *f, const char *suffix, QuantFormatTensor *out)
{
	const char *name = arena_printf(f->s->a, "%s%s", f->module, suffix);

	if (!f->find(f->user, name, out))
		return false;
	if (*f->n_part < QUANT_FORMAT_MAX_PARTS)
		f->parts[(*f->n_part)++] = name;
	return true;
}

bool
quant_format_type_fits(const char *want, const char *have)
{
	return strcmp(want, have) == 0 || (strcmp(want, "U8") == 0 && strcmp(have, "F8_E8M0") == 0);
}

const char *
quant_format_module(const QuantFormats *s, const Node *form, const char *name,
                    quant_format_find_fn *find, const void *user)
{
	const Node *code = node_get(form, "code");
	const char *suffix = quant_format_text(code, "tensor"),
	           *type = quant_format_text(code, "type");
	const char *scale = quant_format_text(node_get(form, "scale"), "tensor"),
	           *scale_type = quant_format_text(node_get(form, "scale"), "type");
	size_t n = strlen(name), m = suffix ? strlen(suffix) : 0;
	QuantFormatTensor t;

	if (!m || n <= m + 1 || (suffix[0] != '_' && name[n - m - 1] != '.') ||
	    strcmp(name + n - m, suffix) != 0 ||
	    !quant_format_when_holds(s, node_get(form, "when")))
		return NULL;
	const char *module = arena_strndup(s->a, name, n - m);
	if (type && (!find(user, name, &t) || strcmp(t.type, type) != 0))
		return NULL;
	if (scale && (!find(user, arena_printf(s->a, "%s%s", module, scale), &t) ||
	              (scale_type && !quant_format_type_fits(scale_type, t.type))))
		return NULL;
	return module;
}

/* ---- fitting ---- */
int
quant_format_element_bits(const char *type)
{
	return strcmp(type, "I32") == 0 || strcmp(type, "U32") == 0 || strcmp(type, "F32") == 0 ? 32
	       : strcmp(type, "F16") == 0 || strcmp(type, "BF16") == 0                          ? 16
	                                                                                        : 8;
}

llmc_status
quant_format_shape_bad(const Fit *f, const QuantFormatPlane *p, const char *want)
{
	return error_set(f->err, LLMC_E_INPUT, "%s has the shape [%lld, %lld]; %s", p->name,
	                 (long long)p->dim[0], (long long)p->dim[1], want);
}

/* power-of-two bytes */
bool
quant_format_exponents(const char *type)
{
	return strcmp(type, "U8") == 0 || strcmp(type, "F8_E8M0") == 0;
}

int64_t
quant_format_elements(const QuantFormatTensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->n_dims; i++)
		n *= t->dim[i]; /* safetensors.c has checked it for overflow */
	return n;
}

Dtype
quant_format_dtype_of(const QuantFormatMatrix *m, int bits, int64_t g)
{
	const bool wide = strcmp(m->scale.type, "F16") != 0 || m->over > 0;

	if ((m->column_group && !m->order) || (m->column_scale && !m->factor))
		return DT_F32;
	if (m->codes == QUANT_FORMAT_E2M1) {
		if (quant_format_exponents(m->scale.type) && m->block_cols == 32 &&
		    m->cols % 32 == 0 && m->block_rows == 1)
			return DT_MXFP4;
		return strcmp(m->scale.type, "F8_E4M3") == 0 && m->block_cols == 16 &&
		               m->cols % 64 == 0 && m->block_rows == 1
		           ? DT_NVFP4
		           : DT_F32;
	}
	const DtypeValues values = m->codes == QUANT_FORMAT_E4M3 ? VALUES_E4M3 : VALUES_INT;
	/* there is no f32-scale type of 2 or 3 bits with a zero point: use one with an
	 * f32 minimum */
	const bool whole = !m->least.data && !(wide && bits < 4);
	DtypeGroup want = { .bits = bits > 4 ? 8 : bits,
		            .scale_bytes = wide || values == VALUES_E4M3 ? 4 : 2,
		            .zero_bytes = values == VALUES_INT,
		            .values = values };
	if (values == VALUES_INT && !whole)
		want.scale_bytes = want.zero_bytes = 4;
	return quant_format_dtype(want, g, m->cols);
}

Dtype
quant_format_dtype(DtypeGroup want, int64_t together, int64_t cols)
{
	for (want.columns = 128; want.columns >= 32; want.columns /= 2) {
		if (together % want.columns || cols % want.columns)
			continue;
		for (int d = 0; d < DT_COUNT; d++) {
			const DtypeGroup have = dtype_group((Dtype)d);
			if (have.columns == want.columns && have.values == want.values &&
			    have.bits == want.bits && have.scale_bytes == want.scale_bytes &&
			    have.zero_bytes == want.zero_bytes)
				return (Dtype)d;
		}
	}
	return DT_F32;
}

float
quant_format_number(const char *type, const uint8_t *data, int64_t i)
{
	uint16_t h;
	float f;

	if (strcmp(type, "F32") == 0) {
		memcpy(&f, data + 4 * i, 4);
		return f;
	}
	memcpy(&h, data + 2 * i, 2);
	return type[0] == 'B' ? bf16_to_f32(h) : f16_to_f32(h);
}
