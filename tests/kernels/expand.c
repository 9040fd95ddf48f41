/* Expands a template for one op as the compiler does, for the kernel tests (tests/kernels/expand.py
 * runs this program):
 *
 *     expand TARGET FILE [NAME=VALUE...]
 *
 * FILE: an embedded template as templates/cpu/NAME or templates/cuda/NAME (in any subfolder), or a
 * file with the same grammar. The values are the op's attributes and properties that the compiler
 * takes from the model. HAS_X=0 omits an optional argument. W_DTYPE, W_ROWS and W_LAYOUT describe a
 * matrix, X_DTYPE the type of an activation in memory. KV_DTYPE (or KV_K, KV_V and KV_ROTATE) and
 * KV_PAGE_BYTES describe the pool. ROWS_OF selects n_tok or n_out rows of activations (default:
 * from the template). Also DETERMINISTIC, ACT_BITS, ACT_BF16. Values that the op does not use are
 * ignored.
 *
 * Output: the size of the expanded text in bytes and a newline, the text; the same for each matmul
 * file that it calls; 0 and a newline; then a plan with the kernel rows of all. Exit status 3: the
 * template does not support this op. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "compiler/select_kernels.h"

static int n_given;
static char **given;

static const char *
value_of(const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < n_given; i++)
		if (strncmp(given[i], name, n) == 0 && given[i][n] == '=')
			return given[i] + n + 1;
	return NULL;
}

/* Looks up the value of "HAS_" + W, or of W + "_DTYPE", with upper-case names. */
static const char *
value_about(const char *before, const char *name, const char *after)
{
	char key[64];
	size_t i = strlen(before);

	snprintf(key, sizeof key, "%s%s%s", before, name, after);
	for (; key[i]; i++)
		key[i] = key[i] >= 'a' && key[i] <= 'z' ? (char)(key[i] - 32) : key[i];
	return value_of(key);
}

static int64_t
number(const char *text, int64_t without)
{
	return text ? strtoll(text, NULL, 10) : without;
}

static void
set_attributes(Graph *g, Op *op)
{
	AttrKind kind;

	for (const char *key; (key = op_attr(op->kind, op->n_attr, &kind)) != NULL;) {
		const char *text = value_about("", key, "");
		if (!text) {
			fprintf(stderr, "expand: %s needs a value for %s\n", op_info[op->kind].name,
			        key);
			exit(2);
		}
		if (kind == ATTR_INT)
			op_set_int(g, op, key, strtoll(text, NULL, 10));
		else if (kind == ATTR_NUM)
			op_set_num(g, op, key, strtod(text, NULL));
		else
			op_set_word(g, op, key, text);
	}
}

static int
weight(Graph *g, const char *name, ArgRole role, const ArgShape *shape)
{
	const char *dtype = value_about("", name, "_DTYPE");

	g->tensor =
	    arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1, sizeof *g->tensor);
	g->tensor[g->n_tensor] = (PlanTensor){
		.id = name,
		.dtype = shape->cols && dtype ? dtype_from_text(dtype) : DT_F32,
		.layout = shape->cols ? "row" : "f32",
		.rows =
		    role == ROLE_TABLE ? number(value_about("", name, "_ROWS"), 1) : shape->rows,
		.cols = shape->cols,
	};
	return (int)g->n_tensor++;
}

static void
add_pool(Graph *g, const PoolShape *shape)
{
	const char *both = value_of("KV_DTYPE"), *k = value_of("KV_K"), *v = value_of("KV_V");
	KvType t = both ? kv_type_from_text(both) : KVT_F16;

	g->pool = NEW(g->arena, PlanPool, 1);
	g->pool[g->n_pool++] = (PlanPool){
		.id = "kv",
		.mla = shape->mla,
		.k = k ? kv_type_from_text(k) : t,
		.v = v ? kv_type_from_text(v) : t,
		.n_layers = 1,
		.rotate = number(value_of("KV_ROTATE"), 0) != 0,
		.recent = number(value_of("KV_RECENT"), 0),
		.sinks = number(value_of("KV_SINKS"), 0),
		.keep = number(value_of("KV_WINDOWED"), 0),
		.kv_heads = shape->kv_heads,
		.k_dim = shape->k_dim,
		.v_dim = shape->v_dim,
	};
	if (shape->state) {
		g->pool[g->n_pool - 1].state = true;
		g->pool[g->n_pool - 1].k = g->pool[g->n_pool - 1].v = KVT_F32;
		return;
	}
	/* pages of another size than the op's; some kernels reject them */
	PlanPool *p = &g->pool[g->n_pool - 1];
	int64_t bytes = number(value_of("KV_PAGE_BYTES"), -1);
	if (bytes >= 0 && bytes != plan_layer_page_bytes(p))
		*p = (PlanPool){ .id = "kv",
			         .k = p->k,
			         .v = p->v,
			         .n_layers = 1,
			         .kv_heads = 1,
			         .k_dim = bytes / (PLAN_KV_PAGE * (int64_t)kv_row_bytes(p->k, 1)) };
}

static void
set_arguments(Graph *g, Op *op, PlanSym rows)
{
	const OpInfo *info = &op_info[op->kind];
	ArgShape shape[OP_MAX_ARGS];

	graph_shapes(g, op, shape);
	for (int k = 0; k < info->n_arg; k++) {
		const char *name = info->arg[k].name;
		if (role_may_lack(info->arg[k].role) &&
		    number(value_about("HAS_", name, ""), 1) == 0)
			continue;
		int v = graph_value(g, shape[k].kind, name, op->loc);
		Value *val = &g->val[v];
		val->dtype = shape[k].dtype;
		val->rows = rows;
		if (val->kind == VAL_ACT &&
		    value_about("", name, "_DTYPE")) /* the same type in both phases */
			val->held[PHASE_DECODE] = val->held[PHASE_MIXED] =
			    dtype_from_text(value_about("", name, "_DTYPE"));
		if (val->kind == VAL_WEIGHT) {
			val->tensor = weight(g, val->name, info->arg[k].role, &shape[k]);
			val->dim[0] = g->tensor[val->tensor].rows;
			val->dim[1] = g->tensor[val->tensor].cols;
		} else if (val->kind == VAL_POOL) {
			val->tensor = 0;
			add_pool(g, &shape[k].pool);
		}
		op->arg[k] = v;
	}
}

static OpKind
op_named_in(const char *text)
{
	const char *p = strstr(text, "//@op ");

	for (int op = 1; p && op < OP_COUNT; op++) {
		size_t n = strlen(op_info[op].name);
		if (strncmp(p + 6, op_info[op].name, n) == 0 && strchr(" \r\n", p[6 + n]))
			return (OpKind)op;
	}
	return OP_nop;
}

static const char *
template_text(const char *path, Arena *a)
{
	const char *slash = strrchr(path, '/');
	const char *below =
	    strncmp(path, "templates/cuda/", 15) == 0 ? "templates/cuda" : "templates/cpu";
	const char *text =
	    strncmp(path, "templates/", 10) == 0 ? embed_find_below(below, slash + 1, NULL) : NULL;
	Strbuf b = { 0 };
	char piece[4096];
	FILE *f = text ? NULL : fopen(path, "rb");

	if (text || !f)
		return text;
	for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
		strbuf_add(&b, piece, n);
	fclose(f);
	text = arena_strdup(a, strbuf_str(&b));
	strbuf_release(&b);
	return text;
}

typedef struct Found {
	Graph *g;
	Templates *ts;
	const Template *t;
	int phase;
} Found;

/* Builds a graph of the op alone, and expands the template if it supports the op. */
static bool
find(const Spec *spec, const char *target, OpKind kind, const char *path, const char *text,
     PlanSym rows, Diag *d, Found *f)
{
	Graph *g = f->g = graph_new(spec, d, d->perm);
	Op *op = graph_op(g, kind, 0, (Loc){ 0 });

	set_attributes(g, op);
	set_arguments(g, op, rows);
	graph_infer(g);
	f->ts = templates_none(target, spec, d, d->perm);
	select_layouts(g, f->ts);
	if (value_of("W_LAYOUT") && g->n_tensor)
		g->tensor[0].layout = value_of("W_LAYOUT");
	if (!templates_add(f->ts, kind, path, text))
		return false;
	for (f->phase = PHASES; f->phase-- > 0;)
		if ((f->t = templates_find(f->ts, g, op, f->phase)))
			return true;
	return false;
}

static int
run(const char *target, const char *path, Arena *a, Diag *d)
{
	Spec spec = { .deterministic = number(value_of("DETERMINISTIC"), 0) != 0,
		      .activations_i8 = number(value_of("ACT_BITS"), 16) == 8,
		      .activations_bf16 = number(value_of("ACT_BF16"), 0) != 0,
		      .activations_f8 = number(value_of("ACT_F8"), 0) != 0 };
	const char *text = template_text(path, a), *rows_of = value_of("ROWS_OF");
	OpKind kind = text ? op_named_in(text) : OP_nop;
	Found f;

	if (kind == OP_nop || !target_find(target)) {
		fprintf(stderr, "expand: no template %s, no op in it or no target %s\n", path,
		        target);
		return 2;
	}
	bool wanted = rows_of && strcmp(rows_of, "n_out") == 0;
	bool found = find(&spec, target, kind, path, text, wanted ? SYM_n_out : SYM_n_tok, d, &f) ||
	             (!rows_of && find(&spec, target, kind, path, text, SYM_n_out, d, &f));
	if (!found)
		return d->n_error ? 1 : 3;
	const Kernel *k = template_expand(f.ts, f.t, f.g, &f.g->op[0], f.phase);
	if (!k)
		return 1;
	PlanBuffer buffer = { .id = "logits", .extent = { SYM_one, 1, 1 } };
	PlanKernel row[1 + MAX_PRODUCTS] = { k->row };
	Plan plan = { .buffer = &buffer,
		      .n_buffer = 1,
		      .kernel = row,
		      .n_kernel = 1 + k->n_product,
		      .target = target };
	Strbuf out = { 0 };
	printf("%zu\n%s", strlen(k->text), k->text);
	for (int i = 0; i < k->n_product; i++) {
		row[1 + i] = k->product[i]->row;
		printf("%zu\n%s", strlen(k->product[i]->text), k->product[i]->text);
	}
	plan_write(&plan, &out);
	printf("0\n%s", strbuf_str(&out));
	strbuf_release(&out);
	return 0;
}

int
main(int argc, char **argv)
{
	static Arena a;
	static Diag d;
	volatile int rc = 2;

	if (argc < 3) {
		fprintf(stderr, "usage: expand TARGET FILE [NAME=VALUE...]\n");
		return 2;
	}
	n_given = argc - 3;
	given = argv + 3;
	arena_init(&a);
	if (setjmp(a.oom)) {
		fprintf(stderr, "expand: out of memory\n");
		return 2;
	}
	diag_init(&d, &a);
	if (setjmp(d.bug) == 0)
		rc = run(argv[1], argv[2], &a, &d);
	fputs(strbuf_str(&d.text), stderr);
	arena_release(&a);
	return rc;
}
