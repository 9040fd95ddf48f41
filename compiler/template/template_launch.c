/* `//@launch` lines: the functions of a CUDA template that form a kernel, their grids, and GEMMs
 * that a library may run instead. `//@map` lines: tensor maps */
#include <ctype.h>
#include <string.h>

#include "compiler/template/template_internal.h"

static void
trim(const char **p, const char **end)
{
	while (*p < *end && isspace((unsigned char)**p))
		++*p;
	while (*end > *p && isspace((unsigned char)(*end)[-1]))
		--*end;
}

/* Return the next item of a list separated by ";", without surrounding blanks. Returns false at the
 * end of the list. */
static bool
next_item(const char **p, const char *end, const char **item, const char **stop)
{
	while (*p < end) {
		const char *q = memchr(*p, ';', (size_t)(end - *p));
		*item = *p;
		*stop = q ? q : end;
		*p = q ? q + 1 : end;
		trim(item, stop);
		if (*item < *stop)
			return true;
	}
	return false;
}

static bool
int_value(Bind *b, const TemplateLine *l, const char *p, const char *end, int64_t min, int64_t max,
          int64_t *out)
{
	HeadValue v;

	trim(&p, &end);
	if (!template_eval(b, l, p, (size_t)(end - p), &v))
		return false;
	if (v.kind != HEAD_INT || v.i < min || v.i > max)
		return template_error(
		    b, l, "a number of this launch is not an integer or is out of range");
	*out = v.i;
	return true;
}

/* Find the name of a symbol in [p, end). NULL: there is none */
static const char *
find_symbol(const Bind *b, const char *p, const char *end, PlanSym *sym, size_t *len)
{
	while (p < end) {
		size_t n = 0;
		while (p + n < end && (isalnum((unsigned char)p[n]) || p[n] == '_'))
			n++;
		*len = n;
		if (template_symbol(b, p, n, sym))
			return p;
		p += n ? n : 1;
	}
	return NULL;
}

/* Parse INT | [INT *] sym [/ INT]. */
static bool
parse_dim(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanExtent *out)
{
	size_t len;
	const char *at = find_symbol(b, p, end, &out->sym, &len);
	const char *before = at, *after = at ? at + len : end;

	out->mul = out->div = 1;
	if (!at) {
		out->sym = SYM_one;
		return int_value(b, l, p, end, 1, INT32_MAX, &out->mul);
	}
	trim(&p, &before);
	trim(&after, &end);
	if (p < before &&
	    (before[-1] != '*' || !int_value(b, l, p, before - 1, 1, INT32_MAX, &out->mul)))
		return template_error(b, l,
		                      "only an integer and * may precede the symbol of a grid");
	if (after < end &&
	    (*after != '/' || !int_value(b, l, after + 1, end, 1, 1 << 30, &out->div)))
		return template_error(
		    b, l, "only / and a positive integer may follow the symbol of a grid");
	return true;
}

static bool
parse_grid(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanExtent grid[3])
{
	for (int d = 0; p < end; d++) {
		int depth = 0;
		const char *q = p;
		while (q < end && (*q != ',' || depth)) {
			depth += *q == '(' ? 1 : *q == ')' ? -1 : 0;
			q++;
		}
		if (d == 3)
			return template_error(b, l, "a grid has at most three dimensions");
		if (!parse_dim(b, l, p, q, &grid[d]))
			return false;
		p = q + (q < end);
	}
	return true;
}

static int
arg_named(const PlanKernel *k, const char *name)
{
	for (int a = 0; a < k->n_arg; a++)
		if (strcmp(k->arg[a].name, name) == 0)
			return a;
	return -1;
}

/* Return the argument that is named at *p, and advance past the name and a comma. -1: this kernel
 * has no such argument */
static int
take_arg(const PlanKernel *k, const char **p, const char *end)
{
	char name[32];

	template_word(p, end, name, sizeof name);
	trim(p, &end);
	if (*p < end && *(*p)++ != ',')
		return -1;
	return arg_named(k, name);
}

/* Parse gemm ACT, W, Y | add R, BETA. */
static bool
parse_product(Bind *b, const TemplateLine *l, const char *p, const char *end, const PlanKernel *k,
              PlanGemm *out)
{
	char word[16];
	HeadValue v;

	template_word(&p, end, word, sizeof word);
	if (strcmp(word, "gemm") == 0) {
		out->act = take_arg(k, &p, end);
		out->w = take_arg(k, &p, end);
		out->y = take_arg(k, &p, end);
		return (out->act >= 0 && out->w >= 0 && out->y >= 0 && p == end) ||
		       template_error(b, l, "gemm takes three arguments of this kernel: ACT, W, Y");
	}
	if (strcmp(word, "add") != 0)
		return template_error(b, l, "expected path library, gemm ACT, W, Y or add R, BETA");
	out->add = take_arg(k, &p, end);
	if (out->add < 0)
		return template_error(b, l,
		                      "add takes an argument of this kernel and a factor: R, BETA");
	if (!template_eval(b, l, p, (size_t)(end - p), &v))
		return false;
	out->beta = v.kind == HEAD_INT ? (double)v.i : v.f;
	return v.kind != HEAD_WORD || template_error(b, l, "a factor is a number");
}

static bool
parse_function(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanLaunch *out)
{
	char word[16];
	int64_t v;

	template_word(&p, end, word, sizeof word);
	if (strcmp(word, "pdl") == 0) {
		out->pdl = b->ts->target->arch >= 90;
		return p == end || template_error(b, l, "nothing may follow pdl");
	}
	if (strcmp(word, "grid") == 0)
		return parse_grid(b, l, p, end, out->grid);
	if (strcmp(word, "shared") == 0)
		return int_value(b, l, p, end, 0, 256 << 10, &out->shared);
	if (strcmp(word, "block") == 0 && int_value(b, l, p, end, 1, 1024, &v)) {
		out->block = (int)v;
		return true;
	}
	if (strcmp(word, "cluster") == 0 && int_value(b, l, p, end, 1, 16, &v)) {
		out->cluster = (int)v;
		return true;
	}
	if (strcmp(word, "rounds") == 0 && int_value(b, l, p, end, 1, 1 << 30, &v)) {
		out->rounds = (int)v;
		return true;
	}
	return template_error(b, l,
	                      "expected block, grid, shared, cluster, pdl, rounds, path or rows");
}

/* Parse sym <= INT | sym > INT. */
static bool
parse_rows(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanLaunch *out)
{
	char word[16];
	bool more;

	if (!template_symbol(b, word, template_word(&p, end, word, sizeof word), &out->rows))
		return template_error(b, l, "rows need a symbol: n_row <= 64, n_row > 64");
	trim(&p, &end);
	more = p < end && *p == '>';
	if (!more && (end - p < 2 || memcmp(p, "<=", 2) != 0))
		return template_error(b, l, "rows need <= or >");
	if (!int_value(b, l, p + (more ? 1 : 2), end, !more, 1 << 30,
	               more ? &out->least : &out->most))
		return false;
	out->least += more;
	return true;
}

static bool
parse_path(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanPath *path)
{
	char word[16];

	template_word(&p, end, word, sizeof word);
	*path = strcmp(word, "own") == 0 ? PATH_OWN : PATH_LIBRARY;
	return (p == end && (*path == PATH_OWN || strcmp(word, "library") == 0)) ||
	       template_error(b, l, "a path is own or library");
}

bool
template_launch(Bind *b, const TemplateLine *l, const PlanKernel *k, PlanLaunch *out)
{
	const char *p = l->text, *end = p + l->size, *item, *stop;
	char name[32], word[16];

	*out = (PlanLaunch){
		.cluster = 1,
		.grid = { { SYM_one, 1, 1 }, { SYM_one, 1, 1 }, { SYM_one, 1, 1 } },
		.product = { .act = -1, .w = -1, .y = -1, .add = -1 },
	};
	if (template_word(&p, end, name, sizeof name) == 0)
		return template_error(b, l, "expected the name of a function, main or product");
	bool product = strcmp(name, "product") == 0;
	if (product)
		out->path = PATH_LIBRARY;
	else
		out->fn = strcmp(name, "main") == 0
		              ? b->symbol
		              : arena_printf(b->ts->arena, "%s_%s", b->symbol, name);
	while (next_item(&p, end, &item, &stop)) {
		const char *after = item;
		template_word(&after, stop, word, sizeof word);
		if (!(strcmp(word, "path") == 0 ? parse_path(b, l, after, stop, &out->path)
		      : product                 ? parse_product(b, l, item, stop, k, &out->product)
		      : strcmp(word, "rows") == 0 ? parse_rows(b, l, after, stop, out)
		                                  : parse_function(b, l, item, stop, out)))
			return false;
	}
	if (product)
		return out->product.act >= 0 || template_error(b, l, "a product needs gemm");
	return out->block > 0 || template_error(b, l, "a launch needs block");
}

static bool
parse_map_item(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanMap *out)
{
	char word[16];
	int64_t v[2];

	template_word(&p, end, word, sizeof word);
	if (strcmp(word, "cols") == 0)
		return int_value(b, l, p, end, 8, INT32_MAX, &out->cols);
	if (strcmp(word, "swizzle") == 0 && int_value(b, l, p, end, 0, 128, &v[0])) {
		out->swizzle = (int)v[0];
		return true;
	}
	const char *comma = memchr(p, ',', (size_t)(end - p));
	if (strcmp(word, "box") == 0 && comma && int_value(b, l, p, comma, 1, 256, &v[0]) &&
	    int_value(b, l, comma + 1, end, 1, 256, &v[1])) {
		out->box[0] = (int)v[0];
		out->box[1] = (int)v[1];
		return true;
	}
	return template_error(b, l, "expected cols N, box N, N or swizzle N");
}

bool
template_map(Bind *b, const TemplateLine *l, const PlanKernel *k, PlanMap *out)
{
	const char *p = l->text, *end = p + l->size, *item, *stop;
	char name[32];

	template_word(&p, end, name, sizeof name);
	*out = (PlanMap){ .arg = arg_named(k, name) };
	if (out->arg < 0)
		return template_error(b, l, "a map needs an argument of this kernel");
	while (next_item(&p, end, &item, &stop))
		if (!parse_map_item(b, l, item, stop, out))
			return false;
	if (b->ts->target->kind != TARGET_CUDA || b->ts->target->arch < 90)
		return template_error(b, l, "GPUs have tensor maps from sm_90 on");
	return plan_map_fits(out, k) ||
	       template_error(
	           b, l,
	           "not a valid tensor map: cols and box must be multiples of 16 bytes, swizzle 0, "
	           "32, 64 or 128 bytes, and the box at most as wide as the swizzle");
}
