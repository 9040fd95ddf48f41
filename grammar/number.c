/* Numbers within bounds, as trees of digits: what is less than 100 and at least 3.5 is told digit by digit. No exponents there. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "grammar/inside.h"

enum { MAX_WHOLE = 16, MAX_FRACTION = 16 };

void
bound_read(Bound *out, const json_t *v, bool open)
{
	char text[400];

	*out = (Bound){ 0 };
	if (!v)
		return;
	if (json_is_integer(v))
		snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
	else if (fabs(json_real_value(v)) >= 1e30)
		return; /* beyond all digits */
	else { /* the fewest digits that are this number */
		for (int digits = 0; digits <= 20; digits++) {
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
	snprintf(out->whole, sizeof out->whole, "%.*s", (int)(n < 39 ? n : 39), t);
	while (k && t[n + k] == '0')
		k--;
	snprintf(out->frac, sizeof out->frac, "%.*s", (int)(k < 39 ? k : 39), k ? t + n + 1 : "");
	if (!strcmp(out->whole, "0") && !out->frac[0])
		out->negative = false;
}

/* Bounds of a magnitude: digits, NULL for none; open: the bound itself is out */
typedef struct Span { const char *whole, *frac; bool open; } Span;
typedef struct Numbers { Build *b; bool integer; int32_t most; } Numbers;

static Ex *
digits(const Numbers *x, int32_t min, int32_t max)
{
	return ex_rep(x->b, ex_char(x->b, '0', '9'), min, max);
}

/* Behind the point, from digit i on; lo and hi NULL: no bound any more. Digits beyond a bound's are zeros. */
static Ex *
fraction(const Numbers *x, const Span *lo, const Span *hi, int32_t i)
{
	size_t nl = lo ? strlen(lo->frac) : 0, nh = hi ? strlen(hi->frac) : 0;
	bool past_lo = !lo || (size_t)i >= nl, past_hi = !hi || (size_t)i >= nh;
	Build *b = x->b;
	int32_t left = x->most < 0 ? -1 : x->most - i;
	ExList parts = { 0 };

	if (left == 0)
		return past_lo && !(lo && lo->open) && !(hi && past_hi && hi->open) ? ex_empty(b) : ex_none(b);
	if (!lo && !hi)
		return digits(x, 0, left);
	/* the text may end here when what is left of the bounds agrees with zeros */
	if (past_lo && !(lo && lo->open) && !(hi && past_hi && hi->open))
		ex_push(b, &parts, ex_empty(b));
	if (past_lo && past_hi) {
		if (hi) { /* zeros alone stay at or below it */
			if (!(lo && lo->open) && !hi->open)
				ex_push(b, &parts, ex_rep(b, ex_text(b, "0"), 1, left));
		} else if (lo->open) { /* any digit but zeros to the end */
			ex_push(b, &parts, ex_seq(b, 3, ex_rep(b, ex_text(b, "0"), 0, left < 0 ? -1 : left - 1), ex_char(b, '1', '9'), digits(x, 0, left < 0 ? -1 : left - 1)));
		} else {
			ex_push(b, &parts, digits(x, 1, left));
		}
		return ex_list(b, EX_ALT, &parts);
	}
	char low = lo && (size_t)i < nl ? lo->frac[i] : '0', high = hi ? ((size_t)i < nh ? hi->frac[i] : '0') : '9';
	if (low > high)
		return ex_list(b, EX_ALT, &parts);
	if (lo && hi && low == high) {
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)low, (uint8_t)low), fraction(x, lo, hi, i + 1)));
		return ex_list(b, EX_ALT, &parts);
	}
	char from = low, to = high;
	if (lo) {
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)low, (uint8_t)low), fraction(x, lo, NULL, i + 1)));
		from++;
	}
	if (hi) {
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)high, (uint8_t)high), fraction(x, NULL, hi, i + 1)));
		to--;
	}
	if (from <= to)
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)from, (uint8_t)to), digits(x, 0, left < 0 ? -1 : left - 1)));
	return ex_list(b, EX_ALT, &parts);
}

/* A fraction or none, behind a whole part that is that of lo, of hi, of both or of none */
static Ex *
tail(const Numbers *x, const Span *lo, const Span *hi)
{
	Build *b = x->b;
	bool none = (!lo || (!lo->frac[0] && !lo->open)) && (!hi || hi->frac[0] || !hi->open);

	if (x->integer)
		return none ? ex_empty(b) : ex_none(b);
	Ex *some;
	if (!lo && !hi) {
		some = digits(x, 1, x->most);
	} else { /* at least one digit: the empty fraction is no fraction */
		ExList parts = { 0 };
		for (char d = '0'; d <= '9'; d++) {
			char low = lo && lo->frac[0] ? lo->frac[0] : '0', high = hi ? (hi->frac[0] ? hi->frac[0] : '0') : '9';
			if (d < low || d > high)
				continue;
			const Span *l = lo && d == low ? lo : NULL, *h = hi && d == high ? hi : NULL;
			ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)d, (uint8_t)d), fraction(x, l, h, 1)));
		}
		some = ex_list(b, EX_ALT, &parts);
	}
	return ex_alt(b, 2, none ? ex_empty(b) : ex_none(b), ex_seq(b, 2, ex_text(b, "."), some));
}

/* Digits i .. of a whole part as long as the bounds'; lo, hi: bounds that the digits so far are equal to */
static Ex *
whole(const Numbers *x, const Span *lo, const Span *hi, int32_t i, int32_t n)
{
	Build *b = x->b;
	ExList parts = { 0 };

	if (i == n)
		return tail(x, lo, hi);
	if (!lo && !hi)
		return ex_seq(b, 2, digits(x, n - i, n - i), tail(x, NULL, NULL));
	char low = lo ? lo->whole[i] : '0', high = hi ? hi->whole[i] : '9';
	if (low > high)
		return ex_none(b);
	if (lo && hi && low == high)
		return ex_seq(b, 2, ex_char(b, (uint8_t)low, (uint8_t)low), whole(x, lo, hi, i + 1, n));
	char from = low, to = high;
	if (i == 0 && n > 1 && from == '0')
		from = '1';
	if (lo) {
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)low, (uint8_t)low), whole(x, lo, NULL, i + 1, n)));
		from++;
	}
	if (hi) {
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)high, (uint8_t)high), whole(x, NULL, hi, i + 1, n)));
		to--;
	}
	if (from <= to)
		ex_push(b, &parts, ex_seq(b, 2, ex_char(b, (uint8_t)from, (uint8_t)to), whole(x, NULL, NULL, i + 1, n)));
	return ex_list(b, EX_ALT, &parts);
}

/* Magnitudes from lo (never NULL) to hi (NULL: none) */
static Ex *
magnitude(const Numbers *x, const Span *lo, const Span *hi)
{
	int32_t nl = (int32_t)strlen(lo->whole), nh = hi ? (int32_t)strlen(hi->whole) : nl + 1;
	Build *b = x->b;
	ExList parts = { 0 };

	if (nl > nh)
		return ex_none(b);
	if (nl == nh)
		return whole(x, lo, hi, 0, nl);
	ex_push(b, &parts, whole(x, lo, NULL, 0, nl));
	/* whole parts of lengths between */
	int32_t from = nl + 1, to = hi ? nh - 1 : x->b->opt.standard ? -1 : nl > MAX_WHOLE ? nl : MAX_WHOLE;
	if (to < 0 || from <= to)
		ex_push(b, &parts, ex_seq(b, 3, ex_char(b, '1', '9'), digits(x, from - 1, to < 0 ? -1 : to - 1), tail(x, NULL, NULL)));
	if (hi)
		ex_push(b, &parts, whole(x, NULL, hi, 0, nh));
	return ex_list(b, EX_ALT, &parts);
}

Ex *
number_range(Build *b, const Bound *lo, const Bound *hi, bool integer)
{
	Numbers x = { b, integer, integer ? 0 : b->opt.standard ? -1 : MAX_FRACTION };
	static const Span zero = { "0", "", false }, above = { "0", "", true }, one = { "1", "", false };
	Span l = { lo->whole, lo->frac, lo->open }, h = { hi->whole, hi->frac, hi->open };
	bool low_below = !lo->set || lo->negative, high_below = hi->set && hi->negative;
	bool low_zero = lo->set && !strcmp(lo->whole, "0") && !lo->frac[0], high_zero = hi->set && !strcmp(hi->whole, "0") && !hi->frac[0];
	ExList parts = { 0 };

	if (!integer && x.most >= 0) { /* bounds with more digits than numbers have */
		int32_t longest = (int32_t)(strlen(lo->frac) > strlen(hi->frac) ? strlen(lo->frac) : strlen(hi->frac));
		x.most = x.most > longest ? x.most : longest + 1;
	}
	if (low_below) { /* -x with |hi| <= x <= |lo|; from above zero where hi is no bound of these */
		const Span *from = high_below ? &h : high_zero && hi->open ? &above : integer && !lo->set ? &one : &zero;
		ex_push(b, &parts, ex_seq(b, 2, ex_text(b, "-"), magnitude(&x, from, lo->set ? &l : NULL)));
	}
	if (!high_below) {
		const Span *from = low_below ? &zero : low_zero && lo->open ? &above : &l;
		ex_push(b, &parts, magnitude(&x, from, hi->set ? &h : NULL));
	}
	return ex_list(b, EX_ALT, &parts);
}
