/* Expands a template for an op: text, headers, key, arguments. */
#include "compiler/template/template_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/embed.h"
#include "base/number.h"
#include "base/sha256.h"

/* Text that grows in the arena. It must not be malloc'd, because it would leak when the arena jumps
 * to oom. */
typedef struct TextPart {
	Arena *arena;
	char *data;
	size_t len, cap;
} TextPart;

static void
text_add(TextPart *t, const char *s, size_t n)
{
	t->data = arena_grow(t->arena, t->data, &t->cap, t->len + n + 1, 1);
	memcpy(t->data + t->len, s, n);
	t->len += n;
	t->data[t->len] = 0;
}

/* Write the value of ${NAME} as C: integers and words unchanged, numbers as float constants. */
static bool
put_value(Bind *b, const TemplateLine *l, const char *name, size_t n, int col, TextPart *out)
{
	char word[64];
	HeadValue v;
	int before = b->ts->diag->n_error;

	snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63), name);
	if (!template_name(b, word, &v)) {
		if (b->ts->diag->n_error == before)
			template_error_at(b->ts, l, col,
			                  arena_printf(b->ts->arena,
			                               "%s: the op %s has no such value", word,
			                               op_info[b->op->kind].name));
		return false;
	}
	if (v.kind == HEAD_INT) {
		snprintf(word, sizeof word, "%lld", (long long)v.i);
	} else if (v.kind == HEAD_WORD) {
		memcpy(word, v.s, sizeof word);
	} else {
		char number[NUMBER_SIZE];
		number_text(number, v.f, NUMBER_EXACT);
		snprintf(word, sizeof word, "%sf", number);
	}
	text_add(out, word, strlen(word));
	return true;
}

static bool
expand_line(Bind *b, const TemplateLine *l, TextPart *out)
{
	const char *p = l->text;
	size_t n = l->size;

	for (size_t i = 0; i < n;) {
		if (i + 1 >= n || p[i] != '$' || p[i + 1] != '{') {
			size_t k = i++;
			while (i < n && p[i] != '$')
				i++;
			text_add(out, p + k, i - k);
			continue;
		}
		const char *close = memchr(p + i, '}', n - i);
		if (!close) {
			template_error_at(b->ts, l, (int)i + 1, "${ without }");
			return false;
		}
		if (!put_value(b, l, p + i + 2, (size_t)(close - p) - i - 2, (int)i + 1, out))
			return false;
		i = (size_t)(close - p) + 1;
	}
	text_add(out, "\n", 1);
	return true;
}

/* State while a kernel is expanded */
typedef struct Expansion {
	Bind b;
	Kernel *k;
	const char *product[MAX_PRODUCTS]; /* names used in the head */
} Expansion;

/* Define ARG_<name>: the pointer to an argument or scratch, with its type. */
static void
put_arg(const Bind *b, const PlanKernelArg *a, int i, TextPart *out)
{
	static const struct {
		const char *type, *c;
	} types[] = {
		{ "f32", "float" },          { "i32", "int" },
		{ "f16", "unsigned short" }, { "bf16", "unsigned short" },
		{ "u8", "unsigned char" },   { "packed", "void" },
	};
	const char *c = "void", *line;
	bool reads = a->dir == DIR_IN || a->dir == DIR_ROPE || a->dir == DIR_NONE;

	for (size_t k = 0; k < sizeof types / sizeof *types; k++)
		if (strcmp(types[k].type, a->type) == 0)
			c = types[k].c;
	line = arena_printf(b->ts->arena, "#define ARG_%s ((%s%s *)%s[%d])\n", a->name,
	                    reads ? "const " : "", c,
	                    b->ts->target->kind == TARGET_CUDA ? "p.a" : "a", i);
	text_add(out, line, strlen(line));
}

static void
put_text(TextPart *out, const char *s)
{
	text_add(out, s, strlen(s));
}

/* Return the bit of LLMC_WEIGHTS for a type (templates/cpu/weights/weights.h). */
static int
family_of(Dtype d)
{
	return dtype_kind(d) ? 4 : dtype_is_float(d) || dtype_group(d).values != VALUES_INT ? 2 : 1;
}

/* Define LLMC_WEIGHTS: the mask of the kinds of weights in the kernel. */
static void
put_weights(const Expansion *m, TextPart *out)
{
	int families = 0;

	for (int i = 0; i < op_info[m->b.op->kind].n_arg; i++) {
		const int at = m->b.op->arg[i];
		const Value *v = at < 0 ? NULL : &m->b.g->val[at];
		if (!v || v->kind != VAL_WEIGHT || strcmp(m->k->row.arg[i].type, "packed") != 0)
			continue;
		families |= family_of(m->b.g->tensor[v->tensor].dtype);
	}
	if (families)
		put_text(out, arena_printf(m->b.ts->arena, "#define LLMC_WEIGHTS %d\n", families));
}

static bool
expand_text(Expansion *m, TextPart *out)
{
	Bind *b = &m->b;
	bool cuda = b->ts->target->kind == TARGET_CUDA, take;
	PlanSym rows;

	if (cuda)
		/* every CUDA kernel has an argument of type llmc_call */
		put_text(out, "#include \"cuda/runtime/step.h\"\n");
	if (b->t->any_rows && template_symbol(b, "n_row", 5, &rows))
		put_text(out, cuda ? rows == SYM_n_out ? "#define N_ROW(p) N_OUT(p)\n"
		                                       : "#define N_ROW(p) N_TOK(p)\n"
		              : rows == SYM_n_out ? "#define N_ROW(s) ((s)->n_out)\n"
		                                  : "#define N_ROW(s) ((s)->n_tok)\n");
	for (int i = 0; i < m->k->row.n_arg; i++)
		if (m->k->row.arg[i].dir != DIR_NONE || *m->k->row.arg[i].type)
			put_arg(b, &m->k->row.arg[i], i, out);
	if (!cuda)
		put_weights(m, out);
	for (int i = 0; i < m->k->n_product; i++)
		put_text(out, arena_printf(b->ts->arena, "#define %s_functions %s\n", m->product[i],
		                           m->k->product[i]->row.symbol));
	for (size_t i = 0; i < b->t->body.n; i++) {
		const TemplateLine *l = &b->t->body.line[i];
		if (!template_taken(b, l, &take) || (take && !expand_line(b, l, out)))
			return false;
	}
	return true;
}

typedef struct Headers {
	const char *name[48];
	int n;
} Headers;

/* Collect all headers that `text` includes, directly or indirectly, by their paths below
 * templates/. */
static bool
headers_of(const Bind *b, const char *text, Headers *h)
{
	for (const char *p = text; (p = strstr(p, "#include \""));) {
		p += 10;
		const char *name = arena_printf(b->ts->arena, "%.*s", (int)strcspn(p, "\"\n"), p);
		int k = 0;
		while (k < h->n && strcmp(h->name[k], name) != 0)
			k++;
		if (k < h->n)
			continue;
		const char *body =
		    embed_find(arena_printf(b->ts->arena, "templates/%s", name), NULL);
		if (!body || h->n == 48) {
			const TemplateLine first = { .text = b->t->piece->source.text,
				                     .piece = b->t->piece,
				                     .line = 1,
				                     .when = -1 };
			return template_error(
			    b, &first,
			    arena_printf(b->ts->arena,
			                 "%s: no such header in templates/, or more than 48",
			                 name));
		}
		h->name[h->n++] = name;
		if (!headers_of(b, body, h))
			return false;
	}
	return true;
}

static void
sort_names(Headers *h)
{
	for (int i = 1; i < h->n; i++)
		for (int k = i; k > 0 && strcmp(h->name[k - 1], h->name[k]) > 0; k--) {
			const char *x = h->name[k];
			h->name[k] = h->name[k - 1];
			h->name[k - 1] = x;
		}
}

static bool
scratch_args(Expansion *m)
{
	const TemplateLines *head = &m->b.t->head[D_SCRATCH];
	Kernel *k = m->k;

	for (size_t i = 0; i < head->n; i++) {
		const TemplateLine *l = &head->line[i];
		ArgDecl a;
		bool take;
		if (!template_taken(&m->b, l, &take))
			return false;
		if (!take)
			continue;
		if (!template_scratch(&m->b, l, &a))
			return false;
		if (k->n_scratch == PLAN_MAX_SCRATCH || k->row.n_arg == PLAN_MAX_ARGS)
			return template_error(&m->b, l,
			                      "too many @scratch lines, or too many arguments");
		k->row.arg[k->row.n_arg++] = (PlanKernelArg){ arena_strdup(m->b.ts->arena, a.name),
			                                      DIR_SCRATCH, a.type, a.extent };
		k->scratch_dtype[k->n_scratch++] = dtype_from_text(a.type);
	}
	return true;
}

/* If no library can run the kernel's GEMM, remove the path for libraries, so that the kernel's own
 * path is the only one. */
static void
one_path(PlanKernel *k)
{
	int n = 0;

	for (int i = 0; i < k->n_launch; i++) {
		if (k->launch[i].path == PATH_LIBRARY)
			continue;
		k->launch[n] = k->launch[i];
		k->launch[n++].path = PATH_ANY;
	}
	k->n_launch = n;
}

/* Read @activations i8 or f8. */
static bool
activations(Expansion *m)
{
	const TemplateLines *head = &m->b.t->head[D_ACTIVATIONS];

	for (size_t i = 0; i < head->n; i++) {
		const TemplateLine *l = &head->line[i];
		bool take;
		if (!template_taken(&m->b, l, &take))
			return false;
		if (take)
			m->k->activations = arena_strndup(m->b.ts->arena, l->text, l->size);
	}
	return true;
}

static bool
launches(Expansion *m)
{
	const TemplateLines *launch = &m->b.t->head[D_LAUNCH], *map = &m->b.t->head[D_MAP];
	const TemplateLine first = {
		.text = m->b.t->piece->source.text, .piece = m->b.t->piece, .line = 1, .when = -1
	};
	PlanKernel *k = &m->k->row;
	const char *why;
	bool take;

	if (m->b.ts->target->kind == TARGET_CUDA && launch->n == 0)
		return template_error(&m->b, &first, "a CUDA template needs its @launch lines");
	k->n_launch = k->n_map = 0;
	for (size_t i = 0; i < launch->n; i++) {
		const TemplateLine *l = &launch->line[i];
		if (!template_taken(&m->b, l, &take))
			return false;
		if (!take)
			continue;
		if (k->n_launch == PLAN_MAX_LAUNCH)
			return template_error(&m->b, l, "more than 8 @launch lines");
		if (!template_launch(&m->b, l, k, &k->launch[k->n_launch++]))
			return false;
	}
	if (!plan_library_gemm(k))
		one_path(k);
	if (!plan_paths_fit(k, &why))
		return template_error(&m->b, &launch->line[0], why);
	for (size_t i = 0; i < map->n; i++) {
		const TemplateLine *l = &map->line[i];
		if (!template_taken(&m->b, l, &take))
			return false;
		if (!take)
			continue;
		if (k->n_map == PLAN_MAX_MAP)
			return template_error(&m->b, l, "more than 4 @map lines");
		if (!template_map(&m->b, l, k, &k->map[k->n_map++]))
			return false;
	}
	return true;
}

/* Return a hash of everything that determines the kernel, before its name is known. */
const char *
template_key(const Templates *ts, const Kernel *k, const char *text)
{
	Sha256 sum;
	char hex[65];

	sha256_init(&sum);
	sha256_add(&sum, text, strlen(text) + 1);
	for (int i = 0; i < k->n_header; i++) {
		const char *body = embed_sum(arena_printf(ts->arena, "templates/%s", k->header[i]));
		sha256_add(&sum, k->header[i], strlen(k->header[i]) + 1);
		sha256_add(&sum, body, strlen(body));
	}
	for (int i = 0; i < k->row.n_arg; i++) {
		const PlanKernelArg *a = &k->row.arg[i];
		const char *line =
		    arena_printf(ts->arena, "%s %d %s %d %lld %lld", a->name, a->dir, a->type,
		                 a->extent.sym, (long long)a->extent.mul, (long long)a->extent.div);
		sha256_add(&sum, line, strlen(line) + 1);
	}
	for (int i = 0; i < k->row.n_launch; i++) {
		const PlanLaunch *u = &k->row.launch[i];
		const char *line =
		    !u->fn
		        ? arena_printf(ts->arena, "product %d %d %d %d %a", u->product.act,
		                       u->product.w, u->product.y, u->product.add, u->product.beta)
		        : arena_printf(ts->arena, "%s %d %d %d %lld %d %d %d %lld %lld", u->fn,
		                       u->block, u->cluster, u->pdl, (long long)u->shared, u->path,
		                       u->rounds, u->rows, (long long)u->least, (long long)u->most);
		sha256_add(&sum, line, strlen(line) + 1);
		for (int d = 0; d < 3; d++) {
			line = arena_printf(ts->arena, "%d %lld %lld", u->grid[d].sym,
			                    (long long)u->grid[d].mul, (long long)u->grid[d].div);
			sha256_add(&sum, line, strlen(line) + 1);
		}
	}
	for (int i = 0; i < k->row.n_map; i++) {
		const PlanMap *m = &k->row.map[i];
		const char *line =
		    arena_printf(ts->arena, "%d %lld %d %d %d", m->arg, (long long)m->cols,
		                 m->box[0], m->box[1], m->swizzle);
		sha256_add(&sum, line, strlen(line) + 1);
	}
	sha256_hex(&sum, hex);
	return arena_strndup(ts->arena, hex, 12);
}

static bool
set_headers(const Bind *b, Kernel *k, const char *text)
{
	Headers h = { .n = 0 };
	const char **names;

	if (!headers_of(b, text, &h))
		return false;
	sort_names(&h);
	names = NEW(b->ts->arena, const char *, h.n + 1);
	memcpy(names, h.name, (size_t)h.n * sizeof *names);
	k->header = names;
	k->n_header = h.n;
	return true;
}

/* Make the file of matmul functions of a weight type (templates/cpu/gemm/matmul_kernel.h). It is
 * the same for all kernels that use it. */
static const Kernel *
product_of(const Bind *b, const char *dtype, bool ragged)
{
	const Templates *ts = b->ts;
	Arena *a = ts->arena;
	Kernel *k = NEW(a, Kernel, 1);
	const char *head =
	    arena_printf(a,
	                 "#define LLMC_WEIGHTS %d\n#define LLMC_TARGET_%s 1\n#define LLMC_ACT_BF16 "
	                 "%d\n#include \"cpu/gemm/matmul_kernel.h\"\n\n",
	                 family_of(dtype_from_text(dtype)), ts->target->isa, ts->act_bf16);
	const char *tail = arena_printf(a, "W_%s, %d, %d", dtype, ts->act_bits, ragged);

	if (!set_headers(b, k, head))
		return NULL;
	k->key = template_key(ts, k, arena_printf(a, "%s%s", head, tail));
	k->row.symbol = arena_printf(a, "gemm_%s_%s", dtype, k->key);
	k->row.id = arena_printf(a, "gemm_%s.%s", dtype, k->key);
	k->row.file = arena_printf(a, "kernels/%s.c", k->row.id);
	k->text = arena_printf(
	    a,
	    "/* generated, the same for all descriptions: do not edit\n *\n * Matmuls of "
	    "activations (%d bits per element of a block) and %s weights, with any number of "
	    "columns%s;\n * called by kernels with such weights. */\n%sPRODUCTS(%s, %s)\n",
	    ts->act_bits, dtype, ragged ? "" : " that is a multiple of 32", head, k->row.symbol,
	    tail);
	return k;
}

/* Read @product NAME DTYPE COLS. DTYPE and COLS are names of the head. */
static bool
products(Expansion *m)
{
	const TemplateLines *head = &m->b.t->head[D_PRODUCT];

	for (size_t i = 0; i < head->n; i++) {
		const TemplateLine *l = &head->line[i];
		const char *p = l->text, *end = p + l->size;
		char name[32], dtype[32], cols[32];
		HeadValue d, c;
		bool take;
		if (!template_taken(&m->b, l, &take))
			return false;
		if (!take)
			continue;
		if (!template_word(&p, end, name, sizeof name) ||
		    !template_word(&p, end, dtype, sizeof dtype) ||
		    !template_word(&p, end, cols, sizeof cols) || p < end ||
		    !template_name(&m->b, dtype, &d) || d.kind != HEAD_WORD ||
		    dtype_from_text(d.s) == DT_NONE || !template_name(&m->b, cols, &c) ||
		    c.kind != HEAD_INT)
			return template_error(&m->b, l,
			                      "expected @product NAME DTYPE COLS: the names of a "
			                      "weight type and of its columns");
		if (m->k->n_product == MAX_PRODUCTS)
			return template_error(&m->b, l, "more than 4 @product lines");
		m->product[m->k->n_product] = arena_strdup(m->b.ts->arena, name);
		if (!(m->k->product[m->k->n_product++] = product_of(&m->b, d.s, c.i % 32 != 0)))
			return false;
	}
	return true;
}

const Kernel *
template_expand(const Templates *ts, const Template *t, const Graph *g, const Op *op, int phase)
{
	Arena *a = ts->arena;
	Kernel *k = NEW(a, Kernel, 1);
	const char *stem = t->both
	                       ? op_info[t->op].name
	                       : arena_printf(a, "%s_%s", op_info[t->op].name, phase_name[phase]);
	Expansion m = { .b = { .ts = ts, .t = t, .g = g, .op = op, .phase = phase, .symbol = stem },
		        .k = k };
	TextPart text = { .arena = a };
	ArgDecl arg[PLAN_MAX_ARGS];
	bool fits;

	if (!template_args(&m.b, arg, &fits))
		return NULL;
	for (int i = 0; i < op_info[op->kind].n_arg; i++)
		k->row.arg[k->row.n_arg++] =
		    (PlanKernelArg){ arena_strdup(a, arg[i].name), arg[i].dir, arg[i].type,
			             arg[i].extent };
	if (!scratch_args(&m) || !activations(&m) || !launches(&m) || !products(&m) ||
	    !expand_text(&m, &text) || !set_headers(&m.b, k, text.data))
		return NULL;
	k->prefetch = t->prefetch;
	k->prefetch_experts = t->prefetch_experts;
	k->has_body = t->has_body;
	k->key = template_key(ts, k, text.data);
	k->row.symbol = m.b.symbol = arena_printf(a, "%s_%s", stem, k->key);
	k->row.id = arena_printf(a, "%s.%s", stem, k->key);
	k->row.file = arena_printf(a, "kernels/%s.%s", k->row.id,
	                           ts->target->kind == TARGET_CUDA ? "cu" : "c");
	text.len = 0; /* expand again, because the name of the kernel is known now */
	if (!launches(&m) || !expand_text(&m, &text))
		return NULL;
	k->text = arena_strndup(a, text.data, text.len);
	return k;
}
