#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* N_IN_matmul, N_ARG_matmul */
#define OP(name, flags, args, attrs, shard, scratch, meaning) N_IN_##name = 0 args,
#define IN(n) +1
#define OPT(n) +1
#define SAME(n) +1
#define OPT_SAME(n) +1
#define TABLE(n) +1
#define OUT(n)
enum {
#include "ops/ops.def"
};
#undef OUT
#define OUT(n) +1
#define OP(name, flags, args, attrs, shard, scratch, meaning) N_ARG_##name = 0 args,
enum {
#include "ops/ops.def"
};
#undef IN
#undef OPT
#undef SAME
#undef OPT_SAME
#undef TABLE
#undef OUT

#define IN(n) { #n, ROLE_IN },
#define OPT(n) { #n, ROLE_OPT },
#define SAME(n) { #n, ROLE_SAME },
#define OPT_SAME(n) { #n, ROLE_OPT_SAME },
#define TABLE(n) { #n, ROLE_TABLE },
#define OUT(n) { #n, ROLE_OUT },
const OpInfo op_info[OP_COUNT] = {
	[OP_nop] = { .name = "nop", .attrs = "", .meaning = "" },
#define OP(name_, flags_, args_, attrs_, shard_, scratch_, meaning_)                               \
	[OP_##name_] = { #name_, flags_, N_IN_##name_, N_ARG_##name_, { args_ }, attrs_, meaning_ },
#include "ops/ops.def"
};

OpKind
op_by_name(const char *name)
{
	for (int k = OP_nop + 1; k < OP_COUNT; k++)
		if (!strcmp(op_info[k].name, name))
			return (OpKind)k;
	return OP_nop;
}

/* ---- attributes ---- */

static const struct {
	const char *key;
	AttrKind kind;
	int64_t least;
	const char *words;
} rule[] = {
#define INT(name, least) { #name, ATTR_INT, least, "" },
#define NUM(name) { #name, ATTR_NUM, 0, "" },
#define WORD(name, words) { #name, ATTR_WORD, 0, words },
#include "ops/ops.def"
};
enum { N_RULE = sizeof rule / sizeof *rule };

/* Returns the i-th word of `text`, and its length; length 0: there are fewer words. */
static const char *
word_at(const char *text, int i, size_t *len)
{
	while (i-- > 0 && *text) {
		text += strcspn(text, " ");
		text += *text == ' ';
	}
	*len = strcspn(text, " ");
	return text;
}

static bool
has_word(const char *text, const char *word)
{
	const char *w;
	size_t len;

	for (int i = 0; w = word_at(text, i, &len), len; i++)
		if (strlen(word) == len && !memcmp(w, word, len))
			return true;
	return false;
}

/* Returns the index in `rule` of the op's i-th attribute; -1: it has fewer */
static int
rule_at(OpKind op, int i)
{
	size_t len;
	const char *w = word_at(op_info[op].attrs, i, &len);

	for (int r = 0; len && r < N_RULE; r++)
		if (strlen(rule[r].key) == len && !memcmp(rule[r].key, w, len))
			return r;
	return -1;
}

const char *
op_attr(OpKind op, int i, AttrKind *kind)
{
	int r = rule_at(op, i);

	if (r < 0)
		return NULL;
	*kind = rule[r].kind;
	return rule[r].key;
}

const Attr *
attr_find(const Attr *a, int n, const char *key)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(a[i].key, key))
			return &a[i];
	return NULL;
}

int64_t
attr_int(const Attr *a, int n, const char *key)
{
	const Attr *at = attr_find(a, n, key);

	return at && at->kind == ATTR_INT ? at->i : 0;
}

double
attr_num(const Attr *a, int n, const char *key)
{
	const Attr *at = attr_find(a, n, key);

	return !at || at->kind == ATTR_WORD ? 0 : at->kind == ATTR_INT ? (double)at->i : at->f;
}

const char *
attr_word(const Attr *a, int n, const char *key)
{
	const Attr *at = attr_find(a, n, key);

	return at && at->kind == ATTR_WORD && at->s ? at->s : "";
}

#define BAD(...) error_set(err, LLMC_E_INPUT, __VA_ARGS__)

static llmc_status
check_one(const char *op, int r, const Attr *a, llmc_error *err)
{
	const char *key = rule[r].key;

	switch (rule[r].kind) {
	case ATTR_INT:
		if (a->kind != ATTR_INT)
			return BAD("%s: attribute %s is not an integer", op, key);
		if (a->i < rule[r].least || a->i > INT32_MAX)
			return BAD("%s: attribute %s = %lld is out of range", op, key,
			           (long long)a->i);
		break;
	case ATTR_NUM:
		if (a->kind == ATTR_WORD)
			return BAD("%s: attribute %s is not a number", op, key);
		if (a->kind == ATTR_NUM && !isfinite(a->f))
			return BAD("%s: attribute %s is not finite", op, key);
		break;
	case ATTR_WORD:
		if (a->kind != ATTR_WORD || !a->s)
			return BAD("%s: attribute %s is not a word", op, key);
		if (!has_word(rule[r].words, a->s))
			return BAD("%s: attribute %s has the unknown value '%s'", op, key, a->s);
		break;
	}
	return LLMC_OK;
}

llmc_status
attr_check(OpKind op, const Attr *a, int n, llmc_error *err)
{
	const OpInfo *info = &op_info[op];
	int i = 0;

	for (int r; (r = rule_at(op, i)) >= 0; i++) {
		const Attr *at = attr_find(a, n, rule[r].key);

		if (!at)
			return BAD("%s: attribute %s is missing", info->name, rule[r].key);
		TRY(check_one(info->name, r, at, err));
	}
	if (n != i)
		return BAD("%s: %d attributes, expected %d: %s", info->name, n, i, info->attrs);
	return LLMC_OK;
}
