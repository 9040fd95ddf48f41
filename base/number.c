#include "base/number.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
number_parse(const char *text, double *out)
{
	char *end;
	const char *p = text + (*text == '-' || *text == '+');

	/* strtod would also accept hexadecimal digits, "inf", "nan" and leading blanks */
	if (((*p < '0' || *p > '9') && *p != '.') || p[strspn(p, "0123456789.eE+-")])
		return false;
	locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!c)
		return false;
	double v = strtod_l(text, &end, c);
	freelocale(c);
	if (end == text || *end || !isfinite(v))
		return false;
	*out = v;
	return true;
}

/* Round |v| to n digits: digit[0].digit[1]... x 10^exp. Return true if they parse back to exactly
 * |v|. */
static bool
round_to(double v, int n, char digit[32], int *exp)
{
	char text[64];
	int k = 0;

	snprintf(text, sizeof text, "%.*e", n - 1, fabs(v));
	char *e = strchr(text, 'e');
	*exp = atoi(e + 1);
	for (const char *p = text; p < e; p++)
		if (*p >= '0' && *p <= '9')
			digit[k++] = *p;
	digit[k] = 0;
	/* without a decimal point, so that strtod does not depend on the locale */
	snprintf(text, sizeof text, "%se%d", digit, *exp - k + 1);
	return strtod(text, NULL) == fabs(v);
}

double
number_of_float(float v)
{
	double x = (double)v;

	for (int n = 1; n <= 9 && isfinite(v); n++) {
		char digit[32], text[64];
		int exp;
		round_to((double)v, n, digit, &exp);
		snprintf(text, sizeof text, "%s%se%d", v < 0 ? "-" : "", digit,
		         exp - (int)strlen(digit) + 1);
		x = strtod(text, NULL);
		if ((float)x == v)
			return x;
	}
	return x;
}

void
number_text(char out[NUMBER_SIZE], double v, int digits)
{
	char digit[32];
	int exp, n;

	if (!isfinite(v)) {
		strcpy(out, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
		return;
	}
	/* If fewer than 15 digits identify a normal double, its 15-digit form is those digits and
	 * zeros, so the search starts at 15. */
	for (n = fabs(v) >= DBL_MIN && digits > 15 ? 15
	         : fabs(v) >= DBL_MIN              ? digits
	                                           : 1;
	     !round_to(v, n, digit, &exp) && n < digits; n++)
		;
	while (n > 1 && digit[n - 1] == '0')
		n--;
	char *p = out;
	if (signbit(v))
		*p++ = '-';
	if (exp < -4 || exp >= 16) {
		*p++ = digit[0];
		if (n > 1)
			p += sprintf(p, ".%.*s", n - 1, digit + 1);
		sprintf(p, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
	} else if (exp < 0) {
		sprintf(p, "0.%.*s%.*s", -exp - 1, "000", n, digit);
	} else {
		for (int i = 0; i <= exp || i < n; i++) {
			if (i == exp + 1)
				*p++ = '.';
			*p++ = i < n ? digit[i] : '0';
		}
		strcpy(p, n <= exp + 1 ? ".0" : "");
	}
}

void
number_plain(char out[NUMBER_SIZE], double v, int digits)
{
	number_text(out, v, digits);
	size_t n = strlen(out);
	if (n > 2 && strcmp(out + n - 2, ".0") == 0)
		out[n - 2] = 0;
}

bool
bytes_parse(const char *text, int64_t *out)
{
	static const char unit[] = "KMGT";
	char head[NUMBER_SIZE] = "";
	const char *end = text + strspn(text, "0123456789.eE+-"),
	           *u = *end ? strchr(unit, *end & ~0x20) : NULL;
	double x = 0, scale = 1;

	if ((size_t)(end - text) >= sizeof head)
		return false;
	memcpy(head, text, (size_t)(end - text));
	if (u) {
		for (const char *p = unit; p <= u; p++)
			scale *= 1024;
		end++;
		if (*end == 'i')
			end++;
		if (*end == 'B' || *end == 'b')
			end++;
	}
	if (!number_parse(head, &x) || *end || !(x > 0) || x * scale > 9e18)
		return false;
	*out = (int64_t)(x * scale);
	return true;
}

const char *
human_bytes(double bytes, char buf[32])
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	int u = 0;

	while (bytes >= 1024 && u < 4) {
		bytes /= 1024;
		u++;
	}
	snprintf(buf, 32, u == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, unit[u]);
	return buf;
}

int
double_order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}
