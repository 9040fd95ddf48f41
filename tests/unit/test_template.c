/* Templates: the expression language, heads, expansion, keys; and every template of the tree
 * against every tiny model. */
#include "compiler_util.h"

#include "compiler/select_kernels.h"
#include "compiler/template/template_internal.h"

/* ---- expressions ---- */

static bool
test_names(void *user, const char *name, HeadValue *out)
{
	(void)user;
	*out = (HeadValue){ .kind = HEAD_INT };
	if (strcmp(name, "ROWS") == 0)
		return out->i = 96, true;
	if (strcmp(name, "ZERO") == 0)
		return true;
	if (strcmp(name, "EPS") == 0)
		return *out = (HeadValue){ .kind = HEAD_NUM, .f = 0.5 }, true;
	if (strcmp(name, "NORM") == 0)
		return *out = (HeadValue){ .kind = HEAD_WORD, .s = "rms" }, true;
	return false;
}

static int64_t
value_of(const char *text)
{
	HeadValue v;
	const char *why;
	size_t at;

	if (!head_eval(text, strlen(text), test_names, NULL, &v, &why, &at))
		fail_msg("%s: %s at %zu", text, why, at);
	assert_int_equal(v.kind, HEAD_INT);
	return v.i;
}

static void
refuses(const char *text, const char *want, size_t want_at)
{
	HeadValue v;
	const char *why = NULL;
	size_t at = 0;

	if (head_eval(text, strlen(text), test_names, NULL, &v, &why, &at))
		fail_msg("%s was taken", text);
	assert_string_equal(why, want);
	assert_int_equal(at, want_at);
}

static void
expressions_have_values(void **state)
{
	(void)state;
	assert_int_equal(value_of("ROWS"), 96);
	assert_int_equal(value_of("ROWS % 32 == 0"), 1);
	assert_int_equal(value_of("ROWS%64 == 0"), 0);
	assert_int_equal(value_of("2 + 3 * 4"), 14);
	assert_int_equal(value_of("(2 + 3) * 4 - 7 / 2"), 17);
	assert_int_equal(value_of("10 - 3 - 2"), 5);
	assert_int_equal(value_of("NORM == rms"), 1);
	assert_int_equal(value_of("NORM != rms"), 0);
	assert_int_equal(value_of("NORM in (none, layer)"), 0);
	assert_int_equal(value_of("NORM in (none, rms)"), 1);
	assert_int_equal(value_of("ROWS in (8, 16*6)"), 1);
	assert_int_equal(value_of("not ZERO"), 1);
	assert_int_equal(value_of("not not ZERO"), 0);
	assert_int_equal(value_of("ZERO or ROWS and ZERO"), 0);
	assert_int_equal(value_of("ROWS or ZERO and ZERO"), 1); /* `and` binds more tightly */
	assert_int_equal(value_of("EPS > 0 and EPS < 1 and ROWS >= 96 and ROWS <= 96"), 1);
	assert_int_equal(value_of("not (NORM == rms and ROWS == 95)"), 1);
}

static void
expressions_that_make_no_sense(void **state)
{
	char deep[200];

	(void)state;
	refuses("WIDTH == 3", "no such name", 0);
	refuses("ROWS ==", "expected a name, a number or a word", 7);
	refuses("ROWS == 3 4", "unexpected text after the expression", 10);
	refuses("NORM == 3", "compares a word with a number", 9);
	refuses("NORM + 1", "arithmetic needs integers", 8);
	refuses("NORM and ROWS", "expected a comparison or a name that is 0 or 1", 8);
	refuses("ROWS % ZERO", "division by zero", 11);
	refuses("ROWS in 3", "expected ( after in", 8);
	refuses("ROWS in (3", "expected )", 10);
	refuses("(ROWS", "expected )", 5);
	refuses("3x", "expected an integer", 2);
	refuses("99999999999999999999", "expected an integer", 20);
	refuses("4611686018427387904 * 4", "the result is too large", 23);
	memset(deep, '(', sizeof deep);
	deep[sizeof deep - 1] = 0;
	refuses(deep, "too many brackets", 51);
}

/* ---- heads ---- */

/* Generated definitions before the text of a matmul. */
#define NAMES(of)                                                                                  \
	"#define ARG_x ((const float *)" of "[0])\n#define ARG_w ((const void *)" of               \
	"[1])\n#define ARG_b ((const float *)" of "[2])\n"                                         \
	"#define ARG_y ((float *)" of "[3])\n"
#define WEIGHTS "#define LLMC_WEIGHTS 2\n" /* bf16: cpu/weights/weights.h */
#define CUDA_NAMES "#include \"cuda/runtime/step.h\"\n" NAMES("p.a")
#define ARGS                                                                                       \
	"//@arg x in f32[n_tok, COLS]\n//@arg w in packed\n//@arg b? in f32[ROWS]\n//@arg y out "  \
	"f32[n_tok, ROWS]\n"

static const Kernel *
expand_for(Bench *b, const char *target, const char *text, int op_index)
{
	if (!b->spec)
		bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Templates *ts = templates_none(target, b->spec, &b->diag, &b->arena);

	select_layouts(g, ts);
	if (!templates_add(ts, g->op[op_index].kind, "templates/cpu/t.c.in", text))
		return NULL;
	const Template *t = templates_find(ts, g, &g->op[op_index], PHASE_MIXED);
	return t ? template_expand(ts, t, g, &g->op[op_index], PHASE_MIXED) : NULL;
}

static const Kernel *
expand(Bench *b, const char *text, int op_index)
{
	return expand_for(b, "cpu-v3", text, op_index);
}

BENCH_TEST(names_become_values)
{
	const Kernel *k = expand(b,
	                         "//@op matmul\n//@phase mixed\n" ARGS
	                         "void ${SYMBOL}(void); /* ${ROWS}x${COLS} ${W_DTYPE} ${W_LAYOUT} "
	                         "${HAS_B} ${TARGET} ${PHASE} ${ACT_BITS} ${W_ROWS} */\n",
	                         2);
	assert_non_null(k);
	assert_string_equal(
	    k->text,
	    arena_printf(&b->arena,
	                 NAMES("a") WEIGHTS
	                 "void matmul_mixed_%s(void); /* 32x32 bf16 r8 0 v3 mixed 16 32 */\n",
	                 k->key));
	assert_string_equal(k->row.symbol, arena_printf(&b->arena, "matmul_mixed_%s", k->key));
	assert_string_equal(k->row.file,
	                    arena_printf(&b->arena, "kernels/matmul_mixed.%s.c", k->key));
	assert_int_equal(k->row.n_arg, 4);
	assert_int_equal(k->row.arg[0].extent.sym, SYM_n_tok);
	assert_int_equal(k->row.arg[0].extent.mul, 32);
	assert_string_equal(k->row.arg[1].type, "packed");
	assert_int_equal(k->row.arg[2].dir, DIR_NONE); /* this model has no bias */
	assert_int_equal(k->row.arg[3].dir, DIR_OUT);
}

BENCH_TEST(numbers_become_float_constants)
{
	const Kernel *k =
	    expand(b,
	           "//@op rmsnorm\n//@arg x in f32[n_tok, GROUPS, DIM]\n//@arg w in f32[DIM]\n"
	           "//@arg y out f32[n_tok, GROUPS*DIM]\n${EPS}\n",
	           1);
	assert_non_null(k);
	assert_string_equal(k->text + strlen(k->text) - 7, "1e-05f\n");
}

BENCH_TEST(scratch_follows_the_arguments)
{
	const Kernel *k =
	    expand(b,
	           "//@op matmul\n" ARGS
	           "//@scratch part u8[n_part, 65536]\n//@scratch tile f32[n_tok/32, 2*ROWS, 3]\n"
	           "//@scratch count i32[n_part, 16]\nx\n",
	           2);
	assert_non_null(k);
	assert_int_equal(k->row.n_arg, 7);
	assert_int_equal(k->n_scratch, 3);
	assert_int_equal(k->row.arg[4].dir, DIR_SCRATCH);
	assert_int_equal(k->row.arg[4].extent.mul, 65536);
	assert_int_equal(k->row.arg[5].extent.sym, SYM_n_tok);
	assert_int_equal(k->row.arg[5].extent.div, 32);
	assert_int_equal(k->row.arg[5].extent.mul, 192);
	assert_int_equal(k->scratch_dtype[0], DT_NONE);
	assert_int_equal(k->scratch_dtype[2], DT_I32);
	/* one text for both phases: the phase is not part of the name */
	assert_null(strstr(k->row.symbol, "mixed"));
}

/* The code of GEMMs with weights of a type is in one file, whichever kernel uses it. */
BENCH_TEST(gemm_code_of_a_type_is_one_file)
{
	static const char head[] =
	    "//@op matmul\n" ARGS "//@let COLUMNS = COLS\n//@product first W_DTYPE COLUMNS\n//@if "
	    "HAS_B\n//@product second W_DTYPE COLS\n//@end\nx\n";
	const Kernel *k = expand(b, head, 2), *other = expand(b, head, 3),
	             *tiles = expand_for(b, "cpu-amx", head, 2), *p;

	assert_non_null(k);
	assert_int_equal(k->n_product, 1);
	p = k->product[0];
	assert_string_equal(
	    k->text, arena_printf(&b->arena, NAMES("a") WEIGHTS "#define first_functions %s\nx\n",
	                          p->row.symbol));
	assert_string_equal(p->row.symbol, arena_printf(&b->arena, "gemm_bf16_%s", p->key));
	assert_string_equal(p->row.file, arena_printf(&b->arena, "kernels/gemm_bf16.%s.c", p->key));
	assert_int_equal(p->row.n_arg, 0);
	const char *code = strstr(p->text, "*/\n");
	assert_non_null(code);
	assert_non_null(strstr(p->text, "do not edit"));
	assert_string_equal(code + 3,
	                    arena_printf(&b->arena,
	                                 WEIGHTS "#define LLMC_TARGET_v3 1\n#define LLMC_ACT_BF16 "
	                                         "0\n#include \"cpu/gemm/matmul_kernel.h\"\n\n"
	                                         "PRODUCTS(%s, W_bf16, 16, 0)\n",
	                                 p->row.symbol));
	assert_true(p->n_header > 4);
	assert_string_not_equal(k->key, other->key);
	assert_string_equal(p->key, other->product[0]->key);
	assert_string_not_equal(p->key, tiles->product[0]->key);
}

BENCH_TEST(faults_in_library_gemms)
{
	static const char *const wrong[] = { "",
		                             "p",
		                             "p W_DTYPE",
		                             "p COLS W_DTYPE",
		                             "p W_DTYPE COLS 3",
		                             "p W_LAYOUT COLS",
		                             "p NO_NAME COLS" };
	const char *five = "//@op matmul\n" ARGS "//@product a W_DTYPE COLS\n//@product b W_DTYPE "
	                   "COLS\n//@product c W_DTYPE COLS\n//@product d W_DTYPE COLS\n"
	                   "//@product e W_DTYPE COLS\nx\n";

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_null(expand(
		    b,
		    arena_printf(&b->arena, "//@op matmul\n" ARGS "//@product %s\nx\n", wrong[i]),
		    2));
		assert_non_null(strstr(strbuf_str(&b->diag.text),
		                       "t.c.in:6:1: error: expected @product NAME DTYPE COLS"));
		strbuf_clear(&b->diag.text);
	}
	assert_null(expand(b, five, 2));
	assert_non_null(
	    strstr(strbuf_str(&b->diag.text), "t.c.in:10:1: error: more than 4 @product lines"));
}

BENCH_TEST(headers_are_followed)
{
	const Kernel *k =
	    expand(b, "//@op matmul\n" ARGS "#include \"common/llmc_step.h\"\nint x;\n", 2);

	assert_non_null(k);
	assert_int_equal(k->n_header, 1);
	assert_string_equal(k->header[0], "common/llmc_step.h");
}

BENCH_TEST(keys_distinguish_kernels)
{
	const Kernel *a = expand(b, "//@op matmul\n" ARGS "int x;\n", 2),
	             *same = expand(b, "//@op matmul\n" ARGS "int x;\n", 2);
	const Kernel *text = expand(b, "//@op matmul\n" ARGS "int y;\n", 2);
	const Kernel *arg = expand(b, "//@op matmul\n" ARGS "//@scratch s u8[8]\nint x;\n", 2);
	const Kernel *shape = expand(b, "//@op matmul\n" ARGS "int x;\n", 3);

	assert_string_equal(a->key, same->key);
	assert_string_not_equal(a->key, text->key);
	assert_string_not_equal(a->key, arg->key);
	assert_string_not_equal(a->key,
	                        shape->key); /* the same text, but other extents to check against */
}

BENCH_TEST(launches_have_grids)
{
	const Kernel *k =
	    expand_for(b, "cuda-sm_90a",
	               "//@op matmul\n//@launch prep; block 128; grid n_tok; rows n_tok <= 8*8\n"
	               "//@launch main; block 32*8; grid (ROWS + 7) / 8, 2 * n_tok/64, n_sm; "
	               "shared 4*COLS; cluster 2; rows n_out > 64; pdl\n" ARGS
	               "${SYMBOL} ${ARCH} ${TARGET} ${DETERMINISTIC}\n",
	               2);
	assert_non_null(k);
	assert_string_equal(k->text,
	                    arena_printf(&b->arena, CUDA_NAMES "%s 90 sm_90a 0\n", k->row.symbol));
	assert_string_equal(k->row.file, arena_printf(&b->arena, "kernels/matmul.%s.cu", k->key));
	assert_int_equal(k->row.n_launch, 2);
	const PlanLaunch *p = &k->row.launch[0], *m = &k->row.launch[1];
	assert_string_equal(p->fn, arena_printf(&b->arena, "%s_prep", k->row.symbol));
	assert_string_equal(m->fn, k->row.symbol);
	assert_int_equal(p->grid[0].sym, SYM_n_tok);
	assert_int_equal(p->grid[1].mul, 1);
	assert_false(p->pdl);
	assert_int_equal(p->rows, SYM_n_tok);
	assert_int_equal(p->least, 0);
	assert_int_equal(p->most, 64);
	assert_int_equal(m->rows, SYM_n_out);
	assert_int_equal(m->least, 65);
	assert_int_equal(m->most, 0);
	const int64_t few[SYM_COUNT] = { [SYM_n_tok] = 64, [SYM_n_out] = 64 },
	              many[SYM_COUNT] = { [SYM_n_tok] = 65, [SYM_n_out] = 65 };
	assert_true(plan_launch_runs(p, few) && !plan_launch_runs(m, few) &&
	            !plan_launch_runs(p, many) && plan_launch_runs(m, many));
	assert_int_equal(m->block, 256);
	assert_int_equal(m->shared, 128);
	assert_int_equal(m->cluster, 2);
	assert_true(m->pdl);
	assert_int_equal(m->grid[0].sym, SYM_one);
	assert_int_equal(m->grid[0].mul, 4);
	assert_int_equal(m->grid[1].mul, 2);
	assert_int_equal(m->grid[1].div, 64);
	assert_int_equal(m->grid[2].sym, SYM_n_sm);
	/* another grid is another kernel, although the text is the same */
	const Kernel *x = expand_for(
	    b, "cuda-sm_80", "//@op matmul\n//@launch main; block 32; grid 1\n" ARGS "a\n", 2);
	const Kernel *y = expand_for(
	    b, "cuda-sm_80", "//@op matmul\n//@launch main; block 32; grid 2\n" ARGS "a\n", 2);
	assert_string_not_equal(x->key, y->key);
}

/* Conditions of the template are removed from the text; those of the C preprocessor stay. */
BENCH_TEST(conditions_are_decided)
{
	const Kernel *k =
	    expand_for(b, "cuda-sm_90a",
	               "//@op matmul\n//@launch main; block 32; grid 1\n" ARGS
	               "//@if DETERMINISTIC\n//@if NO_NAME\nno\n//@end\n#define NO "
	               "${ROWS}\n//@else\nelse\n//@if COLS == 32\n"
	               "yes ${COLS}\n//@else\nno\n//@end\nafter\n//@end\n#if ${HAS_B}\nx\n#endif\n",
	               2);
	assert_non_null(k);
	assert_string_equal(k->text, CUDA_NAMES "else\nyes 32\nafter\n#if 0\nx\n#endif\n");
	/* the head of the template has conditions, too: one launch for each branch */
	static const char head[] =
	    "//@op matmul\n" ARGS "//@if ARCH >= 90\n//@let N = 64\n//@launch main; block N; "
	    "pdl\n//@else\n//@let N = 96\n"
	    "//@scratch s f32[N]\n//@launch main; block N; pdl\n//@end\n${N}\n";
	const Kernel *older = expand_for(b, "cuda-sm_80", head, 2),
	             *newer = expand_for(b, "cuda-sm_90a", head, 2);
	assert_int_equal(older->row.n_launch, 1);
	assert_int_equal(older->row.launch[0].block, 96);
	assert_int_equal(older->n_scratch, 1);
	assert_false(older->row.launch[0].pdl); /* from sm_90 on */
	assert_int_equal(newer->row.launch[0].block, 64);
	assert_int_equal(newer->n_scratch, 0);
	assert_true(newer->row.launch[0].pdl);
	assert_string_equal(newer->text, CUDA_NAMES "64\n");
}

BENCH_TEST(lets_are_names)
{
	const Kernel *k = expand(b,
	                         "//@op matmul\n//@ a remark\n//@let HALF = ROWS / 2\n//@let TILE "
	                         "= HALF * 3\n//@let KIND = W_DTYPE\n//@require TILE == 48\n" ARGS
	                         "//@scratch s u8[TILE, 2]\n${TILE} ${KIND}\n",
	                         2);

	assert_non_null(k);
	assert_string_equal(k->text, NAMES("a") "#define ARG_s ((unsigned char *)a[4])\n" WEIGHTS
	                                        "48 bf16\n");
	assert_int_equal(k->row.arg[4].extent.mul, 96);
}

/* A template may be used for all rows and for output rows. */
BENCH_TEST(row_counts_follow_the_op)
{
	static const char text[] =
	    "//@op matmul\n//@arg x in f32[n_row, COLS]\n//@arg w in packed\n//@arg b? in "
	    "f32[ROWS]\n//@arg y out f32[n_row, ROWS]\n"
	    "//@launch main; block 32; grid ROWS, n_row / 8\n//@scratch s f32[n_row]\nx\n";
	const Kernel *k = expand_for(b, "cuda-sm_80", text, 2);

	assert_int_equal(k->row.arg[0].extent.sym, SYM_n_tok);
	assert_int_equal(k->row.launch[0].grid[1].sym, SYM_n_tok);
	assert_non_null(strstr(k->text, "#define N_ROW(p) N_TOK(p)\n"));
	Graph *g = bench_graph(b);
	for (size_t i = 0; i < g->n_val; i++)
		g->val[i].rows = g->val[i].kind == VAL_ACT ? SYM_n_out : g->val[i].rows;
	Templates *ts = templates_none("cuda-sm_80", b->spec, &b->diag, &b->arena);
	select_layouts(g, ts);
	templates_add(ts, OP_matmul, "templates/cuda/t.cu.in", text);
	k = template_expand(ts, templates_find(ts, g, &g->op[2], PHASE_MIXED), g, &g->op[2],
	                    PHASE_MIXED);
	assert_int_equal(k->row.arg[3].extent.sym, SYM_n_out);
	assert_int_equal(k->row.arg[4].extent.sym, SYM_n_out);
	assert_int_equal(k->row.launch[0].grid[1].sym, SYM_n_out);
	assert_non_null(strstr(k->text, "#define N_ROW(p) N_OUT(p)\n"));
}

static const char *
fragment(const char *path, size_t *size)
{
	const char *text = strcmp(path, "templates/cpu/heads/good.head") == 0
	                       ? "//@let N = ROWS * 2\n//@scratch s u8[N]\n#define FROM_GOOD ${N}\n"
	                   : strcmp(path, "templates/cpu/heads/bad.head") == 0
	                       ? "//@let N = 1\n\n//@require M == 3\n"
	                   : strcmp(path, "templates/cpu/heads/open.head") == 0  ? "//@if ROWS\n"
	                   : strcmp(path, "templates/cpu/heads/close.head") == 0 ? "//@end\n"
	                   : strcmp(path, "templates/cpu/heads/outer.head") == 0
	                       ? "\n//@include cpu/heads/bad.head\n"
	                   : strcmp(path, "templates/cpu/heads/self.head") == 0
	                       ? "//@include cpu/heads/self.head\n"
	                       : NULL;
	*size = text ? strlen(text) : 0;
	return text;
}

static const Kernel *
expand_with(Bench *b, const char *text)
{
	if (!b->spec)
		bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Templates *ts = templates_none("cpu-v3", b->spec, &b->diag, &b->arena);

	ts->included = fragment;
	if (!templates_add(ts, OP_matmul, "templates/cpu/t.c.in", text))
		return NULL;
	const Template *t = templates_find(ts, g, &g->op[2], PHASE_MIXED);
	return t ? template_expand(ts, t, g, &g->op[2], PHASE_MIXED) : NULL;
}

BENCH_TEST(fragments_are_inserted_in_place)
{
	const Kernel *k =
	    expand_with(b, "//@op matmul\n" ARGS
	                   "//@if ROWS == 32\n//@include cpu/heads/good.head\n//@end\n${N}\n");

	assert_non_null(k);
	assert_string_equal(k->text, NAMES("a") "#define ARG_s ((unsigned char *)a[4])\n" WEIGHTS
	                                        "#define FROM_GOOD 64\n64\n");
	assert_null(
	    expand_with(b, "//@op matmul\n" ARGS
	                   "//@if ROWS == 31\n//@include cpu/heads/good.head\n//@end\n${N}\n"));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "N: the op matmul has no such value"));
}

/* An error within a fragment is reported at its line, with the lines that include it. */
BENCH_TEST(errors_in_fragments_name_both_files)
{
	assert_null(expand_with(b, "//@op matmul\n" ARGS "//@include cpu/heads/outer.head\nx\n"));
	const char *at = strstr(strbuf_str(&b->diag.text),
	                        "templates/cpu/heads/bad.head:3:12: error: no such name");
	assert_non_null(at);
	at = strstr(at, "templates/cpu/heads/outer.head:2:1: note: included here");
	assert_non_null(at);
	assert_non_null(strstr(at, "templates/cpu/t.c.in:6:1: note: included here"));
	assert_null(expand_with(b, "//@op matmul\n" ARGS "//@include cpu/heads/open.head\nx\n"));
	assert_non_null(strstr(strbuf_str(&b->diag.text),
	                       "heads/open.head:1:1: error: this condition has no @end"));
	assert_null(expand_with(b, "//@op matmul\n" ARGS
	                           "//@if ROWS\n//@include cpu/heads/close.head\nx\n//@end\n"));
	assert_non_null(strstr(strbuf_str(&b->diag.text),
	                       "heads/close.head:1:1: error: this line has no matching @if"));
	assert_null(expand_with(b, "//@op matmul\n" ARGS "//@include cpu/heads/none.head\nx\n"));
	assert_non_null(
	    strstr(strbuf_str(&b->diag.text),
	           "t.c.in:6:1: error: there is no templates/cpu/heads/none.head to include"));
	assert_null(expand_with(b, "//@op matmul\n" ARGS "//@include cpu/heads/self.head\nx\n"));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "nested too deep"));
}

BENCH_TEST(tensor_maps_refer_to_arguments)
{
	static const char text[] = "//@op matmul\n//@launch main; block 32; grid 1\n" ARGS
	                           "//@scratch act f16[n_tok, COLS]\n%sx\n";
	const Kernel *k = expand_for(
	    b, "cuda-sm_90a",
	    arena_printf(
	        &b->arena, text,
	        "//@map act; cols COLS; box 8*2, 64; swizzle 128\n//@map w; cols 64; box 64, 8\n"),
	    2);

	assert_non_null(k);
	assert_int_equal(k->row.n_map, 2);
	assert_int_equal(k->row.map[0].arg, 4);
	assert_int_equal(k->row.map[0].cols, 32);
	assert_int_equal(k->row.map[0].box[0], 16);
	assert_int_equal(k->row.map[0].box[1], 64);
	assert_int_equal(k->row.map[0].swizzle, 128);
	assert_int_equal(k->row.map[1].arg, 1);
	assert_int_equal(k->row.map[1].swizzle, 0);
	/* another box is another kernel, although the text is the same */
	const Kernel *x = expand_for(
	    b, "cuda-sm_90a", arena_printf(&b->arena, text, "//@map w; cols 64; box 8, 8\n"), 2);
	const Kernel *y = expand_for(
	    b, "cuda-sm_90a", arena_printf(&b->arena, text, "//@map w; cols 64; box 8, 16\n"), 2);
	assert_string_not_equal(x->key, y->key);
	assert_null(expand_for(b, "cuda-sm_80",
	                       arena_printf(&b->arena, text, "//@map w; cols 64; box 8, 8\n"), 2));
	/* a tensor map whose condition is false is omitted, even if none remains */
	static const char some[] =
	    "//@if ARCH >= 100\n//@map act; cols 64; box 8, 8\n//@end\n//@if ARCH >= 90\n//@map w; "
	    "cols 64; box 8, 16\n//@end\n";
	const Kernel *hopper = expand_for(b, "cuda-sm_90a", arena_printf(&b->arena, text, some), 2);
	assert_int_equal(hopper->row.n_map, 1);
	assert_int_equal(hopper->row.map[0].arg, 1);
	assert_int_equal(
	    expand_for(b, "cuda-sm_100a", arena_printf(&b->arena, text, some), 2)->row.n_map, 2);
	assert_int_equal(
	    expand_for(b, "cuda-sm_80", arena_printf(&b->arena, text, some), 2)->row.n_map, 0);
	assert_non_null(strstr(strbuf_str(&b->diag.text), "from sm_90 on"));
}

#define SCRATCH                                                                                    \
	"//@scratch act f16[n_tok, COLS]\n//@if LIBRARY and HAS_B == 0\n//@scratch raw "           \
	"f32[n_tok, ROWS]\n//@end\n"
#define PATHS                                                                                      \
	"//@launch prep; block 32; grid n_tok\n//@launch main; path own; block 32\n"               \
	"//@if LIBRARY\n//@launch product; gemm act, w, raw; add x, 2*ROWS\n//@end\n"              \
	"//@launch finish; path library; block 32\n"

/* This model's weights are bf16, COLS and ROWS 32. */
BENCH_TEST(a_library_may_run_the_gemm)
{
	const Kernel *k =
	    expand_for(b, "cuda-sm_80", "//@op matmul\n" ARGS SCRATCH PATHS "${LIBRARY}\n", 2);

	assert_non_null(k);
	assert_string_equal(k->text + strlen(k->text) - 2, "1\n");
	assert_int_equal(k->row.n_launch, 4);
	assert_int_equal(k->row.launch[0].path, PATH_ANY);
	assert_int_equal(k->row.launch[1].path, PATH_OWN);
	assert_int_equal(k->row.launch[3].path, PATH_LIBRARY);
	const PlanGemm *p = plan_library_gemm(&k->row);
	assert_ptr_equal(p, &k->row.launch[2].product);
	assert_int_equal(k->row.launch[2].path, PATH_LIBRARY);
	assert_int_equal(p->act, 4);
	assert_int_equal(p->w, 1);
	assert_int_equal(p->y, 5);
	assert_int_equal(p->add, 0);
	assert_true(p->beta == 64);
	assert_int_equal(k->n_scratch, 2);
	/* another factor is another kernel, although the text is the same */
	const Kernel *x = expand_for(b, "cuda-sm_80", "//@op matmul\n" ARGS SCRATCH PATHS "x\n", 2);
	const Kernel *y = expand_for(
	    b, "cuda-sm_80",
	    "//@op matmul\n" ARGS SCRATCH "//@launch prep; block 32; grid n_tok\n"
	    "//@launch main; path own; block 32\n//@launch product; gemm act, w, raw; add x, 1\n"
	    "//@launch finish; path library; block 32\nx\n",
	    2);
	assert_string_not_equal(x->key, y->key);
}

/* The library's sums depend on the batch size. */
BENCH_TEST(no_library_in_deterministic_mode)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	b->spec->deterministic = true;
	const Kernel *k =
	    expand_for(b, "cuda-sm_80", "//@op matmul\n" ARGS SCRATCH PATHS "${LIBRARY}\n", 2);

	assert_non_null(k);
	assert_null(plan_library_gemm(&k->row));
	assert_int_equal(k->row.n_launch, 2);
	assert_string_equal(k->row.launch[1].fn, k->row.symbol);
	assert_int_equal(k->row.launch[1].path, PATH_ANY);
	assert_int_equal(k->n_scratch, 1);
}

typedef struct Wrong {
	const char *text;
	int line;
	const char *says;
} Wrong;

static const Wrong wrong[] = {
	{ "//@op matmul\n//@what 3\n" ARGS, 2, "unknown directive @what" },
	{ "//@op rmsnorm\n" ARGS, 1, "@op must name it" },
	{ "//@phase never\n" ARGS, 1, "decode, mixed or both" },
	{ "//@require WIDTH == 3\n" ARGS, 1, "no such name" },
	{ "//@require NORM\n" ARGS, 1, "no such name" },
	{ "//@require W_DTYPE\n" ARGS, 1, "comparison" },
	{ "//@param ROWS int x\n" ARGS "y\n", 1, "unknown directive @param" },
	{ "//@let half = 2\n" ARGS "y\n", 1, "the name in upper case" },
	{ "//@let HALF 2\n" ARGS "y\n", 1, "expected NAME = EXPR" },
	{ "//@let HALF = 2\n//@let HALF = 3\n" ARGS "y\n", 2, "has a value already" },
	{ "//@let HALF = NONE / 2\n" ARGS "${HALF}\n", 1, "no such name" },
	{ "//@let A = B\n//@let B = A + 1\n" ARGS "${A}\n", 1, "is circular" },
	{ "//@if A\n//@let A = 1\n//@end\n" ARGS "${A}\n", 2, "is circular" },
	{ "//@if\n//@end\n" ARGS "x\n", 1, "expected an expression" },
	{ "//@if ROWS\n" ARGS "x\n", 1, "has no @end" },
	{ "//@if ROWS\n//@else\n//@else\n//@end\n" ARGS "x\n", 3, "a second @else" },
	{ ARGS "x\n//@end\n", 6, "this line has no matching @if" },
	{ ARGS "//@else\n", 5, "this line has no matching @if" },
	{ ARGS "//@if W_DTYPE\nx\n//@end\n", 5, "a condition is a comparison" },
	{ ARGS "a\n  ${NOPE}\n", 6, "NOPE: the op matmul has no such value" },
	{ ARGS "${ROWS\n", 5, "without }" },
	{ "//@arg x in f32[n_tok, COLS]\n", 1, "1 @arg lines, but matmul has 4 arguments" },
	{ "//@arg w in packed\n//@arg x in f32[n_tok, COLS]\n//@arg b in f32[ROWS]\n//@arg y out "
	  "f32[n_tok, ROWS]\n",
	  1, "argument 0 of matmul is x, not w" },
	{ "//@arg x in f32[n_tok, ROWS + 1]\n//@arg w in packed\n//@arg b in f32[ROWS]\n//@arg y "
	  "out f32[n_tok, ROWS]\n",
	  1, "not the width" },
	{ "//@arg x in i32[n_tok, COLS]\n//@arg w in packed\n//@arg b in f32[ROWS]\n//@arg y out "
	  "f32[n_tok, ROWS]\n",
	  1, "another type" },
	{ "//@arg x in f32[n_tok, COLS]\n//@arg w in f32[ROWS]\n//@arg b in f32[ROWS]\n//@arg y "
	  "out f32[n_tok, ROWS]\n",
	  2, "a matrix is `packed`" },
	{ "//@arg x into f32[n_tok, COLS]\n//@arg w in packed\n//@arg b in f32[ROWS]\n//@arg y out "
	  "f32[n_tok, ROWS]\n",
	  1, "expected in, out" },
	{ "//@arg x in f64[n_tok, COLS]\n//@arg w in packed\n//@arg b in f32[ROWS]\n//@arg y out "
	  "f32[n_tok, ROWS]\n",
	  1, "unknown type" },
	{ "//@arg x in f32[n_tok, COLS\n//@arg w in packed\n//@arg b in f32[ROWS]\n//@arg y out "
	  "f32[n_tok, ROWS]\n",
	  1, "expected ]" },
	{ ARGS "//@scratch s u8[n_tok, n_seq]\nx\n", 5, "at most one symbol" },
	{ ARGS "//@scratch s u8[n_tok*2]\nx\n", 5, "may follow the symbol" },
	{ ARGS "//@scratch s u8[n_tok/0]\nx\n", 5, "positive integer" },
	{ ARGS "//@scratch s u8[0]\nx\n", 5, "at least one element" },
	{ ARGS "//@scratch s\nx\n", 5, "expected a type" },
	{ ARGS "//@scratch a u8[1]\n//@scratch b u8[1]\n//@scratch c u8[1]\n//@scratch d "
	       "u8[1]\n//@scratch e u8[1]\n//@scratch f u8[1]\n//@scratch g u8[1]\n",
	  11, "too many @scratch lines" },
	{ ARGS "#include \"common/nothing.h\"\n", 1, "common/nothing.h: no such header" },
	{ ARGS "//@include cpu/nothing.head\n", 5,
	  "there is no templates/cpu/nothing.head to include" },
};

static void
says(Bench *b, const char *target, const Wrong *w)
{
	char place[80];

	assert_null(expand_for(b, target, w->text, 2));
	snprintf(place, sizeof place, "templates/cpu/t.c.in:%d:", w->line);
	if (!strstr(strbuf_str(&b->diag.text), place) ||
	    !strstr(strbuf_str(&b->diag.text), w->says))
		fail_msg("\"%s\": expected %s %s, got: %s", w->text, place, w->says,
		         strbuf_str(&b->diag.text));
}

static void
check_wrong(Bench *b, int i)
{
	says(b, "cpu-v3", &wrong[i]);
}

static const Wrong wrong_launch[] = {
	{ ARGS "x\n", 1, "needs its @launch lines" },
	{ ARGS "//@launch main; grid 1\n", 5, "needs block" },
	{ ARGS "//@launch ; block 1\n", 5, "expected the name of a function" },
	{ ARGS "//@launch main; block 2000\n", 5, "out of range" },
	{ ARGS "//@launch main; block 32; grid 0\n", 5, "out of range" },
	{ ARGS "//@launch main; block 32; grid 1, 1, 1, 1\n", 5, "three dimensions" },
	{ ARGS "//@launch main; block 32; grid 2 + n_tok\n", 5, "may precede the symbol" },
	{ ARGS "//@launch main; block 32; grid n_tok * 2\n", 5, "may follow the symbol" },
	{ ARGS "//@launch main; block 32; color 2\n", 5, "expected block, grid" },
	{ ARGS "//@launch main; block 32\n//@map v; cols 8; box 8, 8\n", 6,
	  "needs an argument of this kernel" },
	{ ARGS "//@launch main; block 32\n//@map w; cols 12; box 8, 8\n", 6,
	  "not a valid tensor map" },
	{ ARGS "//@launch main; block 32\n//@map w; cols 64; box 64, 8; swizzle 64\n", 6,
	  "not a valid tensor map" },
	{ ARGS "//@launch main; block 32\n//@map w; cols 64; box 8, 300\n", 6, "out of range" },
	{ ARGS "//@launch main; block 32\n//@map w; cols 64; square 8, 8\n", 6, "expected cols N" },
#define LAUNCH_4                                                                                   \
	"//@launch a; block 1\n//@launch b; block 1\n//@launch c; block 1\n//@launch d; block 1\n"
	{ ARGS LAUNCH_4 LAUNCH_4 "//@launch e; block 1\n", 13, "more than 8 @launch lines" },
#define OWN "//@scratch act f16[n_tok, COLS]\n//@launch main; path own; block 1\n"
	{ ARGS "//@launch main; path else; block 1\n", 5, "a path is own or library" },
	{ ARGS "//@launch main; path own library; block 1\n", 5, "a path is own or library" },
	{ ARGS "//@launch main; pdl if HAS_B; block 1\n", 5, "nothing may follow pdl" },
	{ ARGS "//@launch main; rows 64; block 1\n", 5, "rows need a symbol" },
	{ ARGS "//@launch main; rows n_tok == 3; block 1\n", 5, "rows need <= or >" },
	{ ARGS "//@scratch raw f32[n_tok] if LIBRARY\n//@launch main; block 1\n", 5,
	  "unexpected text after the end" },
	{ "//@arg x in f32[n_tok, COLS]\n//@arg w in packed\n//@arg b? in f32[ROWS]; HAS_B\n//@arg "
	  "y out f32[n_tok, ROWS]\n//@launch main; block 1\n",
	  3, "unexpected text after the end" },
	{ ARGS OWN "//@launch product; block 3\n", 7, "expected path library, gemm" },
	{ ARGS OWN "//@launch product\n", 7, "needs gemm" },
	{ ARGS OWN "//@launch product; gemm act, w\n", 7, "three arguments" },
	{ ARGS OWN "//@launch product; gemm act, w, y, y\n", 7, "three arguments" },
	{ ARGS OWN "//@launch product; gemm act, w, z\n", 7, "three arguments" },
	{ ARGS OWN "//@launch product; gemm act, w, y; add z, 1\n", 7,
	  "an argument of this kernel and a factor" },
	{ ARGS OWN "//@launch product; gemm act, w, y; add x, W_DTYPE\n", 7,
	  "a factor is a number" },
	{ ARGS OWN "//@launch product; gemm act, w, y; add w, 1\n", 6, "add of a product must be" },
	{ ARGS OWN "//@launch product; gemm x, w, y\n", 6,
	  "act of a product must be an input or scratch" },
	{ ARGS OWN "//@launch product; gemm act, x, y\n", 6, "a packed weight matrix" },
	{ ARGS OWN "//@launch product; gemm act, w, x\n", 6, "must be an output or scratch" },
	{ ARGS OWN "//@launch product; gemm act, w, act\n", 6, "must be an output or scratch" },
	{ ARGS OWN "//@launch product; gemm act, w, y\n//@launch product; gemm act, w, y\n", 6,
	  "at most one product" },
	{ ARGS "//@scratch act f16[n_tok, COLS]\n//@launch main; block 1\n//@launch product; gemm "
	       "act, w, y\n",
	  6, "launches of path own" },
	{ ARGS "//@scratch act f16[n_tok, COLS + 4]\n//@launch main; path own; block 1\n//@launch "
	       "product; gemm act, w, y\n",
	  6, "multiples of 16 bytes" },
};

static void
check_wrong_launch(Bench *b, int i)
{
	says(b, "cuda-sm_90a", &wrong_launch[i]);
}

static void
faulty_launches(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof wrong_launch / sizeof *wrong_launch; i++)
		bench_run(check_wrong_launch, (int)i);
}

static void
errors_name_template_and_line(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		bench_run(check_wrong, (int)i);
}

/* ---- the templates of the tree ---- */

static void
compile_one(Bench *b, int n)
{
	static const char *const targets[] = { "cpu-generic", "cpu-v3",     "cpu-v4",
		                               "cuda-sm_75",  "cuda-sm_80", "cuda-sm_90a",
		                               "cuda-sm_120a" };

	for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
		bench_file(b, tiny_models[n]);
		const Compiled *c =
		    compile_spec(b->spec, targets[t], NULL, NULL, &b->diag, &b->arena);
		if (!c || b->diag.n_error)
			fail_msg("%s for %s: %s", tiny_models[n], targets[t],
			         strbuf_str(&b->diag.text));
		for (size_t f = 0; f < c->n_file; f++)
			if (strncmp(c->file[f].path, "kernels/", 8) == 0 &&
			    !strchr(c->file[f].path + 8, '/')) {
				assert_null(strstr(c->file[f].text, "${"));
				assert_null(strstr(c->file[f].text, "//@"));
			}
	}
}

static void
every_template_fits_every_model(void **state)
{
	(void)state;
	for (int i = 0; i < N_TINY; i++)
		bench_run(compile_one, i);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(expressions_have_values),
		cmocka_unit_test(expressions_that_make_no_sense),
		cmocka_unit_test(names_become_values),
		cmocka_unit_test(numbers_become_float_constants),
		cmocka_unit_test(scratch_follows_the_arguments),
		cmocka_unit_test(headers_are_followed),
		cmocka_unit_test(gemm_code_of_a_type_is_one_file),
		cmocka_unit_test(faults_in_library_gemms),
		cmocka_unit_test(keys_distinguish_kernels),
		cmocka_unit_test(errors_name_template_and_line),
		cmocka_unit_test(every_template_fits_every_model),
		cmocka_unit_test(launches_have_grids),
		cmocka_unit_test(conditions_are_decided),
		cmocka_unit_test(lets_are_names),
		cmocka_unit_test(row_counts_follow_the_op),
		cmocka_unit_test(fragments_are_inserted_in_place),
		cmocka_unit_test(errors_in_fragments_name_both_files),
		cmocka_unit_test(a_library_may_run_the_gemm),
		cmocka_unit_test(no_library_in_deterministic_mode),
		cmocka_unit_test(faulty_launches),
		cmocka_unit_test(tensor_maps_refer_to_arguments),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
