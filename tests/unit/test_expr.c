/* The expression language of family files, against values worked out by hand; and the suggestions
 * (nearest key, caret) of error messages. */
#include <math.h>

#include "base/nearest.h"
#include "compiler/spec/expr.h"
#include "formats/yaml.h"
#include "tests/unit/compiler_util.h"

static SpecExprVal
key(void *user, const char *name)
{
	(void)user;
	static const SpecExprVal item[] = { { .kind = EXPR_NUM, .num = 7 } };

	if (strcmp(name, "two") == 0)
		return (SpecExprVal){ .kind = EXPR_NUM, .num = 2 };
	if (strcmp(name, "yes") == 0)
		return (SpecExprVal){ .kind = EXPR_BOOL, .num = 1 };
	if (strcmp(name, "off") == 0)
		return (SpecExprVal){ .kind = EXPR_BOOL, .num = 0 };
	if (strcmp(name, "kind") == 0)
		return (SpecExprVal){ .kind = EXPR_STR, .str = "alpha" };
	if (strcmp(name, "list") == 0)
		return (SpecExprVal){ .kind = EXPR_LIST, .n = 1, .item = item };
	if (strcmp(name, "kinds") == 0) {
		static const SpecExprVal word[] = { { .kind = EXPR_STR, .str = "conv" },
			                            { .kind = EXPR_STR, .str = "attn" },
			                            { .kind = EXPR_NUM, .num = 3 },
			                            { .kind = EXPR_STR, .str = "convs" } };
		return (SpecExprVal){ .kind = EXPR_LIST, .n = 4, .item = word };
	}
	if (strcmp(name, "heads") == 0 || strcmp(name, "mixed") == 0) {
		static const SpecExprVal num[] = { { .kind = EXPR_NUM, .num = 4 },
			                           { .kind = EXPR_NUM, .num = 6 },
			                           { .kind = EXPR_NULL },
			                           { .kind = EXPR_NUM, .num = 6 } };
		return (SpecExprVal){ .kind = EXPR_LIST, .n = *name == 'h' ? 2 : 4, .item = num };
	}
	if (strcmp(name, "slides") == 0) {
		static const SpecExprVal flag[] = { { .kind = EXPR_BOOL },
			                            { .kind = EXPR_BOOL, .num = 1 },
			                            { .kind = EXPR_BOOL },
			                            { .kind = EXPR_BOOL, .num = 1 } };
		return (SpecExprVal){ .kind = EXPR_LIST, .n = 4, .item = flag };
	}
	if (strcmp(name, "ones") == 0) /* a list of four */
		return (SpecExprVal){ .kind = EXPR_NUM, .num = 1, .n = 4 };
	if (strcmp(name, "deviations") == 0) {
		static const SpecExprVal at[] = { { .kind = EXPR_NUM },
			                          { .kind = EXPR_NUM, .num = 1.6448536269514722 },
			                          { .kind = EXPR_NUM, .num = -INFINITY } };
		return (SpecExprVal){ .kind = EXPR_LIST, .n = 3, .item = at };
	}
	if (strcmp(name, "letters") == 0)
		return (SpecExprVal){ .kind = EXPR_STR, .str = "M-M*E" };
	if (strcmp(name, "rope.base") == 0)
		return (SpecExprVal){ .kind = EXPR_NUM, .num = 10000 };
	return (SpecExprVal){ .kind = EXPR_NULL };
}

static SpecExprVal
resolved(void *user, const char *name)
{
	(void)user;
	return strcmp(name, "hidden") == 0 ? (SpecExprVal){ .kind = EXPR_NUM, .num = 64 }
	                                   : (SpecExprVal){ .kind = EXPR_NULL };
}

static bool
has(void *user, const char *pattern)
{
	(void)user;
	return glob_match(pattern, "blk.0.attn_q.bias");
}

static bool
size(void *user, const char *tensor, bool last, double *out)
{
	(void)user;
	*out = last ? 32 : 96;
	return strcmp(tensor, "blk.0.attn_q.weight") == 0;
}

static const SpecExprEnv env = { .key = key, .resolved = resolved, .has = has, .size = size };

static void
number(Bench *b, const char *text, double want)
{
	SpecExprVal v;

	if (!expr_eval(text, (Loc){ 0 }, &env, &b->diag, &b->arena, &v))
		fail_msg("%s: %s", text, strbuf_str(&b->diag.text));
	if ((v.kind != EXPR_NUM && v.kind != EXPR_BOOL) || fabs(v.num - want) > 1e-15 * fabs(want))
		fail_msg("%s: kind %d, %g", text, (int)v.kind, v.num);
}

/* digits: the elements as decimal digits */
static void
places_are(Bench *b, const char *text, const char *digits)
{
	SpecExprVal v;

	if (!expr_eval(text, (Loc){ 0 }, &env, &b->diag, &b->arena, &v))
		fail_msg("%s: %s", text, strbuf_str(&b->diag.text));
	assert_int_equal(v.kind, EXPR_LIST);
	assert_int_equal(v.n, strlen(digits));
	for (size_t i = 0; i < v.n; i++)
		assert_int_equal(v.item[i].num, digits[i] - '0');
}

static void
null(Bench *b, const char *text)
{
	SpecExprVal v;

	assert_true(expr_eval(text, (Loc){ 0 }, &env, &b->diag, &b->arena, &v));
	assert_int_equal(v.kind, EXPR_NULL);
}

BENCH_TEST(values)
{
	number(b, "1 + 2 * 3", 7);
	number(b, "(1 + 2) * 3", 9);
	number(b, "7 - 2 - 1", 4);
	number(b, "64 / 4 / 2", 8);
	number(b, "2 ^ 3 ^ 2", 512);
	number(b, "256 ^ -0.5", 0.0625);
	number(b, "-two ^ 2", -4);
	number(b, "1.0e-6 * 2", 2e-6);
	number(b, "$hidden ^ 0.5", 8);
	number(b, "two*$hidden", 128);
	number(b, "rope.base", 10000);
	number(b, "rows(blk.0.attn_q.weight) / 4", 24);
	number(b, "cols(blk.0.attn_q.weight) / 4", 8);
	number(b, "has(blk.0.attn_q.bias)", 1);
	number(b, "has(*.bias)", 1);
	number(b, "has( blk.*.attn_k.bias )", 0);
	number(b, "kind == alpha", 1);
	number(b, "kind == beta", 0);
	number(b, "kind != beta and two == 2", 1);
	number(b, "kind == alpha and not has(nothing)", 1);
	number(b, "not absent", 1);
	number(b, "not not two", 1);
	number(b, "absent == null", 1);
	number(b, "absent != false", 1);
	number(b, "off != false", 0);
	number(b, "yes == true", 1);
	number(b, "absent or two", 1);
	number(b, "off or absent", 0);
	number(b, "two >= 2", 1);
	number(b, "two < 2", 0);
	number(b, "absent > 1", 0);
	number(b, "two == rows(blk.0.attn_q.weight) / 48", 1);
	number(b, "length(kinds)", 4);
	number(b, "length(letters) + 1", 6);
	number(b, "at(list, 0)", 7);
	number(b, "at(list, -1)", 7);
	number(b, "greatest(list)", 7);
	number(b, "greatest(two)", 2);
	number(b, "greatest(kinds)", 3);
	places_are(b, "layers(blk.*.attn_q.bias)", "0");
	places_are(b, "layers(blk.*.attn_k.bias)", "");
	places_are(b, "where(kinds, attn, convs)", "13");
	places_are(b, "where(kinds, con)", "");
	places_are(b, "where(kinds)", "");
	places_are(b, "where(letters, M)", "02");
	places_are(b, "where(letters, *, -)", "13");
	places_are(b, "where(slides, true)", "13");
	places_are(b, "where(slides, false) - where(letters, M)", "");
	places_are(b, "where(slides, 1)", "13");
	places_are(b, "where(heads, 5, 6)", "1");
	places_are(b, "where(ones, 0)", "");
	places_are(b, "where(ones, 1)", "0123");
	number(b, "flags(ones)", 1);
	number(b, "flags(ones, 0)", 0);
	number(b, "flags(two)", 2); /* not a list: it does not depend on layers */
	number(b, "length(ones)", 4);
	places_are(b, "where(letters, M, E) - where(slides, false) - 1", "3");
	number(b, "pick(heads, slides, 0)", 4);
	number(b, "pick(heads, slides, 1)", 6);
	number(b, "pick(two)", 2);
	number(b, "pick(two, kinds, attn)", 2);
	number(b, "pick(list)", 7);
	number(b, "pick(heads, kinds, conv)", 4);
	number(b, "pick(heads, kinds, attn)", 6);
	number(b, "floor($hidden * pick(mixed, slides, true) / 100)", 3);
	places_are(b, "first(heads, 1)", "4");
	places_are(b, "first(mixed, 3)", "460");
	places_are(b, "first(mixed, $hidden)", "4606");
	null(b, "shares(absent)");
	null(b, "shares(two)");
	null(b, "pick(absent)");
	null(b, "pick(letters)");
	null(b, "pick(heads, absent, conv)");
	null(b, "pick(heads, kinds, convs)");
	null(b, "first(two, 1)");
	null(b, "first(heads, $nothing)");
	null(b, "first(heads, two)");
	null(b, "greatest(absent)");
	null(b, "range(absent)");
	null(b, "range(rope.base)");
	null(b, "greatest(letters)");
	null(b, "layers(blk)");
	null(b, "absent");
	null(b, "length(absent)");
	null(b, "length(two)");
	null(b, "at(list, 1)");
	null(b, "at(list)");
	null(b, "at(list, -2)");
	null(b, "at(two, 0)");
	null(b, "where(absent, conv)");
	null(b, "where(two, 2)");
	null(b, "absent * 2");
	null(b, "1 / 0");
	null(b, "rows(nothing) + 1");
	null(b, "$nothing");
}

static void
wrong(Bench *b, const char *text, const char *words)
{
	SpecExprVal v;

	strbuf_clear(&b->diag.text);
	assert_false(expr_eval(text, (Loc){ 0 }, &env, &b->diag, &b->arena, &v));
	if (!strstr(strbuf_str(&b->diag.text), words))
		fail_msg("%s: %s", text, strbuf_str(&b->diag.text));
	b->diag.n_error = 0;
}

BENCH_TEST(lists)
{
	SpecExprVal v, list;

	assert_true(expr_eval("list", (Loc){ 0 }, &env, &b->diag, &b->arena, &list));
	assert_true(expr_eval("list - 1 + two", (Loc){ 0 }, &env, &b->diag, &b->arena, &v));
	assert_int_equal(v.kind, EXPR_LIST);
	assert_int_equal(v.n, list.n);
	for (size_t i = 0; i < v.n; i++)
		assert_true(v.item[i].kind == EXPR_NUM && v.item[i].num == list.item[i].num + 1);
	assert_true(expr_eval("range(two)", (Loc){ 0 }, &env, &b->diag, &b->arena, &v));
	assert_int_equal(v.kind, EXPR_LIST);
	assert_int_equal(v.n, 2);
	assert_true(v.item[0].num == 0 && v.item[1].num == 1);
}

BENCH_TEST(shares_of_a_normal_distribution)
{
	SpecExprVal v;

	assert_true(expr_eval("shares(deviations)", (Loc){ 0 }, &env, &b->diag, &b->arena, &v));
	assert_int_equal(v.n, 3);
	assert_true(v.item[0].num == 0.5 && fabs(v.item[1].num - 0.95) < 1e-9 &&
	            v.item[2].num == 0);
}

BENCH_TEST(mistakes)
{
	wrong(b, "", "it ends too early");
	wrong(b, "1 +", "it ends too early");
	wrong(b, "(1", "a ) is missing");
	wrong(b, "1 2", "the end is expected here");
	wrong(b, "kind + 1", "a number is expected, not a string");
	wrong(b, "list * 2", "a number is expected, not a list");
	wrong(b, "max(1)",
	      "known functions are has(x), rows(tensor), cols(tensor), floor(x), flags(list), "
	      "where(list, words), length(list), at(list, n), greatest(list), first(list, n), "
	      "pick(list, types, word), shares(list), range(n) and layers(tensors)");
	wrong(b, "pick(heads)",
	      "layers have different values: llmc supports one value for all layers");
	wrong(
	    b, "pick(mixed, slides, false)",
	    "layers of one kind have different values: llmc supports one value per kind of layer");
	wrong(b, "has(", "a name and ) are expected");
	wrong(b, "$", "$ must be followed by the name of a key");
	wrong(b, "1 & 2", "the end is expected here");
	wrong(b, "%", "a number, a key or ( is expected");
	char deep[200];
	memset(deep, '(', 199);
	deep[199] = 0;
	wrong(b, deep, "nested too deep");
	memset(deep, 0, sizeof deep);
	for (int i = 0; i < 99; i++)
		memcpy(deep + 2 * i, "2^", 2);
	wrong(b, deep, "nested too deep");
}

BENCH_TEST(globs)
{
	(void)b;
	assert_true(glob_match("a*c", "abbbc"));
	assert_true(glob_match("*", ""));
	assert_true(glob_match("a*b*c", "aXbYbZc"));
	assert_false(glob_match("a*b", "abc"));
	assert_false(glob_match("", "a"));
	assert_true(glob_match("**x", "x"));
}

BENCH_TEST(nearest_words)
{
	(void)b;
	static const char *const word[] = { "hidden", "n_heads", "n_kv_heads", "dtype" };

	assert_int_equal(edit_distance("kitten", "sitting", 9), 3); /* the textbook's example */
	assert_int_equal(edit_distance("kitten", "sitting", 3), 3);
	assert_int_equal(edit_distance("kitten", "sitting", 2), 2);
	assert_int_equal(edit_distance("abcdef", "bacdfe", 9), 2); /* two swaps */
	assert_int_equal(edit_distance("", "abc", 9), 3);
	assert_string_equal(nearest_text("hiden", word, 4), "hidden");
	assert_string_equal(nearest_text("n_haeds", word, 4),
	                    "n_heads"); /* a swap of adjacent letters is one edit */
	assert_string_equal(nearest_text("n_kv_head", word, 4), "n_kv_heads");
	assert_null(nearest_text("completely", word, 4));
	assert_null(nearest_text("", word, 4));
	assert_null(nearest_text("x", word, 4));
}

BENCH_TEST(carets)
{
	const SourceText *src = yaml_source(&b->arena, "f", "a\n\tb: \xc3\xa4 c\n", 11);

	err_at(&b->diag, (Loc){ .src = src, .line = 2, .col = 7 }, "found");
	note_at(&b->diag, (Loc){ .src = src, .line = 1, .col = 1 }, "there");
	warn_at(&b->diag, (Loc){ 0 }, "no place");
	assert_string_equal(strbuf_str(&b->diag.text),
	                    "f:2:7: error: found\n    2 | \tb: \xc3\xa4 c\n      | \t     "
	                    "^\nf:1:1: note: there\nwarning: no place\n");
	strbuf_clear(&b->diag.text);
	warn_at(&b->diag, (Loc){ 0 }, "a name: %s", "\x1b[31m\xff\xc3\xa4");
	assert_string_equal(strbuf_str(&b->diag.text), "warning: a name: ?[31m?\xc3\xa4\n");
	assert_int_equal(b->diag.n_error, 1);
	assert_int_equal(b->diag.n_warning, 2);
}

BENCH_TEST(numbers)
{
	(void)b;
	static const struct {
		double v;
		const char *text;
	} pair[] = {
		{ 0, "0" },
		{ 1e-5, "1.0e-05" },
		{ 0.125, "0.125" },
		{ 500000, "500000" },
		{ -3, "-3" },
		{ 0.1, "0.1" },
		{ 1.0 / 3, "0.3333333333333333" },
		{ 1e300, "1.0e+300" },
		{ 1e15, "1000000000000000" },
	};

	for (size_t i = 0; i < sizeof pair / sizeof *pair; i++) {
		char out[NUMBER_SIZE];
		double back;
		yaml_number(out, pair[i].v);
		assert_string_equal(out, pair[i].text);
		assert_true(number_parse(out, &back) && back == pair[i].v);
	}
	double v;
	assert_false(number_parse("0x10", &v) || number_parse("inf", &v) ||
	             number_parse("nan", &v) || number_parse("1e999", &v) || number_parse("", &v) ||
	             number_parse("1,5", &v) || number_parse("1 ", &v) || number_parse("-", &v));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values),
		cmocka_unit_test(lists),
		cmocka_unit_test(shares_of_a_normal_distribution),
		cmocka_unit_test(mistakes),
		cmocka_unit_test(globs),
		cmocka_unit_test(nearest_words),
		cmocka_unit_test(carets),
		cmocka_unit_test(numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
