/* Split regexes. They are written for Oniguruma (tokenizer.json), and PCRE2 compiles them here. Two
 * classes differ and are therefore spelled out: \s (PCRE2 includes U+180E) and \w (in PCRE2 only
 * letters and numbers). */
#include "text/text.h"

#include <string.h>

#define SPACES                                                                                     \
	"\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
	"\\x{205f}\\x{3000}"
#define WORDS                                                                                      \
	"\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{" \
	"1f169}"                                                                                   \
	"\\x{1f170}-\\x{1f189}"

static void
translate(Strbuf *out, ByteSpan p)
{
	int in_class = 0;

	for (size_t i = 0; i < p.n; i++) {
		char c = p.s[i];
		if (c == '\\' && i + 1 < p.n) {
			char d = p.s[++i];
			if (d == 's' || d == 'w')
				strbuf_printf(out, in_class ? "%s" : "[%s]",
				              d == 's' ? SPACES : WORDS);
			else if ((d == 'S' || d == 'W') && !in_class)
				strbuf_printf(out, "[^%s]", d == 'S' ? SPACES : WORDS);
			else {
				strbuf_putc(out, '\\');
				strbuf_putc(out, d);
			}
			continue;
		}
		if (in_class) {
			/* a class such as [:alpha:] */
			if (c == '[' && i + 1 < p.n && p.s[i + 1] == ':') {
				const char *end = memmem(p.s + i, p.n - i, ":]", 2);
				if (end) {
					size_t n = (size_t)(end + 2 - (p.s + i));
					strbuf_add(out, p.s + i, n);
					i += n - 1;
					continue;
				}
			}
			/* [ in a class is a literal bracket in PCRE2, but a nested class in
			 * Oniguruma; both treat an escaped one as a literal */
			if (c == '[') {
				strbuf_puts(out, "\\[");
				continue;
			}
			if (c == ']')
				in_class = 0;
		} else if (c == '[') {
			in_class = 1;
			strbuf_putc(out, c);
			if (i + 1 < p.n && p.s[i + 1] == '^')
				strbuf_putc(out, p.s[++i]);
			if (i + 1 < p.n && p.s[i + 1] == ']') {
				strbuf_puts(out, "\\]");
				i++;
			}
			continue;
		}
		strbuf_putc(out, c);
	}
}

llmc_status
regex_compile(llmc_tokenizer *t, const char *what, ByteSpan pattern, pcre2_code **out,
              llmc_error *err)
{
	Strbuf text = { 0 };
	PCRE2_SIZE at;
	int code;

	if (pattern.n > TEXT_MAX_TOKEN)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: an expression of %zu bytes; at most %zu are taken", what,
		                 pattern.n, TEXT_MAX_TOKEN);
	t->regex = arena_grow(&t->arena, t->regex, &t->cap_regex, t->n_regex + 1, sizeof *t->regex);
	translate(&text, pattern);
	if (text.failed) {
		strbuf_release(&text);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	*out = pcre2_compile((PCRE2_SPTR)strbuf_str(&text), text.len,
	                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
	                     &code, &at, NULL);
	strbuf_release(&text);
	if (!*out) {
		char why[160];
		if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)
			return error_set(err, LLMC_E_MEMORY, "out of memory");
		pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
		return error_set(err, LLMC_E_INPUT,
		                 "%s: cannot compile the expression `%.*s`: %s (near byte %zu)",
		                 what, (int)(pattern.n < 200 ? pattern.n : 200), pattern.s, why,
		                 (size_t)at);
	}
	t->regex[t->n_regex++] = *out;
	pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without JIT, matching is slower */
	return LLMC_OK;
}

int
regex_next(pcre2_code *re, pcre2_match_data *md, pcre2_match_context *mc, ByteSpan text,
           RegexIter *it, size_t *start, size_t *end)
{
	while (it->at <= text.n) {
		int rc =
		    pcre2_match(re, (PCRE2_SPTR)text.s, text.n, it->at, PCRE2_NO_UTF_CHECK, md, mc);
		if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
			rc = pcre2_match(re, (PCRE2_SPTR)text.s, text.n, it->at,
			                 PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md, mc);
		if (rc == PCRE2_ERROR_NOMATCH)
			return 0;
		if (rc < 0)
			return rc;
		PCRE2_SIZE *o = pcre2_get_ovector_pointer(md);
		if (o[1] < o[0] || o[0] < it->at) /* possible with \K */
			return PCRE2_ERROR_BADOFFSET;
		*start = o[0];
		*end = o[1];
		if (*start == *end && it->has_last && it->last_end == *end) {
			size_t len = 1;
			if (it->at < text.n)
				utf8_next(text.s + it->at, text.n - it->at, &len);
			it->at += len;
			it->last_end = *end;
			continue;
		}
		it->at = it->last_end = *end;
		it->has_last = true;
		return 1;
	}
	return 0;
}

llmc_status
regex_failed(llmc_error *err, int rc)
{
	char why[160];

	pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
	return error_set(err, rc == PCRE2_ERROR_NOMEMORY ? LLMC_E_MEMORY : LLMC_E_INPUT,
	                 "the tokenizer's split expression gave up on this text: %s", why);
}
