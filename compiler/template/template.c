/* Values of the names in a template head, checks of its declared arguments against the op's, and
 * selection of a template for an op */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/embed.h"
#include "compiler/template/template_internal.h"
#include "formats/layout.h"

const char *const phase_name[PHASES] = { "decode", "mixed" };

/* ---- errors ---- */

bool
template_error(const Bind *b, const TemplateLine *l, const char *what)
{
	template_error_at(b->ts, l, 1, what);
	return false;
}

/* ---- loading ---- */

bool
templates_add(Templates *ts, OpKind op, const char *path, const char *text)
{
	Template *t = NEW(ts->arena, Template, 1);

	*t = (Template){ .path = path, .op = op, .both = true, .phase = { true, true } };
	if (!template_parse(ts, t, text))
		return false;
	ts->t = arena_grow(ts->arena, ts->t, &ts->cap, ts->n + 1, sizeof *ts->t);
	ts->t[ts->n++] = t;
	return true;
}

Templates *
templates_none(const char *target, const Spec *s, Diag *d, Arena *perm)
{
	Templates *ts = NEW(perm, Templates, 1);

	*ts = (Templates){
		.arena = perm,
		.diag = d,
		.target = target_find(target),
		.act_bits = s->activations_i8 ? 8 : 16,
		.act_bf16 = s->activations_bf16,
		.act_f8 = s->activations_f8,
		.deterministic = s->deterministic,
		.included = embed_find,
	};
	return ts;
}

Templates *
templates_load(const char *target, const Spec *s, Diag *d, Arena *perm)
{
	static const char *const tail[] = {
		"_decode", "_mixed", ""
	}; /* a template for one phase is preferred to one for both */
	static const char *const variant[] = {
		"_sm90", "_sm80", ""
	}; /* templates for newer instruction sets are preferred */
	Templates *ts = templates_none(target, s, d, perm);
	bool cuda = ts->target->kind == TARGET_CUDA;

	for (int op = 1; op < OP_COUNT; op++)
		for (int k = 0; k < 3; k++)
			for (int v = cuda ? 0 : 2; v < 3; v++) {
				const char *name =
				    arena_printf(perm, "%s%s%s.%s.in", op_info[op].name, tail[k],
				                 variant[v], cuda ? "cu" : "c");
				const char *path,
				    *text = embed_find_below(
				        cuda ? "templates/cuda" : "templates/cpu", name, &path);
				if (text)
					templates_add(ts, (OpKind)op, path, text);
			}
	return ts;
}

/* ---- names ---- */

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
		if (tolower((unsigned char)upper[i]) != lower[i] ||
		    islower((unsigned char)upper[i]))
			return false;
	return lower[n] == 0;
}

static const Value *
value_at(const Bind *b, int arg)
{
	int v = b->op->arg[arg];
	return v < 0 ? NULL : &b->g->val[v];
}

static const PlanPool *
pool_of(const Bind *b)
{
	for (int k = 0; k < op_info[b->op->kind].n_arg; k++) {
		const Value *v = value_at(b, k);
		if (v && v->kind == VAL_POOL)
			return &b->g->pool[v->tensor];
	}
	return NULL;
}

/* Evaluate HAS_<ARG>, <ARG>_DTYPE (of an activation: its type in this phase), <ARG>_LAYOUT,
 * <ARG>_BLOCK (elements per block), <ARG>_ROWS or <ARG>_COLS. */
static bool
name_of_arg(const Bind *b, const char *name, HeadValue *out)
{
	static const char *const tail[] = { "_DTYPE", "_LAYOUT", "_BLOCK", "_ROWS", "_COLS" };
	size_t n = strlen(name);

	for (int k = 0; k < op_info[b->op->kind].n_arg; k++) {
		const char *arg = op_info[b->op->kind].arg[k].name;
		const Value *v = value_at(b, k);
		if (strncmp(name, "HAS_", 4) == 0 && same_letters(name + 4, n - 4, arg)) {
			*out = (HeadValue){ .kind = HEAD_INT, .i = v != NULL };
			return true;
		}
		for (int t = 0; t < 5; t++) {
			size_t m = strlen(tail[t]);
			if (n <= m || strcmp(name + n - m, tail[t]) != 0 ||
			    !same_letters(name, n - m, arg))
				continue;
			if (v && v->kind == VAL_ACT && t == 0)
				return set_word(out, dtype_text(value_dtype(v, b->phase))), true;
			if (v && v->kind != VAL_WEIGHT)
				return false;
			const PlanTensor *w = v ? &b->g->tensor[v->tensor] : NULL;
			if (t == 0)
				set_word(out, w ? dtype_text(w->dtype) : "none");
			else if (t == 1)
				set_word(out, w ? w->layout : "none");
			else
				*out =
				    (HeadValue){ .kind = HEAD_INT,
					         .i = !w       ? 0
					              : t == 2 ? dtype_info(w->dtype)->block_elems
					              : t == 3 ? w->rows
					                       : w->cols };
			return true;
		}
	}
	return false;
}

/* Return whether a library may do the GEMM with w. Libraries read only 16-bit matrices in file
 * order. Their order of summation depends on the number of rows, so they are excluded if results
 * must not depend on the batch. */
static bool
library_may(const Bind *b)
{
	HeadValue d, l;

	if (b->ts->target->kind != TARGET_CUDA || b->ts->deterministic ||
	    !name_of_arg(b, "W_DTYPE", &d) || !name_of_arg(b, "W_LAYOUT", &l))
		return false;
	return (strcmp(d.s, "bf16") == 0 || strcmp(d.s, "f16") == 0) && strcmp(l.s, "row") == 0;
}

/* Return the symbol of the rows that the op writes: n_tok, or n_out after a gather. */
static PlanSym
row_symbol(const Bind *b)
{
	for (int k = op_info[b->op->kind].n_arg; k-- > 0;) {
		const Value *v = value_at(b, k);
		if (v && v->kind == VAL_ACT)
			return v->rows;
	}
	return SYM_n_tok;
}

bool
template_symbol(const Bind *b, const char *word, size_t n, PlanSym *out)
{
	if (n == 5 && memcmp(word, "n_row", 5) == 0)
		return *out = row_symbol(b), true;
	for (int s = SYM_one + 1; s < SYM_COUNT; s++)
		if (strlen(plan_sym_text[s]) == n && memcmp(plan_sym_text[s], word, n) == 0)
			return *out = (PlanSym)s, true;
	return false;
}

/* Evaluate a name that @let defines: the first line with this name whose conditions hold applies.
 * *is: whether there is one. Returns false if an error has been reported. */
static bool
name_of_let(Bind *b, const char *name, HeadValue *out, bool *is)
{
	const TemplateLines *let = &b->t->head[D_LET];

	*is = false;
	for (size_t i = 0; i < let->n && !*is; i++) {
		const TemplateLine *l = &let->line[i];
		const char *p = l->text, *end = p + l->size;
		char word[48];
		bool ok;
		template_word(&p, end, word, sizeof word);
		if (strcmp(word, name) != 0)
			continue;
		if (b->depth == 20)
			return template_error(b, l, "the definition of this name is circular");
		b->depth++;
		ok = template_taken(b, l, is);
		if (ok && *is) {
			p = (const char *)memchr(p, '=', (size_t)(end - p)) +
			    1; /* template_head.c has checked that this is valid */
			ok = template_eval(b, l, p, (size_t)(end - p), out);
		}
		b->depth--;
		if (!ok)
			return false;
	}
	return true;
}

bool
template_name(void *user, const char *name, HeadValue *out)
{
	Bind *b = user;
	const PlanPool *pool = pool_of(b);
	size_t n = strlen(name);
	bool is;

	if (!name_of_let(b, name, out, &is))
		return false;
	if (is)
		return true;
	if (strcmp(name, "TARGET") == 0)
		return set_word(out, b->ts->target->isa), true;
	if (strcmp(name, "ARCH") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->target->kernels }, true;
	if (strcmp(name, "DETERMINISTIC") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->deterministic }, true;
	if (strcmp(name, "SYMBOL") == 0)
		return set_word(out, b->symbol), true;
	if (strcmp(name, "PHASE") == 0)
		return set_word(out, phase_name[b->phase]), true;
	if (strcmp(name, "ACT_BITS") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->act_bits }, true;
	if (strcmp(name, "ACT_BF16") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->act_bf16 }, true;
	if (strcmp(name, "ACT_F8") == 0)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = b->ts->act_f8 }, true;
	if (strcmp(name, "KV_DTYPE") == 0 && pool)
		return set_word(out, pool->k == pool->v ? kv_type_info(pool->k)->text : "mixed"),
		       true;
	if (strcmp(name, "KV_K") == 0 && pool)
		return set_word(out, kv_type_info(pool->k)->text), true;
	if (strcmp(name, "KV_V") == 0 && pool)
		return set_word(out, kv_type_info(pool->v)->text), true;
	if (strcmp(name, "KV_QUANTISED") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT,
			                   .i = kv_quantised(pool->k) || kv_quantised(pool->v) },
		       true;
	if (strcmp(name, "KV_LATENTS") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT,
			                   .i = pool->k == pool->v && kv_for_latents(pool->k) },
		       true;
	if (strcmp(name, "KV_ROTATE") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = pool->rotate }, true;
	if (strcmp(name, "KV_PAGE_BYTES") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = plan_layer_page_bytes(pool) },
		       true;
	if (strcmp(name, "KV_EXACT_BYTES") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = plan_layer_exact_bytes(pool) },
		       true;
	if (strcmp(name, "KV_RECENT") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = pool->recent }, true;
	if (strcmp(name, "KV_SINKS") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = pool->sinks }, true;
	if (strcmp(name, "KV_WINDOWED") == 0 && pool)
		return *out = (HeadValue){ .kind = HEAD_INT, .i = pool->keep > 0 }, true;
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
		}
	}
	return name_of_arg(b, name, out);
}

bool
template_eval(Bind *b, const TemplateLine *l, const char *text, size_t size, HeadValue *out)
{
	const char *why, *start = l->text;
	size_t at;
	int before = b->ts->diag->n_error;

	if (head_eval(text, size, template_name, b, out, &why, &at))
		return true;
	while (start > l->piece->source.text && start[-1] != '\n')
		start--;
	if (b->ts->diag->n_error == before) /* otherwise evaluating a @let has reported the error */
		template_error_at(b->ts, l, (int)(text - start + (long)at) + 1, why);
	return false;
}

static bool
holds(Bind *b, const TemplateLine *l, bool *out)
{
	HeadValue v;

	if (!template_eval(b, l, l->text, l->size, &v))
		return false;
	*out = v.kind == HEAD_INT && v.i;
	return v.kind == HEAD_INT ||
	       template_error(b, l, "a condition is a comparison or a name that is 0 or 1");
}

bool
template_taken(Bind *b, const TemplateLine *l, bool *out)
{
	const Condition *c = l->when < 0 ? NULL : &b->t->condition[l->when];
	bool is;

	*out = true;
	if (!c)
		return true;
	/* Outer conditions come first, because a condition inside a false one need not be valid. */
	if (!template_taken(b, &c->expr, out))
		return false;
	if (*out && b->cond_state[l->when] == COND_UNKNOWN) {
		if (!holds(b, &c->expr, &is))
			return false;
		b->cond_state[l->when] = is != c->negate ? COND_TRUE : COND_FALSE;
	}
	*out = *out && b->cond_state[l->when] == COND_TRUE;
	return true;
}

/* ---- arguments ---- */

/* Parse a list such as "n_tok/32, 2*ROWS" into one symbol and an integer factor. */
static bool
parse_extent(Bind *b, const TemplateLine *l, const char *p, const char *end, PlanExtent *out)
{
	*out = (PlanExtent){ .sym = SYM_one, .mul = 1, .div = 1 };
	while (p < end) {
		while (p < end && *p == ' ')
			p++;
		size_t n = 0;
		HeadValue v;
		PlanSym sym;
		char word[32];
		while (p + n < end && p[n] != ',')
			n++;
		const char *q = p, *stop = p + n;
		if (template_symbol(b, word, template_word(&q, stop, word, sizeof word), &sym)) {
			if (out->sym != SYM_one)
				return template_error(b, l, "an extent has at most one symbol");
			out->sym = sym;
			while (q < stop && *q == ' ')
				q++;
			if (q < stop &&
			    (*q++ != '/' || !template_eval(b, l, q, (size_t)(stop - q), &v) ||
			     v.kind != HEAD_INT || v.i < 1))
				return template_error(b, l,
				                      "only / and a positive integer may follow "
				                      "the symbol of an extent");
			out->div = q < stop ? v.i : 1;
		} else {
			if (!template_eval(b, l, p, n, &v))
				return false;
			if (v.kind != HEAD_INT || v.i < 0 ||
			    __builtin_mul_overflow(out->mul, v.i, &out->mul))
				return template_error(b, l,
				                      "an extent needs integers below the limit");
		}
		p = stop + (stop < end);
	}
	return true;
}

static bool
parse_arg(Bind *b, const TemplateLine *l, bool scratch, ArgDecl *out)
{
	static const char *const types[] = { "f32", "i32", "f16", "bf16", "u8", "packed" };
	const char *p = l->text, *end = p + l->size;
	char word[32];

	*out = (ArgDecl){ .dir = DIR_SCRATCH, .type = "", .extent = { SYM_one, 0, 1 } };
	if (template_word(&p, end, out->name, sizeof out->name) == 0)
		return template_error(b, l, "expected the name of an argument");
	if (p < end && *p == '?')
		p++;
	if (!scratch) {
		int k = 0;
		template_word(&p, end, word, sizeof word);
		while (k < DIR_COUNT && strcmp(plan_dir_text[k], word) != 0)
			k++;
		if (k == DIR_COUNT)
			return template_error(
			    b, l, "expected in, out, inout, pool, rope or none after the name");
		out->dir = (PlanDir)k;
	}
	if (out->dir == DIR_ROPE)
		out->type = "f32";
	if (template_word(&p, end, word, sizeof word) == 0)
		return out->dir == DIR_POOL || out->dir == DIR_NONE || out->dir == DIR_ROPE ||
		       template_error(b, l, "expected a type");
	for (size_t k = 0; k < sizeof types / sizeof *types; k++)
		if (strcmp(types[k], word) == 0)
			out->type = types[k];
	if (!*out->type)
		return template_error(b, l,
		                      "unknown type: f32, i32, f16, bf16, u8 and packed are known");
	if (p < end && *p == '[') {
		const char *close = memchr(p, ']', (size_t)(end - p));
		if (!close)
			return template_error(b, l, "expected ]");
		out->sized = true;
		if (!parse_extent(b, l, p + 1, close, &out->extent))
			return false;
		p = close + 1;
	}
	while (p < end && isspace((unsigned char)*p))
		p++;
	return p == end || template_error(b, l, "unexpected text after the end");
}

bool
template_scratch(Bind *b, const TemplateLine *l, ArgDecl *out)
{
	return parse_arg(b, l, true, out) &&
	       ((out->sized && out->extent.mul > 0 && strcmp(out->type, "packed") != 0) ||
	        template_error(
	            b, l, "scratch needs an element type and an extent of at least one element"));
}

/* Check a declared argument against the op's. *fits is set to false, without an error, if only the
 * kind of rows or the type in this phase differs: the template is then for another use of the
 * op. */
static bool
check_arg(Bind *b, const TemplateLine *l, int arg, ArgDecl *a, const ArgShape *want, bool *fits)
{
	const Value *v = value_at(b, arg);
	const char *name = op_info[b->op->kind].arg[arg].name,
	           *cond_state = v ? dtype_text(value_dtype(v, b->phase)) : "";

	if (strcmp(name, a->name) != 0) {
		return template_error(b, l,
		                      arena_printf(b->ts->arena, "argument %d of %s is %s, not %s",
		                                   arg, op_info[b->op->kind].name, name, a->name));
	}
	if (!v || want->kind == VAL_ORDER) {
		a->dir = DIR_NONE;
		a->extent = (PlanExtent){ SYM_one, 0, 1 };
		return true;
	}
	switch (want->kind) {
	case VAL_ACT:
		if (a->dir != DIR_IN && a->dir != DIR_OUT && a->dir != DIR_INOUT)
			return template_error(b, l,
			                      "this argument is an activation: in, out or inout");
		if (strcmp(a->type, cond_state) != 0 &&
		    strcmp(a->type, dtype_text(want->dtype)) != 0)
			return template_error(b, l, "this argument has another type in the op");
		*fits = a->extent.sym == v->rows && strcmp(a->type, cond_state) == 0;
		if (*fits && (a->extent.div != 1 || a->extent.mul != want->cols))
			return template_error(
			    b, l, "the extent is not the width of this argument of the op");
		return true;
	case VAL_WEIGHT:
		if (a->dir != DIR_IN)
			return template_error(b, l, "this argument is a weight: in");
		if (strcmp(a->type, "packed") == 0) {
			a->extent = (PlanExtent){ SYM_one, 0, 1 };
			return true;
		}
		if (want->cols != 0 || strcmp(a->type, "f32") != 0 || a->extent.sym != SYM_one ||
		    a->extent.mul != want->rows)
			return template_error(b, l,
			                      "a matrix is `packed`; a vector is f32[its length]");
		return true;
	case VAL_ROPE:
		if (a->dir != DIR_ROPE)
			return template_error(b, l, "this argument is a table of angles: rope");
		a->extent = (PlanExtent){ SYM_n_tok, want->cols, 1 };
		return true;
	case VAL_POOL:
		if (a->dir != DIR_POOL)
			return template_error(b, l, "this argument is a pool");
		return true;
	case VAL_ORDER:
		return true;
	}
	return true;
}

bool
template_args(Bind *b, ArgDecl arg[PLAN_MAX_ARGS], bool *fits)
{
	const TemplateLines *head = &b->t->head[D_ARG];
	const TemplateLine first = {
		.text = b->t->piece->source.text, .piece = b->t->piece, .line = 1, .when = -1
	};
	ArgShape shape[OP_MAX_ARGS];
	int n = op_info[b->op->kind].n_arg, k = 0;

	*fits = true;
	graph_shapes(b->g, b->op, shape);
	for (size_t i = 0; i < head->n; i++) {
		bool fit = true, take;
		if (!template_taken(b, &head->line[i], &take))
			return false;
		if (!take)
			continue;
		if (k < n && (!parse_arg(b, &head->line[i], false, &arg[k]) ||
		              !check_arg(b, &head->line[i], k, &arg[k], &shape[k], &fit)))
			return false;
		*fits = *fits && fit;
		k++;
	}
	return k == n ||
	       template_error(b, &first,
	                      arena_printf(b->ts->arena, "%d @arg lines, but %s has %d arguments",
	                                   k, op_info[b->op->kind].name, n));
}

/* ---- selection ---- */

static bool
takes(Bind *b)
{
	const TemplateLines *require = &b->t->head[D_REQUIRE];
	ArgDecl arg[PLAN_MAX_ARGS];
	bool fits, is;

	for (size_t i = 0; i < require->n; i++) {
		const TemplateLine *l = &require->line[i];
		if (!template_taken(b, l, &is) || (is && (!holds(b, l, &is) || !is)))
			return false;
	}
	return template_args(b, arg, &fits) && fits;
}

const Template *
templates_find(const Templates *ts, const Graph *g, const Op *op, int phase)
{
	for (size_t i = 0; i < ts->n; i++) {
		const Template *t = ts->t[i];
		Bind b = { .ts = ts, .t = t, .g = g, .op = op, .phase = phase, .symbol = "" };
		if (t->op == op->kind && t->phase[phase] && takes(&b))
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
templates_layout(const Templates *ts, PlanTensor *t)
{
	if (t->cols == 0) {
		t->layout = "f32";
		return;
	}
	t->layout = target_layout(ts->target, t->dtype, t->rows, t->cols);
}

const Target *
templates_target(const Templates *ts)
{
	return ts->target;
}

bool
templates_one_phase(const Templates *ts, const Graph *g)
{
	return g->spec->attention.mask == MASK_NONE ||
	       (ts->deterministic && ts->target->kind == TARGET_CUDA);
}
