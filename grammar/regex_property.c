/* Properties of Unicode, which \p{...} of an expression names: general categories from utf8proc,
 * scripts and binary properties from PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include <utf8proc.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

/* Range of consecutive characters of one category. */
struct CategoryRun {
	uint32_t lo, hi;
	const char *name; /* "Lu" */
};

/* Characters of one property. */
struct PropertyRanges {
	const char *name;
	const Range *range;
	size_t n;
	PropertyRanges *next;
};

static const char *const long_name[][2] = {
	{ "Letter", "L" },
	{ "Cased_Letter", "LC" },
	{ "Uppercase_Letter", "Lu" },
	{ "Lowercase_Letter", "Ll" },
	{ "Titlecase_Letter", "Lt" },
	{ "Modifier_Letter", "Lm" },
	{ "Other_Letter", "Lo" },
	{ "Mark", "M" },
	{ "Combining_Mark", "M" },
	{ "Nonspacing_Mark", "Mn" },
	{ "Spacing_Mark", "Mc" },
	{ "Enclosing_Mark", "Me" },
	{ "Number", "N" },
	{ "Decimal_Number", "Nd" },
	{ "digit", "Nd" },
	{ "Letter_Number", "Nl" },
	{ "Other_Number", "No" },
	{ "Punctuation", "P" },
	{ "punct", "P" },
	{ "Connector_Punctuation", "Pc" },
	{ "Dash_Punctuation", "Pd" },
	{ "Open_Punctuation", "Ps" },
	{ "Close_Punctuation", "Pe" },
	{ "Initial_Punctuation", "Pi" },
	{ "Final_Punctuation", "Pf" },
	{ "Other_Punctuation", "Po" },
	{ "Symbol", "S" },
	{ "Math_Symbol", "Sm" },
	{ "Currency_Symbol", "Sc" },
	{ "Modifier_Symbol", "Sk" },
	{ "Other_Symbol", "So" },
	{ "Separator", "Z" },
	{ "Space_Separator", "Zs" },
	{ "Line_Separator", "Zl" },
	{ "Paragraph_Separator", "Zp" },
	{ "Other", "C" },
	{ "Control", "Cc" },
	{ "cntrl", "Cc" },
	{ "Format", "Cf" },
	{ "Private_Use", "Co" },
	{ "Unassigned", "Cn" },
};

/* Read the categories of all characters, once per grammar. */
static void
read_runs(GrammarBuilder *b)
{
	CategoryRun *run = NULL;
	size_t n = 0, cap = 0;

	for (uint32_t c = 0; c <= 0x10FFFF; c++) {
		if (c == 0xD800)
			c = 0xE000; /* a surrogate is no character */
		const char *name = utf8proc_category_string((utf8proc_int32_t)c);
		if (n && run[n - 1].hi == c - 1 && !strcmp(run[n - 1].name, name)) {
			run[n - 1].hi = c;
			continue;
		}
		run = arena_grow(b->a, run, &cap, n + 1, sizeof *run);
		run[n++] = (CategoryRun){ c, c, name };
	}
	b->run = run;
	b->n_run = n;
}

static bool
is_in(const char *category, const char *name)
{
	if (!strcmp(name, "LC"))
		return category[0] == 'L' && strchr("ult", category[1]);
	return !strncmp(category, name, strlen(name));
}

/* Writes the pattern of a script or a binary property. Returns false for another name. */
static bool
other_pattern(const char *name, char *out, size_t size)
{
	static const char *const prefixes[][2] = { { "Script=", "sc:" },
		                                   { "sc=", "sc:" },
		                                   { "Script_Extensions=", "scx:" },
		                                   { "scx=", "scx:" } };
	const char *kind = "";

	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !*kind; i++) {
		const size_t n = strlen(prefixes[i][0]);
		if (strncmp(name, prefixes[i][0], n))
			continue;
		kind = prefixes[i][1];
		name += n;
	}
	/* PCRE2 would also accept spaces, hyphens and a negation */
	if (*name < 'A' || *name > 'Z' ||
	    name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")])
		return false;
	return snprintf(out, size, "\\p{%s%s}+", kind, name) < (int)size;
}

/* Reads a script or a binary property: matches all characters in one string. */
static size_t
read_other(GrammarBuilder *b, const char *name, Range **out)
{
	enum { MAX_PATTERN = 100, N_CHAR = 0x110000 };
	char pattern[MAX_PATTERN];
	size_t n = 0, cap = 0, at = 0, len;
	PCRE2_SIZE where;
	int error;

	if (!other_pattern(name, pattern, sizeof pattern))
		return 0;
	build_work_of(b, N_CHAR);
	pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
	                               &error, &where, NULL);
	if (!re)
		return 0;
	pcre2_match_data *m = pcre2_match_data_create(1, NULL);
	char *text = malloc(4 * (size_t)N_CHAR);
	if (m && text) {
		for (uint32_t c = 0; c < N_CHAR; c++)
			if (c < 0xD800 || c >= 0xE000)
				at += (size_t)utf8proc_encode_char((utf8proc_int32_t)c,
				                                   (utf8proc_uint8_t *)text + at);
		const size_t *end = pcre2_get_ovector_pointer(m);
		for (size_t from = 0;
		     pcre2_match(re, (PCRE2_SPTR)text, at, from, PCRE2_NO_UTF_CHECK, m, NULL) >= 0;
		     from = end[1]) {
			/* a run may contain the surrogates, which are no characters */
			size_t last = end[1] - 1;
			while ((text[last] & 0xC0) == 0x80)
				last--;
			Range run = { (uint32_t)utf8_next(text + end[0], at - end[0], &len),
				      (uint32_t)utf8_next(text + last, at - last, &len) };
			*out = arena_grow(b->a, *out, &cap, n + 1, sizeof **out);
			(*out)[n++] = run;
		}
	}
	const bool short_of_memory = !m || !text;
	free(text);
	pcre2_match_data_free(m);
	pcre2_code_free(re);
	if (short_of_memory)
		arena_out(b->a);
	return n;
}

static size_t
read_property(GrammarBuilder *b, const char *name, Range **out)
{
	size_t n = 0, cap = 0;

	*out = NULL;
	if (!strcmp(name, "Any") || !strcmp(name, "ASCII")) {
		*out = NEW(b->a, Range, 1);
		**out = (Range){ 0, name[1] == 'n' ? 0x10FFFF : 0x7F };
		return 1;
	}
	if (!*name || strlen(name) > 2)
		return read_other(b, name, out);
	if (!b->run)
		read_runs(b);
	for (size_t i = 0; i < b->n_run; i++) {
		const CategoryRun *run = &b->run[i];
		if (!is_in(run->name, name))
			continue;
		if (n && (*out)[n - 1].hi + 1 == run->lo) {
			(*out)[n - 1].hi = run->hi;
			continue;
		}
		*out = arena_grow(b->a, *out, &cap, n + 1, sizeof **out);
		(*out)[n++] = (Range){ run->lo, run->hi };
	}
	return n;
}

size_t
regex_property(GrammarBuilder *b, const char *name, const Range **out)
{
	PropertyRanges *p;
	Range *range;

	for (size_t i = 0; i < 2; i++) {
		const char *prefix = i ? "gc=" : "General_Category=";
		if (!strncmp(name, prefix, strlen(prefix)))
			name += strlen(prefix);
	}
	for (size_t i = 0; i < sizeof long_name / sizeof *long_name; i++)
		if (!strcmp(name, long_name[i][0]))
			name = long_name[i][1];
	for (p = b->property; p && strcmp(p->name, name) != 0;)
		p = p->next;
	if (!p) {
		const size_t n = read_property(b, name, &range);
		p = NEW(b->a, PropertyRanges, 1);
		*p = (PropertyRanges){ name, range, n, b->property };
		b->property = n ? p : b->property;
	}
	*out = p->range;
	return p->n;
}
