/* Expansion of a template for an op: text, headers, key, arguments. */
#include "compiler/template_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/embed.h"
#include "base/sha256.h"

/* Text that grows in the arena, so that nothing is left behind when the arena's way out is taken. */
typedef struct Text {
	Arena *arena;
	char  *data;
	size_t len, cap;
} Text;

static void
text_add(Text *t, const char *s, size_t n)
{
	t->data = arena_grow(t->arena, t->data, &t->cap, t->len + n + 1, 1);
	memcpy(t->data + t->len, s, n);
	t->len += n;
	t->data[t->len] = 0;
}

static const Line *
param_find(const Template *t, const char *name, size_t n, char type[8])
{
	for (int i = 0; i < t->n_param; i++) {
		const Line *l = &t->param[i];
		const char *p = l->text;
		char        word[48];
		template_word(&p, l->text + l->size, word, sizeof word);
		if (strlen(word) != n || memcmp(word, name, n) != 0)
			continue;
		template_word(&p, l->text + l->size, type, 8);
		return l;
	}
	return NULL;
}

/* ${NAME} as C: integers and words as they are, numbers as float constants */
static bool
put_value(const Bind *b, const Template *t, const char *name, size_t n, int line, int col, Text *out)
{
	static const char *const type_text[] = { [HEAD_INT] = "int", [HEAD_NUM] = "f32", [HEAD_WORD] = "word" };
	char        word[64], type[8];
	HeadValue   v;

	snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63), name);
	if (!template_name((void *)b, word, &v)) {
		err_at(b->ts->diag, template_loc(t, line, col), "%s: the op %s gives no such value", word, op_info[t->op].name);
		return false;
	}
	const Line *decl = param_find(t, name, n, type);
	if (decl && strcmp(type, type_text[v.kind]) != 0) {
		err_at(b->ts->diag, template_loc(t, decl->line, 1), "%s is declared as %s, its value is %s", word, type, type_text[v.kind]);
		return false;
	}
	if (v.kind == HEAD_INT) {
		snprintf(word, sizeof word, "%lld", (long long)v.i);
	} else if (v.kind == HEAD_WORD) {
		memcpy(word, v.s, sizeof word);
	} else {
		Strbuf number = { 0 };
		plan_write_num(&number, v.f);
		snprintf(word, sizeof word, "%sf", strbuf_str(&number));
		strbuf_release(&number);
	}
	text_add(out, word, strlen(word));
	return true;
}

static bool
expand_line(const Bind *b, const Template *t, const char *p, size_t n, int line, Text *out)
{
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
			err_at(b->ts->diag, template_loc(t, line, (int)i + 1), "${ without }");
			return false;
		}
		if (!put_value(b, t, p + i + 2, (size_t)(close - p) - i - 2, line, (int)i + 1, out))
			return false;
		i = (size_t)(close - p) + 1;
	}
	text_add(out, "\n", 1);
	return true;
}

/* `#if ${NAME}` is decided here, so that an emitted file holds what applies to it. Such a condition ends at the next #endif. */
typedef enum Branch { BRANCH_NONE, BRANCH_TAKEN, BRANCH_LEFT_OUT } Branch;

static bool
branch(const Bind *b, const Template *t, const char *p, size_t n, int line, Branch *at, bool *is_one, Text *out)
{
	static const char open[] = "#if ${", close[] = "#endif";

	*is_one = true;
	if (n > sizeof open && memcmp(p, open, sizeof open - 1) == 0 && p[n - 1] == '}') {
		size_t start = out->len;
		if (!expand_line(b, t, p + 4, n - 4, line, out))
			return false;
		*at = out->data[start] == '0' ? BRANCH_LEFT_OUT : BRANCH_TAKEN;
		out->len = start;
		out->data[start] = 0;
	} else if (*at != BRANCH_NONE && n == sizeof close - 1 && memcmp(p, close, n) == 0) {
		*at = BRANCH_NONE;
	} else {
		*is_one = *at == BRANCH_LEFT_OUT;
	}
	return true;
}

static bool
expand_text(const Bind *b, const Template *t, Text *out)
{
	Branch at = BRANCH_NONE;
	bool gone;
	static const char abi[] = "#include \"common/cuda_step.h\"\n"; /* every CUDA kernel takes an llmc_call */
	int line = 1;

	if (t->n_launch)
		text_add(out, abi, sizeof abi - 1);
	for (const char *p = t->source.text; *p; line++) {
		size_t n = strcspn(p, "\n");
		char   word[16];
		Line   rest;
		if (!template_directive(p, n, word, &rest, line)) {
			if (!branch(b, t, p, n, line, &at, &gone, out) || (!gone && !expand_line(b, t, p, n, line, out)))
				return false;
		} else if (strcmp(word, "include") == 0) {
			text_add(out, "#include \"common/", 17);
			text_add(out, rest.text, rest.size);
			text_add(out, "\"\n", 2);
		}
		p += n + (p[n] == '\n');
	}
	return true;
}

typedef struct Headers { const char *name[32]; int n; } Headers;

/* All "common/x.h" that a text includes, and what these include. */
static bool
headers_of(const Templates *ts, const Template *t, const char *text, Headers *h)
{
	for (const char *p = text; (p = strstr(p, "#include \"")); ) {
		p += 10;
		size_t      n = strcspn(p, "\"\n");
		bool        with = strncmp(p, "common/", 7) == 0;
		const char *name = arena_printf(ts->arena, "%s%.*s", with ? "" : "common/", (int)n, p);
		int         k = 0;
		while (k < h->n && strcmp(h->name[k], name) != 0)
			k++;
		if (k < h->n)
			continue;
		const char *body = embed_find(arena_printf(ts->arena, "templates/%s", name), NULL);
		if (!body || h->n == 32) {
			err_at(ts->diag, template_loc(t, 1, 1), "%s: no such header in templates/, or more than 32", name);
			return false;
		}
		h->name[h->n++] = name;
		if (!headers_of(ts, t, body, h))
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
scratch_args(const Bind *b, const Template *t, Kernel *k)
{
	bool gone = false;

	for (int i = 0; i < t->n_scratch; i++) {
		ArgDecl a;
		bool    take;
		if (!template_scratch(b, t, &t->scratch[i], &a, &take))
			return false;
		if (take && gone)
			return template_error(b, t, &t->scratch[i], "scratch with a condition comes last: what follows would have another number");
		gone = !take;
		if (gone)
			continue;
		if (!a.sized || a.extent.mul < 1 || strcmp(a.type, "packed") == 0)
			return template_error(b, t, &t->scratch[i], "scratch needs an element type and an extent of at least one element");
		if (k->row.n_arg == PLAN_MAX_ARGS)
			return template_error(b, t, &t->scratch[i], "too many arguments");
		k->row.arg[k->row.n_arg++] = (PlanKernelArg){ arena_strdup(b->ts->arena, a.name), DIR_SCRATCH, a.type, a.extent };
		k->scratch_dtype[k->n_scratch++] = dtype_from_text(a.type);
	}
	return true;
}

/* Without a product the way of its own is the only one. */
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

static bool
launches(const Bind *b, const Template *t, Kernel *k)
{
	if (b->ts->target->kind == TARGET_CUDA && t->n_launch == 0) {
		err_at(b->ts->diag, template_loc(t, 1, 1), "a CUDA template needs its @launch lines");
		return false;
	}
	k->row.n_launch = 0;
	for (int i = 0; i < t->n_launch; i++) {
		bool take;
		if (!template_launch(b, t, i, b->symbol, &k->row, &k->row.launch[k->row.n_launch], &take))
			return false;
		k->row.n_launch += take;
	}
	if (!plan_product(&k->row))
		one_path(&k->row);
	const char *why;
	if (!plan_paths_fit(&k->row, &why))
		return template_error(b, t, &t->launch[0], why);
	k->row.n_map = 0;
	for (int i = 0; i < t->n_map; i++) {
		bool take;
		if (!template_map(b, t, i, &k->row, &k->row.map[k->row.n_map], &take))
			return false;
		k->row.n_map += take;
	}
	if (k->row.n_map && (b->ts->target->kind != TARGET_CUDA || b->ts->target->arch < 90))
		return template_error(b, t, &t->map[0], "GPUs have tensor maps from sm_90 on");
	return true;
}

/* Hash of all that decides what the kernel is, before its name is known. */
static const char *
kernel_key(const Templates *ts, const Kernel *k, const char *text)
{
	Sha256 sum;
	char   hex[65];

	sha256_init(&sum);
	sha256_add(&sum, text, strlen(text) + 1);
	for (int i = 0; i < k->n_header; i++) {
		size_t      size;
		const char *body = embed_find(arena_printf(ts->arena, "templates/%s", k->header[i]), &size);
		sha256_add(&sum, k->header[i], strlen(k->header[i]) + 1);
		sha256_add(&sum, body, size);
	}
	for (int i = 0; i < k->row.n_arg; i++) {
		const PlanKernelArg *a = &k->row.arg[i];
		const char *line = arena_printf(ts->arena, "%s %d %s %d %lld %lld", a->name, a->dir, a->type, a->extent.sym,
		                                (long long)a->extent.mul, (long long)a->extent.div);
		sha256_add(&sum, line, strlen(line) + 1);
	}
	for (int i = 0; i < k->row.n_launch; i++) {
		const PlanLaunch *u = &k->row.launch[i];
		const char *line = !u->fn ? arena_printf(ts->arena, "product %d %d %d %d %a", u->product.act, u->product.w, u->product.y,
		                                         u->product.add, u->product.beta)
		                          : arena_printf(ts->arena, "%s %d %d %d %lld %d", u->fn, u->block, u->cluster, u->pdl,
		                                         (long long)u->shared, u->path);
		sha256_add(&sum, line, strlen(line) + 1);
		for (int d = 0; d < 3; d++) {
			line = arena_printf(ts->arena, "%d %lld %lld", u->grid[d].sym, (long long)u->grid[d].mul, (long long)u->grid[d].div);
			sha256_add(&sum, line, strlen(line) + 1);
		}
	}
	for (int i = 0; i < k->row.n_map; i++) {
		const PlanMap *m = &k->row.map[i];
		const char *line = arena_printf(ts->arena, "%d %lld %d %d %d", m->arg, (long long)m->cols, m->box[0], m->box[1], m->swizzle);
		sha256_add(&sum, line, strlen(line) + 1);
	}
	sha256_hex(&sum, hex);
	return arena_strndup(ts->arena, hex, 12);
}

const Kernel *
template_expand(const Templates *ts, const Template *t, const Graph *g, const Op *op, int phase)
{
	Arena      *a = ts->arena;
	Kernel     *k = NEW(a, Kernel, 1);
	const char *stem = t->both ? op_info[t->op].name : arena_printf(a, "%s_%s", op_info[t->op].name, phase_name[phase]);
	Bind        b = { ts, g, op, phase, stem };
	Text        text = { .arena = a };
	ArgDecl     arg[PLAN_MAX_ARGS];
	Headers     h = { .n = 0 };
	bool        fits;

	for (int i = 0; i < t->n_param; i++) { /* names that no line uses are bound and checked as well */
		const char *p = t->param[i].text;
		char        name[48];
		size_t      n = template_word(&p, p + t->param[i].size, name, sizeof name);
		if (!put_value(&b, t, name, n, t->param[i].line, 1, &text))
			return NULL;
	}
	if (!template_args(&b, t, arg, &fits))
		return NULL;
	for (int i = 0; i < t->n_arg; i++)
		k->row.arg[k->row.n_arg++] = (PlanKernelArg){ arena_strdup(a, arg[i].name), arg[i].dir, arg[i].type, arg[i].extent };
	if (!scratch_args(&b, t, k) || !launches(&b, t, k))
		return NULL;
	text.len = 0;
	if (!expand_text(&b, t, &text) || !headers_of(ts, t, text.data, &h))
		return NULL;
	sort_names(&h);
	const char **names = NEW(a, const char *, h.n + 1);
	memcpy(names, h.name, (size_t)h.n * sizeof *names);
	k->header = names;
	k->n_header = h.n;
	k->key = kernel_key(ts, k, text.data);
	k->row.symbol = b.symbol = arena_printf(a, "%s_%s", stem, k->key);
	k->row.id = arena_printf(a, "%s.%s", stem, k->key);
	k->row.file = arena_printf(a, "kernels/%s.%s", k->row.id, t->n_launch ? "cu" : "c");
	text.len = 0;
	if (!expand_text(&b, t, &text) || !launches(&b, t, k))
		return NULL;
	k->text = arena_strndup(a, text.data, text.len);
	return k;
}
