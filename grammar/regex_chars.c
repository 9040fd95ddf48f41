/* Characters as expressions of a grammar. */
#include <string.h>

#include "grammar/grammar_internal.h"

size_t
ranges_fold(const Range *r, size_t n, Range *out)
{
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		for (uint32_t a = 'A'; a <= 'a'; a += 'a' - 'A') {
			uint32_t lo = r[i].lo > a ? r[i].lo : a,
			         hi = r[i].hi < a + 25 ? r[i].hi : a + 25;
			if (lo <= hi)
				out[k++] = (Range){ lo ^ 0x20, hi ^ 0x20 };
		}
	return k;
}

Expr *
regex_chars(GrammarBuilder *b, const Range *r, size_t n, RegexFlags flags)
{
	static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";
	static const Range plain[] = {
		{ 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x7E }, { 0x80, 0x10FFFF }
	};
	ExprList parts = { 0 };
	Range *own = NEW(b->a, Range, (flags.fold ? 3 : 1) * n + 1), *direct;
	size_t n_direct = 0;

	if (n)
		memcpy(own, r, n * sizeof *own);
	if (flags.fold)
		n += ranges_fold(r, n, own + n);
	n = ranges_join(own, n);
	if (!flags.json)
		return expr_chars(b, own, n);
	direct = NEW(b->a, Range, n + 4); /* 4 more: each of the 3 gaps divides at most one range */
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < 4; k++) {
			uint32_t lo = own[i].lo > plain[k].lo ? own[i].lo : plain[k].lo,
			         hi = own[i].hi < plain[k].hi ? own[i].hi : plain[k].hi;
			if (lo <= hi)
				direct[n_direct++] = (Range){ lo, hi };
		}
	if (n_direct)
		expr_push(b, &parts, expr_chars(b, direct, n_direct));
	for (size_t i = 0; i < n; i++)
		for (uint32_t x = own[i].lo; x <= own[i].hi && x < 0x80; x++) {
			if (x >= 0x20 && x != '"' && x != '\\' && x != 0x7F)
				continue;
			const char *l = letters;
			while (*l && (uint32_t)*l != x)
				l += 2;
			if (x && *l) {
				expr_push(b, &parts, expr_bytes(b, (char[]){ '\\', l[1] }, 2));
			} else {
				uint32_t low = x & 15;
				Expr *last =
				    low < 10 ? expr_char(b, '0' + low, '0' + low)
				             : expr_chars(
				                   b,
				                   (Range[]){ { 'a' + low - 10, 'a' + low - 10 },
				                              { 'A' + low - 10, 'A' + low - 10 } },
				                   2);
				expr_push(b, &parts,
				          expr_seq(b, 2,
				                   expr_text(b, x < 0x10   ? "\\u000"
				                                : x < 0x20 ? "\\u001"
				                                           : "\\u007"),
				                   last));
			}
		}
	return expr_list(b, EXPR_ALT, &parts);
}
