/* Numbers within bounds, as trees of digits without exponents. A bound such as 3.5 <= x < 100 is
 * checked digit by digit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "grammar/grammar_internal.h"

enum { MAX_WHOLE = JSON_MAX_DIGITS, MAX_FRACTION = JSON_MAX_DIGITS };

void
bound_read(Bound *out, const json_t *v, bool open)
{
	char text[800];

	*out = (Bound){ 0 };
	if (!v)
		return;
	const char *big = json_kept_digits(v);
	if (big && (big[strcspn(big, ".eE")] || strlen(big) >= sizeof text))
		return; /* larger than all supported numbers */
	if (big)
		snprintf(text, sizeof text, "%s", big);
	else if (json_is_integer(v))
		snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
	else if (!isfinite(json_real_value(v)))
		return; /* larger than all supported numbers */
	else {          /* use the fewest digits that parse to this number */
		for (int digits = 0; digits <= 340; digits++) {
			snprintf(text, sizeof text, "%.*f", digits, json_real_value(v));
			double back;
			if (sscanf(text, "%lf", &back) == 1 && back == json_real_value(v))
				break;
		}
	}
	const char *t = text;
	out->set = true;
	out->open = open;
	out->negative = *t == '-';
	t += out->negative;
	size_t n = strcspn(t, "."), k = t[n] ? strlen(t + n + 1) : 0;
	snprintf(out->whole, sizeof out->whole, "%.*s", (int)(n < 399 ? n : 399), t);
	while (k && t[n + k] == '0')
		k--;
	snprintf(out->frac, sizeof out->frac, "%.*s", (int)(k < 399 ? k : 399), k ? t + n + 1 : "");
	if (!strcmp(out->whole, "0") && !out->frac[0])
		out->negative = false;
}

/* Digits of a bound of a magnitude; open: the bound itself is excluded */
typedef struct DigitRange {
	const char *whole, *frac;
	bool open;
} DigitRange;
typedef struct Numbers {
	GrammarBuilder *b;
	bool integer;
	int32_t most;
} Numbers;

static Expr *
digits(const Numbers *x, int32_t min, int32_t max)
{
	return expr_rep(x->b, expr_char(x->b, '0', '9'), min, max);
}

/* Matches fraction digits from index i on. lo or hi NULL: that bound no longer applies. After its
 * last digit a bound counts as followed by zeros. */
static Expr *
fraction(const Numbers *x, const DigitRange *lo, const DigitRange *hi, int32_t i)
{
	size_t nl = lo ? strlen(lo->frac) : 0, nh = hi ? strlen(hi->frac) : 0;
	bool past_lo = !lo || (size_t)i >= nl, past_hi = !hi || (size_t)i >= nh;
	GrammarBuilder *b = x->b;
	int32_t left = x->most < 0 ? -1 : x->most - i;
	ExprList parts = { 0 };

	if (left == 0)
		return past_lo && !(lo && lo->open) && !(hi && past_hi && hi->open) ? expr_empty(b)
		                                                                    : expr_none(b);
	if (!lo && !hi)
		return digits(x, 0, left);
	/* the number may end here if zeros in the missing digits are within the bounds */
	if (past_lo && !(lo && lo->open) && !(hi && past_hi && hi->open))
		expr_push(b, &parts, expr_empty(b));
	if (past_lo && past_hi) {
		if (hi) { /* only zeros keep the number at or below the bound */
			if (!(lo && lo->open) && !hi->open)
				expr_push(b, &parts, expr_rep(b, expr_text(b, "0"), 1, left));
		} else if (lo->open) { /* any digits that are not all zero */
			expr_push(
			    b, &parts,
			    expr_seq(
			        b, 3, expr_rep(b, expr_text(b, "0"), 0, left < 0 ? -1 : left - 1),
			        expr_char(b, '1', '9'), digits(x, 0, left < 0 ? -1 : left - 1)));
		} else {
			expr_push(b, &parts, digits(x, 1, left));
		}
		return expr_list(b, EXPR_ALT, &parts);
	}
	char low = lo && (size_t)i < nl ? lo->frac[i] : '0',
	     high = hi ? ((size_t)i < nh ? hi->frac[i] : '0') : '9';
	if (low > high)
		return expr_list(b, EXPR_ALT, &parts);
	if (lo && hi && low == high) {
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)low, (uint8_t)low),
		                   fraction(x, lo, hi, i + 1)));
		return expr_list(b, EXPR_ALT, &parts);
	}
	char from = low, to = high;
	if (lo) {
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)low, (uint8_t)low),
		                   fraction(x, lo, NULL, i + 1)));
		from++;
	}
	if (hi) {
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)high, (uint8_t)high),
		                   fraction(x, NULL, hi, i + 1)));
		to--;
	}
	if (from <= to)
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)from, (uint8_t)to),
		                   digits(x, 0, left < 0 ? -1 : left - 1)));
	return expr_list(b, EXPR_ALT, &parts);
}

/* Matches an optional fraction after an integer part equal to that of lo, of hi, of both or of
 * neither. */
static Expr *
tail(const Numbers *x, const DigitRange *lo, const DigitRange *hi)
{
	GrammarBuilder *b = x->b;
	bool none = (!lo || (!lo->frac[0] && !lo->open)) && (!hi || hi->frac[0] || !hi->open);

	if (x->integer)
		return none ? expr_empty(b) : expr_none(b);
	Expr *some;
	if (!lo && !hi) {
		some = digits(x, 1, x->most);
	} else { /* at least one digit must follow the point */
		ExprList parts = { 0 };
		for (char d = '0'; d <= '9'; d++) {
			char low = lo && lo->frac[0] ? lo->frac[0] : '0',
			     high = hi ? (hi->frac[0] ? hi->frac[0] : '0') : '9';
			if (d < low || d > high)
				continue;
			const DigitRange *l = lo && d == low ? lo : NULL,
			                 *h = hi && d == high ? hi : NULL;
			expr_push(b, &parts,
			          expr_seq(b, 2, expr_char(b, (uint8_t)d, (uint8_t)d),
			                   fraction(x, l, h, 1)));
		}
		some = expr_list(b, EXPR_ALT, &parts);
	}
	return expr_alt(b, 2, none ? expr_empty(b) : expr_none(b),
	                expr_seq(b, 2, expr_text(b, "."), some));
}

/* Matches the digits from index i on of an integer part of n digits. The bounds have as many
 * digits. lo, hi: bounds that are equal to the digits so far, else NULL. */
static Expr *
whole(const Numbers *x, const DigitRange *lo, const DigitRange *hi, int32_t i, int32_t n)
{
	GrammarBuilder *b = x->b;
	ExprList parts = { 0 };

	if (i == n)
		return tail(x, lo, hi);
	if (!lo && !hi)
		return expr_seq(b, 2, digits(x, n - i, n - i), tail(x, NULL, NULL));
	char low = lo ? lo->whole[i] : '0', high = hi ? hi->whole[i] : '9';
	if (low > high)
		return expr_none(b);
	if (lo && hi && low == high)
		return expr_seq(b, 2, expr_char(b, (uint8_t)low, (uint8_t)low),
		                whole(x, lo, hi, i + 1, n));
	char from = low, to = high;
	if (i == 0 && n > 1 && from == '0')
		from = '1';
	if (lo) {
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)low, (uint8_t)low),
		                   whole(x, lo, NULL, i + 1, n)));
		from++;
	}
	if (hi) {
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)high, (uint8_t)high),
		                   whole(x, NULL, hi, i + 1, n)));
		to--;
	}
	if (from <= to)
		expr_push(b, &parts,
		          expr_seq(b, 2, expr_char(b, (uint8_t)from, (uint8_t)to),
		                   whole(x, NULL, NULL, i + 1, n)));
	return expr_list(b, EXPR_ALT, &parts);
}

/* Matches magnitudes from lo (never NULL) to hi (NULL: unlimited). */
static Expr *
magnitude(const Numbers *x, const DigitRange *lo, const DigitRange *hi)
{
	int32_t nl = (int32_t)strlen(lo->whole), nh = hi ? (int32_t)strlen(hi->whole) : nl + 1;
	GrammarBuilder *b = x->b;
	ExprList parts = { 0 };

	if (nl > nh)
		return expr_none(b);
	if (nl == nh)
		return whole(x, lo, hi, 0, nl);
	expr_push(b, &parts, whole(x, lo, NULL, 0, nl));
	/* integer parts with a length between those of the bounds */
	int32_t from = nl + 1, to = hi                   ? nh - 1
	                            : x->b->opt.standard ? -1
	                            : nl > MAX_WHOLE     ? nl
	                                                 : MAX_WHOLE;
	if (to < 0 || from <= to)
		expr_push(b, &parts,
		          expr_seq(b, 3, expr_char(b, '1', '9'),
		                   digits(x, from - 1, to < 0 ? -1 : to - 1), tail(x, NULL, NULL)));
	if (hi)
		expr_push(b, &parts, whole(x, NULL, hi, 0, nh));
	return expr_list(b, EXPR_ALT, &parts);
}

Expr *
number_range(GrammarBuilder *b, const Bound *lo, const Bound *hi, bool integer)
{
	Numbers x = { b, integer, integer ? 0 : b->opt.standard ? -1 : MAX_FRACTION };
	static const DigitRange zero = { "0", "", false }, above = { "0", "", true },
	                        one = { "1", "", false };
	DigitRange l = { lo->whole, lo->frac, lo->open }, h = { hi->whole, hi->frac, hi->open };
	bool low_below = !lo->set || lo->negative, high_below = hi->set && hi->negative;
	bool low_zero = lo->set && !strcmp(lo->whole, "0") && !lo->frac[0],
	     high_zero = hi->set && !strcmp(hi->whole, "0") && !hi->frac[0];
	ExprList parts = { 0 };

	/* a bound may have more digits than other numbers are allowed */
	if (!integer && x.most >= 0) {
		int32_t longest = (int32_t)(strlen(lo->frac) > strlen(hi->frac) ? strlen(lo->frac)
		                                                                : strlen(hi->frac));
		x.most = x.most > longest ? x.most : longest + 1;
	}
	/* negative numbers -x with |hi| <= x <= |lo|; if hi does not limit them, x begins above
	 * 0 */
	if (low_below) {
		const DigitRange *from = high_below              ? &h
		                         : high_zero && hi->open ? &above
		                         : integer && !lo->set   ? &one
		                                                 : &zero;
		expr_push(
		    b, &parts,
		    expr_seq(b, 2, expr_text(b, "-"), magnitude(&x, from, lo->set ? &l : NULL)));
	}
	if (!high_below) {
		const DigitRange *from = low_below ? &zero : low_zero && lo->open ? &above : &l;
		expr_push(b, &parts, magnitude(&x, from, hi->set ? &h : NULL));
	}
	return expr_list(b, EXPR_ALT, &parts);
}
