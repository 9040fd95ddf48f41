/* Heads of templates, what their names mean for an op, and which template runs an op. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/embed.h"
#include "compiler/template_internal.h"
#include "runtime/weights/layout.h"

const char *const phase_name[PHASES] = { "decode", "mixed" };

Loc
template_loc(const Template *t, int line, int col)
{
	return (Loc){ .src = &t->source, .line = line, .col = col };
}

/* ---------------------------------------------------------------- the head ---- */

bool
template_directive(const char *p, size_t n, char word[16], Line *rest, int line)
{
	size_t k = 3, w = 0;

	if (n < 4 || memcmp(p, "//@", 3) != 0)
		return false;
	while (k < n && isalpha((unsigned char)p[k]) && w < 15)
		word[w++] = p[k++];
	word[w] = 0;
	while (k < n && (p[k] == ' ' || p[k] == '\t'))
		k++;
	while (n > k && strchr(" \t\r", p[n - 1]))
		n--;
	*rest = (Line){ p + k, n - k, line };
	return true;
}

static bool
line_is(const Line *l, const char *text)
{
	return l->size == strlen(text) && memcmp(l->text, text, l->size) == 0;
}

static bool
parse_phase(Template *t, const Line *l)
{
	t->both = line_is(l, "both");
	t->phase[PHASE_DECODE] = t->both || line_is(l, "decode");
	t->phase[PHASE_MIXED] = t->both || line_is(l, "mixed");
	return t->phase[PHASE_DECODE] || t->phase[PHASE_MIXED];
}

static bool
parse_directive(Templates *ts, Template *t, const char *word, const Line *l)
{
	Diag *d = ts->diag;
	Loc   loc = template_loc(t, l->line, 1);
	struct { const char *word; Line *list; int *n, max; } lists[] = {
		{ "require", t->require, &t->n_require, MAX_LINES },
		{ "param", t->param, &t->n_param, MAX_LINES },
		{ "arg", t->arg, &t->n_arg, PLAN_MAX_ARGS },
		{ "scratch", t->scratch, &t->n_scratch, 4 },
		{ "launch", t->launch, &t->n_launch, PLAN_MAX_LAUNCH },
		{ "map", t->map, &t->n_map, PLAN_MAX_MAP },
	};

	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		if (strcmp(word, lists[i].word) != 0)
			continue;
		if (*lists[i].n == lists[i].max) {
			err_at(d, loc, "more than %d @%s lines", lists[i].max, word);
			return false;
		}
		lists[i].list[(*lists[i].n)++] = *l;
		return true;
	}
	if (strcmp(word, "include") == 0)
		return true;
	if (strcmp(word, "op") == 0) {
		if (line_is(l, op_info[t->op].name))
			return true;
		err_at(d, loc, "this file is for %s: @op must say so", op_info[t->op].name);
		return false;
	}
	if (strcmp(word, "phase") == 0) {
		if (parse_phase(t, l))
			return true;
		err_at(d, loc, "@phase must be decode, mixed or both");
		return false;
	}
	err_at(d, loc, "unknown directive @%s", word);
	return false;
}

bool
templates_add(Templates *ts, OpKind op, const char *path, const char *text)
{
	Template *t = NEW(ts->arena, Template, 1);
	int       line = 1;

	*t = (Template){ .path = path, .op = op, .both = true, .phase = { true, true } };
	t->source = (SourceText){ path, text, strlen(text) };
	for (const char *p = text; *p; line++) {
		size_t n = strcspn(p, "\n");
		char   word[16];
		Line   rest;
		if (template_directive(p, n, word, &rest, line) && !parse_directive(ts, t, word, &rest))
			return false;
		p += n + (p[n] == '\n');
	}
	ts->t = arena_grow(ts->arena, ts->t, &ts->cap, ts->n + 1, sizeof *ts->t);
	ts->t[ts->n++] = t;
	return true;
}

Templates *
templates_none(const char *target, const Spec *s, Diag *d, Arena *perm)
{
	Templates *ts = NEW(perm, Templates, 1);

	*ts = (Templates){
		.arena = perm, .diag = d, .target = target_find(target), .act_bits = s->activations_i8 ? 8 : 16,
		.deterministic = s->deterministic,
	};
	return ts;
}

Templates *
templates_load(const char *target, const Spec *s, Diag *d, Arena *perm)
{
	static const char *const tail[] = { "_decode", "_mixed", "", "_out" }; /* a phase's own file comes first; rows of n_out last */
	static const char *const variant[] = { "_sm90", "_sm80", "" }; /* the newest instructions come first */
	Templates *ts = templates_none(target, s, d, perm);
	bool       cuda = ts->target->kind == TARGET_CUDA;

	for (int op = 1; op < OP_COUNT; op++)
		for (int k = 0; k < 4; k++)
			for (int v = cuda ? 0 : 2; v < 3; v++) {
				const char *path = arena_printf(perm, "templates/%s/%s%s%s.%s.in", cuda ? "cuda" : "cpu", op_info[op].name,
				                                tail[k], variant[v], cuda ? "cu" : "c");
				const char *text = embed_find(path, NULL);
				if (text)
					templates_add(ts, (OpKind)op, path, text);
			}
	return ts;
}

const char *
template_path(const Template *t)
{
	return t->path;
}

/* ---------------------------------------------------------------- names ---- */

static void
set_word(HeadValue *out, const char *s)
{
	*out = (HeadValue){ .kind = HEAD_WORD };
	snprintf(out->s, sizeof out->s, "%s", s);
}

static bool
same_letters(const char *upper, size_t n, const char *lower)
{
	for (size_t i = 0; i < n; i++)
		if (tolower((unsigned char)upper[i]) != lower[i] || islower((unsigned char)upper[i]))
			return false;
	return lower[n] == 0;
}

static const Value *
value_at(const Bind *b, int arg)
{
	int v = op_arg_value(b->op, arg);
	return v < 0 ? NULL : &b->g->val[v];
}

static const PlanPool *
pool_of(const Bind *b)
{
	for (int k = 0; k < op_n_arg(b->op->kind); k++) {
		const Value *v = value_at(b, k);
		if (v && v->kind == VAL_POOL)
			return &b->g->pool[v->tensor];
	}
	return NULL;
}

/* HAS_<ARG>, <ARG>_DTYPE, <ARG>_LAYOUT, <ARG>_ROWS, <ARG>_COLS */
static bool
name_of_arg(const Bind *b, const char *name, HeadValue *out)
{
	static const char *const tail[] = { "_DTYPE", "_LAYOUT", "_ROWS", "_COLS" };
	size_t n = strlen(name);

	for (int k = 0; k < op_n_arg(b->op->kind); k++) {
		char arg[16];
		op_arg_name(b->op->kind, k, arg, NULL);
		const Value *v = value_at(b, k);
		if (strncmp(name, "HAS_", 4) == 0 && same_letters(name + 4, n - 4, arg)) {
			*out = (HeadValue){ .kind = HEAD_INT, .i = v != NULL };
			return true;
		}
		for (int t = 0; t < 4; t++) {
			size_t m = strlen(tail[t]);
			if (n <= m || strcmp(name + n - m, tail[t]) != 0 || !same_letters(name, n - m, arg))
				continue;
			if (v && v->kind != VAL_WEIGHT)
				return false;
			const PlanTensor *w = v ? &b->g->tensor[v->tensor] : NULL;
			if (t == 0)
				set_word(out, w ? dtype_text(w->dtype) : "none");
			else if (t == 1)
				set_word(out, w ? w->layout : "none");
			else
				*out = (HeadValue){ .kind = HEAD_INT, .i = !w ? 0 : t == 2 ? w->rows : w->cols };
			return true;
		}
	}
	return false;
}

/* May a library do the product with w? It reads 16-bit matrices in file order only, and adds up a row differently from one number of rows
 * to another: not where results must not depend on it. */
static bool
library_may(const Bind *b)
{
	HeadValue d, l;

	if (b->ts->target->kind != TARGET_CUDA || b->ts->deterministic || !name_of_arg(b, "W_DTYPE", &d) || !name_of_arg(b, "W_LAYOUT", &l))
		return false;
	return (strcmp(d.s, "bf16") == 0 || strcmp(d.s, "f16") == 0) && strcmp(l.s, "row") == 0;
}

bool
template_name(void *user, const char *name, HeadValue *out)
{
	const Bind     *b = user;
	const PlanPool *pool = pool_of(b);
	size_t          n = strlen(name);

	if (strcmp(name, "TARGET") == 0)
		return set_word(out, b->ts->target->isa), true;
	if (strcmp(name, "ARCH") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->target->arch }, true;
	if (strcmp(name, "DETERMINISTIC") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->deterministic }, true;
	if (strcmp(name, "SYMBOL") == 0)
		return set_word(out, b->symbol), true;
	if (strcmp(name, "PHASE") == 0)
		return set_word(out, phase_name[b->phase]), true;
	if (strcmp(name, "ACT_BITS") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->act_bits }, true;
	if (strcmp(name, "KV_DTYPE") == 0 && pool)
		return set_word(out, dtype_text(pool->dtype)), true;
	if (strcmp(name, "KV_PAGE_BYTES") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = plan_layer_page_bytes(pool) }, true;
	if (strcmp(name, "LIBRARY") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = library_may(b) }, true;
	for (int i = 0; i < b->op->n_attr; i++) {
		const Attr *a = &b->op->attr[i];
		if (!same_letters(name, n, a->key))
			continue;
		switch (a->kind) {
		case ATTR_INT:
			return *out = (HeadValue){ .kind = HEAD_INT, .i = a->i }, true;
		case ATTR_NUM:
			return *out = (HeadValue){ .kind = HEAD_NUM, .f = a->f }, true;
		case ATTR_WORD:
			return set_word(out, a->s), true;
		case ATTR_LIST:
			return false;
		}
	}
	return name_of_arg(b, name, out);
}

bool
template_eval(const Bind *b, const Template *t, const Line *l, const char *text, size_t size, HeadValue *out)
{
	const char *why;
	size_t      at;

	if (head_eval(text, size, template_name, (void *)b, out, &why, &at))
		return true;
	const char *start = l->text;
	while (start > t->source.text && start[-1] != '\n')
		start--;
	err_at(b->ts->diag, template_loc(t, l->line, (int)(text - start + (long)at) + 1), "%s", why);
	return false;
}

bool
template_holds(const Bind *b, const Template *t, const Line *l, const char *p, const char *end, bool *out)
{
	HeadValue v;

	if (!template_eval(b, t, l, p, (size_t)(end - p), &v))
		return false;
	*out = v.kind == HEAD_INT && v.i;
	return v.kind == HEAD_INT || template_error(b, t, l, "a condition is a comparison or a name that is 0 or 1");
}

/* ---------------------------------------------------------------- arguments ---- */

size_t
template_word(const char **p, const char *end, char *out, size_t cap)
{
	size_t n = 0;

	while (*p < end && (**p == ' ' || **p == '\t'))
		(*p)++;
	while (*p < end && (isalnum((unsigned char)**p) || **p == '_') && n + 1 < cap)
		out[n++] = *(*p)++;
	out[n] = 0;
	return n;
}

bool
template_error(const Bind *b, const Template *t, const Line *l, const char *what)
{
	err_at(b->ts->diag, template_loc(t, l->line, 1), "%s", what);
	return false;
}

/* "n_tok/32, 2*ROWS" -> one symbol times products of integers */
static bool
parse_extent(const Bind *b, const Template *t, const Line *l, const char *p, const char *end, PlanExtent *out)
{
	static const char *const sym[SYM_COUNT] = {
#define X(name) #name,
		PLAN_SYM_LIST(X)
#undef X
	};

	*out = (PlanExtent){ .sym = SYM_one, .mul = 1, .div = 1 };
	while (p < end) {
		while (p < end && *p == ' ')
			p++;
		size_t    n = 0;
		HeadValue v;
		char      word[32];
		while (p + n < end && p[n] != ',')
			n++;
		const char *q = p, *stop = p + n;
		template_word(&q, stop, word, sizeof word);
		int s = 1;
		while (s < SYM_COUNT && strcmp(sym[s], word) != 0)
			s++;
		if (s < SYM_COUNT) {
			if (out->sym != SYM_one)
				return template_error(b, t, l, "an extent has at most one symbol");
			out->sym = (PlanSym)s;
			while (q < stop && *q == ' ')
				q++;
			if (q < stop && (*q++ != '/' || !template_eval(b, t, l, q, (size_t)(stop - q), &v) || v.kind != HEAD_INT || v.i < 1))
				return template_error(b, t, l, "after a symbol only / and a positive integer may follow");
			out->div = q < stop ? v.i : 1;
		} else {
			if (!template_eval(b, t, l, p, n, &v))
				return false;
			if (v.kind != HEAD_INT || v.i < 0 || __builtin_mul_overflow(out->mul, v.i, &out->mul))
				return template_error(b, t, l, "an extent is made of integers, not too large");
		}
		p = stop + (stop < end);
	}
	return true;
}

bool
template_arg(const Bind *b, const Template *t, const Line *l, bool scratch, ArgDecl *out)
{
	static const char *const dirs[] = { "in", "out", "inout", "pool", "rope", "scratch", "none" };
	static const char *const types[] = { "f32", "i32", "f16", "bf16", "u8", "packed" };
	const char *p = l->text, *end = p + l->size;
	char        word[32];

	*out = (ArgDecl){ .dir = DIR_SCRATCH, .type = "", .extent = { SYM_one, 0, 1 } };
	if (template_word(&p, end, out->name, sizeof out->name) == 0)
		return template_error(b, t, l, "expected the name of an argument");
	if (p < end && *p == '?')
		p++;
	if (!scratch) {
		int k = 0;
		template_word(&p, end, word, sizeof word);
		while (k < 7 && strcmp(dirs[k], word) != 0)
			k++;
		if (k == 7)
			return template_error(b, t, l, "expected in, out, inout, pool, rope or none after the name");
		out->dir = (PlanDir)k;
	}
	if (template_word(&p, end, word, sizeof word) == 0)
		return out->dir == DIR_POOL || out->dir == DIR_NONE || out->dir == DIR_ROPE || template_error(b, t, l, "expected a type");
	for (size_t k = 0; k < sizeof types / sizeof *types; k++)
		if (strcmp(types[k], word) == 0)
			out->type = types[k];
	if (!*out->type)
		return template_error(b, t, l, "unknown type: f32, i32, f16, bf16, u8 and packed are known");
	if (p < end && *p == '[') {
		const char *close = memchr(p, ']', (size_t)(end - p));
		if (!close)
			return template_error(b, t, l, "expected ]");
		out->sized = true;
		if (!parse_extent(b, t, l, p + 1, close, &out->extent))
			return false;
		p = close + 1;
	}
	while (p < end && isspace((unsigned char)*p))
		p++;
	return p == end || (scratch && *p == ';') || template_error(b, t, l, scratch ? "only ; if EXPR may follow" : "nothing more may follow");
}

bool
template_scratch(const Bind *b, const Template *t, const Line *l, ArgDecl *out, bool *take)
{
	const char *p = memchr(l->text, ';', l->size), *end = l->text + l->size;
	char        word[4];

	*take = true;
	if (!template_arg(b, t, l, true, out))
		return false;
	if (!p)
		return true;
	p++;
	template_word(&p, end, word, sizeof word);
	return strcmp(word, "if") == 0 ? template_holds(b, t, l, p, end, take) : template_error(b, t, l, "expected if EXPR after ;");
}

/* Whether the declared argument is what the op has there. `fits` is false, without an error, when only the kind of rows
 * differs: then the template is for another use of the op. */
static bool
check_arg(const Bind *b, const Template *t, const Line *l, int arg, ArgDecl *a, const ArgShape *want, bool *fits)
{
	const Value *v = value_at(b, arg);
	char         name[16];
	bool         opt;

	op_arg_name(b->op->kind, arg, name, &opt);
	if (strcmp(name, a->name) != 0) {
		err_at(b->ts->diag, template_loc(t, l->line, 1), "argument %d of %s is %s, not %s", arg, op_info[b->op->kind].name, name, a->name);
		return false;
	}
	if (!v || want->kind == VAL_ORDER) {
		a->dir = DIR_NONE;
		a->extent = (PlanExtent){ SYM_one, 0, 1 };
		return true;
	}
	switch (want->kind) {
	case VAL_ACT:
		if (a->dir != DIR_IN && a->dir != DIR_OUT && a->dir != DIR_INOUT)
			return template_error(b, t, l, "this argument is an activation: in, out or inout");
		if (strcmp(a->type, dtype_text(want->dtype)) != 0)
			return template_error(b, t, l, "this argument has another type in the op");
		*fits = a->extent.sym == v->rows;
		if (*fits && (a->extent.div != 1 || a->extent.mul != want->cols))
			return template_error(b, t, l, "the extent is not the width of this argument of the op");
		return true;
	case VAL_WEIGHT:
		if (a->dir != DIR_IN)
			return template_error(b, t, l, "this argument is a weight: in");
		if (strcmp(a->type, "packed") == 0) {
			a->extent = (PlanExtent){ SYM_one, 0, 1 };
			return true;
		}
		if (want->cols != 0 || strcmp(a->type, "f32") != 0 || a->extent.sym != SYM_one || a->extent.mul != want->rows)
			return template_error(b, t, l, "a matrix is `packed`; a vector is f32[its length]");
		return true;
	case VAL_ROPE:
		if (a->dir != DIR_ROPE)
			return template_error(b, t, l, "this argument is a table of angles: rope");
		a->type = "f32";
		a->extent = (PlanExtent){ SYM_n_tok, want->cols, 1 };
		return true;
	case VAL_POOL:
		if (a->dir != DIR_POOL)
			return template_error(b, t, l, "this argument is a pool");
		return true;
	case VAL_ORDER:
		return true;
	}
	return true;
}

bool
template_args(const Bind *b, const Template *t, ArgDecl arg[PLAN_MAX_ARGS], bool *fits)
{
	ArgShape shape[PLAN_MAX_ARGS];
	int      n = op_n_arg(b->op->kind);

	*fits = true;
	if (t->n_arg != n) {
		err_at(b->ts->diag, template_loc(t, 1, 1), "%d @arg lines, but %s has %d arguments", t->n_arg, op_info[t->op].name, n);
		return false;
	}
	op_shapes(b->op, shape);
	for (int k = 0; k < n; k++) {
		bool fit = true;
		if (!template_arg(b, t, &t->arg[k], false, &arg[k]) || !check_arg(b, t, &t->arg[k], k, &arg[k], &shape[k], &fit))
			return false;
		*fits = *fits && fit;
	}
	return true;
}

/* ---------------------------------------------------------------- choice ---- */

static bool
takes(const Bind *b, const Template *t)
{
	ArgDecl arg[PLAN_MAX_ARGS];
	bool    fits;

	for (int i = 0; i < t->n_require; i++) {
		const Line *l = &t->require[i];
		bool        holds;
		if (!template_holds(b, t, l, l->text, l->text + l->size, &holds) || !holds)
			return false;
	}
	return template_args(b, t, arg, &fits) && fits;
}

const Template *
templates_find(const Templates *ts, const Graph *g, const Op *op, int phase)
{
	for (size_t i = 0; i < ts->n; i++) {
		const Template *t = ts->t[i];
		Bind            b = { ts, g, op, phase, "" };
		if (t->op == op->kind && t->phase[phase] && takes(&b, t))
			return t;
	}
	return NULL;
}

bool
templates_accept(const Templates *ts, const Graph *g, const Op *op)
{
	for (int phase = 0; phase < PHASES; phase++)
		if (!templates_find(ts, g, op, phase))
			return false;
	return true;
}

void
templates_layout(const Templates *ts, PlanTensor *t, int64_t pieces)
{
	bool transposed = false;

	for (int i = 0; i < t->n_src; i++)
		transposed |= t->src[i].transpose > 0;
	if (t->cols == 0 || (transposed && dtype_info(t->dtype)->block_elems > 1)) {
		t->layout = "f32"; /* blocks do not survive a transposition */
		return;
	}
	t->layout = layout_for(ts->target->name, t->dtype, t->rows, t->cols);
	const Layout *l = layout_find(t->layout);
	if (!l || (pieces > 1 && t->rows / pieces % l->group != 0))
		t->layout = "row";
}

const char *
templates_target(const Templates *ts)
{
	return ts->target->name;
}

bool
templates_one_phase(const Templates *ts)
{
	return ts->deterministic && ts->target->kind == TARGET_CUDA;
}
